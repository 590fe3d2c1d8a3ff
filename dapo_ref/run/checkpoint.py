"""Checkpoints: complete or not there, checked before they are used, and never the last whole one deleted.

    step_000010/loop.json          state of the loop
    step_000010/rank_00000.pt      a process's part of weights and optimiser (`shards.py`), one a rank
    step_000010/manifest.json      sizes and hashes of these files (`manifest.py`)

All processes write into `partial_step_000010`; once all are done and everything is on the disk, the main
process renames it. A name that begins with `step_` is thus a checkpoint that was finished; one that was
damaged since does not fit its manifest, is passed over, and becomes `broken_step_000010`.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from transformers import PreTrainedTokenizerBase

from dapo_ref.config import Config
from dapo_ref.distributed.engine import Engine
from dapo_ref.errors import ConfigError, TrainingError
from dapo_ref.policy.pretrained import copy_side_files
from dapo_ref.run.files import replacing, sync
from dapo_ref.run.folder import PROMPTS_FILE, RunFolder
from dapo_ref.run.manifest import (
    BrokenError,
    Entry,
    HashingFile,
    check_file,
    read_manifest,
    write_manifest,
    write_text,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
STATE_FILE = "loop.json"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; raised on all processes together."""


def save(engine: Engine, folder: RunFolder, state: Mapping[str, Any], config: Config) -> bool:
    """Writes a checkpoint and removes the oldest beyond `keep_checkpoints`; a collective.

    Args:
        engine: its shards are written, by every process.
        folder: of the run.
        state: of the loop, as JSON; `step` names the checkpoint.
        config: `keep_checkpoints`, `on_checkpoint_error`.

    Returns:
        Whether it was written; the former ones are as they were if not.

    Raises:
        TrainingError: it was not, and `on_checkpoint_error` is `stop`.
    """
    final = _path(folder, state["step"])
    partial = final.with_name("partial_" + final.name)
    engine.watch.doing = f"step {state['step']}: checkpoint"
    try:
        needed = engine.bytes_of_state()
        _on_main(engine, lambda: _begin(partial, needed))
        entries = _on_all(engine, lambda: _write_shard(engine, partial))
        _on_main(engine, lambda: _finish(partial, final, state, entries))
    except CheckpointError as error:
        if engine.is_main:
            shutil.rmtree(partial, ignore_errors=True)
        message = f"checkpoint of step {state['step']} not written: {error}; the former ones are intact"
        if config.on_checkpoint_error == "stop":
            raise TrainingError(message) from error
        if engine.is_main:
            log.error("%s; going on (on_checkpoint_error: continue)", message)
        return False
    if engine.is_main:
        _prune(folder, config.keep_checkpoints)
    return True


def exists(engine: Engine, folder: RunFolder, step: int) -> bool:
    """Whether the checkpoint of a step was finished, as the main process sees it; a collective."""
    return any(engine.gather([engine.is_main and _path(folder, step).exists()]))


def newest_whole(engine: Engine, folder: RunFolder) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that fits its manifest, and the state of the loop in it; a collective.

    Says which ones it passes over, and sets them aside once it has found a whole one.

    Returns:
        None if none was written yet.

    Raises:
        ConfigError: there are some, and none is whole.
    """
    names = engine.gather([[path.name for path in folder.checkpoints()]])[0]  # as the main process sees them
    broken: list[Path] = []
    for path in [folder.path / "checkpoints" / name for name in reversed(names)]:
        if engine.is_main:
            log.info("resume: checking %s", path)
        problems = [p for p in engine.gather([_problem(path, engine)]) if p]
        if not problems:
            _set_aside(engine, broken)
            return path, json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        if engine.is_main:
            log.warning("resume: passing over %s, which is broken: %s", path, "; ".join(problems))
        broken.append(path)
    if broken:
        raise ConfigError(
            f"resume: none of the {len(broken)} checkpoints in {folder.path / 'checkpoints'} is whole; "
            "nothing was changed. Restore one from a copy, or start a new run in another output_dir"
        )
    return None


def say_what_differs(engine: Engine, state: Mapping[str, Any]) -> None:
    """Logs what is not exact if another number of processes goes on."""
    before, now = state["num_processes"], engine.world_size
    if before != now and engine.is_main:
        log.warning(
            "resume: the checkpoint is of %d processes, this run has %d. Exact: weights, optimiser, "
            "counters, schedule and the position in the data. Not exact: each process samples with its own "
            "seed, so the responses are others from the same distribution; a generation round is rounded up "
            "to a multiple of the processes; sums are taken in another order",
            before,
            now,
        )


def warn_of_little_space(engine: Engine, folder: RunFolder, config: Config) -> None:
    """Says at the start if the disk will not hold `keep_checkpoints` and the one being written; a
    collective."""
    needed = engine.bytes_of_state() * (config.keep_checkpoints + 1 - len(folder.checkpoints()))
    free = shutil.disk_usage(folder.path).free
    if engine.is_main and config.checkpoint_every and needed > free:
        log.warning(
            "checkpoints will need %s more in %s, where %s are free: make room or lower keep_checkpoints",
            _size(needed),
            folder.path,
            _size(free),
        )


def export(
    engine: Engine, folder: RunFolder, tokenizer: PreTrainedTokenizerBase, config: Config, prompt_date: str
) -> None:
    """Writes the policy as a plain Hugging Face directory, `model/`, with what its prompts were made of; a
    collective. A former one stays until the new one is whole."""
    partial, former = folder.path / "partial_model", folder.path / "former_model"
    engine.watch.doing = "export of the model"
    if engine.is_main:
        for leftover in (partial, former):
            shutil.rmtree(leftover, ignore_errors=True)
    engine.export(partial)
    if engine.is_main:
        copy_side_files(config.model_dir, tokenizer, partial)
        prompts = {"prompt_template": config.prompt_template, "prompt_date": prompt_date}
        with replacing(partial / PROMPTS_FILE) as out:
            out.write(json.dumps(prompts, indent=1, ensure_ascii=False) + "\n")
        if folder.model.exists():
            folder.model.rename(former)
        partial.rename(folder.model)
        shutil.rmtree(former, ignore_errors=True)
    engine.barrier()


# --- Pieces -------------------------------------------------------------------------------------------------


def _path(folder: RunFolder, step: int) -> Path:
    return folder.path / "checkpoints" / f"step_{step:06d}"


def _begin(partial: Path, needed: int) -> None:
    """An empty folder, on a disk that has room."""
    shutil.rmtree(partial, ignore_errors=True)
    free = shutil.disk_usage(partial.parent).free
    if needed > free:
        raise OSError(f"{_size(needed)} are needed and {_size(free)} are free in {partial.parent}")
    partial.mkdir()


def shard_file(rank: int) -> str:
    """Name of a process's file."""
    return f"rank_{rank:05d}.pt"


