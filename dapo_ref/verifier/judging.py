"""A response against a reference, in the caller where that is safe, else in one shared worker."""

import os
import threading

from dapo_ref.verifier.decide import compare
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.pool import VerifierPool
from dapo_ref.verifier.verdict import NeedsSymbolicError, Status, Verdict

_lock = threading.Lock()
_shared: dict[int, VerifierPool] = {}  # by process id: a forked process must not use its parent's worker


def decide_safely(answer: str, reference: str) -> Status:
    """The status of a bare answer; sympy runs in a process of its own, started when first needed."""
    try:
        return compare(answer, reference, symbolic=False)
    except NeedsSymbolicError:
        with _lock:
            pool = _shared.setdefault(os.getpid(), VerifierPool())
        return pool.result(pool.submit_answer(answer, reference)).status


def judge(response: str, reference: str, *, boxed: bool = True) -> Verdict:
    """Decide one response.

    Args:
        response: the response alone, without the prompt.
        reference: the reference answer.
        boxed: whether a box marks an answer where no `Answer:` line does.

    Returns:
        The verdict. No text raises.
    """
    answer = extract_answer(response, boxed=boxed)
    if answer is None:
        return Verdict.of(Status.NO_ANSWER, None)
    return Verdict.of(decide_safely(answer, reference), answer)


def verify(response: str, reference: str) -> bool:
    """Whether the response's answer is equivalent to the reference (Eq. 7)."""
    return judge(response, reference).correct


def is_equivalent(answer: str, reference: str) -> bool:
    """Whether a bare answer is equivalent to a reference (Eq. 7): True only if that was established."""
    return decide_safely(answer, reference) is Status.CORRECT
