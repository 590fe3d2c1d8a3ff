"""`reward_function`: the user's own function in workers and in this process, and the examples of
`docs/your_task.md`."""

import dataclasses
import json
import logging
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import train
from dapo_ref.config import Config
from dapo_ref.data import Problem, load_problems
from dapo_ref.errors import ConfigError
from dapo_ref.layout import Layout
from dapo_ref.own_reward import Outcome, OwnReward, call, load, outcome_of
from dapo_ref.run.metrics import StepMetrics
from dapo_ref.scoring import Scorer, correct_matrix, rewards_of, rollout_rows
from dapo_ref.types import Group, Rollout
from tests.support.helpers import ROOT, char_tokenizer, random_llama, save_model
from tests.support.plain_engine import PlainEngine
from tests.test_keys import BASE

PAGE = (ROOT / "docs/your_task.md").read_text(encoding="utf-8")
PATIENCE = 60.0
FUNCTIONS = '''
import os, subprocess, sys, time
from pathlib import Path

def echo(prompt, response, reference, fields):
    """Right where the response is the reference; the reward is in the row."""
    return response == reference, fields["worth"] if prompt == "What?" else 0.0

def parity(prompt, response, reference, fields):
    return (-1) ** len(response) * 0.25

def odd(prompt, response, reference, fields):
    if response == "raise":
        return 1 / 0
    if response == "exit":
        sys.exit(3)
    if response == "die":
        os._exit(3)
    if response == "nan":
        return float("nan")
    if response == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(fields["pid"]).write_text(str(child.pid), encoding="utf-8")
        time.sleep(600)
    return True

def where(prompt, response, reference, fields):
    return True, float(os.getpid())

value = 3
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("reward") / "functions.py"
    path.write_text(FUNCTIONS, encoding="utf-8")
    return str(path)


def own(spec: str, in_process: bool = False, timeout_s: float = PATIENCE) -> OwnReward:
    return OwnReward(spec, in_process=in_process, workers=1, timeout_s=timeout_s, memory_mb=1024)


def ask(pool: OwnReward, *responses: str, **fields: Any) -> list[Outcome]:
    tickets = [pool.submit("What?", response, "3", fields) for response in responses]
    return [pool.result(ticket) for ticket in tickets]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, Outcome(True, 1.0)),
        (False, Outcome(False, -1.0)),
        (0.25, Outcome(True, 0.25)),
        (0, Outcome(False, 0.0)),
        (-2, Outcome(False, -2.0)),
        ((False, 0.5), Outcome(False, 0.5)),
        ((True, -1), Outcome(True, -1.0)),
        ([True, 2], Outcome(True, 2.0)),
        (np.bool_(True), Outcome(True, 1.0)),
        (np.float32(0.5), Outcome(True, 0.5)),
        (torch.tensor(0.5), Outcome(True, 0.5)),
        ((np.bool_(False), np.float64(0.5)), Outcome(False, 0.5)),
    ],
)
def test_right_and_reward_of_what_is_returned(value: Any, expected: Outcome) -> None:
    assert outcome_of(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *(None, "1", math.nan, math.inf, -math.inf, 1e31, 10**400, (True,), (1.0, 1.0), (True, True)),
        *((True, math.nan), (True, None), (True, 1.0, 2), {}, torch.ones(2), 1j),
    ],
)
def test_anything_else_is_a_failure_of_one_response(value: Any) -> None:
    found = call(lambda *_: value, "", "", "", {})
    assert (found.right, found.reward, found.timed_out) == (False, -1.0, False)
    assert "Error: " in found.failure


@pytest.mark.parametrize("in_process", [False, True])
def test_the_function_gets_prompt_response_reference_and_fields(file: str, in_process: bool) -> None:
    pool = own(f"{file}:echo", in_process)
    try:
        assert ask(pool, "3", "4", worth=0.75) == [Outcome(True, 0.75), Outcome(False, 0.75)]
    finally:
        pool.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_exceptions_deaths_and_time_outs_cost_one_response(
    file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = own(f"{file}:odd")
    pid = tmp_path / "pid"
    try:
        with caplog.at_level(logging.WARNING):
            found = ask(pool, "fine", "raise", "exit", "nan", "die", "fine")
            pool.timeout_s = 3.0  # of the next ones: the first start of a process may be slow
            (hung,) = ask(pool, "hang", pid=str(pid))
    finally:
        pool.close()
    assert [o.right for o in found] == [True, False, False, False, False, True]
    assert [o.reward for o in found] == [1, -1, -1, -1, -1, 1]
    assert re.fullmatch(r"ZeroDivisionError: division by zero \(functions\.py:\d+\)", found[1].failure)
    assert [o.timed_out for o in found] == [False] * 6
    assert found[2].failure.startswith("SystemExit: 3")
    assert found[3].failure == "ValueError: expected a finite number as reward, got nan"
    assert "its process died" in found[4].failure
    assert (hung.right, hung.reward, hung.timed_out) == (False, -1.0, True)
    assert "longer than verifier_timeout_s = 3 seconds" in hung.failure
    shown = [r.getMessage() for r in caplog.records if "reward_function" in r.getMessage()]
    assert len(shown) == 1
    assert "ZeroDivisionError: division by zero (functions.py:" in shown[0]
    end = time.monotonic() + PATIENCE
    while alive(int(pid.read_text(encoding="utf-8"))):  # what the function started ends with its process
        assert time.monotonic() < end
        time.sleep(0.02)


def test_in_process_nothing_is_started(file: str) -> None:
    here = {o.reward for o in ask(own(f"{file}:where", in_process=True), "a", "b")}
    assert here == {float(os.getpid())}
    pool = own(f"{file}:where")
    try:
        assert ask(pool, "a")[0].reward != float(os.getpid())
        assert pool._running
    finally:
        pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit("", "", "", {})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("functions.py", ["expected FILE.py:NAME", "'functions.py'"]),
        ("nowhere.py:score", ["no such file: nowhere.py"]),
        ("FILE:score", ["has no function 'score'; it has echo, parity, odd, where"]),
        ("FILE:value", ["has no function 'value'"]),
        ("BROKEN:score", ["broken.py cannot be imported: ModuleNotFoundError", "no_such_thing"]),
    ],
)
def test_what_cannot_be_loaded_is_refused_before_anything_starts(
    file: str, tmp_path: Path, spec: str, words: list[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_thing\n", encoding="utf-8")
    config = Config(reward_function=spec.replace("FILE", file).replace("BROKEN", str(broken)))
    with pytest.raises(ConfigError) as error:
        Scorer(config)
    assert [word for word in words if word not in str(error.value)] == []
    assert "\n" not in str(error.value)


def test_keys_that_contradict_a_reward_function_are_refused() -> None:
    with pytest.raises(ConfigError, match="reward_in_process needs reward_function"):
        Config(reward_in_process=True)
    for other in ({"verifier": "recipe"}, {"compare_recipe": True}):
        with pytest.raises(ConfigError, match="takes the place of the verifier"):
            Config(reward_function="a.py:f", **other)  # type: ignore[arg-type]


def test_verdict_reward_and_failure_reach_response_metrics_and_rows(file: str) -> None:
    """Two of the four fail; the punishment of Eq. 13 for 8 of at most 10 tokens, cache 4, is −0.5."""
    config = Config(
        max_response_length=10, overlong_cache_length=4, group_size=2, responses_per_update=2,
        reward_function=f"{file}:odd", reward_in_process=True,
    )  # fmt: skip
    texts = (("fine", "raise"), ("nan", "fine"))
    problem = Problem(({"role": "user", "content": "What?"},), "3", "test#0")
    groups = [Group(problem, [1, 20], [Rollout([5] * 8, text, False) for text in pair]) for pair in texts]
    with Scorer(config) as scorer:
        scored = scorer.score(groups)
    assert correct_matrix(scored).tolist() == [[True, False], [False, True]]
    assert rewards_of(scored).tolist() == [0.5, -1.5, -1.5, 0.5]
    rows = rollout_rows(scored, char_tokenizer())
    assert ["failure" in row for row in rows] == [False, True, True, False]
    metrics = StepMetrics()
    buffer: Any = type("Buffer", (), {"groups": [], "rounds": 1, "groups_generated": 2,
        "groups_qualified": 2, "groups_all_correct": 0, "groups_all_wrong": 0})()  # fmt: skip
    metrics.add_rollout(buffer, scored)
    assert (metrics.rollout["reward/failed"], metrics.rollout["reward/timed_out"]) == (2, 0)
    late = Outcome(False, -1.0, "slow", timed_out=True)
    slow = [dataclasses.replace(r, own=late) for r in scored[0].rollouts]
    metrics.add_rollout(buffer, [dataclasses.replace(scored[0], rollouts=slow)])
    assert (metrics.rollout["reward/failed"], metrics.rollout["reward/timed_out"]) == (0, 2)


def test_the_other_fields_of_a_row_are_carried_only_for_a_reward_function(tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    row = {"question": "q", "answer": ["t", 1.5], "worth": 0.5, "tags": {"a": [1, None]}}
    data.write_text(json.dumps(row) + "\n", encoding="utf-8")
    (problem,) = load_problems(str(data), prompt_template="{question}", layout=Layout(keep_fields=True))
    assert problem.fields == {"worth": 0.5, "tags": {"a": [1, None]}}
    assert problem.reference == '["t", 1.5]'
    data.write_text('{"question": "q", "answer": "1", "worth": 0.5}\n', encoding="utf-8")
    assert load_problems(str(data), prompt_template="{question}")[0].fields == {}


def test_a_run_is_trained_by_the_function(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses of even length earn 0.25 and are right, those of odd length −0.25."""
    monkeypatch.setattr(train, "Engine", PlainEngine)
    model = save_model(tmp_path / "model", random_llama())
    settings = BASE | {
        "model": model,
        "dynamic_sampling": False,
        "soft_overlong_punishment": False,
        "rollout_steps": 1,
        "reward_function": f"{file}:parity",
        "output_dir": tmp_path / "run",
    }
    train.main([f"--{key}={value}" for key, value in settings.items()])
    text = (tmp_path / "run/rollouts/step_000001.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert rows
    for row in rows:
        even = len(row["response"]) % 2 == 0
        assert (row["correct"], row["reward"]) == (even, 0.25 if even else -0.25)
    metrics = json.loads((tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8"))
    assert metrics["reward/failed"] == metrics["reward/timed_out"] == 0


@pytest.fixture
def example(tmp_path: Path) -> Any:
    """An example of the page as a file, loaded."""
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)\n```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(code, encoding="utf-8")
    return lambda name: load(f"{tmp_path / name}:score")


def test_the_example_of_an_exact_string(example: Any) -> None:
    score = example("exact.py")
    found = [score("q", text, "Paris", {}) for text in ("so\nParis", "paris ", "Paris\nLyon", "")]
    assert found == [True, True, False, False]


def test_the_example_of_unit_tests(example: Any) -> None:
    """Passes both, one of two, none: it exits before the tests, it loops for ever, it writes a file."""
    score = example("unit_tests.py")
    tests = json.dumps(["assert add(1, 2) == 3", "assert add(2, 2) == 4"])

    def of(code: str) -> Any:
        return score("q", f"Here:\n```python\n{code}\n```", tests, {})

    assert of("def add(a, b):\n    return a + b") == (True, 1.0)
    assert of("def add(a, b):\n    return 3") == (False, 0.0)
    assert of("import sys\nsys.exit(0)") == (False, -1.0)
    assert of("while True: pass") == (False, -1.0)
    assert of("print('x', file=open('x', 'w'), flush=True)\ndef add(a, b):\n    return a + b") == (
        False,
        -1.0,
    )
    assert score("q", "no code", tests, {}) is False


def test_the_example_of_a_length(example: Any) -> None:
    """Two words of ten: 1 + 0.5 · 0.8."""
    score = example("length.py")
    assert score("q", "Answer: 3", "3", {"words": 10}) == (True, pytest.approx(1.4))
    assert score("q", "Answer: 4", "3", {}) == (False, -1)
