"""Verdicts on responses; the cases that only sympy decides go to processes that can be killed.

Exact stages run in the caller; a case that needs more goes to a worker, one at a time, with a deadline that
this side keeps from the moment of dispatch. A worker past its deadline is killed and replaced: its case is
one `timeout`. No signal handlers, threads or executors are involved on this side, so it works in any thread
and under any launcher; a pool may be shared by threads, which then take turns.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dapo_ref.verifier.decide import compare
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.verdict import NeedsSymbolicError, Status, Verdict

CACHE_SIZE = 65_536
TASKS_PER_WORKER = 2_000  # then it is replaced, so that nothing it leaks adds up
MAX_FAILED_STARTS = 3  # in a row
START_SECONDS = 120.0  # to load sympy on a busy machine
_ROOT = str(Path(__file__).resolve().parents[2])
# Not multiprocessing: it would run the parent's main module again, and load torch.
_LAUNCH = "import sys; sys.path.insert(0, sys.argv[1]); from dapo_ref.verifier.worker import main; "
_LAUNCH += "main(int(sys.argv[2]), float(sys.argv[3]))"


@dataclass(eq=False)
class Ticket:
    """A verdict that may still be on its way: pass it to `VerifierPool.result`."""

    answer: str | None
    verdict: Verdict | None = None


@dataclass(eq=False)
class _Worker:
    """One process as seen from here. It is ready once it has said so."""

    process: subprocess.Popen[str]
    tasks: IO[str]
    replies: IO[str]
    deadline: float
    ready: bool = False
    task: tuple[str, str] | None = None
    tasks_done: int = 0


class VerifierPool:
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
        if workers < 1 or timeout_s <= 0 or memory_mb < 1:
            raise ValueError("workers, timeout_s and memory_mb have to be positive")
        self.workers = workers
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.boxed = boxed
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._running: list[_Worker] = []
        self._pending: dict[tuple[str, str], list[Ticket]] = {}  # who waits for a task, oldest first
        self._cache: OrderedDict[tuple[str, str], Status] = OrderedDict()
        self._failed_starts = 0
        self._closed = False

    def __enter__(self) -> "VerifierPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            while ticket.verdict is None:
                if self._closed:
                    raise RuntimeError("the pool was closed before this verdict")
                self._advance(wait=True)
            return ticket.verdict

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        with self._lock:
            self._closed = True
            for worker in list(self._running):
                self._discard(worker)

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

    def _advance(self, wait: bool) -> None:
        """Take in results, kill what is past its deadline, start workers, hand out tasks."""
        busy = [worker for worker in self._running if worker.task or not worker.ready]
        timeout = 0.0
        if wait and busy:
            timeout = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
        readable, _, _ = select.select([worker.replies for worker in busy], [], [], timeout)
        for worker in busy:
            if worker.replies in readable:
                self._receive(worker)
            elif time.monotonic() >= worker.deadline:
                self._lose(worker, killed=True)
        while len(self._running) < min(self.workers, len(self._pending)):
            self._start()
        under_way = {worker.task for worker in self._running}
        for worker in self._running:
            task = next((key for key in self._pending if key not in under_way), None)
            if task and worker.ready and worker.task is None:
                worker.task = task
                under_way.add(task)
                worker.deadline = time.monotonic() + self.timeout_s
                # If it died idle, its output reads as ended, and the task is settled there.
                with contextlib.suppress(OSError):
                    print(json.dumps(task), file=worker.tasks, flush=True)

    def _start(self) -> None:
        command = [sys.executable, "-P", "-c", _LAUNCH, _ROOT, str(self.memory_mb), str(self.timeout_s)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        self._running.append(_Worker(process, process.stdin, process.stdout, deadline))

    def _receive(self, worker: _Worker) -> None:
        line = worker.replies.readline().strip()
        if not line:
            self._lose(worker, killed=False)
        elif worker.task is None:
            worker.ready = True
            self._failed_starts = 0
        else:
            self._finish(worker.task, Status(line))
            worker.task = None
            worker.tasks_done += 1
            if worker.tasks_done >= TASKS_PER_WORKER:
                self._discard(worker)

    def _lose(self, worker: _Worker, killed: bool) -> None:
        """Give a lost worker's task its verdict; RuntimeError if workers keep failing to start."""
        self._discard(worker)
        self.counts["killed" if killed else "died"] += 1
        if worker.task is not None:
            self._finish(worker.task, Status.TIMEOUT if killed else Status.TOO_BIG)
        elif not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                self.close()
                raise RuntimeError("verifier workers cannot be started")

    def _discard(self, worker: _Worker) -> None:
        self._running.remove(worker)
        worker.process.kill()
        worker.process.communicate()  # closes both pipes and waits


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
