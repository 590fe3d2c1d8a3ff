"""SIGTERM and SIGINT: stop with a checkpoint.

Python runs a signal handler between two instructions of the main thread, which may sit in a collective for
minutes. So the signal is taken in by a thread of its own: the first one sets a mark, which the training loop
reads where it can stop; one that follows ends the process at once.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import TracebackType

from dapo_ref.distributed.processes import Processes

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAME_S = 1.0
"""A signal that follows within so many seconds is the same one: a scheduler may send it to each process, and
the launcher pass it on."""


class StoppedError(Exception):
    """The run was told to stop and can be resumed.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


class InterruptedRolloutError(Exception):
    """Raised in the middle of sampling, whose step is discarded."""


def exit_code_of(number: int) -> int:
    """What a shell shows for a process that a signal ended: 143 for SIGTERM, 130 for SIGINT."""
    return 128 + number


class StopSignals:
    """A context in which the stop signals are taken in.

    Until `loop_begins` there is nothing to save, and the first one ends the process.

    Attributes:
        received: number of the first signal, 0 before.
    """

    def __init__(self) -> None:
        self.received = 0
        self._first = 0.0
        self._in_loop = False
        self._former: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._former_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in SIGNALS:
            self._former[number] = signal.signal(number, _leave_it_to_the_thread)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, self._former[number])  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._write)  # the thread reads the end of the pipe
        self._thread.join()
        os.close(self._read)

    def loop_begins(self) -> None:
        """From here on the loop reads `received`."""
        self._in_loop = True

    def _listen(self) -> None:
        while numbers := os.read(self._read, 1):
            self._take(numbers[0])

    def _take(self, number: int) -> None:
        if number not in SIGNALS:
            return
        now = time.monotonic()
        if not self._in_loop or (self.received and now - self._first > SAME_S):
            _say(f"{signal.Signals(number).name}: leaving at once")
            os._exit(exit_code_of(number))
        if not self.received:
            self._first = now
            self.received = number
            _say(f"{signal.Signals(number).name}: stopping with a checkpoint; once more to leave at once")


class StopPoints:
    """Where in a step a run that was told to stop may do so, on all its processes together.

    Attributes:
        may_stop: False once the step has changed the weights: those of the last finished step are gone then,
            and the step is carried to its end.
    """

    def __init__(self, signals: StopSignals, processes: Processes, interruptible: bool) -> None:
        """Args:
        signals: of this process.
        processes: agree on a stop.
        interruptible: whether a process may leave sampling alone; on sharded weights they sample in step.
        """
        self.may_stop = True
        self._signals = signals
        self._processes = processes
        self._interruptible = interruptible

    def on_token(self) -> None:
        """To be called while sampling.

        Raises:
            InterruptedRolloutError: this process was told to stop.
        """
        self._processes.watch.alive()
        if self._signals.received and self._interruptible:
            raise InterruptedRolloutError

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """A block that can be discarded; after it all processes stop if one was told to.

        Raises:
            StoppedError: one was.
        """
        with contextlib.suppress(InterruptedRolloutError):
            yield
        self.if_told()

    def if_told(self) -> None:
        """Stops all processes if one of them was told to; a collective.

        Raises:
            StoppedError: one was.
        """
        if self.may_stop:
            (number,) = self._processes.max([self._signals.received])
            if number:
                raise StoppedError(int(number))


def _leave_it_to_the_thread(number: int, frame: object) -> None:
    """Python writes the number to the pipe before it calls this."""


def _say(message: str) -> None:
    """Writes to standard error without its lock, which the main thread may hold."""
    os.write(2, f"{message} (process {os.getpid()})\n".encode())
