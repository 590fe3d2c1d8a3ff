"""The command line of `evaluate.py`; apart from it, so that its help needs no torch."""

import dataclasses
from dataclasses import dataclass

from dapo_ref.config import option


@dataclass(frozen=True)
class Options:
    """The command line. What is 0 or empty comes from the run folder's configuration, or train.py's
    default."""

    model: str = option("", "HF directory, hub name, run folder, RUN/checkpoints/step_000010, or `tiny`")
    data: list[str] = dataclasses.field(
        default_factory=list,
        metadata={"help": "JSONL or parquet files, or generated TASK:SPLIT; default: the run's own data"},
    )
    output: str = option("", "folder for results and responses; must not hold other results")
    samples_per_problem: int = option(
        0, "k; default: how often the file repeats each problem, else 32 [paper: 32]"
    )
    temperature: float = option(1.0, "[paper: 1.0]")
    top_p: float = option(0.7, "[paper: 0.7]")
    limit: int = option(0, "only the first so many problems of each data set")
    prompt_template: str = option("", "wraps a bare question at {question}")
    max_prompt_length: int = option(0, "tokens; longer prompts are dropped")
    max_response_length: int = option(0, "generation cap in tokens")
    rollout_batch_size: int = option(0, "responses generated at once by a process")
    precision: str = option("", "bf16 or fp32")
    reward_function: str = option("", "FILE.py:NAME decides what is right, in place of the verifier")
    seed: int = option(0, "of sampling")
