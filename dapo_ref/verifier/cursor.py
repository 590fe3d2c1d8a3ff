"""What the parser stands on: a cursor over tokens with a bound on depth, and decimal literals."""

from collections.abc import Sequence
from fractions import Fraction

from dapo_ref.verifier.tokens import Token
from dapo_ref.verifier.verdict import MAX_BITS, MAX_DEPTH, TooBigError, UnparsableError


def number(raw: str) -> Fraction:
    """Read a decimal literal, `0.1(6)` included, exactly; `MAX_CHARS` bounds its digits below int()'s 4300.

    Raises:
        TooBigError: a power of ten beyond `MAX_BITS`.
    """
    if raw.endswith(")"):
        start, _, period = raw[:-1].partition("(")
        shift = len(start.partition(".")[2])
        return Fraction(start + "0") + Fraction(int(period), (10 ** len(period) - 1) * 10**shift)
    mantissa, _, exponent = raw.lower().partition("e")
    if exponent and (len(exponent) > 6 or abs(int(exponent)) * 4 > MAX_BITS):
        raise TooBigError("exponent")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)


class Cursor:
    """A position in `tokens` and how deep in brackets it is."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = list(tokens)  # a copy: reading \frac12 splits a token in two
        self.pos = 0
        self.depth = 0

    def peek(self, offset: int = 0) -> Token:
        index = self.pos + offset
        return self.tokens[index] if 0 <= index < len(self.tokens) else Token("eof", "")

    def sees(self, kind: str, text: str | None = None, offset: int = 0) -> bool:
        token = self.peek(offset)
        return token.kind == kind and text in (None, token.text)

    def accept(self, kind: str, text: str | None = None) -> bool:
        if self.sees(kind, text):
            self.pos += 1
            return True
        return False

    def expect(self, kind: str, text: str | None = None) -> None:
        if not self.accept(kind, text):
            raise UnparsableError(f"expected {text or kind}")

    def descend(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooBigError("nested too deeply")
