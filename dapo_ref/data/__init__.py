"""Data: rows of a source (`sources.py`) become problems (`problems.py`), problems become prompts
(`prompts.py`).

`python -m dapo_ref.data FILE --show 2 [--model DIR]` shows what a run would train on.
"""

from dapo_ref.data.mixture import load_data
from dapo_ref.data.problems import Problem, load_problems
from dapo_ref.data.prompts import (
    PromptStream,
    data_fingerprint,
    encode_prompt,
    keep_short_prompts,
    of_date,
    prints_date,
    render_prompt,
)
from dapo_ref.errors import DataError

__all__ = [
    "DataError",
    "Problem",
    "PromptStream",
    "data_fingerprint",
    "encode_prompt",
    "keep_short_prompts",
    "load_data",
    "load_problems",
    "of_date",
    "prints_date",
    "render_prompt",
]
