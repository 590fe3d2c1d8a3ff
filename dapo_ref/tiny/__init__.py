"""The embedded default: a generated arithmetic task and a language model of about a million parameters.

`tasks.py` makes the problems, `make.py` makes the tokenizer and the warm-started model, and `model/` is what
`python -m dapo_ref.tiny.make --output dapo_ref/tiny/model` wrote: a plain Hugging Face directory.
"""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
