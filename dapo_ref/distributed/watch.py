"""A process that dies or hangs ends the run in bounded time, with an error that names it.

A collective waits for all processes, so one that does not come stops the others, and their errors do not say
which one it was. Here each process tells the others through the key-value store of the process group how
many collectives it has entered and that it is alive. When one fails, or nothing happens for too long, the
process that has entered fewest, or that no longer answers, is the one to look at.

To wait for another is not to be silent: a process waits as long as all those that have entered fewer
collectives answer and make progress themselves. One that does not ends itself, and is named by the others.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

POLLS = 20
"""How often a process reports within the time it may be silent."""
LONGEST_POLL_S = 2.0


@dataclass
class Report:
    """What one process last said: how often it reported, collectives entered, what it was doing, and, if it
    has left, why; by its own clock, the seconds since its last sign of progress."""

    beats: int = -1
    entered: int = -1
    doing: str = "starting"
    left: str = ""
    silent_s: float = 0.0


class Watch:
    """Reports this process to the others and watches its progress, from a thread.

    Args:
        store: of the process group; a copy is used, since calls of the same object wait for each other.
        rank: this process.
        world_size: W.
        timeout_s: without a sign of progress for so long the process ends itself.
    """

    def __init__(self, store: Any, rank: int, world_size: int, timeout_s: float) -> None:
        self.doing = "starting"
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.interval = min(LONGEST_POLL_S, timeout_s / POLLS)
        self._store = store.clone()
        self._entered = 0
        self._beats = 0
        self._left = ""
        self._progress = time.monotonic()
        self._before: list[Report] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to report."""
        self._progress = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def alive(self) -> None:
        """A sign of progress, such as one more token."""
        self._progress = time.monotonic()

    def enter(self) -> None:
        """A sign of progress: the process enters a collective, in which it may wait for the others."""
        self._entered += 1
        self._progress = time.monotonic()

    @contextlib.contextmanager
    def last_words(self) -> Iterator[None]:
        """Reports an error inside to the others before it is raised."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._report(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            raise

    def missing(self) -> str:
        """Names the processes that hold up the others, as far as can be seen; waits two reports long."""
        before = self._reports()
        time.sleep(2 * self.interval)
        with contextlib.suppress(Exception):  # the watching thread may be the one that waits here: it answers
            self._report(self._left)
        after = self._reports()
        if not after:
            return "the launcher, or the process that keeps the store, is gone"
        return "; ".join(_held_up(before, after)) or "no process is behind the others"

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            with contextlib.suppress(Exception):  # the store is gone: the collectives will fail too
                self._report("")
            silent = time.monotonic() - self._progress
            if silent < self.timeout_s / 2:
                self._before = []
            elif not self._before:
                self._before = self._reports()
            elif silent > self.timeout_s:
                self._wait_or_end()

    def _wait_or_end(self) -> None:
        """Waits on if all those behind answered in the last half of the time and make progress."""
        behind = _progress_of_those_behind(self._before, self._reports(), self._entered)
        if behind is None or behind > self.timeout_s:
            self._end()
        else:
            self._progress = time.monotonic() - min(behind, self.timeout_s / 2)
            self._before = []

    def _end(self) -> None:
        """The main thread waits in a collective or worse: nothing can be raised there."""
        print(
            f"error: rank {self.rank} has made no progress for {self.timeout_s:g} s "
            f"(process_group_timeout_s) in {self.doing}: {self.missing()}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    def _report(self, left: str) -> None:
        self._left = left or self._left
        self._beats += 1
        silent = time.monotonic() - self._progress
        report = Report(self._beats, self._entered, self.doing, self._left, silent)
        self._store.set(f"watch/{self.rank}", json.dumps(vars(report)))

    def _reports(self) -> list[Report]:
        """Of all ranks; empty if the store does not answer."""
        reports = []
        try:
            for rank in range(self.world_size):
                key = f"watch/{rank}"
                known = self._store.check([key])
                reports.append(Report(**json.loads(self._store.get(key))) if known else Report())
        except Exception:  # the store raises errors of many types; each means that it is gone
            return []
        return reports


def _progress_of_those_behind(
    before: Sequence[Report], after: Sequence[Report], entered: int
) -> float | None:
    """Seconds since the last progress of the slowest process behind; None if there is none, or one of them is
    gone.

    Args:
        before, after: reports of all ranks, far enough apart for each that is alive to have made one.
        entered: collectives that this process has entered.
    """
    behind = [pair for pair in zip(before, after, strict=False) if pair[1].entered < entered]
    if not behind or any(old.beats == new.beats or new.left for old, new in behind):
        return None
    return max(new.silent_s for _, new in behind)


def _held_up(before: Sequence[Report], after: Sequence[Report]) -> list[str]:
    """One phrase a process that is behind."""
    phrases = []
    ahead = max(report.entered for report in after)
    for rank, report in enumerate(after):
        silent = bool(before) and report.beats == before[rank].beats
        if report.left and not report.left.startswith(CONSEQUENCES):
            phrases.append(f"rank {rank} left in {report.doing} ({report.left})")
        elif not report.left and silent:
            phrases.append(f"rank {rank} does not answer; it was last heard of in {report.doing}")
        elif not report.left and report.entered < ahead:
            phrases.append(f"rank {rank} is alive and has not come out of {report.doing}")
    return phrases


CONSEQUENCES = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError")
"""Errors of a process that waited for another."""
