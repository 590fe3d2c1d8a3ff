"""`train.py` and `run/session.py`: each wire of Algorithm 1, seen by what comes out at its other end."""

import contextlib
import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tqdm import tqdm

import train
from dapo_ref.config import Config
from dapo_ref.data import Problem, PromptStream
from dapo_ref.dynamic_sampling import AcceptanceRate, GroupBuffer, any_outcome
from dapo_ref.errors import TrainingError
from dapo_ref.objective import Clipping, build_objective
from dapo_ref.policy.batching import microbatches, minibatches
from dapo_ref.run.files import read_metrics
from dapo_ref.run.folder import RunFolder
from dapo_ref.run.metrics import StepMetrics
from dapo_ref.run.preemption import StoppedError, StopPoints, StopSignals
from dapo_ref.run.session import Session
from dapo_ref.scoring import correct_matrix
from dapo_ref.types import Group, Rollout
from dapo_ref.verifier import Status, Verdict
from tests.support import reference
from tests.support.helpers import (
    OneProcess,
    char_tokenizer,
    filled_batch,
    random_groups,
    random_llama,
    save_model,
)
from tests.support.plain_engine import PlainEngine, in_threads


def rollout(length: int, right: bool = False, reward: float = -1.0, truncated: bool = False) -> Rollout:
    verdict = Verdict(correct=right, status=Status.CORRECT if right else Status.WRONG, answer=None)
    return Rollout([5] * length, "", truncated, verdict, reward)


def group(*rollouts: Rollout, name: str = "0") -> Group:
    return Group(Problem((), "0", name), [1, 7], list(rollouts))


# --- Line 9 -------------------------------------------------------------------------------------------------

# Two groups of three. In the first a right answer is punished for its length, 1 − 0.5; in the second one is
# truncated, −1 − 1.
PUNISHED = [
    group(rollout(9, right=True, reward=0.5), rollout(2), rollout(3)),
    group(rollout(4, right=True, reward=1.0), rollout(10, reward=-2.0, truncated=True), rollout(1)),
]


@pytest.mark.parametrize(("unbiased", "divisor"), [(True, 2), (False, 3)])
def test_line_9_normalises_each_group_by_its_own_shaped_rewards(unbiased: bool, divisor: int) -> None:
    config = Config(group_size=3, responses_per_update=6, prompts_per_step=2, unbiased_std=unbiased)
    batch = train.make_batch(PUNISHED, config)
    expected = []
    for rewards in ([0.5, -1.0, -1.0], [1.0, -2.0, -1.0]):
        mean = sum(rewards) / 3
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / divisor)
        expected += [(r - mean) / (std + 1e-6) for r in rewards]
    assert batch.rewards.tolist() == [0.5, -1.0, -1.0, 1.0, -2.0, -1.0]
    assert batch.advantages.tolist() == pytest.approx(expected, rel=1e-6)
    assert not batch.filtered.any()


def test_line_9_filters_truncated_responses_out_of_the_loss_and_not_out_of_the_statistics() -> None:
    config = Config(group_size=3, responses_per_update=6, prompts_per_step=2)
    plain = train.make_batch(PUNISHED, config)
    filtered = train.make_batch(PUNISHED, dataclasses.replace(config, overlong_filtering=True))
    assert filtered.filtered.tolist() == [False, False, False, False, True, False]
    assert torch.equal(filtered.advantages, plain.advantages)


# --- Lines 2–8 ----------------------------------------------------------------------------------------------

SAMPLING = Config(
    prompts_per_step=4,
    group_size=2,
    responses_per_update=8,
    max_rounds=5,
    max_prompts_per_round=6,
    temperature=0.7,
    max_response_length=10,
    overlong_cache_length=4,
)
OUTCOMES = ("wrong", "mixed", "right")
"""Of a problem by its number: a third is too hard, a third too easy."""


def outcome(group: Group) -> str:
    return OUTCOMES[int(group.problem.source) % 3]


class FakeScorer:
    """Calls responses right by the number of their problem."""

    def begin(self, problem: Problem, rollout: Rollout) -> None:
        raise AssertionError("the fake sampler ends no response")

    def score(self, groups: list[Group]) -> list[Group]:
        return [
            group(
                rollout(2, right=outcome(g) != "wrong"),
                rollout(3, right=outcome(g) == "right"),
                name=g.problem.source,
            )
            for g in groups
        ]


