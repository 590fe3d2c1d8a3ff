"""A pool of verifier processes that can be killed, for the cases that only sympy decides.

Exact stages run in the caller; a case that needs more goes to a worker, one at a time, with a deadline. A
worker past its deadline is killed and replaced (`workers.py`): its case is one `timeout`.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from dapo_ref.verifier.decide import compare
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.verdict import NeedsSymbolicError, Status, Verdict
from dapo_ref.verifier.workers import WorkerPool

CACHE_SIZE = 65_536
_LAUNCH = "import sys; sys.path.insert(0, sys.argv[1]); from dapo_ref.verifier.worker import main; "
_LAUNCH += "main(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))"


@dataclass(eq=False)
class Ticket:
    """A verdict that may still be on its way: pass it to `VerifierPool.result`."""

    answer: str | None
    verdict: Verdict | None = None


class VerifierPool(WorkerPool):
    """Judges responses; at most `workers` processes run sympy.

    Args:
        workers, timeout_s, memory_mb: as for `WorkerPool`.
        boxed: whether a box marks an answer where no `Answer:` line does.

    Attributes:
        counts: verdicts by status, and `killed`, `died`, `cache_hits`.

    Raises:
        ValueError, RuntimeError: as `WorkerPool`.
    """

    def __init__(
        self, workers: int = 1, timeout_s: float = 5.0, memory_mb: int = 1024, boxed: bool = True
    ) -> None:
        super().__init__(workers, timeout_s, memory_mb)
        self.boxed = boxed
        self._pending: dict[tuple[str, str], list[Ticket]] = {}  # who waits for a task
        self._cache: OrderedDict[tuple[str, str], Status] = OrderedDict()

    def __enter__(self) -> "VerifierPool":
        return self

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
            A ticket, already settled unless sympy is needed.
        """
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
            key = (reference, answer)
            if key in self._cache:
                self._cache.move_to_end(key)
                self.counts["cache_hits"] += 1
                self._settle(ticket, self._cache[key])
                return ticket
            try:
                self._settle(ticket, compare(answer, reference, symbolic=False))
            except NeedsSymbolicError:
                if key not in self._pending:  # equal tasks are done once, also while the first still runs
                    self._pending[key] = []
                    self._waiting.append(key)
                self._pending[key].append(ticket)
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

    def _launch(self) -> list[str]:
        return [_LAUNCH, str(self.memory_mb), str(self.timeout_s)]

    def _message(self, task: tuple[str, str]) -> object:
        reference, answer = task
        return [answer, reference]

    def _replied(self, task: tuple[str, str], reply: object) -> None:
        self._finish(task, Status(str(reply)))

    def _lost(self, task: tuple[str, str], killed: bool) -> None:
        self._finish(task, Status.TIMEOUT if killed else Status.TOO_BIG)
