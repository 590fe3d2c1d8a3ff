"""Processes that can be killed, one task at a time each: what the verifier and rewards of users share.

A task goes to a worker with a deadline that this side keeps from the moment of dispatch; a worker past it is
killed and replaced. No signal handlers, threads or executors are involved on this side, so it works in any
thread and under any launcher; a pool may be shared by threads, which then take turns.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

TASKS_PER_WORKER = 2_000  # then it is replaced, so that nothing it leaks adds up
MAX_FAILED_STARTS = 3  # in a row
ALARM_AFTER_S = 5.0  # beyond the time limit: a worker whose parent has died ends itself by then
START_SECONDS = 120.0  # to load sympy on a busy machine
ROOT = str(Path(__file__).resolve().parents[1])

Task = Any
"""Hashable; `_message` makes JSON of it."""


@dataclass(eq=False)
class Worker:
    """One process as seen from here. It is ready once it has said so."""

    process: subprocess.Popen[str]
    tasks: IO[str]
    replies: IO[str]
    deadline: float
    ready: bool = False
    task: Task = None
    tasks_done: int = 0


class WorkerPool:
    """At most `workers` processes; a child class says what becomes of a task.

    Args:
        code: Python code that a worker runs; its arguments are the folder of the package, `memory_mb` and
            `timeout_s`. It says `ready`, and answers a line of JSON with a line.
            Not multiprocessing: it would run the parent's main module again, and load torch.
        workers: processes, started when the first task needs them.
        timeout_s: seconds a worker may spend on one task, counted from its dispatch.
        memory_mb: address space of a worker.
        arguments: more of them.

    Attributes:
        counts: `killed`, `died`, and what the child counts.

    Raises:
        ValueError: a size that is not positive.
        RuntimeError: from any method after `close`, or when workers cannot be started.
    """

    session = False
    """Whether a worker is the first of a process group that is killed as a whole, with what it started."""

    def __init__(
        self, code: str, workers: int, timeout_s: float, memory_mb: int, arguments: Sequence[str] = ()
    ) -> None:
        if workers < 1 or timeout_s <= 0 or memory_mb < 1:
            raise ValueError("workers, timeout_s and memory_mb have to be positive")
        self.workers = workers
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.counts: Counter[str] = Counter()
        self._code = code
        self._arguments = arguments
        self._lock = threading.RLock()
        self._running: list[Worker] = []
        self._pending: dict[Task, Any] = {}  # tasks without a result, oldest first
        self._failed_starts = 0
        self._closed = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        with self._lock:
            self._closed = True
            for worker in list(self._running):
                self._discard(worker)

    # Of the child class; under the lock, as all that follows.

    def _message(self, task: Task) -> object:
        """What a worker is told of a task: JSON."""
        raise NotImplementedError

    def _replied(self, task: Task, line: str) -> None:
        """A worker has done a task, which is to leave `_pending`."""
        raise NotImplementedError

    def _lost(self, task: Task, killed: bool) -> None:
        """The same for a worker that was killed at its deadline over the task, or died of it."""
        raise NotImplementedError

    # Of every pool.

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done():
            if self._closed:
                raise RuntimeError("the pool was closed before this verdict")
            self._advance(wait=True)

    def _advance(self, wait: bool) -> None:
        """Start workers, hand out tasks, take in results, and kill what is past its deadline."""
        while len(self._running) < min(self.workers, len(self._pending)):
            self._start()
        self._dispatch()
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
        self._dispatch()

    def _start(self) -> None:
        limits = [str(self.memory_mb), str(self.timeout_s)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", self._code, ROOT, *limits, *self._arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=self.session,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        self._running.append(Worker(process, process.stdin, process.stdout, deadline))

    def _dispatch(self) -> None:
        under_way = {worker.task for worker in self._running}
        for worker in self._running:
            task = next((key for key in self._pending if key not in under_way), None)
            if task and worker.ready and worker.task is None:
                worker.task = task
                under_way.add(task)
                worker.deadline = time.monotonic() + self.timeout_s
                # If it died idle, its output reads as ended, and the task is settled there.
                with contextlib.suppress(OSError):
                    print(json.dumps(self._message(task)), file=worker.tasks, flush=True)

    def _receive(self, worker: Worker) -> None:
        line = worker.replies.readline().strip()
        if not line:
            self._lose(worker, killed=False)
        elif worker.task is None:
            worker.ready = True
            self._failed_starts = 0
        else:
            task, worker.task = worker.task, None
            self._replied(task, line)
            worker.tasks_done += 1
            if worker.tasks_done >= TASKS_PER_WORKER:
                self._discard(worker)

    def _lose(self, worker: Worker, killed: bool) -> None:
        """Give up a lost worker and its task; a new worker is started when one is next needed.

        Raises:
            RuntimeError: workers keep failing to start.
        """
        self._discard(worker)
        self.counts["killed" if killed else "died"] += 1
        if worker.task is not None:
            self._lost(worker.task, killed)
        elif not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                self.close()
                raise RuntimeError("workers cannot be started")

    def _discard(self, worker: Worker) -> None:
        self._running.remove(worker)
        if self.session:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
        worker.process.communicate()  # closes both pipes and waits