class FakeSession:
    """What `sample_batch` needs of a session; writes down what it is asked."""

    tokenizer, end_ids = "tokenizer", [2]

    def __init__(self, processes: Any, config: Config) -> None:
        self.config, self.engine = config, processes
        self.scorer = FakeScorer()
        self.stream = PromptStream([(Problem((), "0", str(i)), [i]) for i in range(100)], seed=config.seed)
        self.stop = StopPoints(StopSignals(), processes, interruptible=True)
        self.acceptance = AcceptanceRate()
        self.steps_done = 3
        self.log: list[Any] = []
        self.calls: list[Any] = []
        processes.rollout_model = self.rollout_model

    @contextlib.contextmanager
    def rollout_model(self) -> Iterator["FakeSession"]:
        self.log.append("π_old ← π_θ")
        yield self
        self.log.append("π_old dropped")

    @contextlib.contextmanager
    def phase(self, what: str, total: int) -> Iterator[Any]:
        self.log.append((what, total))
        yield tqdm(total=total, disable=True)

    def end_rollout(self, sampled: list[Group], buffer: GroupBuffer, metrics: StepMetrics) -> None:
        self.log.append("end of rollout")
        self.sampled, self.buffer = sampled, buffer


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`sample_batch` on so many processes: their sessions, with the groups that each keeps."""

    def sample_groups(model: FakeSession, *arguments: Any, **hooks: Any) -> list[Group]:
        model.calls.append((*arguments, hooks))
        return [Group(problem, ids, []) for problem, ids in arguments[1]]

    monkeypatch.setattr(train, "sample_groups", sample_groups)

    def work(processes: Any, config: Config) -> FakeSession:
        run = FakeSession(processes, config)
        run.groups = train.sample_batch(run, StepMetrics())
        return run

    return lambda world_size, config: in_threads(world_size, lambda processes: work(processes, config))


def sources(groups: Sequence[Group]) -> list[int]:
    return [int(group.problem.source) for group in groups]


def stream_order(config: Config, count: int) -> list[int]:
    """The problems in the order in which the stream deals them out."""
    stream = PromptStream([(Problem((), "0", str(i)), [i]) for i in range(100)], seed=config.seed)
    return [int(problem.source) for problem, _ in stream.take(count)]


@pytest.mark.parametrize("world_size", [1, 2])
def test_lines_2_to_8_fill_the_batch_in_data_order_with_mixed_groups_alone(
    sample: Any, world_size: int
) -> None:
    runs = sample(world_size, SAMPLING)
    order = stream_order(SAMPLING, len(runs[0].sampled))
    for run in runs:  # every process holds the same batch
        assert sources(run.sampled) == order
        assert sources(run.groups) == [n for n in order if n % 3 == 1][:4]
        assert run.log == [("rollout", 4), "π_old ← π_θ", "π_old dropped", "end of rollout"]
        assert run.buffer.groups is run.groups
        assert (run.acceptance.generated, run.acceptance.qualified) == (
            len(order),
            sum(n % 3 == 1 for n in order),
        )


@pytest.mark.parametrize(("world_size", "needed"), [(1, 4), (2, 4), (2, 3)])
def test_a_round_is_shared_out_and_asks_for_what_is_missing(
    sample: Any, world_size: int, needed: int
) -> None:
    runs = sample(world_size, dataclasses.replace(SAMPLING, prompts_per_step=needed, responses_per_update=2))
    sizes, missing, qualified, generated = [], needed, 0, 0
    order = stream_order(SAMPLING, 100)
    while missing > 0:  # D4 by hand: what is missing by the rate so far, whole processes, at most 6
        rate = (qualified + 1) / (generated + 1)
        size = min(math.ceil(missing / rate / world_size), 6 // world_size) * world_size
        mixed = sum(n % 3 == 1 for n in order[generated : generated + size])
        sizes.append(size)
        missing, qualified, generated = missing - mixed, qualified + mixed, generated + size
    assert len(sizes) > 1  # or it says nothing about refills
    for rank, run in enumerate(runs):
        asked = [[int(problem.source) for problem, _ in call[1]] for call in run.calls]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        rounds = [order[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        assert asked == [round[rank::world_size] for round in rounds]


def test_each_round_is_seeded_by_step_and_round_and_gets_what_the_session_holds(sample: Any) -> None:
    for run in sample(2, SAMPLING):
        assert run.engine.seeds == [(3, round) for round in range(len(run.calls))]
        for tokenizer, _, sampling, end_ids, hooks in run.calls:
            assert (tokenizer, sampling, end_ids) == ("tokenizer", SAMPLING.sampling, [2])
            assert hooks == {"on_response": run.scorer.begin, "on_token": run.stop.on_token}


def test_without_dynamic_sampling_the_first_groups_are_the_batch(sample: Any) -> None:
    config = dataclasses.replace(SAMPLING, dynamic_sampling=False)
    (run,) = sample(1, config)
    assert sources(run.groups) == sources(run.sampled) == stream_order(config, 4)
    assert len(run.calls) == 1


def test_rounds_end_at_their_limit(sample: Any) -> None:
    (run,) = sample(1, dataclasses.replace(SAMPLING, max_rounds=1))
    assert (len(run.calls), run.buffer.full) == (1, False)


def test_sampling_that_was_interrupted_stops_all_processes(
    sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(model: FakeSession, *arguments: Any, **hooks: Any) -> Any:
        if model.engine.rank == 1:
            model.stop._signals.received = 15
        hooks["on_token"]()
        return [Group(problem, ids, []) for problem, ids in arguments[1]]

    monkeypatch.setattr(train, "sample_groups", interrupted)

    def work(processes: Any) -> str:
        with pytest.raises(StoppedError) as stopped:
            train.sample_batch(FakeSession(processes, SAMPLING), StepMetrics())
        return str(stopped.value)

    assert in_threads(2, work) == ["stopped by SIGTERM"] * 2


# --- Lines 10–11 --------------------------------------------------------------------------------------------

RAGGED = [[1, 30, 7, 12], [5, 2, 23, 9], [3, 3, 18, 1], [17, 8, 2, 21]]
UPDATES = {
    "precision": "fp32",
    "prompts_per_step": 4,
    "group_size": 4,
    "responses_per_update": 4,  # four mini-batches: π_θ leaves π_old after the first
    "tokens_per_microbatch": 60,
    "temperature": 0.7,
    "learning_rate": 4e-2,
    "warmup_steps": 4,
    "weight_decay": 0.1,
    "adam_beta1": 0.7,
    "adam_beta2": 0.9,
    "adam_eps": 1e-2,
    "max_grad_norm": 0.5,
    "clip_eps_low": 0.1,
    "clip_eps_high": 0.15,
    "max_response_length": 40,
    "overlong_cache_length": 10,
}


def session_of(engine: Any, config: Config, folder: Path) -> Session:
    """A session that has no scorer and whose prompts are not sampled from."""
    prompts = [(g.problem, g.prompt_ids) for g in random_groups(RAGGED)]
    objective = build_objective(config)
    run_folder = RunFolder(folder)
    return Session(config, engine, objective, None, char_tokenizer(), prompts, run_folder, StopSignals())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{}, {"overlong_filtering": True}, {"packing": False}, {"unbiased_std": False}]
)
def test_the_updates_of_a_step_are_those_of_plain_pytorch(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = save_model(tmp_path / "model", random_llama())
    config = Config(model=str(model), output_dir=str(tmp_path), **UPDATES | changes)
    groups = random_groups(RAGGED)
    run = session_of(PlainEngine(config), config, tmp_path)
    (tmp_path / "rollouts").mkdir()
    with run.step(1, train.learning_rate(config, 1)) as metrics:
        buffer = GroupBuffer[Group](4, any_outcome)
        buffer.add(groups, correct_matrix(groups))
        run.end_rollout(groups, buffer, metrics)
        train.update_policy(run, train.make_batch(groups, config), metrics)
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    plain = random_llama()
    samples = reference.samples_of(groups)
    expected = reference.train_step(plain, reference.adamw(plain, config), samples, config, step=1)
    assert expected.clipped_low > 0
    assert expected.clipped_high > 0
    for key, value in expected.record().items():
        assert record[key] == pytest.approx(value, rel=2e-5, abs=1e-7), key
    assert (record["updates"], record["lr"]) == (4, pytest.approx(2e-2))
    found = dict(run.engine.policy.model.named_parameters())
    for name, value in plain.named_parameters():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(("steps", "rates"), [(0, [12, 12, 12]), (1, [12, 12, 12]), (3, [4, 8, 12])])
def test_the_warm_up_is_linear_and_the_first_step_trains(steps: int, rates: list[float]) -> None:
    config = Config(learning_rate=12.0, warmup_steps=steps)
    assert [train.learning_rate(config, step) for step in range(3)] == rates


# --- What a step hands over ---------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session in its first step, whose engine is never used."""
    engine = OneProcess()
    engine.policy = SimpleNamespace(model=random_llama())  # type: ignore[attr-defined]
    engine.track = lambda record, rows=(): None  # type: ignore[attr-defined]
    config = Config(output_dir=str(tmp_path), max_skipped_updates=2, **UPDATES)
    return session_of(engine, config, tmp_path)


