"""The fast path: exact values of rational arithmetic, without sympy, every bound checked before its operation."""

import math
from fractions import Fraction

from dapo_ref.verifier.tree import Node
from dapo_ref.verifier.verdict import MAX_BITS, MAX_WORK, InexactError, TooBigError, UndefinedError

MAX_FACTORIAL = 3_000


def bits(value: Fraction) -> int:
    """The size of a rational: bits of numerator and denominator."""
    return value.numerator.bit_length() + value.denominator.bit_length()


class Evaluator:
    """Evaluates a tree without names, keeping account of the work done."""

    def __init__(self) -> None:
        self.work = 0

    def __call__(self, node: Node) -> Fraction:
        """The exact value of a tree.

        Raises:
            InexactError: the value is not (known to be) rational: sympy has to look at it.
            TooBigError: a value or the work would pass a bound.
            UndefinedError: a division by zero.
        """
        if node.op == "num":
            return self.charged(node.args[0])
        handler = getattr(self, "do_" + node.op, None)
        if handler is None:
            raise InexactError
        return self.charged(handler(*node.args))

    def charged(self, value: Fraction) -> Fraction:
        size = bits(value)
        self.work += size + 64  # and something for the step itself
        if size > 2 * MAX_BITS or self.work > MAX_WORK:
            raise TooBigError("value or work")
        return value

    def do_add(self, *args: Node) -> Fraction:
        total = Fraction(0)
        for arg in args:
            total = self.charged(total + self(arg))
        return total

    def do_neg(self, arg: Node) -> Fraction:
        return -self(arg)

    def do_mul(self, *args: Node) -> Fraction:
        product = self(args[0])
        for arg in args[1:]:
            product = self.charged(product * self(arg))
        return product

    def do_div(self, top: Node, bottom: Node) -> Fraction:
        denominator = self(bottom)
        if denominator == 0:
            raise UndefinedError("division by zero")
        return self(top) / denominator

    def do_pow(self, base: Node, exponent: Node) -> Fraction:
        power, value = self(exponent), self(base)
        if power.denominator != 1:
            raise InexactError
        check_power(value, power.numerator)
        return value**power.numerator

    def do_root(self, radicand: Node, degree: Node) -> Fraction:
        value = self(radicand)
        if self(degree) != 2 or value < 0:
            raise InexactError
        root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if root * root != value:
            raise InexactError
        return root

    def do_fact(self, arg: Node) -> Fraction:
        value = self(arg)
        if value.denominator != 1 or value < 0:
            raise InexactError
        if value > MAX_FACTORIAL:
            raise TooBigError("a large factorial")
        self.work += 8 * int(value)
        return Fraction(math.factorial(int(value)))

    def do_binom(self, top: Node, bottom: Node) -> Fraction:
        n, k = self(top), self(bottom)
        if n.denominator != 1 or k.denominator != 1 or n < 0:
            raise InexactError
        check_binomial(int(n), int(k))
        self.work += 8 * max(0, min(int(k), int(n - k)))
        return Fraction(math.comb(int(n), int(k)) if k >= 0 else 0)

    def do_abs(self, arg: Node) -> Fraction:
        return abs(self(arg))

    def do_floor(self, arg: Node) -> Fraction:
        return Fraction(math.floor(self(arg)))

    def do_ceil(self, arg: Node) -> Fraction:
        return Fraction(math.ceil(self(arg)))

    def do_percent(self, arg: Node) -> Fraction:
        return self(arg) / 100

    def do_mod(self, left: Node, right: Node) -> Fraction:
        modulus = self(right)
        if modulus == 0:
            raise UndefinedError("mod 0")
        return self(left) % modulus


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


def exact_value(node: Node) -> Fraction | None:
    """The rational value of an expression; None when it has none that this stage can see."""
    try:
        return Evaluator()(node)
    except InexactError:
        return None
