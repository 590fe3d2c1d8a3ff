"""What a run says last: where its model is, what it brought, and the commands that go on from there."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from dapo_ref.config import Config
from dapo_ref.usage import LAUNCH


def after_training(config: Config, records: Sequence[Mapping[str, Any]], processes: int) -> list[str]:
    """The lines after the last step.

    Args:
        config: of the run.
        records: of its steps, in order; a line of step 0 holds an evaluation alone.
        processes: how many train.
    """
    run = shlex.quote(config.output_dir)
    accuracies = [(r["step"], r["reward/accuracy"]) for r in records if "reward/accuracy" in r]
    lines = [f"model: {run}/model"]
    if accuracies:
        (first, before), (last, after) = accuracies[0], accuracies[-1]
        lines.append(f"right in training: {before:.3f} in step {first}, {after:.3f} in step {last}")
    data = shlex.join(config.eval_sources) or "FILE"
    evaluate = f"evaluate.py --model {run} --data {data} --output {run}/evaluation"
    return [
        *lines,
        f"evaluate it: {_launch(processes)} {evaluate}",
        f"draw it: python -m dapo_ref.report {run}",
    ]


def after_stop(config: Config, processes: int) -> str:
    """The line after a stop: the command that goes on, with the configuration that the run keeps."""
    run = shlex.quote(config.output_dir)
    return f"resume: {_launch(processes)} train.py --config {run}/config.yaml --resume"


def _launch(processes: int) -> str:
    return "python" if processes == 1 else f"{LAUNCH} --num_processes {processes}"