def test_too_many_skipped_updates_in_a_row_end_the_run(session: Session, tmp_path: Path) -> None:
    (mini,) = minibatches(filled_batch(random_groups([[2, 3]])), 2)
    metrics = StepMetrics()
    for norm in (math.nan, 1.0, math.inf):  # one that is made in between
        session.end_update(mini, [], norm, metrics)
    with pytest.raises(TrainingError, match=r"2 updates in a row .*bad_updates"):
        session.end_update(mini, [], math.nan, metrics)
    assert session.updates == 4
    names = sorted(path.name for path in (tmp_path / "bad_updates").iterdir())
    assert names == [f"step_000001_update_00000{update}_rank_00000.pt" for update in (1, 3, 4)]


def test_a_bad_update_keeps_its_micro_batches_and_losses(session: Session, tmp_path: Path) -> None:
    batch = filled_batch(random_groups([[2, 3]]))
    (mini,) = minibatches(batch, 2)
    plan = microbatches(batch, mini.rows, 1, 1, 0)
    metrics = StepMetrics()
    for _ in plan:
        metrics.add_microbatch(torch.tensor(math.inf), Clipping(0, 0, 1, 0, 0, 0, 0))
    session.end_update(mini, plan, math.nan, metrics)
    (file,) = (tmp_path / "bad_updates").iterdir()
    content = torch.load(file, weights_only=True)
    assert content["losses"] == [math.inf] * len(plan)
    assert [micro["rows"] for micro in content["microbatches"]] == [micro.rows for micro in plan]


