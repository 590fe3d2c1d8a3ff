"""Samples and verifies held-out problems, for `evaluate.py` and within a run (§4.1: AIME 2024, avg@32).

Every response has its own key, made of seed, problem and sample (`policy/keyed.py`), so that neither the
number of processes, nor the batch it is generated in, nor what was evaluated before takes part in it. Nothing
here touches torch's random numbers: training goes on with the same ones.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dapo_ref.config import Config, Sampling
from dapo_ref.data import encode_prompt, keep_short_prompts, of_date
from dapo_ref.data.problems import read_problems, report
from dapo_ref.errors import ConfigError
from dapo_ref.evaluation import ALL, figures
from dapo_ref.policy.keyed import key_of
from dapo_ref.policy.rollout import OnToken, Prompt, sample_groups
from dapo_ref.scoring import Scorer, rollout_rows
from dapo_ref.verifier import Status

log = logging.getLogger(__name__)


class Task(NamedTuple):
    """A problem to evaluate on: of which data set, its number there from 0, its prompt, and whether that is
    too long to be asked; such a problem counts as wrong."""

    data: str
    problem: int
    prompt: Prompt
    too_long: bool = False


def load_tasks(
    sources: Sequence[str], config: Config, tokenizer: PreTrainedTokenizerBase, limit: int = 0
) -> tuple[list[Task], int]:
    """Reads data sets.

    Args:
        sources: as `data` of a configuration.
        config: `prompt_template`, `max_prompt_length`.
        tokenizer: of the model.
        limit: only the first so many problems of each; 0 for all.

    Returns:
        (their problems in order; how often a file repeats each of its problems, the largest of the files: 32
        for the published AIME 2024, 1 for most).

    Raises:
        ConfigError: no source, or the same one twice.
        DataError: one cannot be used.
    """
    if not sources or len(set(sources)) < len(sources):
        raise ConfigError(f"expected one or several different data sets, got {list(sources)}")
    tasks: list[Task] = []
    repeats = 1
    for name, source in zip(data_names(sources), sources, strict=True):
        problems, counts = read_problems(source, config.prompt_template, layout=config.layout(optional=True))
        report(source, problems, counts)
        if counts.times > 1:
            log.info("%s: each problem stands there %d times; sampled once each", source, counts.times)
            repeats = max(repeats, counts.times)
        problems = problems[: limit or None]
        prompts = keep_short_prompts(problems, tokenizer, config.max_prompt_length, config.prompt_date)
        short = {id(problem): ids for problem, ids in prompts}
        for number, problem in enumerate(problems):
            ids = short.get(id(problem))
            whole = ids or encode_prompt(problem, tokenizer, config.prompt_date)
            tasks.append(Task(name, number, (problem, whole), too_long=ids is None))
        if len(short) < len(problems):
            log.warning("%s: those %d problems count as wrong", source, len(problems) - len(short))
    return tasks, repeats


def load_eval_tasks(config: Config, tokenizer: PreTrainedTokenizerBase) -> list[Task]:
    """The problems of `eval_data`; none where a run does not evaluate.

    Raises:
        ConfigError, DataError: as for `load_tasks`.
    """
    return load_tasks(config.eval_sources, config, tokenizer)[0] if config.evaluate_every else []


def tasks_of_date(tasks: Sequence[Task], tokenizer: PreTrainedTokenizerBase, date: str) -> list[Task]:
    """The same tasks with another date in their prompts, if the chat template prints one."""
    prompts = of_date([task.prompt for task in tasks], tokenizer, date)
    return [task._replace(prompt=prompt) for task, prompt in zip(tasks, prompts, strict=True)]


def data_names(sources: Sequence[str]) -> list[str]:
    """What the data sets are called in results: a file by its name, and by its path where that is not
    enough."""
    short = [Path(source).stem if Path(source).suffix else source for source in sources]
    counts = Counter([*short, ALL])
    return [name if counts[name] == 1 else source for name, source in zip(short, sources, strict=True)]


def chunks(tasks: Sequence[Task], sampling: Sampling) -> list[Sequence[Task]]:
    """The problems that are asked, in parts that are generated at once, at least a problem each."""
    tasks = [task for task in tasks if not task.too_long]
    size = max(1, sampling.rollout_batch_size // sampling.group_size)
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


class Evaluator:
    """Makes rows of problems: samples, verdicts, classes of equivalent answers."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        scorer: Scorer,
    ) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self.sampling = sampling
        self._seed = seed
        self._scorer = scorer

    def rows(
        self, model: PreTrainedModel, tasks: Sequence[Task], on_token: OnToken = lambda: None
    ) -> list[dict[str, Any]]:
        """Rows of k responses to each problem, in order, for `evaluation.summarize` and for people."""
        groups = sample_groups(
            model,
            self._tokenizer,
            [task.prompt for task in tasks],
            self.sampling,
            self._end_ids,
            self._scorer.begin,
            on_token,
            keys=[key for task in tasks for key in self._keys(task)],
        )
        groups = self._scorer.score(groups)
        rows = rollout_rows(groups, self._tokenizer)
        probs = [rollout.mean_prob for group in groups for rollout in group.rollouts]
        classes = [found for group in groups for found in self._scorer.answer_classes(group)]
        of = [(task, sample) for task in tasks for sample in range(self.sampling.group_size)]
        for row, prob, found, (task, sample) in zip(rows, probs, classes, of, strict=True):
            row |= {"data": task.data, "problem": task.problem, "sample": sample, "answer_class": found}
            row["mean_prob"] = round(prob, 6) if math.isfinite(prob) else None
        return rows

    def complete(self, rows: Sequence[dict[str, Any]], tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """Rows of several processes in order, with k wrong ones for each problem that was not asked."""
        missing = [
            {"prompt": self._tokenizer.decode(task.prompt[1]), "response": "", "answer": None}
            | {"reference": task.prompt[0].reference, "source": task.prompt[0].source, "reward": 0.0}
            | {"status": Status.NO_ANSWER, "correct": False, "truncated": False, "length": 0}
            | {"data": task.data, "problem": task.problem, "sample": sample, "answer_class": None}
            | {"mean_prob": None, "too_long": True}
            for task in tasks
            if task.too_long
            for sample in range(self.sampling.group_size)
        ]
        return in_order([*rows, *missing], tasks)

    def _keys(self, task: Task) -> Iterator[int]:
        """By what a problem says, not by where it stands: it keeps its responses in another file."""
        problem, _ = task.prompt
        parts = [text for message in problem.messages for text in message.values()]
        for sample in range(self.sampling.group_size):
            yield key_of(self._seed, *parts, sample)


def in_order(rows: Sequence[dict[str, Any]], tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Rows of several processes in the order of the problems, each once."""
    places = {(task.data, task.problem): place for place, task in enumerate(tasks)}
    found = {(places[row["data"], row["problem"]], row["sample"]): row for row in rows}
    return [found[key] for key in sorted(found)]


def metrics_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """An evaluation within a run as keys of metrics.jsonl: `eval/<name>/avg@32` and the like."""
    return {
        f"eval/{name}/{key}": value
        for name, results in figures(rows).items()
        for key, value in results.items()
        if isinstance(value, float)
    }


def equal_shares(parts: Sequence[Sequence[Task]], world_size: int) -> list[Sequence[Task]]:
    """As many parts for every process, the last one again where they do not come out even: on sharded weights
    all must make the same calls."""
    return [*parts, *[parts[-1]] * (-len(parts) % world_size)]
