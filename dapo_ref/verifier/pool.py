"""Verdicts on responses; the cases that only sympy decides go to processes that can be killed.

Exact stages run in the caller; a case that needs more goes to a worker, one at a time, with a deadline. A
worker past its deadline is killed and replaced (`dapo_ref/workers.py`): its case is one `timeout`.
"""

import os
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from dapo_ref.verifier.decide import compare
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.verdict import NeedsSymbolicError, Status, Verdict
from dapo_ref.workers import WorkerPool

CACHE_SIZE = 65_536
_LAUNCH = "import sys; sys.path.insert(0, sys.argv[1]); from dapo_ref.verifier.worker import main; "
_LAUNCH += "main(int(sys.argv[2]), float(sys.argv[3]))"


@dataclass(eq=False)
class Ticket:
    """A verdict that may still be on its way: pass it to `VerifierPool.result`."""

    answer: str | None
    verdict: Verdict | None = None


class VerifierPool(WorkerPool):
    """Judges responses; at most `workers` processes run sympy.

    Args:
        workers: processes, started when the first case needs them.
        timeout_s: seconds a worker may spend on one case, counted from its dispatch.
        memory_mb: address space of a worker.
        boxed: whether a box marks an answer where no `Answer:` line does.

    `counts` has verdicts by status, and `killed`, `died`, `cache_hits`. Raises ValueError at a size that is
    not positive, RuntimeError after `close` and when workers cannot be started.
    """

    def __init__(
        self, workers: int = 1, timeout_s: float = 5.0, memory_mb: int = 1024, boxed: bool = True
    ) -> None:
        super().__init__(_LAUNCH, workers, timeout_s, memory_mb)
        self.boxed = boxed
        self._pending: dict[tuple[str, str], list[Ticket]] = {}  # who waits for a task, oldest first
        self._cache: OrderedDict[tuple[str, str], Status] = OrderedDict()

    def __enter__(self) -> "VerifierPool":
        return self

    def judge_many(self, pairs: Iterable[tuple[str, str]]) -> list[Verdict]:
        """Verdicts for (response, reference) pairs, in their order."""
        return [self.result(ticket) for ticket in [self.submit(*pair) for pair in pairs]]

    def verify_many(self, pairs: Iterable[tuple[str, str]]) -> list[bool]:
        """Whether each response is correct, in the order of the pairs."""
        return [verdict.correct for verdict in self.judge_many(pairs)]

    def submit(self, response: str, reference: str) -> Ticket:
        """Begin to judge one response (without its prompt); the ticket is settled unless sympy is needed."""
        return self.submit_answer(extract_answer(response, boxed=self.boxed), reference)

    def submit_answer(self, answer: str | None, reference: str) -> Ticket:
        """The same for a bare answer; None means that a response has none."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            ticket = Ticket(answer)
            if answer is None:
                self._settle(ticket, Status.NO_ANSWER)
                return ticket
            key = (answer, reference)
            if key in self._cache:
                self._cache.move_to_end(key)
                self.counts["cache_hits"] += 1
                self._settle(ticket, self._cache[key])
                return ticket
            try:
                self._settle(ticket, compare(answer, reference, symbolic=False))
            except NeedsSymbolicError:  # equal tasks are done once, also while the first still runs
                self._pending.setdefault(key, []).append(ticket)
                self._advance(wait=False)
            return ticket

    def result(self, ticket: Ticket) -> Verdict:
        """Wait for one ticket; meanwhile every other worker is served too."""
        with self._lock:
            self._wait(lambda: ticket.verdict is not None)
            assert ticket.verdict is not None
            return ticket.verdict

    # The rest runs under the lock.

    def _settle(self, ticket: Ticket, status: Status) -> None:
        ticket.verdict = Verdict.of(status, ticket.answer)
        self.counts[status.value] += 1

    def _finish(self, key: tuple[str, str], status: Status) -> None:
        for ticket in self._pending.pop(key):
            self._settle(ticket, status)
        if status is not Status.TIMEOUT:  # a busy machine's verdict is not to be repeated for ever
            self._cache[key] = status
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)

    def _message(self, task: tuple[str, str]) -> object:
        return task

    def _replied(self, task: tuple[str, str], line: str) -> None:
        self._finish(task, Status(line))

    def _lost(self, task: tuple[str, str], killed: bool) -> None:
        self._finish(task, Status.TIMEOUT if killed else Status.TOO_BIG)


_shared: dict[int, VerifierPool] = {}  # by process id: a forked process must not use its parent's worker


def shared_pool() -> VerifierPool:
    """The pool behind `judge` and its like, with one worker."""
    return _shared.get(os.getpid()) or _shared.setdefault(os.getpid(), VerifierPool())


def judge(response: str, reference: str, *, boxed: bool = True) -> Verdict:
    """Decide one response, given without its prompt; no text raises.

    `boxed`: whether a box marks an answer where no `Answer:` line does. Sympy runs in a process of its own,
    started when first needed.
    """
    pool = shared_pool()
    return pool.result(pool.submit_answer(extract_answer(response, boxed=boxed), reference))


def verify(response: str, reference: str) -> bool:
    """Whether the response's answer is equivalent to the reference (Eq. 7)."""
    return judge(response, reference).correct


def is_equivalent(answer: str, reference: str) -> bool:
    """Whether a bare answer is equivalent to a reference (Eq. 7): True only if that was established."""
    pool = shared_pool()
    return pool.result(pool.submit_answer(answer, reference)).correct
