"""The command line of `evaluate.py`; apart from it, so that its help needs no torch."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dapo_ref.config import StrictParser, option
from dapo_ref.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """The command line. What is not given comes from the run's configuration, or train.py's default.

    Raises:
        ConfigError: model or output is missing, or a value is impossible.
    """

    model: str = option("", "HF directory, hub name, run folder, RUN/checkpoints/step_000010, or `tiny`")
    data: list[str] = dataclasses.field(
        default_factory=list,
        metadata={"help": "JSONL or parquet files, or generated TASK:SPLIT; default: the run's own data"},
    )
    output: str = option("", "folder for results and responses; must not hold other results")
    samples_per_problem: int | None = option(
        None, "k; default: how often the file repeats each problem, else 32 [paper: 32]"
    )
    temperature: float = option(1.0, "[paper: 1.0]")
    top_p: float = option(0.7, "[paper: 0.7]")
    prompt_date: str | None = option(
        None, "YYYY-MM-DD for chat templates that print the date; default: training's"
    )
    limit: int = option(0, "only the first so many problems of each data set")
    prompt_template: str | None = option(None, "wraps a bare question at {question}")
    max_prompt_length: int | None = option(None, "tokens; longer prompts are not asked and count as wrong")
    max_response_length: int | None = option(None, "generation cap in tokens")
    rollout_batch_size: int | None = option(None, "responses generated at once by a process")
    rollout_kv_tokens: int | None = option(
        None, "rows × columns in a process's cache; 0: what a GPU's free memory holds"
    )
    precision: Literal["bf16", "fp32"] | None = option(None, "of weights and activations")
    reward_function: str | None = option(None, "FILE.py:NAME, yours, in place of the verifier")
    seed: int | None = option(None, "of sampling; default: the run's, else 0")

    def __post_init__(self) -> None:
        if not self.model or not self.output:
            raise ConfigError("--model and --output are needed; see --help")
        if self.limit < 0:
            raise ConfigError(f"limit must be 0, for all problems, or more, got {self.limit}")
        if self.temperature == 0:
            raise ConfigError("temperature must be above 0; for the likeliest token alone give --top_p 1e-9")


def read_options(argv: Sequence[str]) -> Options:
    """Reads the command line.

    Args:
        argv: without the program's name.

    Raises:
        ConfigError: an unknown key, a key is missing, or a value is impossible.
    """
    options = Options(**StrictParser(Options, prog="evaluate.py").parse_given(argv))
    return dataclasses.replace(
        options,
        model=os.path.expanduser(options.model),
        output=os.path.expanduser(options.output),
        data=[os.path.expanduser(source) for source in options.data],
    )
