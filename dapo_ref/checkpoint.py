"""The run folder: what a run leaves, written so that it is whole or not there.

    config.yaml                    as resolved
    metrics.jsonl                  a line a rollout step
    rollouts/step_000001.jsonl     every sampled response of a step
    checkpoints/step_000001/       shards of weights and optimiser, and the state of the loop
    model/                         the policy as a plain Hugging Face directory

Files and folders are written beside their final name and renamed when they are complete.
"""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dapo_ref.config import Config, ConfigError, read_config, save_config
from dapo_ref.engine import Engine
from dapo_ref.metrics import MetricsFile

STATE_FILE = "loop.json"


class RunFolder:
    """Paths of a run, and the one who may write there: the main process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = MetricsFile(path / "metrics.jsonl")

    @property
    def config_file(self) -> Path:
        """The resolved configuration; its presence says that the folder holds a run."""
        return self.path / "config.yaml"

    @property
    def model(self) -> Path:
        """The exported policy."""
        return self.path / "model"

    def open(self, config: Config) -> None:
        """Creates the folder, or accepts the one of the run to be resumed.

        Raises:
            ConfigError: it holds a run and `resume` is not set, holds something else, cannot be written, or
                there is nothing to resume.
        """
        if config.resume:
            if not self.config_file.exists():
                raise ConfigError(f"output_dir: {self.path} holds no run to resume (no config.yaml)")
            return
        if self.config_file.exists():
            raise ConfigError(
                f"output_dir: {self.path} already holds a run; --resume continues it, another --output_dir "
                "starts a new one"
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ConfigError(f"output_dir: {self.path} exists and is not an empty folder; choose another")
        try:
            (self.path / "rollouts").mkdir(parents=True)
            (self.path / "checkpoints").mkdir()
            save_config(config, self.config_file)
        except OSError as error:
            raise ConfigError(f"output_dir: {self.path} cannot be written: {error.strerror}") from error

    def write_rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the sampled responses of a step."""
        file = self.path / "rollouts" / f"step_{step:06d}.jsonl"
        partial = file.with_suffix(".tmp")
        with partial.open("w") as out:
            for row in rows:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
        partial.replace(file)

    def checkpoints(self) -> list[Path]:
        """The complete ones, oldest first."""
        found = (self.path / "checkpoints").glob("step_*")
        return sorted(path for path in found if re.fullmatch(r"step_\d+", path.name))

    def forget_after(self, step: int) -> None:
        """Cuts metrics and rollouts back to a step, so that none appears twice after a resume."""
        self.metrics.cut_after(step)
        for file in (self.path / "rollouts").glob("step_*"):
            if int(re.findall(r"\d+", file.name)[0]) > step:
                file.unlink()


def save(engine: Engine, folder: RunFolder, step: int, state: Mapping[str, Any], keep: int) -> None:
    """Writes a checkpoint and removes the oldest beyond `keep`; a collective.

    Args:
        engine: its shards are written, by every process.
        folder: of the run.
        step: rollout steps done.
        state: of the loop, as JSON.
        keep: how many checkpoints stay.
    """
    final = folder.path / "checkpoints" / f"step_{step:06d}"
    partial = final.with_name("partial_" + final.name)
    if engine.is_main:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        state = {**state, "step": step, "num_processes": engine.world_size}
        (partial / STATE_FILE).write_text(json.dumps(state, indent=1))
    engine.barrier()
    engine.save_state(partial)
    engine.barrier()
    if engine.is_main:
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for old in folder.checkpoints()[:-keep]:
            shutil.rmtree(old)
    engine.barrier()


def latest_state(folder: RunFolder, num_processes: int) -> tuple[Path, dict[str, Any]] | None:
    """The newest complete checkpoint and the state of the loop in it; None if there is none yet.

    Raises:
        ConfigError: it was written by another number of processes.
    """
    complete = folder.checkpoints()
    if not complete:
        return None
    state = json.loads((complete[-1] / STATE_FILE).read_text())
    if state["num_processes"] != num_processes:
        raise ConfigError(
            f"resume: {complete[-1]} was written by {state['num_processes']} processes, this run has "
            f"{num_processes}"
        )
    return complete[-1], state


def export(engine: Engine, folder: RunFolder, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the policy as a plain Hugging Face directory, `model/`; a collective."""
    partial = folder.path / "partial_model"
    if engine.is_main:
        shutil.rmtree(partial, ignore_errors=True)
    engine.export(partial, tokenizer)
    if engine.is_main:
        shutil.rmtree(folder.model, ignore_errors=True)
        partial.rename(folder.model)
    engine.barrier()


def run_config(path: Path) -> Config | None:
    """The configuration of a run folder; None if `path` is not one."""
    file = RunFolder(path).config_file
    return read_config(file) if file.exists() else None