def test_a_run_may_stop_until_the_weights_change_and_again_after_the_step(session: Session) -> None:
    session._folder.open(session.config)
    (mini,) = minibatches(filled_batch(random_groups([[2, 3]])), 2)
    groups = random_groups([[2, 3]])
    with session.step(0, 0.1) as metrics:
        assert session.stop.may_stop
        buffer = GroupBuffer[Group](1, any_outcome)
        buffer.add(groups, correct_matrix(groups))
        session.end_rollout(groups, buffer, metrics)
        session.end_update(mini, [], 1.0, metrics)
        assert not session.stop.may_stop
    assert session.stop.may_stop
    assert (session.steps_done, session.learning_rate) == (1, 0.1)


def test_end_of_rollout_writes_all_groups_and_marks_the_kept_ones(session: Session, tmp_path: Path) -> None:
    session._folder.open(session.config)
    groups = [dataclasses.replace(PUNISHED[i % 2], problem=Problem((), str(i), f"#{i}")) for i in range(4)]
    buffer = GroupBuffer[Group](2)
    buffer.add(groups, torch.tensor([[True] * 3, [True, False, False], [False] * 3, [True, True, False]]))
    session.acceptance.update(2, 4)
    metrics = StepMetrics()
    session.end_rollout(groups, buffer, metrics)
    lines = (tmp_path / "rollouts/step_000001.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["source"] for row in rows] == [f"#{i}" for i in range(4) for _ in range(3)]
    assert [row["kept"] for row in rows] == [i in (1, 3) for i in range(4) for _ in range(3)]
    assert [row["reward"] for row in rows[:6]] == [0.5, -1.0, -1.0, 1.0, -2.0, -1.0]
    assert [row["truncated"] for row in rows[:6]] == [False, False, False, False, True, False]
    # All right and all wrong differ: group 0 against group 2; the counts are halved for the next step.
    assert metrics.rollout["sampling/all_correct_frac"] == metrics.rollout["sampling/all_wrong_frac"] == 1 / 4
    assert session.acceptance.state_dict() == {"qualified": 1.0, "generated": 2.0}


def test_the_prompts_come_in_the_order_of_the_runs_seed(session: Session, tmp_path: Path) -> None:
    config = dataclasses.replace(session.config, seed=5)
    found = session_of(session.engine, config, tmp_path).stream.take(4)
    prompts = [(g.problem, g.prompt_ids) for g in random_groups(RAGGED)]
    assert found == PromptStream(prompts, seed=5).take(4)
    assert found != PromptStream(prompts, seed=0).take(4)


def test_a_step_without_any_group_ends_the_run(session: Session) -> None:
    session._folder.open(session.config)
    buffer = GroupBuffer[Group](2)
    buffer.add(PUNISHED[:1], torch.tensor([[True, True, True]]))
    with pytest.raises(TrainingError, match="1 were all correct and 0 all wrong"):
        session.end_rollout(PUNISHED[:1], buffer, StepMetrics())


def test_a_batch_that_is_not_full_is_warned_of_or_ends_the_run(session: Session, caplog: Any) -> None:
    session._folder.open(session.config)
    buffer = GroupBuffer[Group](2, any_outcome)
    buffer.add(PUNISHED[:1], correct_matrix(PUNISHED[:1]))
    session.end_rollout(PUNISHED[:1], buffer, StepMetrics())
    assert "after 1 rounds 1 of 2 groups are held" in caplog.text
    session.config = dataclasses.replace(session.config, on_round_limit="stop")
    with pytest.raises(TrainingError, match="after 1 rounds 1 of 2 groups are held"):
        session.end_rollout(PUNISHED[:1], buffer, StepMetrics())


# --- Whole runs in this process -----------------------------------------------------------------------------

RUN = [
    *("--data=tiny:train:60", "--prompt_template={question}", "--precision=fp32", "--prompts_per_step=2"),
    *("--group_size=4", "--responses_per_update=8", "--max_response_length=24", "--dynamic_sampling=false"),
    *("--overlong_cache_length=8", "--warmup_steps=3", "--learning_rate=1e-3"),
]


@pytest.fixture
def plain_engine(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """`train.main` runs without DeepSpeed; the list holds what the tracker is given."""
    tracked: list[Any] = []
    monkeypatch.setattr(train, "Engine", PlainEngine)
    monkeypatch.setattr(PlainEngine, "track", lambda self, record, rows=(): tracked.append(record))
    return tracked


def run_of(folder: Path, *options: str) -> tuple[list[Any], list[str]]:
    """A run's metrics, but for what is of the clock, and the names of its checkpoints."""
    train.main([*RUN, f"--output_dir={folder}", *options])
    records = [
        {k: v for k, v in record.items() if not k.startswith(("time/", "memory/"))}
        for record in read_metrics(folder / "metrics.jsonl")
    ]
    return records, sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_checkpoints_come_when_they_are_due(plain_engine: list[Any], tmp_path: Path) -> None:
    every = ("--rollout_steps=5", "--checkpoint_every=2", "--keep_checkpoints=9")
    records, checkpoints = run_of(tmp_path / "run", *every)
    assert checkpoints == ["step_000002", "step_000004", "step_000005"]
    assert [record["lr"] for record in records] == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3, 1e-3])
    # The tracker sees what metrics.jsonl holds.
    assert [record["step"] for record in plain_engine] == [1, 2, 3, 4, 5]
    assert all(
        record[f"time/{name}_s"] > 0 for record in plain_engine for name in ("rollout", "verify", "update")
    )
    assert all(record.items() <= seen.items() for record, seen in zip(records, plain_engine, strict=True))
    assert run_of(tmp_path / "none", "--rollout_steps=2", "--checkpoint_every=0")[1] == []


