"""What a verdict is, why one can fail, and the bounds that every stage shares.

The bounds are on the input and on the size of values, and each is checked before the work it bounds is begun.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_CHARS = 2_000  # of an answer or a reference; the longest reference of MATH-500 has 159
MAX_TOKENS = 1_000
MAX_DEPTH = 40  # nesting; about ten Python frames a level, so well inside the interpreter's own limit
MAX_BITS = 32_768  # of a numerator or denominator: 3000! fits
MAX_WORK = 4_000_000  # bits read by all exact operations of one verdict: a few tenths of a second at worst
MAX_LOGGED_CHARS = 200  # of the extracted text kept in a verdict


class Status(StrEnum):
    """Why a verdict came out as it did. Only `CORRECT` earns the reward."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"  # nothing in the response is marked as the answer
    MULTIPLE = "multiple"  # several final values against a single reference
    UNPARSABLE = "unparsable"
    TOO_BIG = "too_big"  # a bound on length, depth, value or memory
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision."""

    correct: bool  # whether the answer is equivalent to the reference (Eq. 7)
    status: Status
    answer: str | None  # the extracted text, at most `MAX_LOGGED_CHARS` of it; None when nothing was found

    @classmethod
    def of(cls, status: Status, answer: str | None) -> "Verdict":
        """Build a verdict whose `correct` follows from its status, with the text cut for a log."""
        if answer is not None and len(answer) > MAX_LOGGED_CHARS:
            answer = answer[:MAX_LOGGED_CHARS] + "…"
        return cls(status is Status.CORRECT, status, answer)


class UnparsableError(Exception):
    """The text is not in the grammar."""


class UnsupportedError(UnparsableError):
    """Mathematics that is deliberately not evaluated: limits, integrals, sums, quantifiers."""


class TooBigError(Exception):
    """A bound would be exceeded; raised before the work is done."""


class UndefinedError(Exception):
    """A value does not exist at this point: division by zero, logarithm of zero."""


class InexactError(Exception):
    """The value is not rational, or not known to be: another stage has to decide."""


class NeedsSymbolicError(Exception):
    """The exact stages could not decide and the caller did not allow the symbolic one."""
