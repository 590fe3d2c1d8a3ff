"""`dapo_ref/run/preemption.py`: the first signal is noted, a second one ends the process."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dapo_ref.run import preemption
from dapo_ref.run.preemption import StoppedError, StopSignals, exit_code_of
from tests.support.helpers import ROOT


def wait_until(condition):
    while not condition():
        time.sleep(0.001)


def test_the_first_signal_is_noted_and_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        signals.loop_begins()
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: signals.received)
        assert signals.received == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert threading.active_count() == 1 or not signals._thread.is_alive()


def test_a_signal_that_comes_by_two_ways_is_one(monkeypatch):
    monkeypatch.setattr(preemption, "SAME_S", 1e9)
    with StopSignals() as signals:
        signals.loop_begins()
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        wait_until(lambda: signals.received)
        assert signals.received == signal.SIGINT


CHILD = """
import os, signal, threading
from dapo_ref.run import preemption
preemption.SAME_S = -1.0
with preemption.StopSignals() as signals:
    if {in_loop}:
        signals.loop_begins()
    for number in {numbers}:
        os.kill(os.getpid(), number)
    threading.Event().wait({patience})  # a collective that does not come back
print("went on", signals.received)
"""


@pytest.mark.parametrize(
    ("in_loop", "numbers", "code"),
    [
        (True, [signal.SIGTERM, signal.SIGTERM], 143),
        (True, [signal.SIGINT, signal.SIGINT], 130),
        (False, [signal.SIGTERM], 143),  # nothing to save yet
    ],
)
def test_leaving_at_once(in_loop, numbers, code):
    script = CHILD.format(in_loop=in_loop, numbers=[int(n) for n in numbers], patience=100)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code
    assert "leaving at once" in done.stderr
    assert "went on" not in done.stdout


def test_one_signal_in_the_loop_does_not_end_the_process():
    script = CHILD.format(in_loop=True, numbers=[15], patience=0.2)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "went on 15\n")


def test_exit_codes_are_those_of_a_shell():
    assert (exit_code_of(signal.SIGTERM), exit_code_of(signal.SIGINT)) == (143, 130)
    assert str(StoppedError(15)) == "stopped by SIGTERM"