def test_a_run_ends_with_the_next_step(
    plain_engine: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    records, _ = run_of(tmp_path / "run", "--rollout_steps=2")
    first, last = (record["reward/accuracy"] for record in records)
    assert f"right in training: {first:.3f} in step 1, {last:.3f} in step 2" in caplog.text
    assert caplog.text.endswith(f"draw it: python -m dapo_ref.report {tmp_path / 'run'}\n")


def test_a_run_that_was_stopped_ends_with_the_command_that_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = save_model(tmp_path / "model", random_llama())
    config = Config(model=str(model), output_dir=str(tmp_path), **UPDATES)
    run = session_of(PlainEngine(config), config, tmp_path)
    with pytest.raises(StoppedError), run.step(0, 1e-3):
        raise StoppedError(15)
    assert caplog.text.endswith(f"resume: python train.py --config {tmp_path}/config.yaml --resume\n")


def test_a_resumed_run_in_this_process_is_the_run_that_was_not_stopped(
    plain_engine: list[Any], tmp_path: Path
) -> None:
    filtered = "--dynamic_sampling=true"  # the size of a round follows from what was accepted before
    whole, _ = run_of(tmp_path / "whole", filtered, "--rollout_steps=3")
    run_of(tmp_path / "resumed", filtered, "--rollout_steps=2")
    resumed, _ = run_of(tmp_path / "resumed", filtered, "--rollout_steps=3", "--resume")
    assert resumed == whole
    for name in ("step_000001.jsonl", "step_000003.jsonl"):
        assert (tmp_path / "whole/rollouts" / name).read_bytes() == (
            tmp_path / "resumed/rollouts" / name
        ).read_bytes()
