"""Processes that can be killed, one task at a time each: what `VerifierPool` and rewards of users share.

A worker past its deadline, which this side keeps from the moment of dispatch, is killed and replaced. No
signal handlers, threads or executors are involved on this side, so it works in any thread and under any
launcher; a pool may be shared by threads, which then take turns.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dapo_ref.verifier import worker as protocol

TASKS_PER_WORKER = 2_000  # then it is replaced, so that nothing it leaks adds up
MAX_FAILED_STARTS = 3  # in a row
START_SECONDS = 120.0  # to load sympy on a busy machine
ROOT = str(Path(__file__).resolve().parents[2])

Task = Any
"""Hashable; what `_message` makes a message of."""


@dataclass(eq=False)
class Worker:
    """One process as seen from here. It is ready once it has said so."""

    process: subprocess.Popen[bytes]
    sock: socket.socket
    deadline: float
    ready: bool = False
    task: Task = None
    tasks_done: int = 0


class WorkerPool:
    """At most `workers` processes; a child class says what they run and what becomes of a task.

    Args:
        workers: processes, started when the first task needs them.
        timeout_s: seconds a worker may spend on one task, counted from its dispatch.
        memory_mb: address space of a worker.

    Attributes:
        counts: `killed`, `died`, and what the child counts.

    Raises:
        ValueError: a size that is not positive.
        RuntimeError: from any method after `close`, or when workers cannot be started.
    """

    session = False
    """Whether a worker is the first of a process group that is killed as a whole, with what it started."""

    def __init__(self, workers: int = 1, timeout_s: float = 5.0, memory_mb: int = 1024) -> None:
        if workers < 1 or timeout_s <= 0 or memory_mb < 1:
            raise ValueError("workers, timeout_s and memory_mb have to be positive")
        self.workers = workers
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._running: list[Worker] = []
        self._waiting: deque[Task] = deque()
        self._failed_starts = 0
        self._closed = False

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        with self._lock:
            self._closed = True
            for worker in list(self._running):
                self._discard(worker)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Of the child class.

    def _launch(self) -> list[str]:
        """Python code that a worker runs, and its arguments after the root and the socket's number."""
        raise NotImplementedError

    def _message(self, task: Task) -> object:
        """What a worker is told of a task: JSON."""
        raise NotImplementedError

    def _replied(self, task: Task, reply: object) -> None:
        """A worker has done a task."""
        raise NotImplementedError

    def _lost(self, task: Task, killed: bool) -> None:
        """A worker was killed at its deadline over a task, or died of it."""
        raise NotImplementedError

    # The rest runs under the lock.

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done():
            if self._closed:
                raise RuntimeError("the pool was closed before this verdict")
            self._advance(wait=True)

    def _advance(self, wait: bool) -> None:
        """Start workers, hand out tasks, take in results, and kill what is past its deadline."""
        unfinished = len(self._waiting) + sum(worker.task is not None for worker in self._running)
        while len(self._running) < min(self.workers, unfinished):
            self._start()
        self._dispatch()
        busy = [worker for worker in self._running if worker.task or not worker.ready]
        timeout = 0.0
        if wait and busy:
            timeout = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
        readable, _, _ = select.select([worker.sock for worker in busy], [], [], timeout)
        for worker in busy:
            if worker.sock in readable:
                self._receive(worker)
            elif time.monotonic() >= worker.deadline:
                self._lose(worker, killed=True)
        self._dispatch()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            code, *arguments = self._launch()
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, ROOT, str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                start_new_session=self.session,
            )
        self._running.append(Worker(process, ours, time.monotonic() + START_SECONDS))

    def _dispatch(self) -> None:
        for worker in self._running:
            if self._waiting and worker.ready and worker.task is None:
                worker.task = self._waiting.popleft()
                worker.deadline = time.monotonic() + self.timeout_s
                try:
                    protocol.send_message(worker.sock, self._message(worker.task))
                except OSError:  # it died idle: the socket reads as closed, and the task is settled there
                    continue

    def _receive(self, worker: Worker) -> None:
        try:
            message = protocol.receive_message(worker.sock)
        except (EOFError, OSError):
            self._lose(worker, killed=False)
            return
        if not worker.ready:
            worker.ready = True
            self._failed_starts = 0
            return
        assert worker.task is not None
        task, worker.task = worker.task, None
        worker.tasks_done += 1
        self._replied(task, message)
        if worker.tasks_done >= TASKS_PER_WORKER:
            self._discard(worker)

    def _lose(self, worker: Worker, killed: bool) -> None:
        """Gives up a lost worker and its task; a new worker is started when one is next needed.

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
        worker.sock.close()
        if self.session:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.kill()
        worker.process.wait()
