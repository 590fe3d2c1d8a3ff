"""One response against one reference: extraction, then equivalence, and the check of references."""

from dapo_ref.verifier.equal import compare, read_integer
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.verdict import NeedsSymbolicError, Status, Verdict


def judge(response: str, reference: str, *, boxed: bool = True) -> Verdict:
    """Decide one response, every stage in this process under operation caps.

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
    return Verdict.of(compare(answer, reference, symbolic=True), answer)


def verify(response: str, reference: str) -> bool:
    """Whether the response's answer is equivalent to the reference (Eq. 7)."""
    return judge(response, reference).correct


def check_reference(reference: str) -> str | None:
    """Check that a reference can be matched at all: bare, and on an `Answer:` line.

    Args:
        reference: the reference, as the data has it.

    Returns:
        None if it verifies against itself, else one line that says why not.
    """
    if read_integer(reference) is not None:
        return None
    if not reference.strip():
        return "the reference is empty"
    try:
        status = compare(reference, reference, symbolic=False)
        if status is Status.CORRECT:
            answer = extract_answer(f"Answer: {reference}")
            status = Status.NO_ANSWER if answer is None else compare(answer, reference, symbolic=False)
    except NeedsSymbolicError:
        return "the reference on an `Answer:` line is not recognised as itself"
    if status is Status.CORRECT:
        return None
    return f"the reference {reference[:60]!r} does not verify against itself ({status.value})"
