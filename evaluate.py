"""avg@k, pass@j and maj@k of a model on data sets (§4.1: AIME 2024, avg@32).

    accelerate launch --config_file configs/accelerate/zero3.yaml evaluate.py --model MODEL
    --data FILE [FILE …] --output DIR

The problems are spread over the processes; each process holds the whole model. A response follows from the
model, its problem, its number and `--seed`: neither the number of processes nor the batch size takes part.
The same command goes on with an evaluation that was stopped.
"""

import sys

from dapo_ref.run.options import Options, read_options
from dapo_ref.usage import EVALUATE, answer, check

if __name__ == "__main__":  # before torch is imported, which takes seconds
    answer(sys.argv[1:], Options, EVALUATE, needed=["--model", "--output"])
    check(read_options, sys.argv[1:])

import contextlib
import dataclasses
import json
import logging
import re
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from dapo_ref.config import Config, read_config
from dapo_ref.data import prints_date
from dapo_ref.data.mixture import split_sources
from dapo_ref.distributed.accelerator import make_accelerator
from dapo_ref.distributed.machine import own_device, require_machine
from dapo_ref.distributed.processes import Processes
from dapo_ref.distributed.shards import load_plain
from dapo_ref.errors import ConfigError
from dapo_ref.evaluation import figures, table
from dapo_ref.launcher import launched_as_main
from dapo_ref.policy.pretrained import check_positions, check_weights, load_plain_model, load_tokenizer
from dapo_ref.policy.rollout import end_token_ids
from dapo_ref.report.bars import bars
from dapo_ref.run.command import exit_code, leave
from dapo_ref.run.evaluator import Evaluator, Task, chunks, load_tasks, tasks_of_date
from dapo_ref.run.files import append_lines, read_lines, replacing
from dapo_ref.run.folder import PROMPTS_FILE, RunFolder, model_around
from dapo_ref.run.manifest import BrokenError, check_file, read_manifest
from dapo_ref.scoring import Scorer

log = logging.getLogger(__name__)

DEFAULT_SAMPLES = 32
"""k where neither the command line nor the data say it (§4.1)."""


def evaluation_config(options: Options) -> Config:
    """The configuration that loads the model and samples k responses a problem.

    Raises:
        ConfigError: a key is missing or has an impossible value.
    """
    model, run = find_model(Path(options.model))
    base = read_config(run.config_file) if run else Config()
    base = dataclasses.replace(base, **trained_prompts(model))
    known = {field.name for field in dataclasses.fields(Config)} - {"data"}
    overrides: dict[str, Any] = {
        key: value for key, value in dataclasses.asdict(options).items() if key in known and value is not None
    }
    if run:
        overrides["model"] = base.model if is_checkpoint(Path(options.model)) else str(model)
    return dataclasses.replace(
        base,
        **overrides,
        **of_samples(DEFAULT_SAMPLES if options.samples_per_problem is None else options.samples_per_problem),
        prompts_per_step=1,
        max_prompts_per_round=0,
        dynamic_sampling=False,
        soft_overlong_punishment=False,
        rollout_weights="gathered",
        sampler="segments",
        tracker="none",
    )


def trained_prompts(model: Path) -> dict[str, Any]:
    """Template and date of the prompts that a model was trained with, as they stand beside its weights."""
    for file in (model / PROMPTS_FILE, model / "loop.json"):
        if file.is_file():
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ConfigError(f"model: {file} cannot be read: {error}") from error
            return {key: content[key] for key in ("prompt_template", "prompt_date") if content.get(key)}
    return {}


def of_samples(k: int) -> dict[str, Any]:
    """The keys of a configuration that say how many samples a problem has."""
    return {"group_size": k, "responses_per_update": k}


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a run's checkpoint."""
    return re.fullmatch(r"step_\d+", path.name) is not None and path.parent.name == "checkpoints"


def find_model(path: Path) -> tuple[Path, RunFolder | None]:
    """Where the weights are, and the run that they are of, if they are.

    Raises:
        ConfigError: a run without a model, or a checkpoint that is not whole.
    """
    if is_checkpoint(path):
        try:
            entries = read_manifest(path)
            for name in entries if launched_as_main() else ():  # one reads it all
                check_file(path / name, entries[name])
        except BrokenError as error:
            raise ConfigError(f"model: {path} is not a whole checkpoint: {error}") from error
        return path, RunFolder(path.parent.parent)
    run = RunFolder(path)
    if not run.config_file.exists():
        of_model = RunFolder(path.parent)
        is_exported = path == of_model.model and of_model.config_file.exists()
        return path, of_model if is_exported else None
    if not run.model.exists():
        found = run.checkpoints()
        hint = f"; its newest checkpoint is {found[-1]}" if found else ""
        raise ConfigError(f"model: {path} is a run that has no {run.model} yet{hint}")
    return run.model, run


def load_model(options: Options, config: Config) -> PreTrainedModel:
    """The whole model in this process; before ZeRO-3 is on, which would shard it.

    Raises:
        ConfigError: it cannot be loaded.
    """
    model = load_plain_model(config, own_device())
    if is_checkpoint(Path(options.model)):
        try:
            load_plain(model, sorted(Path(options.model).glob("rank_*.pt")))
        except ValueError as error:
            raise ConfigError(f"model: {options.model} does not fit {config.model}: {error}") from error
    return model


