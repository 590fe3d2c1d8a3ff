"""`dapo_ref/run/session.py` and `train.main`: what the loop hands over, in whole runs of this process."""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import train
from dapo_ref.config import Config, read_config
from dapo_ref.dynamic_sampling import GroupBuffer, any_outcome
from dapo_ref.errors import ConfigError
from dapo_ref.policy.batching import minibatches
from dapo_ref.policy.rollout import end_token_ids
from dapo_ref.run import checkpoint
from dapo_ref.run import session as module
from dapo_ref.run.evaluator import Evaluator, load_eval_tasks, metrics_of
from dapo_ref.run.files import read_lines, read_metrics
from dapo_ref.run.metrics import StepMetrics
from dapo_ref.run.preemption import StoppedError
from dapo_ref.run.session import Session
from dapo_ref.scoring import Scorer, correct_matrix
from dapo_ref.types import Group
from tests.support.helpers import filled_batch, random_groups, random_llama, save_model
from tests.support.plain_engine import PlainEngine
from tests.test_keys import BASE, FREE
from tests.test_wiring import RAGGED, UPDATES, session_of


class Engine(PlainEngine):
    """Writes down what it is told, apart from the mathematics."""

    log: list[Any]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        type(self).log = []

    def start_tracker(self, steps_done: int) -> None:
        self.log.append(("tracker", steps_done))

    def track(self, record: Any, rows: Any = ()) -> None:
        self.log.append((record["step"], len(rows)))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        self.log.append("watched")
        yield

    def close(self) -> None:
        self.log.append("closed")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A run of `train.main` with some settings; gives the lines of metrics.jsonl."""
    monkeypatch.setattr(train, "Engine", Engine)

    def main(**settings: Any) -> list[dict[str, Any]]:
        values = BASE | FREE | {"output_dir": tmp_path / "run"} | settings
        train.main([f"--{key}={value}" for key, value in values.items()])
        return read_metrics(tmp_path / "run/metrics.jsonl")

    return main


HELD_OUT = {
    "evaluate_every": 2,
    "eval_data": "tiny:test:3",
    "eval_samples_per_problem": 2,
    "eval_top_p": 0.8,
    "temperature": 0.7,
    "rollout_steps": 3,
    "seed": 5,
}


def test_held_out_problems_are_asked_as_configured_when_it_is_due(run: Any, tmp_path: Path) -> None:
    records = run(**HELD_OUT)
    assert [record["step"] for record in records if "eval/tiny:test:3/avg@2" in record] == [0, 2, 3]
    assert ["time/evaluate_s" in record for record in records] == [False, False, True, True]
    # Two groups of four a step; the tracker sees step 0, without responses.
    assert Engine.log == ["watched", ("tracker", 0), (0, 0), (1, 8), (2, 8), (3, 8), "closed"]
    config = read_config(tmp_path / "run/config.yaml")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run/model")
    # Temperature 1, its own top-p, the run's seed: asked anew of the exported model.
    sampling = dataclasses.replace(config.sampling, group_size=2, top_p=0.8, temperature=1.0)
    with Scorer(config) as scorer:
        evaluator = Evaluator(tokenizer, end_token_ids(tokenizer, model), sampling, 5, scorer)
        expected = metrics_of(evaluator.rows(model, load_eval_tasks(config, tokenizer)))
    for key, value in expected.items():
        assert records[-1][key] == pytest.approx(value, rel=1e-5), key
    assert records[-1]["eval/tiny:test:3/length_mean"] != records[0]["eval/tiny:test:3/length_mean"]


def test_a_run_that_did_not_come_to_step_1_is_evaluated_once_when_it_begins_anew(
    run: Any, tmp_path: Path
) -> None:
    few = HELD_OUT | {"rollout_steps": 1}
    run(**few, checkpoint_every=0)
    assert [record["step"] for record in run(**few, checkpoint_every=1, resume=True)] == [0, 1]
    more = run(**HELD_OUT | {"checkpoint_every": 1, "resume": True})
    assert [record["step"] for record in more] == [0, 1, 2, 3]
    assert Engine.log[:3] == ["watched", ("tracker", 1), (2, 8)]  # and not before step 2


def test_recorded_tokens_have_the_clips_that_the_metrics_count(run: Any, tmp_path: Path) -> None:
    """All groups recorded: the marks add up to the shares of the step, which has four updates."""
    sizes = {"prompts_per_step": 4, "record_tokens": 4, "keep_rollouts": 1, "rollout_steps": 3}
    records = run(**sizes, warmup_steps=1, clip_eps_low=0.001, clip_eps_high=0.002)
    for record in records:
        rows = read_lines(tmp_path / f"run/tokens/step_00000{record['step']}.jsonl")
        marks = "".join(row["clipped"] for row in rows)
        assert len(rows) == 16
        assert len(marks) == record["tokens/trained"]
        for mark, side in (("l", "low"), ("h", "high")):
            assert marks.count(mark) / len(marks) == pytest.approx(record[f"policy/clip_frac_{side}"])
    assert all(sum(record[f"policy/clip_frac_{side}"] for record in records) > 0 for side in ("low", "high"))
    assert [file.name for file in (tmp_path / "run/rollouts").iterdir()] == ["step_000003.jsonl"]


@pytest.fixture
def plain(tmp_path: Path) -> Any:
    """A session on a plain engine; other settings give another one in the same folder."""
    model = save_model(tmp_path / "model", random_llama())

    def make(**settings: Any) -> Session:
        values = UPDATES | {"model": str(model), "output_dir": str(tmp_path / "run"), **settings}
        config = Config(**values)
        (tmp_path / "run/rollouts").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run/checkpoints").mkdir(exist_ok=True)
        return session_of(Engine(config), config, tmp_path / "run")

    return make


def finish_step(run: Session, step: int, norms: tuple[float, ...] = (1.0,)) -> None:
    """A step whose updates have these norms, without mathematics."""
    groups = random_groups([[2, 3]])
    (mini,) = minibatches(filled_batch(groups), 2)
    with run.step(step, 0.1) as metrics:
        metrics.timers = {"rollout": 4.0 * (step + 1)}
        run.stream.take(3)
        buffer = GroupBuffer[Group](1, any_outcome)
        buffer.add(groups, correct_matrix(groups))
        run.end_rollout(groups, buffer, metrics)
        for norm in norms:
            run.end_update(mini, [], norm, metrics)


def test_a_stop_within_a_step_saves_the_step_before_and_only_once(plain: Any, tmp_path: Path) -> None:
    run = plain(checkpoint_every=10)
    run.begin()
    finish_step(run, 0)
    run._signals.received = 15
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(StoppedError))
        stack.enter_context(run.step(1, 0.1))
        run.stream.take(2)
        run.acceptance.update(1, 9)
        run.stop.if_told()
    (path,) = (tmp_path / "run/checkpoints").iterdir()
    state = json.loads((path / "loop.json").read_text(encoding="utf-8"))
    assert (path.name, state["step"], state["stream"]["position"]) == ("step_000001", 1, 3)
    assert state["acceptance"]["generated"] == 0
    before = path.stat().st_mtime_ns, path.stat().st_ino
    with pytest.raises(StoppedError), run.step(1, 0.1):
        run.stop.if_told()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_a_stop_in_the_updates_waits_for_the_end_of_the_step(plain: Any, tmp_path: Path) -> None:
    run = plain(checkpoint_every=10)
    run.begin()
    run._signals.received = 15
    run.stop.may_stop = False  # as after an update
    with pytest.raises(StoppedError):
        finish_step(run, 0)
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step_000001"]
    assert [record["step"] for record in read_metrics(tmp_path / "run/metrics.jsonl")] == [1]


def test_a_stop_before_the_first_step_has_nothing_to_save(plain: Any, tmp_path: Path) -> None:
    run = plain(checkpoint_every=10)
    run.begin()
    with pytest.raises(StoppedError), run.step(0, 0.1):
        raise StoppedError(15)
    assert list((tmp_path / "run/checkpoints").iterdir()) == []


def test_what_is_resumed_is_what_was_saved(
    plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = plain(checkpoint_every=1)
    first.begin()
    finish_step(first, 0, (1.0, float("nan")))
    first._folder.write_rollouts(2, [])  # of a step that was not finished
    second = plain(checkpoint_every=1, resume=True, rollout_steps=7)
    asked: list[Any] = []
    load = checkpoint.load_state
    monkeypatch.setattr(
        checkpoint, "load_state", lambda *a, written_by: asked.append(written_by) or load(*a, written_by)
    )
    monkeypatch.setattr(checkpoint, "say_what_differs", lambda engine, state: asked.append(state["step"]))
    monkeypatch.setattr(checkpoint, "warn_of_little_space", lambda *a: asked.append("space"))
    second.begin()
    assert asked == [1, 1, "space"]
    assert second.state_dict() == first.state_dict() == second._last_finished
    assert second.state_dict()["skipped_in_a_row"] == 1
    assert second._signals._in_loop
    assert Engine.log == [("tracker", 1)]
    assert read_config(tmp_path / "run/config.yaml").rollout_steps == 7
    assert [file.name for file in (tmp_path / "run/rollouts").iterdir()] == ["step_000001.jsonl"]
    assert "resuming after step 1" in caplog.text


def test_the_line_of_a_step_has_the_time_left_and_is_followed_by_warnings(
    plain: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    lines: list[Any] = []
    monkeypatch.setattr(
        module, "summary_line", lambda *arguments: lines.append(arguments[1:]) or f"line {len(lines)}"
    )
    run = plain(rollout_steps=5, checkpoint_every=0)
    run._health = SimpleNamespace(check=lambda record: [f"look at {record['step']}"])
    run.begin()
    finish_step(run, 0)
    finish_step(run, 1)
    assert lines == [(5, 16.0), (5, 18.0)]  # 4 s a step, four to come; 4 and 8 s, three to come
    assert "line 1\nline 2\n" in capsys.readouterr().out
    assert [record.getMessage() for record in caplog.records] == ["look at 1", "look at 2"]


def test_only_the_main_process_writes_and_speaks(plain: Any, tmp_path: Path, capsys: Any) -> None:
    run = plain(checkpoint_every=0)
    run.engine.is_main = False
    run.begin()
    finish_step(run, 0)
    assert [path.name for path in sorted((tmp_path / "run").iterdir())] == ["checkpoints", "rollouts"]
    assert list((tmp_path / "run/rollouts").iterdir()) == []
    assert capsys.readouterr().out == ""


def test_what_a_session_tells_policy_stop_points_and_watch(plain: Any) -> None:
    run = plain()
    largest = max(run.tokenizer.get_vocab().values())
    assert run.engine.policy.num_tokens == largest + 1
    assert run.stop._interruptible
    assert not plain(rollout_weights="sharded").stop._interruptible
    run.steps_done = 4
    with run.phase("update", 3) as bar:
        assert run.engine.watch.doing == "step 5: update"
        assert bar.total == 3


def test_a_stop_is_heard_before_old_log_probabilities_and_before_the_first_update(plain: Any) -> None:
    for size, calls in ((4, 1), (16, 0)):  # four mini-batches: π_old of the second one comes first
        run = plain(responses_per_update=size)
        run._signals.received = 15
        asked = []
        logprobs = run.engine.logprobs
        run.engine.logprobs = lambda micro: asked.append(micro) or logprobs(micro)  # noqa: B023
        groups = random_groups(RAGGED)
        with pytest.raises(StoppedError):
            train.update_policy(run, train.make_batch(groups, run.config), StepMetrics())
        assert len(asked) == calls
        assert run.updates == 0


def test_a_mini_batch_without_a_trained_token_makes_no_update(plain: Any) -> None:
    run = plain(overlong_filtering=True)
    groups = random_groups(RAGGED)
    groups[1].rollouts[:] = [dataclasses.replace(r, truncated=True) for r in groups[1].rollouts]
    with run.step(1, 1e-3) as metrics:
        buffer = GroupBuffer[Group](4, any_outcome)
        buffer.add(groups, correct_matrix(groups))
        run.end_rollout(groups, buffer, metrics)
        train.update_policy(run, train.make_batch(groups, run.config), metrics)
    assert (run.updates, metrics.skipped_updates) == (3, 0)


def test_each_phase_has_its_own_clock(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the model takes 1 s, an update 100 s, of a clock that stands still otherwise."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("dapo_ref.run.metrics.time.perf_counter", lambda: clock.now)
    run = plain(tokens_per_microbatch=10**6)
    logprobs, step = run.engine.logprobs, run.engine.step

    def slow(seconds: float, call: Any) -> Any:
        def called(*arguments: Any) -> Any:
            clock.now += seconds
            return call(*arguments)

        return called

    run.engine.logprobs, run.engine.step = slow(1, logprobs), slow(100, step)
    metrics = StepMetrics()
    train.update_policy(run, train.make_batch(random_groups(RAGGED), run.config), metrics)
    assert metrics.timers == {"logprobs": 3.0, "update": 404.0}  # three of four mini-batches need π_old


# --- What is looked at before the model is loaded -----------------------------------------------------------


def test_a_run_is_refused_before_anything_is_made(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 positions; prompts of 4 to 300 characters and responses of up to 400 tokens."""
    model = save_model(tmp_path / "model", random_llama())
    long = tmp_path / "long.jsonl"
    rows = [{"question": question, "answer": "1"} for question in ("1+0=", "1" * 200, "2-1=", "1" * 300)]
    long.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    common = {"model": model, "max_response_length": 400, "rollout_steps": 1}
    with pytest.raises(ConfigError, match="512 positions"):
        run(**common, data=long)
    held_out = common | {"evaluate_every": 1, "eval_data": long, "eval_samples_per_problem": 1}
    with pytest.raises(ConfigError, match="512 positions"):
        run(**held_out)
    asked = []
    monkeypatch.setattr(train, "require_machine", lambda config: asked.append(config.model))
    monkeypatch.setattr(train, "check_weights", asked.append)
    monkeypatch.setattr(train, "Engine", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(**held_out, max_prompt_length=100)  # what is too long is not asked and needs no position
    assert asked == [str(model)] * 2
    assert (tmp_path / "run/config.yaml").exists()


def test_only_the_first_process_opens_the_folder(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(train, "Engine", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()
    assert not (tmp_path / "run").exists()
