"""A reward of your own: `reward_function: FILE.py:NAME` of the configuration. docs/extending.md has examples.

The function is called with (prompt, response, reference, fields) and says whether the response is right
(which Eq. 11 counts), which reward it earns (which Eq. 9 sees), or both:

    True or False     right or wrong; the reward is ±1 (Eq. 7)
    a number          the reward; right where it is above 0
    (bool, number)    both

It runs in processes that are killed when they take too long, or in this one. An exception, a time-out, or a
value that is none of these, nan and inf among them, costs one response: wrong, with reward −1.

A worker imports this module, so torch is not imported here.
"""

import importlib.util
import json
import logging
import math
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dapo_ref.errors import ConfigError
from dapo_ref.workers import ALARM_AFTER_S, WorkerPool

log = logging.getLogger(__name__)

RewardFunction = Callable[[str, str, str, dict[str, Any]], Any]
"""(prompt, response, reference, the row's other fields) → bool, number, or (bool, number)."""

WRONG = -1.0
"""The reward of a wrong response, Eq. 7; also of one whose reward cannot be had."""

MAX_REWARD = 1e30  # far inside float32, so that no mean or std of a group overflows
_NAME = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
_LAUNCH = "import sys; sys.path.insert(0, sys.argv[1]); from dapo_ref.own_reward import main; "
_LAUNCH += "main(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the function says of one response.

    Attributes:
        right: whether the response is right.
        reward: finite.
        failure: the last line of the traceback, or what else went wrong; empty where nothing did.
        timed_out: the function took too long.
    """

    right: bool
    reward: float
    failure: str = ""
    timed_out: bool = False


def load(spec: str) -> RewardFunction:
    """The function that `FILE.py:NAME` names; its file's folder can be imported from.

    Raises:
        ConfigError: no such file or function, or the file cannot be run.
    """
    match = _NAME.fullmatch(spec)
    if match is None:
        raise ConfigError(f"reward_function: expected FILE.py:NAME, got {spec!r}")
    path = Path(match["file"]).resolve()
    if not path.is_file():
        raise ConfigError(f"reward_function: no such file: {match['file']}")
    module = _import(path)
    found = getattr(module, match["name"], None)
    if not callable(found):
        names = [n for n, v in vars(module).items() if callable(v) and v.__module__ == module.__name__]
        raise ConfigError(
            f"reward_function: {match['file']} has no function {match['name']!r}"
            + (f"; it has {', '.join(names)}" if names else "")
        )
    function: RewardFunction = found
    return function


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"reward_function_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a module up by its name
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"reward_function: {path} cannot be imported: {_last_line(error)}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def outcome_of(value: Any) -> Outcome:
    """What a function returned, as an outcome.

    Raises:
        ValueError: it is neither a bool, nor a finite number, nor a pair of them.
    """
    if isinstance(value, tuple | list) and len(value) == 2:
        right, reward = _plain(value[0]), _plain(value[1])
        if isinstance(right, bool) and not isinstance(reward, bool):
            return Outcome(right, _finite(reward, value))
    elif isinstance(found := _plain(value), bool):
        return Outcome(found, 1.0 if found else WRONG)
    else:
        reward = _finite(found, value)
        return Outcome(reward > 0, reward)
    raise ValueError(f"expected a bool, a number, or (bool, number), got {value!r}")


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as Python's own."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _finite(reward: Any, value: Any) -> float:
    if not isinstance(reward, int | float) or not math.isfinite(reward) or abs(reward) > MAX_REWARD:
        raise ValueError(f"expected a finite number as reward, got {value!r}")
    return float(reward)


def call(function: RewardFunction, prompt: str, response: str, reference: str, fields: Any) -> Outcome:
    """The outcome of one response; nothing that the function does is raised, but for Ctrl-C."""
    try:
        return outcome_of(function(prompt, response, reference, fields))
    except (Exception, SystemExit) as error:
        return Outcome(False, WRONG, _last_line(error))


def _last_line(error: BaseException) -> str:
    """`ZeroDivisionError: division by zero (reward.py:7)`: of what, and where in the file."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())[-300:]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    frames = [f for f in frames if not f.filename.startswith("<")]
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


# ------------------------------------------------------------------------------------------------------------
# In workers


@dataclass(eq=False)
class Ticket:
    """An outcome that may still be on its way: pass it to `OwnReward.result`."""

    message: list[Any]
    outcome: Outcome | None = None


class OwnReward(WorkerPool):
    """Asks a function about responses, in `workers` processes or in this one.

    Args:
        spec: FILE.py:NAME.
        in_process: no processes: for functions that hold a large model or talk to a server. Then nothing ends
            a call that takes too long.
        workers, timeout_s, memory_mb: as for `WorkerPool`.

    Raises:
        ConfigError: as `load`.
    """

    session = True  # what a function starts ends with it

    def __init__(
        self, spec: str, *, in_process: bool, workers: int, timeout_s: float, memory_mb: int
    ) -> None:
        super().__init__(_LAUNCH, workers, timeout_s, memory_mb, [spec])
        self._function = load(spec)  # here, too, so that what is wrong with it is said before anything starts
        self._in_process = in_process
        self._shown = False

    def submit(self, prompt: str, response: str, reference: str, fields: dict[str, Any]) -> Ticket:
        """Begins to ask about one response."""
        ticket = Ticket([prompt, response, reference, fields])
        if not self._in_process:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the pool is closed")
                self._pending[ticket] = None
                self._advance(wait=False)
        return ticket

    def result(self, ticket: Ticket) -> Outcome:
        """Waits for one outcome; the first that failed is shown."""
        if self._in_process:
            ticket.outcome = call(self._function, *ticket.message)
        with self._lock:
            self._wait(lambda: ticket.outcome is not None)
        assert ticket.outcome is not None
        if ticket.outcome.failure and not self._shown:
            self._shown = True
            log.warning(
                "reward_function: %s; the response counts as wrong, with reward %g. Further ones are only "
                "counted: reward/failed and reward/timed_out in metrics.jsonl",
                ticket.outcome.failure,
                WRONG,
            )
        return ticket.outcome

    def _message(self, task: Ticket) -> object:
        return task.message

    def _replied(self, task: Ticket, line: str) -> None:
        self._finish(task, Outcome(*json.loads(line)))

    def _lost(self, task: Ticket, killed: bool) -> None:
        seconds = f"took longer than verifier_timeout_s = {self.timeout_s:g} seconds"
        why = seconds if killed else f"its process died; verifier_memory_mb is {self.memory_mb}"
        self._finish(task, Outcome(False, WRONG, why, timed_out=killed))

    def _finish(self, task: Ticket, outcome: Outcome) -> None:
        del self._pending[task]
        task.outcome = outcome


def main(memory_mb: int, timeout_s: float, spec: str) -> None:
    """The process side: answers [prompt, response, reference, fields], a line of JSON each, until the input
    ends."""
    tasks, replies = os.fdopen(os.dup(0), encoding="ascii"), os.fdopen(os.dup(1), "w", encoding="ascii")
    with open(os.devnull, "rb") as nothing:  # neither the function nor what it starts reads tasks
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # nor writes between the replies
    function = load(spec)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", file=replies, flush=True)
    for line in tasks:
        signal.setitimer(signal.ITIMER_REAL, timeout_s + ALARM_AFTER_S)
        found = call(function, *json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps([found.right, found.reward, found.failure]), file=replies, flush=True)
