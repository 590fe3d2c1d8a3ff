"""The fast path: exact rational arithmetic without sympy, every bound checked before its operation."""

import math
from fractions import Fraction

from dapo_ref.verifier.tree import Node
from dapo_ref.verifier.verdict import MAX_BITS, MAX_WORK, InexactError, TooBigError, UndefinedError

MAX_FACTORIAL = 3_000
_OPERATORS = frozenset(
    ["add", "mul", "neg", "div", "pow", "root", "fact", "binom", "abs", "floor", "ceil", "mod", "percent"]
)


def bits(value: Fraction) -> int:
    """The size of a rational: bits of numerator and denominator."""
    return value.numerator.bit_length() + value.denominator.bit_length()


def check_power(base: Fraction, exponent: int) -> None:
    """Raise before an integer power that does not exist or would be too big."""
    if base == 0 and exponent <= 0:
        raise UndefinedError("0 to a power that is not positive")
    if base not in (0, 1, -1) and bits(base) * abs(exponent) > 2 * MAX_BITS:
        raise TooBigError("a large power")


def check_binomial(n: int, k: int) -> None:
    """Raise before a binomial coefficient that would be too big."""
    if min(k, n - k) * n.bit_length() > MAX_BITS:
        raise TooBigError("a large binomial")


class Evaluator:
    """Evaluates a tree without names, keeping account of the work done."""

    def __init__(self) -> None:
        self.work = 0

    def __call__(self, node: Node) -> Fraction:
        """The exact value of a tree; InexactError where it is not (known to be) rational.

        Raises TooBigError where a value or the work would pass a bound, UndefinedError at a division by zero.
        """
        if node.op == "num":
            return self.charged(node.args[0])
        if node.op not in _OPERATORS:
            raise InexactError
        first, *rest = map(self, node.args)
        if node.op not in ("add", "mul"):
            return self.charged(self.apply(node.op, first, *rest))
        for value in rest:
            first = self.charged(first + value if node.op == "add" else first * value)
        return first

    def charged(self, value: Fraction) -> Fraction:
        self.work += bits(value) + 64  # and something for the step itself
        if bits(value) > 2 * MAX_BITS or self.work > MAX_WORK:
            raise TooBigError("value or work")
        return value

    def apply(self, op: str, x: Fraction, y: Fraction = Fraction(0)) -> Fraction:
        integers = x.denominator == y.denominator == 1
        match op:
            case "neg" | "abs":
                return -x if op == "neg" else abs(x)
            case "div" | "mod":
                if y == 0:
                    raise UndefinedError("division by zero")
                return x / y if op == "div" else x % y
            case "percent":
                return x / 100
            case "floor" | "ceil":
                return Fraction(math.floor(x) if op == "floor" else math.ceil(x))
            case "pow" if y.denominator == 1:
                check_power(x, y.numerator)
                return x**y.numerator
            case "root" if y == 2 and x >= 0:
                root = Fraction(math.isqrt(x.numerator), math.isqrt(x.denominator))
                if root * root == x:
                    return root
            case "fact" if x > MAX_FACTORIAL:
                raise TooBigError("a large factorial")
            case "fact" if integers and x >= 0:
                return Fraction(math.factorial(int(x)))
            case "binom" if integers and x >= 0:
                check_binomial(int(x), int(y))
                return Fraction(math.comb(int(x), int(y)) if y >= 0 else 0)
        raise InexactError


def exact_value(node: Node) -> Fraction | None:
    """The rational value of an expression; None when it has none that this stage can see."""
    try:
        return Evaluator()(node)
    except InexactError:
        return None
