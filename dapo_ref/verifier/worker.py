"""The process side of the pool: a fresh interpreter with sympy and without torch, one task at a time.

Tasks come as lines of JSON, [answer, reference], and go back as a status each. The process ends when the
parent closes its input, by the parent's SIGKILL, or, if the parent has died during a task, by its own alarm,
whose default action no Python code can delay.
"""

import json
import resource
import signal
import sys

from dapo_ref.workers import ALARM_AFTER_S

_WARM_UP = (  # fill sympy's caches and load what it imports late
    ("\\sqrt{x} + \\sec x", "\\frac{1}{\\cos x} + \\sqrt{x}"),
    ("\\tan^2 x + e^{-x} + \\sqrt[3]{x+1}", "\\sec^2 x - 1 + \\frac{1}{e^x} + (1+x)^{1/3}"),
    ("\\sin 20^\\circ + \\log_2 3 + i", "\\cos 70^\\circ + \\frac{\\ln 3}{\\ln 2} + i"),
    ("2y + 4x = 6", "y = 3 - 2x"),
    ("1 \\le |x| \\le 2", "[-2, -1] \\cup [1, 2]"),
)


def main(memory_mb: int, timeout_s: float) -> None:
    """Load sympy, bound what this process may use, say so, and decide until the input ends."""
    from dapo_ref.verifier.decide import compare
    from dapo_ref.verifier.verdict import Status

    replies, sys.stdout = sys.stdout, sys.stderr  # nothing else may write between the statuses
    for pair in _WARM_UP:
        compare(*pair, symbolic=True)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no files
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, timeout_s + ALARM_AFTER_S)
        try:
            status = compare(*json.loads(line), symbolic=True)
        except MemoryError:  # the address space of a process that ran out is not to be trusted again
            print(Status.TOO_BIG, file=replies, flush=True)
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(status, file=replies, flush=True)
