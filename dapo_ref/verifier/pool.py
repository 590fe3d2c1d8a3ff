"""A pool of verifier processes that can be killed, for the cases that only the symbolic stage decides.

Exact stages run in the caller; a case that needs more goes to a worker, one at a time, with a deadline that
this side keeps from the moment of dispatch. A worker past its deadline is killed and replaced: its case is
one `timeout`. No signal handlers, threads or executors are involved, so it works in any thread and under any
launcher; it may be shared by threads, which then take turns.
"""

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from dapo_ref.verifier import server
from dapo_ref.verifier.equal import compare
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.verdict import NeedsSymbolicError, Status, Verdict

CACHE_SIZE = 65_536
TASKS_PER_WORKER = 2_000  # then it is replaced, so that nothing it leaks adds up
MAX_SERVERS_LOST = 5  # in the life of a pool
START_SECONDS = 120.0  # for the fork server to load sympy on a busy machine
_ROOT = str(Path(__file__).resolve().parents[2])
_LAUNCH = "import sys; sys.path.insert(0, sys.argv[1]); from dapo_ref.verifier.server import main; "
_LAUNCH += "main(int(sys.argv[2]), int(sys.argv[3]))"


@dataclass(eq=False)
class Ticket:
    """A verdict that may still be on its way: pass it to `VerifierPool.result`."""

    answer: str | None
    reference: str
    verdict: Verdict | None = None


@dataclass(eq=False)
class _Worker:
    """One process as seen from here. It is ready once it has sent its process id."""

    sock: socket.socket
    pid: int = 0
    task: tuple[str, str] | None = None
    deadline: float = 0.0
    tasks_done: int = 0


@dataclass
class _Pending:
    """A task and everyone who waits for it."""

    tickets: list[Ticket] = field(default_factory=list)


