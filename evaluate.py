"""avg@k and pass@k of a model on a data set, with the sampler that training uses (§4.1: AIME 2024, avg@32).

    accelerate launch --config_file configs/accelerate/zero3.yaml evaluate.py --model DIR --data FILE
    --output DIR

The problems are spread over the processes; each process holds the whole model.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from dapo_ref.config import Config, StrictParser, option, read_config
from dapo_ref.data import keep_short_prompts, load_problems
from dapo_ref.distributed.accelerator import make_accelerator
from dapo_ref.distributed.processes import Processes
from dapo_ref.errors import ConfigError
from dapo_ref.evaluation import summarize, table
from dapo_ref.policy.pretrained import load_plain_model, load_tokenizer
from dapo_ref.policy.rollout import Prompt, end_token_ids, sample_groups
from dapo_ref.run.command import exit_code, launched_as_main, leave
from dapo_ref.run.files import replacing
from dapo_ref.run.folder import RunFolder
from dapo_ref.scoring import Scorer, rollout_rows
from dapo_ref.types import Group


@dataclass(frozen=True)
class Options:
    """The command line. What is 0 or empty comes from the run folder's configuration, or train.py's
    default."""

    model: str = option("", "HF directory, hub name, run folder, or `tiny`")
    data: str = option("", "JSONL or parquet file, or generated TASK:SPLIT; default: the run's own data")
    output: str = option("", "folder for results.json and responses.jsonl; must not hold results yet")
    samples_per_problem: int = option(32, "k [paper: 32]")
    temperature: float = option(1.0, "[paper: 1.0]")
    top_p: float = option(0.7, "[paper: 0.7]")
    limit: int = option(0, "only the first so many problems")
    prompt_template: str = option("", "wraps a bare question at {question}")
    max_prompt_length: int = option(0, "tokens; longer prompts are dropped")
    max_response_length: int = option(0, "generation cap in tokens")
    rollout_batch_size: int = option(0, "responses generated at once by a process")
    precision: str = option("", "bf16 or fp32")
    seed: int = option(0, "of sampling")


def evaluation_config(options: Options) -> Config:
    """The configuration that loads the model and samples k responses a problem.

    Raises:
        ConfigError: a key is missing or has an impossible value.
    """
    if not options.model or not options.output:
        raise ConfigError("--model and --output are needed; see --help")
    folder = RunFolder(Path(options.model))
    is_run = folder.config_file.exists()
    if is_run and not folder.model.exists():
        raise ConfigError(f"model: {folder.path} is a run that has no {folder.model} yet")
    base = read_config(folder.config_file) if is_run else Config()
    overrides: dict[str, Any] = {
        key: value
        for key, value in dataclasses.asdict(options).items()
        if value and key in {field.name for field in dataclasses.fields(Config)}
    }
    overrides |= {"model": str(folder.model) if is_run else options.model}
    for key in ("group_size", "responses_per_update"):
        overrides[key] = options.samples_per_problem
    return dataclasses.replace(
        base,
        **overrides,
        prompts_per_step=1,
        max_prompts_per_round=0,
        dynamic_sampling=False,
        soft_overlong_punishment=False,
        rollout_weights="gathered",
        tracker="none",
    )


def open_output(path: Path) -> None:
    """Creates the folder for the results.

    Raises:
        ConfigError: it holds results already, or cannot be written.
    """
    if (path / "results.json").exists():
        raise ConfigError(f"output: {path} already holds results; choose another folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {path} cannot be written: {error.strerror}") from error


def load_prompts(config: Config, limit: int, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """The problems to evaluate on, with their prompt tokens."""
    problems = load_problems(config.data, prompt_template=config.prompt_template)
    return keep_short_prompts(problems[: limit or None], tokenizer, config.max_prompt_length)


def evaluate(
    processes: Processes,
    config: Config,
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[Prompt],
) -> list[Group]:
    """Samples and verifies this process's share of the problems; returns everyone's, in data order."""
    mine = processes.share(prompts)
    end_ids = end_token_ids(tokenizer, model)
    processes.seed(0)
    groups: list[Group] = []
    per_call = max(1, config.rollout_batch_size // config.group_size)
    with Scorer(config) as scorer, processes.progress(len(mine), "problems", leave=True) as progress:
        for start in range(0, len(mine), per_call):
            part = mine[start : start + per_call]
            groups += scorer.score(
                sample_groups(model, tokenizer, part, config.sampling, end_ids, scorer.begin)
            )
            progress.update(len(part))
    return processes.gather_in_order(groups)


def write_results(path: Path, results: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """`responses.jsonl`, then `results.json`, which says that both are complete."""
    with replacing(path / "responses.jsonl") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with replacing(path / "results.json") as file:
        file.write(json.dumps(results, indent=1) + "\n")


def main(argv: Sequence[str]) -> None:
    """Reads everything that can be wrong before the model is loaded, then evaluates."""
    options = Options(**StrictParser(Options, prog="evaluate.py").parse_given(argv))
    config = evaluation_config(options)
    tokenizer = load_tokenizer(config.model_dir)
    prompts = load_prompts(config, options.limit, tokenizer)
    if launched_as_main():
        open_output(Path(options.output))
    model = load_plain_model(config)  # before ZeRO-3 is on, which would shard it
    processes = Processes(make_accelerator(config), config.seed)
    model.to(processes.device)  # type: ignore[arg-type]
    groups = evaluate(processes, config, model, tokenizer, prompts)
    if processes.is_main:
        results = {"model": options.model, "data": config.data, **summarize(groups)}
        write_results(Path(options.output), results, rollout_rows(groups, tokenizer))
        print(table(results))
    processes.barrier()
    processes.close()


if __name__ == "__main__":
    leave(exit_code(main, sys.argv[1:]))