def load_state(engine: Engine, path: Path, written_by: int) -> None:
    """Restores weights and optimiser from a checkpoint of any number of processes; a collective."""
    engine.load_state([path / shard_file(rank) for rank in range(written_by)])


def _write_shard(engine: Engine, partial: Path) -> Entry:
    """Writes this process's part of weights and optimiser; returns its entry in the manifest."""
    file = HashingFile(partial / shard_file(engine.rank))
    try:
        engine.save_state(cast(IO[bytes], file))
    except (OSError, RuntimeError) as error:
        if file.error is not None:  # torch's own error names neither file nor cause
            raise file.error from error
        raise
    return file.close()


def _finish(partial: Path, final: Path, state: Mapping[str, Any], shards: Sequence[Entry]) -> None:
    """State of the loop and manifest; then the checkpoint gets its name."""
    loop = write_text(partial / STATE_FILE, json.dumps({**state, "num_processes": len(shards)}, indent=1))
    entries = {shard_file(rank): entry for rank, entry in enumerate(shards)}
    write_manifest(partial, {STATE_FILE: loop, **entries})
    if final.exists():  # its own step is being trained again, so it was found broken
        _remove(final)
    partial.rename(final)
    sync(final.parent)


def _prune(folder: RunFolder, keep: int) -> None:
    """Removes what is older than the newest `keep`, and what was set aside: a newer one is whole now."""
    for leftover in (folder.path / "checkpoints").glob("*_step_*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for old in folder.checkpoints()[:-keep]:
        try:
            _remove(old)
        except OSError as error:
            log.warning("%s cannot be removed: %s", old, error.strerror)


def _remove(checkpoint: Path) -> None:
    """Renames it first, so that a half-removed folder is never taken for a checkpoint."""
    renamed = checkpoint.with_name("removed_" + checkpoint.name)
    checkpoint.rename(renamed)
    shutil.rmtree(renamed)


def _problem(path: Path, engine: Engine) -> str:
    """What is broken in this process's share of a checkpoint's files; empty if nothing."""
    try:
        entries = read_manifest(path)
        for name in engine.share(sorted(entries)):
            check_file(path / name, entries[name], engine.watch.alive)
    except BrokenError as error:
        return str(error)
    return ""


def _set_aside(engine: Engine, broken: Sequence[Path]) -> None:
    if engine.is_main:
        for path in broken:
            aside = path.with_name("broken_" + path.name)
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def _on_all(engine: Engine, work: Callable[[], T]) -> list[T]:
    """Does something on every process; returns all results, in the order of the ranks.

    Raises:
        CheckpointError: it failed on one of them, raised on all, so that none waits for another.
    """
    result: T | None = None
    problem = ""
    try:
        result = work()
    except OSError as error:
        problem = f"rank {engine.rank}: {error}"
    everyones = engine.gather([(result, problem)])
    problems = [problem for _, problem in everyones if problem]
    if problems:
        raise CheckpointError("; ".join(problems))
    return [result for result, _ in everyones]  # type: ignore[misc]


def _on_main(engine: Engine, work: Callable[[], None]) -> None:
    """Does something on the main process alone, and lets the others know how it went."""
    _on_all(engine, work if engine.is_main else lambda: None)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
