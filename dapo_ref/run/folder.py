"""The run folder: what a run leaves, written so that it is whole or not there.

    config.yaml                    as resolved, of the last start
    metrics.jsonl                  a line a rollout step
    rollouts/step_000001.jsonl     every sampled response of a step
    tokens/step_000001.jsonl       probabilities and clips of some responses, with `record_tokens`
    checkpoints/step_000001/       shards of weights and optimiser, state of the loop, manifest
    bad_updates/                   the micro-batches of updates that were not finite, if there were any
    model/                         the policy as a plain Hugging Face directory
    lock                           held while a run writes here

Files and folders are written beside their final name and renamed when they are complete (`files.py`).
"""

import dataclasses
import fcntl
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import torch

from dapo_ref.config import Config, config_text, differences, read_config
from dapo_ref.errors import ConfigError
from dapo_ref.run.files import MetricsFile, replacing

log = logging.getLogger(__name__)

MAX_BAD_UPDATES = 20
"""Files of `bad_updates/` at most: enough to see what they have in common."""


PROMPTS_FILE = "prompts.json"
"""Beside exported weights: the template and the date that the model was trained with."""


class RunFolder:
    """Paths of a run, and the one who may write there: the main process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = MetricsFile(path / "metrics.jsonl")
        self._lock: TextIOWrapper | None = None

    @property
    def config_file(self) -> Path:
        """The resolved configuration; its presence says that the folder holds a run."""
        return self.path / "config.yaml"

    @property
    def model(self) -> Path:
        """The exported policy."""
        return self.path / "model"

    def require_usable(self, config: Config) -> None:
        """To be called before anything expensive; writes nothing.

        Raises:
            ConfigError: it holds a run and `resume` is not set, holds something else, cannot be written, lies
                inside a model's folder, or there is nothing to resume.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"output_dir: {self.path} is a file; name a folder")
        if config.resume and not self.config_file.exists():
            raise ConfigError(f"output_dir: {self.path} holds no run to resume (no config.yaml)")
        if not config.resume:
            self._require_empty()
        if model := model_around(self.path):
            raise ConfigError(
                f"output_dir: {self.path} lies inside the model {model}: choose a folder elsewhere"
            )
        if self.model.is_symlink() or (self.model.exists() and not self.model.is_dir()):
            raise ConfigError(f"output_dir: {self.model} is not a folder: move it away, the run writes one")
        above = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not above.is_dir():
            raise ConfigError(f"output_dir: {self.path} cannot be written: {above} is a file")
        if not os.access(above, os.W_OK | os.X_OK):
            raise ConfigError(
                f"output_dir: {self.path} cannot be written: {above} gives no permission, or is read-only"
            )

    def open(self, config: Config) -> None:
        """Creates the folder, or accepts the one of the run to be resumed, and locks it.

        Raises:
            ConfigError: as for `require_usable`, or it is written by another run at this moment, or can be
                resumed only with another configuration.
        """
        self.require_usable(config)
        try:
            for folder in (self.path, self.path / "rollouts", self.path / "checkpoints"):
                folder.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            if config.resume:
                self._require_same(config)
            else:
                self.keep_config(config)
        except OSError as error:
            raise ConfigError(f"output_dir: {self.path} cannot be written: {error.strerror}") from error

    def keep_config(self, config: Config) -> None:
        """Writes the configuration of this start, less what is a matter of this start alone."""
        config = dataclasses.replace(config, resume=False, allow_config_change=False)
        with replacing(self.config_file) as out:
            out.write(config_text(config))

    def _require_empty(self) -> None:
        if self.config_file.exists():
            raise ConfigError(
                f"output_dir: {self.path} already holds a run; --resume continues it, another --output_dir "
                f"starts a new one, and once this folder is removed (rm -r {self.path}) the same command "
                "starts anew"
            )
        if not self.path.exists():
            return
        begun = {"rollouts", "checkpoints", "lock", "config.yaml.tmp"}  # a run killed before it had a name
        others = sorted(path.name for path in self.path.iterdir() if path.name not in begun)
        if others:
            raise ConfigError(
                f"output_dir: {self.path} is not an empty folder, it holds {others[0]}: choose another"
            )

    def _take_lock(self) -> None:
        """Held as long as this object lives: two runs in one folder would delete each other's files."""
        if self._lock is not None:
            return
        lock = (self.path / "lock").open("w", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"output_dir: another run is writing to {self.path} at this moment; stop it, or wait for it"
            ) from error
        except OSError:
            log.warning(
                "%s: this file system has no locks; see to it that one run at a time writes", lock.name
            )
        self._lock = lock

    def _require_same(self, config: Config) -> None:
        """Lists what changed since the last start.

        Raises:
            ConfigError: something that changes the mathematics, and `allow_config_change` is not set.
        """
        changed = differences(read_config(self.config_file), config)
        for change in changed:
            log.warning("resume: %s", change)
        refused = [change for change in changed if change.changes_mathematics]
        if refused and not config.allow_config_change:
            raise ConfigError(
                "resume: the configuration is not that of the run: "
                + "; ".join(f"{c.key} was {c.before!r}, is {c.after!r}" for c in refused)
                + "; restore it, or set --allow_config_change to go on with another algorithm"
            )

    def write_rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the sampled responses of a step.

        Raises:
            OSError: it cannot be written.
        """
        with replacing(self.path / "rollouts" / f"step_{step:06d}.jsonl") as out:
            out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def write_tokens(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes what `record_tokens` asks for.

        Raises:
            OSError: it cannot be written.
        """
        (self.path / "tokens").mkdir(exist_ok=True)
        with replacing(self.path / "tokens" / f"step_{step:06d}.jsonl") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)

    def write_bad_update(self, step: int, update: int, rank: int, content: Mapping[str, Any]) -> None:
        """Writes the micro-batches of an update that was not finite, to be read with `torch.load`.

        An error of writing is logged and does not stop the run.
        """
        folder = self.path / "bad_updates"
        file = folder / f"step_{step:06d}_update_{update:06d}_rank_{rank:05d}.pt"
        try:
            folder.mkdir(exist_ok=True)
            if len(list(folder.glob("step_*"))) < MAX_BAD_UPDATES:
                torch.save(dict(content), file)
        except (OSError, RuntimeError) as error:  # torch.save raises either when the disk is full
            log.error("%s cannot be written: %s", file, error)

    def checkpoints(self) -> list[Path]:
        """Those that were finished, oldest first; whether they are whole still, their manifests say."""
        found = (self.path / "checkpoints").glob("step_*")
        return sorted(path for path in found if re.fullmatch(r"step_\d+", path.name))

    def forget_after(self, step: int) -> None:
        """Cuts metrics and rollouts back to a step, so that none appears twice after a resume."""
        self.metrics.cut_after(step)
        for file in [*self.path.glob("rollouts/step_*"), *self.path.glob("tokens/step_*")]:
            if int(re.findall(r"\d+", file.name)[0]) > step:
                file.unlink()


def model_around(path: Path) -> Path | None:
    """The folder of a Hugging Face model that a path lies in, if it does."""
    for folder in path.absolute().parents:
        if (folder / "config.json").is_file() and any(
            any(folder.glob(pattern)) for pattern in ("*.safetensors", "pytorch_model*", "tokenizer*")
        ):
            return folder
    return None
