"""TensorBoard or Weights & Biases beside metrics.jsonl, through accelerate: `tracker` of a configuration.

Scalars grouped by their prefix, over rollout steps; histograms of lengths and rewards; a table of a few
responses; the configuration. A resumed run goes on in the same tracker run, and no step stands there twice.
"""

import importlib.util
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from dapo_ref.config import Config
from dapo_ref.errors import ConfigError

SHOWN_RESPONSES = 4
COLUMNS = ("prompt", "response", "reference", "answer", "status", "reward")

Row = Mapping[str, Any]


def require_tracker(config: Config) -> None:
    """To be called before anything expensive.

    Raises:
        ConfigError: the tracker's package is not installed.
    """
    if config.tracker == "none":
        return
    spec = importlib.util.find_spec(config.tracker)
    if spec is None or spec.origin is None:  # a folder of that name, such as wandb makes, is no package
        raise ConfigError(f"tracker: {config.tracker} is not installed: `pip install {config.tracker}`")


def start_tracker(accelerator: Accelerator, config: Config, steps_done: int) -> None:
    """Starts the tracker, or goes on with that of the run that is resumed.

    Args:
        steps_done: what was tracked of later steps, by a start that was cut short, counts no more.
    """
    folder = Path(config.output_dir)
    settings: dict[str, Any] = {
        "tensorboard": {"purge_step": steps_done + 1 if steps_done else None},
        "wandb": {"name": folder.name, "dir": config.output_dir, "resume": "allow"},
    }
    if config.tracker == "wandb" and accelerator.is_main_process:
        settings["wandb"]["id"] = _run_id(folder / "wandb_id")
    first = vars(config) if not steps_done else None
    accelerator.init_trackers("dapo_ref", config=first, init_kwargs=settings)


def _run_id(file: Path) -> str:
    """Made up at the first start, kept in the run folder: another run in a folder of that name is another."""
    if not file.exists():
        file.write_text(secrets.token_hex(8), encoding="utf-8")
    return file.read_text(encoding="utf-8")


def track(accelerator: Accelerator, record: Row, rows: Sequence[Row]) -> None:
    """Hands a step to the tracker.

    Args:
        record: the line of metrics.jsonl.
        rows: of `rollout_rows`, all sampled responses; none for a line that has none.
    """
    numbers = {_grouped(k): v for k, v in record.items() if k != "step" and isinstance(v, (int, float))}
    shown = rows[:: max(1, len(rows) // SHOWN_RESPONSES)][:SHOWN_RESPONSES]
    table = [[str(row[column]) for column in COLUMNS] for row in shown]
    for tracker in accelerator.trackers:
        if tracker.name == "wandb":
            _log_to_wandb(tracker, numbers, rows, table, record["step"])
            continue
        tracker.log(numbers, step=record["step"])
        for key, values in _distributions(rows).items():
            tracker.tracker.add_histogram(key, values, global_step=record["step"])
        if table:
            tracker.tracker.add_text("responses", _as_text(table), global_step=record["step"])


def _log_to_wandb(
    tracker: Any, numbers: dict[str, float], rows: Sequence[Row], table: list[list[str]], step: int
) -> None:
    """Everything of a step in one call: a later one would belong to the next step."""
    import wandb

    values: dict[str, Any] = dict(numbers)
    values |= {key: wandb.Histogram(found.tolist()) for key, found in _distributions(rows).items()}
    if table:
        values["responses"] = wandb.Table(columns=list(COLUMNS), data=table)
    tracker.log(values, step=step)


def _grouped(key: str) -> str:
    return key if "/" in key else f"update/{key}"


def _distributions(rows: Sequence[Row]) -> dict[str, Any]:
    if not rows:
        return {}
    return {
        "response/length": torch.tensor([float(row["length"]) for row in rows]),
        "reward/reward": torch.tensor([float(row["reward"]) for row in rows]),
    }


def _as_text(table: Sequence[Sequence[str]]) -> str:
    """A list as indented code: text of a model is shown as it is and is never markup."""
    lines = []
    for cells in table:
        for name, cell in zip(COLUMNS, cells, strict=True):
            lines += f"{name}: {cell}".splitlines()
        lines.append("")
    return "\n".join("    " + line for line in lines)