class VerifierPool:
    """Judges responses; at most `workers` processes run the symbolic stage.

    Args:
        workers: processes, started when the first case needs them.
        timeout_s: seconds a worker may spend on one case, counted from its dispatch.
        memory_mb: address space of a worker.
        boxed: whether a box marks an answer where no `Answer:` line does.

    Attributes:
        counts: verdicts by status, and `killed`, `died`, `server_lost`, `cache_hits`.

    Raises:
        ValueError: a size that is not positive.
        RuntimeError: from any method after `close`, or when the fork server cannot be started.
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
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._running: list[_Worker] = []
        self._waiting: deque[tuple[str, str]] = deque()
        self._pending: dict[tuple[str, str], _Pending] = {}
        self._cache: OrderedDict[tuple[str, str], Status] = OrderedDict()
        self._closed = False

    def __enter__(self) -> "VerifierPool":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def judge_many(self, pairs: Iterable[tuple[str, str]]) -> list[Verdict]:
        """Verdicts for (response, reference) pairs, in their order."""
        tickets = [self.submit(response, reference) for response, reference in pairs]
        return [self.result(ticket) for ticket in tickets]

    def verify_many(self, pairs: Iterable[tuple[str, str]]) -> list[bool]:
        """Whether each response is correct, in the order of the pairs."""
        return [verdict.correct for verdict in self.judge_many(pairs)]

    def submit(self, response: str, reference: str) -> Ticket:
        """Begin to judge one response without waiting for a worker.

        Args:
            response: the response alone, without the prompt.
            reference: the reference answer.

        Returns:
            A ticket, already settled unless the symbolic stage is needed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            answer = extract_answer(response, boxed=self.boxed)
            ticket = Ticket(answer, reference)
            if answer is None:
                self._settle(ticket, Status.NO_ANSWER)
                return ticket
            key = (reference, answer)
            if key in self._cache:
                self._cache.move_to_end(key)
                self.counts["cache_hits"] += 1
                self._settle(ticket, self._cache[key])
                return ticket
            try:
                self._settle(ticket, compare(answer, reference, symbolic=False))
            except NeedsSymbolicError:
                self._enqueue(key, ticket)
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
            self._stop_server()

    # The rest runs under the lock.

    def _settle(self, ticket: Ticket, status: Status) -> None:
        ticket.verdict = Verdict.of(status, ticket.answer)
        self.counts[status.value] += 1

    def _enqueue(self, key: tuple[str, str], ticket: Ticket) -> None:
        """Equal tasks are done once, also while the first is still running."""
        if key not in self._pending:
            self._pending[key] = _Pending()
            self._waiting.append(key)
        self._pending[key].tickets.append(ticket)
        self._advance(wait=False)

    def _finish(self, key: tuple[str, str], status: Status) -> None:
        for ticket in self._pending.pop(key).tickets:
            self._settle(ticket, status)
        if status is not Status.TIMEOUT:  # a busy machine's verdict is not to be repeated for ever
            self._cache[key] = status
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)

    def _advance(self, wait: bool) -> None:
        """Start workers, hand out tasks, take in results, and kill what is past its deadline."""
        self._ensure_workers()
        self._dispatch()
        busy = [worker for worker in self._running if worker.task or not worker.pid]
        timeout = 0.0
        if wait and busy:
            timeout = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
        readable, _, _ = select.select([worker.sock for worker in busy], [], [], timeout)
        for worker in busy:
            if worker.sock in readable:
                self._receive(worker)
            elif time.monotonic() >= worker.deadline:
                self._replace(worker, killed=True)
        self._dispatch()

    def _dispatch(self) -> None:
        for worker in self._running:
            if self._waiting and worker.pid and worker.task is None:
                key = self._waiting.popleft()
                worker.task = key
                worker.deadline = time.monotonic() + self.timeout_s
                try:
                    server.send_message(worker.sock, [key[1], key[0]])
                except (
                    OSError
                ):  # it died idle: the socket reads as closed, and the task gets its verdict there
                    continue

    def _receive(self, worker: _Worker) -> None:
        try:
            message = server.receive_message(worker.sock)
        except (EOFError, OSError):
            self._replace(worker, killed=False)
            return
        if not worker.pid:
            assert isinstance(message, int)
            worker.pid = message
            return
        assert worker.task is not None
        key, worker.task = worker.task, None
        worker.tasks_done += 1
        self._finish(key, Status(str(message)))
        if worker.tasks_done >= TASKS_PER_WORKER:
            self._discard(worker)

    def _replace(self, worker: _Worker, killed: bool) -> None:
        """Give a lost worker's task its verdict; a new worker is forked when one is next needed."""
        if not killed and self._server_is_gone():
            self._lose_server()
            return
        self._discard(worker)
        self.counts["killed" if killed else "died"] += 1
        if worker.pid and killed and self._control is not None:
            with suppress(OSError):  # a dead server has taken its workers with it
                server.request_kill(self._control, worker.pid)
        if worker.task is not None:
            self._finish(worker.task, Status.TIMEOUT if killed else Status.TOO_BIG)
        elif not worker.pid:
            self._stop_server()
            raise RuntimeError("a verifier worker could not be started")

    def _server_is_gone(self) -> bool:
        """Whether the fork server has ended, allowing it a moment to do so: its workers may go first."""
        if self._control is not None and select.select([self._control], [], [], 0.05)[0] and self._server:
            self._server.wait()
        return self._server_is_dead()

    def _discard(self, worker: _Worker) -> None:
        worker.sock.close()
        self._running.remove(worker)

    def _ensure_workers(self) -> None:
        """Fork as many workers as there are tasks for, at most `self.workers`."""
        needed = min(self.workers, len(self._pending))
        if needed <= len(self._running):
            return
        if self._server_is_dead():
            self._lose_server()
        if self._server is None:
            self._start_server()
        assert self._control is not None
        while len(self._running) < needed:
            ours, theirs = socket.socketpair()
            with theirs:
                self._running.append(_Worker(ours, deadline=time.monotonic() + START_SECONDS))
                try:
                    server.request_fork(self._control, theirs)
                except (
                    OSError
                ):  # the server is dying: the new socket will read as closed, and it is replaced then
                    return

    def _server_is_dead(self) -> bool:
        return self._server is not None and self._server.poll() is not None

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-c", _LAUNCH, _ROOT, str(theirs.fileno()), str(self.memory_mb)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
        )
        theirs.close()
        ours.settimeout(START_SECONDS)
        try:
            ready = ours.recv(1) == b"R"
        except TimeoutError:
            ready = False
        if not ready:
            ours.close()
            self._server.kill()
            self._server.wait()
            self._server = None
            raise RuntimeError("the verifier's fork server could not be started")
        ours.settimeout(None)
        self._control = ours

    def _lose_server(self) -> None:
        """The fork server died, and its workers with it: their tasks run again on a new one.

        Raises:
            RuntimeError: this keeps happening.
        """
        self.counts["server_lost"] += 1
        if self.counts["server_lost"] > MAX_SERVERS_LOST:
            self._stop_server()
            raise RuntimeError("the verifier's fork server keeps dying")
        for worker in list(self._running):
            if worker.task is not None:
                self._waiting.appendleft(worker.task)
            self._discard(worker)
        self._stop_server()

    def _stop_server(self) -> None:
        for worker in list(self._running):
            self._discard(worker)
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            self._server.kill()  # its workers go with it
            self._server.wait()
            self._server = None