class Output:
    """The folder of an evaluation.

    settings.json        what was asked for: the same goes on, anything else needs another folder
    partial/             rows of finished problems, a file a process, until all are there
    responses.jsonl      a row a response
    results.svg          avg@k and maj@k as bars
    results.json         the figures; written last, so that its presence says that all is there
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path / "partial"

    @property
    def prompt_date(self) -> str:
        """Of an evaluation that was stopped: it goes on with the same prompts another day."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.path / "settings.json").read_text(encoding="utf-8"))
            return str(found.get("prompt_date") or "")
        return ""

    def open(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """Creates the folder, or goes on with an evaluation that was stopped.

        Returns:
            The rows that are there already.

        Raises:
            ConfigError: it holds results, or those of other settings, cannot be written, lies in a model.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"output: {self.path} is a file; name a folder")
        if model := model_around(self.path):
            raise ConfigError(f"output: {self.path} lies inside the model {model}: choose a folder elsewhere")
        if (self.path / "results.json").exists():
            raise ConfigError(f"output: {self.path} already holds results; choose another folder")
        file = self.path / "settings.json"
        try:
            self._partial.mkdir(parents=True, exist_ok=True)
            if file.exists():
                before = json.loads(file.read_text(encoding="utf-8"))
                changed = [key for key in settings if settings[key] != before.get(key)]
                if changed:
                    key = changed[0]
                    raise ConfigError(
                        f"output: {self.path} holds part of an evaluation with {key} {before.get(key)!r}, "
                        f"not {settings[key]!r}; repeat its command, or choose another folder"
                    )
            with replacing(file) as out:
                out.write(json.dumps(settings, indent=1) + "\n")
        except OSError as error:
            raise ConfigError(f"output: {self.path} cannot be written: {error.strerror}") from error
        return [row for part in sorted(self._partial.glob("*.jsonl")) for row in read_lines(part)]

    def add(self, rank: int, rows: Sequence[dict[str, Any]]) -> None:
        """Keeps the rows of some problems; half a line, left by a kill, is not read."""
        self._partial.mkdir(parents=True, exist_ok=True)
        append_lines(self._partial / f"rank_{rank:05d}.jsonl", rows)

    def finish(self, results: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
        """Writes everything under its final name."""
        with replacing(self.path / "responses.jsonl") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with replacing(self.path / "results.svg") as file:
            file.write(bars(results["data_sets"]))
        with replacing(self.path / "results.json") as file:
            file.write(json.dumps(results, indent=1) + "\n")
        shutil.rmtree(self._partial, ignore_errors=True)


def whole_problems(rows: Sequence[dict[str, Any]], k: int) -> list[dict[str, Any]]:
    """The rows of problems that have all their samples: what was being written at a kill is done again."""
    counts: dict[tuple[str, int], set[int]] = {}
    for row in rows:
        counts.setdefault((row["data"], row["problem"]), set()).add(row["sample"])
    return [row for row in rows if len(counts[row["data"], row["problem"]]) == k]


def evaluate(
    processes: Processes,
    evaluator: Evaluator,
    model: PreTrainedModel,
    tasks: Sequence[Task],
    output: Output,
    finished: Sequence[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Samples and verifies this process's share of what is not finished; returns all rows, on every process,
    in the order of the problems."""
    done = {(row["data"], row["problem"]) for row in finished}
    left = [task for task in tasks if (task.data, task.problem) not in done]
    if done and processes.is_main:
        log.info("%d of %d problems are there already", len(done), len(tasks))
    mine = processes.share(chunks(left, evaluator.sampling))
    rows: list[dict[str, Any]] = []
    with processes.progress(sum(map(len, mine)), "problems", leave=True) as progress:
        for part in mine:
            made = evaluator.rows(model, part)
            output.add(processes.rank, made)
            rows += made
            progress.update(len(part))
    return evaluator.complete([*finished, *processes.gather(rows)], tasks)


def main(argv: Sequence[str]) -> None:
    """Reads everything that can be wrong before the model is loaded, then evaluates."""
    options = read_options(argv)
    config = evaluation_config(options)
    require_machine(config)
    tokenizer = load_tokenizer(config.model_dir)
    check_weights(config.model_dir)
    sources = options.data or split_sources(config.data)
    output = Output(Path(options.output))
    if prints_date(tokenizer) and not config.prompt_date:
        day = output.prompt_date or date.today().isoformat()
        config = dataclasses.replace(config, prompt_date=day)
    tasks, repeats = load_tasks(sources, config, tokenizer, options.limit)
    check_positions(config, [task.prompt for task in tasks if not task.too_long])
    if options.samples_per_problem is None and repeats > 1:
        config = dataclasses.replace(config, **of_samples(repeats))
    settings = {"model": options.model, "data": sources, "limit": options.limit, **of_config(config)}
    kept = output.open(settings) if launched_as_main() else []
    model = load_model(options, config)
    processes = Processes(make_accelerator(config), config.seed)
    day = processes.gather([config.prompt_date])[0]  # midnight may lie between two starts
    tasks = tasks_of_date(tasks, tokenizer, day)
    finished = whole_problems(processes.gather(kept), config.group_size)
    with Scorer(config) as scorer:
        end_ids = end_token_ids(tokenizer, model)
        evaluator = Evaluator(tokenizer, end_ids, config.sampling, config.seed, scorer)
        rows = evaluate(processes, evaluator, model, tasks, output, finished)
    if processes.is_main:
        found = figures(rows)
        results = {**settings, **list(found.values())[-1], "data_sets": found}
        output.finish(results, rows)
        print(table(found))
    processes.barrier()
    processes.close()


def of_config(config: Config) -> dict[str, Any]:
    """What the responses depend on, beside model and data."""
    names = (
        *("group_size", "temperature", "top_p", "seed", "prompt_template", "max_prompt_length"),
        *("max_response_length", "precision", "verifier", "boxed_answers", "reward_function"),
    )
    dated = {"prompt_date": config.prompt_date} if config.prompt_date else {}
    return {name: getattr(config, name) for name in names} | dated


if __name__ == "__main__":
    leave(exit_code(main, sys.argv[1:]))
