"""Exact evaluation with rationals: no floats, no tolerance, every bound checked before its operation."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

from dapo_ref.verifier.values import Node
from dapo_ref.verifier.verdict import MAX_BITS, MAX_WORK, InexactError, TooBigError, UndefinedError

MAX_FACTORIAL = 3_000
MAX_TERMS = 1_000


def bits(value: Fraction) -> int:
    """The size of a rational: bits of numerator and denominator."""
    return value.numerator.bit_length() + value.denominator.bit_length()


class Evaluator:
    """Evaluates trees at one point, keeping account of the work done.

    Args:
        point: a value for every free name; a name without one makes the result inexact.
    """

    def __init__(self, point: Mapping[str, Fraction] | None = None) -> None:
        self.point = point or {}
        self.work = 0

    def __call__(self, node: Node) -> Fraction:
        """The exact value of a tree.

        Raises:
            InexactError: the value is not (known to be) rational.
            TooBigError: a value or the work would pass a bound.
            UndefinedError: a division by zero.
        """
        if node.op == "num":
            return self.charged(node.args[0])
        if node.op == "sym":
            if node.args[0] in self.point:
                return self.point[node.args[0]]
            raise InexactError
        handler = getattr(self, "do_" + node.op.removeprefix("fn:"), None)
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

    def do_deg(self, arg: Node) -> Fraction:
        return self(
            arg
        )  # a bare 30° is its number; inside a trigonometric function the symbolic stage scales it

    def do_pow(self, base: Node, exponent: Node) -> Fraction:
        power = self(exponent)
        if power.denominator == 1:
            return self.integer_power(self(base), power.numerator)
        value = self(base)
        if value < 0 or power.denominator > 64:
            raise InexactError  # the principal value is not real
        return self.integer_power(self.exact_root(value, power.denominator), power.numerator)

    def integer_power(self, base: Fraction, exponent: int) -> Fraction:
        if exponent == 0:
            if base == 0:
                raise UndefinedError("0^0")
            return Fraction(1)
        if base == 0 and exponent < 0:
            raise UndefinedError("division by zero")
        if base in (0, 1, -1):
            return base if exponent % 2 else base * base
        if bits(base) * abs(exponent) > 2 * MAX_BITS:
            raise TooBigError("a large power")
        return base**exponent

    def do_root(self, radicand: Node, degree: Node) -> Fraction:
        index = self(degree)
        if index.denominator != 1 or not 1 <= index <= 64:
            raise InexactError
        value = self(radicand)
        if value < 0 and index % 2:  # the real root of a negative number: ∛−8 = −2
            return -self.exact_root(-value, int(index))
        if value < 0:
            raise InexactError
        return self.exact_root(value, int(index))

    def exact_root(self, value: Fraction, degree: int) -> Fraction:
        return Fraction(integer_root(value.numerator, degree), integer_root(value.denominator, degree))

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
        if k < 0 or k > n:
            return Fraction(0)
        smaller = min(int(k), int(n - k))
        if smaller * int(n).bit_length() > MAX_BITS:
            raise TooBigError("a large binomial")
        self.work += 8 * smaller
        return Fraction(math.comb(int(n), smaller))

    def do_abs(self, arg: Node) -> Fraction:
        return abs(self(arg))

    def do_floor(self, arg: Node) -> Fraction:
        return Fraction(math.floor(self(arg)))

    def do_ceil(self, arg: Node) -> Fraction:
        return Fraction(math.ceil(self(arg)))

    def do_mod(self, left: Node, right: Node) -> Fraction:
        modulus = self(right)
        if modulus == 0:
            raise UndefinedError("mod 0")
        return self(left) % modulus

    def do_gcd(self, *args: Node) -> Fraction:
        return Fraction(math.gcd(*self.integers(args)))

    def do_lcm(self, *args: Node) -> Fraction:
        values = self.integers(args)
        if sum(value.bit_length() for value in values) > MAX_BITS:
            raise TooBigError("a large multiple")
        return Fraction(math.lcm(*values))

    def integers(self, args: tuple[Node, ...]) -> list[int]:
        values = [self(arg) for arg in args]
        if any(value.denominator != 1 for value in values):
            raise InexactError
        return [int(value) for value in values]

    def do_max(self, *args: Node) -> Fraction:
        return max(map(self, args))

    def do_min(self, *args: Node) -> Fraction:
        return min(map(self, args))

    def do_sum(self, variable: Node, low: Node, high: Node, body: Node) -> Fraction:
        total = Fraction(0)
        for value in self.terms(variable, low, high, body):
            total = self.charged(total + value)
        return total

    def do_prod(self, variable: Node, low: Node, high: Node, body: Node) -> Fraction:
        total = Fraction(1)
        for value in self.terms(variable, low, high, body):
            total = self.charged(total * value)
        return total

    def terms(self, variable: Node, low: Node, high: Node, body: Node) -> Iterator[Fraction]:
        """The body at every integer of the range, which has to be short."""
        first, last = self.integers((low, high))
        if last - first >= MAX_TERMS:
            raise TooBigError("a long sum")
        name, outer = variable.args[0], self.point
        for value in range(first, last + 1):
            self.point = {**outer, name: Fraction(value)}
            yield self(body)
        self.point = outer

    def do_log(self, arg: Node, base: Node) -> Fraction:
        """log_b(b^k) for integer k; anything else is left to the symbolic stage."""
        value, b = self(arg), self(base)
        if value <= 0 or b <= 0 or b == 1:
            raise UndefinedError("a logarithm that does not exist")
        estimate = round((log2(value)) / log2(b))
        if bits(b) * abs(estimate) <= 2 * MAX_BITS and b**estimate == value:
            return Fraction(estimate)
        raise InexactError


def log2(value: Fraction) -> float:
    """The binary logarithm of a positive rational of any size."""
    return math.log2(value.numerator) - math.log2(value.denominator)


def integer_root(value: int, degree: int) -> int:
    """The exact root of a non-negative integer.

    Raises:
        InexactError: it is not a perfect power.
    """
    if degree == 2:
        root = math.isqrt(value)
    else:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:
            middle = (low + high) // 2
            if middle**degree < value:
                low = middle + 1
            else:
                high = middle
        root = low
    if root**degree != value:
        raise InexactError
    return root


def sample(name: str, index: int, low: int, high: int, denominator: int) -> Fraction:
    """A fixed, scattered rational for a name: the k-th coordinate of the k-th point."""
    digest = hashlib.blake2b(f"{index}:{name}".encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return Fraction(low + int.from_bytes(digest, "big") % (high - low), denominator)


def exact_points(names: set[str], signed: bool) -> list[dict[str, Fraction]]:
    """Points at which rational functions are compared exactly; over 97, no exponent becomes an integer."""
    points = [{name: sample(name, k, 98, 16_000, 97) for name in names} for k in range(3)]
    if signed:
        points += [{name: -value for name, value in points[0].items()}]
    return points


def numeric_points(names: set[str], signed: bool) -> list[dict[str, Fraction]]:
    """Points of moderate size for other functions; positive, since names stand for positive reals."""
    if not names:
        return [{}]
    points = [{name: sample(name, k, 1_500, 23_000, 9_973) for name in names} for k in range(6)]
    if signed:
        points += [{name: -value for name, value in points[0].items()}]
    return points
