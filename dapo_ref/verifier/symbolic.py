"""The symbolic stage: values that are not rational, compared at high precision and, where possible, proved.

Numbers are evaluated with mpmath (the arithmetic sympy is built on) at fixed points and at a precision high
enough that 2^(2^−1000) is not 1. Where free names remain and the numbers agree, sympy expands the
difference under a cap on its size and has the last word. Sizes are checked before each operation. Importing
this module imports sympy.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath
from mpmath import libmp

from dapo_ref.verifier.prove import disproved
from dapo_ref.verifier.values import Node, size
from dapo_ref.verifier.verdict import MAX_BITS, TooBigError, UndefinedError, UnparsableError

QUICK_DIGITS = 30  # settles nearly every inequality
SURE_DIGITS = 1_000  # constants: a relative difference above 10^-800 is seen
SURE_DIGITS_FREE = 120  # with free names, at several points
MAX_NODES = 400
MAX_SURE_NODES = 200  # above it the high precision is halved
MAX_EXPONENT_BITS = 4 * MAX_BITS  # of the binary exponent's *value*: |x| < 2^131072


def magnitude(value: Any) -> float:
    """log2 |x| as a float, minus infinity for zero; cheap for any size."""
    if mpmath.isinf(value) or mpmath.isnan(value):
        raise UndefinedError("not finite")
    if value == 0:
        return float("-inf")
    return float(mpmath.mag(value))


def bounded(value: Any) -> Any:
    """Pass a value on if its magnitude is within bounds.

    Raises:
        TooBigError, UndefinedError
    """
    if abs(magnitude(value)) > MAX_EXPONENT_BITS and value != 0:
        raise TooBigError("magnitude")
    return value


class NumericEvaluator:
    """Evaluates a tree with mpmath at one point and the working precision of the moment.

    Args:
        point: a rational value for every free name.
        real: whether roots, fractional powers and logarithms of negative numbers count as undefined.
    """

    def __init__(self, point: Mapping[str, Fraction], real: bool = False) -> None:
        self.point = point
        self.stays_real = real

    def __call__(self, node: Node) -> Any:
        """The value of a tree, real where possible, else complex (principal values).

        Raises:
            TooBigError, UndefinedError
            UnparsableError: the tree holds something that has no value, such as infinity.
        """
        if node.op == "num":
            return rational(node.args[0])
        if node.op == "sym":
            return rational(self.point[node.args[0]])
        if node.op == "const":
            return self.constant(node.args[0])
        handler = getattr(self, "do_" + node.op.removeprefix("fn:"), None)
        if handler is None:
            raise UnparsableError("no value")
        return bounded(handler(*node.args))

    def constant(self, name: str) -> Any:
        if name == "oo":
            raise UnparsableError("infinity")
        return {"pi": +mpmath.pi, "e": +mpmath.e, "i": mpmath.mpc(0, 1)}[name]

    def do_add(self, *args: Node) -> Any:
        return mpmath.fsum(self(arg) for arg in args)

    def do_neg(self, arg: Node) -> Any:
        return -self(arg)

    def do_mul(self, *args: Node) -> Any:
        product = self(args[0])
        for arg in args[1:]:
            product = bounded(product * self(arg))
        return product

    def do_div(self, top: Node, bottom: Node) -> Any:
        denominator = self(bottom)
        if negligible(denominator):
            raise UndefinedError("division by zero")
        return self(top) / denominator

    def do_deg(self, arg: Node) -> Any:
        return self(arg)

    def do_pow(self, base: Node, exponent: Node) -> Any:
        value, power = self(base), self(exponent)
        if value == 0:
            if mpmath.re(power) <= 0:
                raise UndefinedError("a power of zero")
            return mpmath.mpf(0)
        if not mpmath.isint(power):
            self.check_domain(value)
        if magnitude(power) > 20 or abs(magnitude(value)) * abs(complex_size(power)) > MAX_EXPONENT_BITS:
            raise TooBigError("a large power")
        return mpmath.power(value, power)

    def do_root(self, radicand: Node, degree: Node) -> Any:
        value, index = self(radicand), self.real(degree)
        if not 1 <= index <= 10_000:
            raise UndefinedError("a root of that degree")
        self.check_domain(value)
        if mpmath.im(value) == 0 and mpmath.re(value) < 0 and index % 2 == 1:
            return -mpmath.power(-mpmath.re(value), 1 / index)
        return mpmath.sqrt(value) if index == 2 else mpmath.power(value, 1 / index)

    def check_domain(self, value: Any) -> None:
        """In real mode, leave out points at which a branch of a many-valued function would be chosen."""
        if self.stays_real and (mpmath.im(value) != 0 or mpmath.re(value) < 0):
            raise UndefinedError("not real")

    def do_fact(self, arg: Node) -> Any:
        value = self.real(arg)
        if not -1 < value <= 3_000:
            raise TooBigError("a factorial out of range")
        self.check_gamma(value)
        return mpmath.gamma(value + 1)

    def check_gamma(self, *values: Any) -> None:
        """Γ off the integers takes seconds at full precision; only names, at less, may be evaluated there."""
        if mpmath.mp.dps > SURE_DIGITS_FREE and not all(map(mpmath.isint, values)):
            raise UndefinedError("a factorial of a fraction")

    def do_binom(self, top: Node, bottom: Node) -> Any:
        n, k = self.real(top), self.real(bottom)
        if not (abs(n) <= 3_000 and abs(k) <= 3_000):
            raise TooBigError("a binomial out of range")
        self.check_gamma(n, k)
        return mpmath.binomial(n, k)

    def do_abs(self, arg: Node) -> Any:
        return abs(self(arg))

    def do_floor(self, arg: Node) -> Any:
        return mpmath.floor(self.off_integer(arg))

    def do_ceil(self, arg: Node) -> Any:
        return mpmath.ceil(self.off_integer(arg))

    def off_integer(self, arg: Node) -> Any:
        """A real value for floor and ceiling, snapped to the integer it cannot be told from."""
        value = self.real(arg)
        nearest = mpmath.nint(value)
        return nearest if negligible(value - nearest) else value

    def do_mod(self, left: Node, right: Node) -> Any:
        modulus = self.real(right)
        if modulus == 0:
            raise UndefinedError("mod 0")
        return self.real(left) % modulus

    def do_log(self, arg: Node, base: Node) -> Any:
        value, b = self(arg), self(base)
        if value == 0 or b == 0 or b == 1:
            raise UndefinedError("a logarithm that does not exist")
        self.check_domain(value)
        return mpmath.log(value) / mpmath.log(b)

    def do_max(self, *args: Node) -> Any:
        return max(self.real(arg) for arg in args)

    def do_min(self, *args: Node) -> Any:
        return min(self.real(arg) for arg in args)

    def do_sign(self, arg: Node) -> Any:
        return mpmath.sign(self.real(arg))

    def real(self, arg: Node) -> Any:
        value = self(arg)
        if mpmath.im(value) != 0:
            raise UndefinedError("a real number is needed")
        return mpmath.re(value)

    def angle(self, arg: Node) -> Any:
        """The argument of a trigonometric function, in radians, small enough to be reduced."""
        value = self(arg) * (mpmath.pi / 180 if arg.op == "deg" else 1)
        if magnitude(value) > 64:
            raise TooBigError("a large angle")
        return value

    def do_sin(self, arg: Node) -> Any:
        return mpmath.sin(self.angle(arg))

    def do_cos(self, arg: Node) -> Any:
        return mpmath.cos(self.angle(arg))

    def do_tan(self, arg: Node) -> Any:
        return self.quotient(mpmath.sin, mpmath.cos, arg)

    def do_cot(self, arg: Node) -> Any:
        return self.quotient(mpmath.cos, mpmath.sin, arg)

    def do_sec(self, arg: Node) -> Any:
        return self.quotient(lambda _: mpmath.mpf(1), mpmath.cos, arg)

    def do_csc(self, arg: Node) -> Any:
        return self.quotient(lambda _: mpmath.mpf(1), mpmath.sin, arg)

    def quotient(self, top: Any, bottom: Any, arg: Node) -> Any:
        angle = self.angle(arg)
        denominator = bottom(angle)
        if negligible(denominator):
            raise UndefinedError("a pole")
        return top(angle) / denominator

    def do_arcsin(self, arg: Node) -> Any:
        return mpmath.asin(self(arg))

    def do_arccos(self, arg: Node) -> Any:
        return mpmath.acos(self(arg))

    def do_arctan(self, arg: Node) -> Any:
        return mpmath.atan(self(arg))

    def do_sinh(self, arg: Node) -> Any:
        return mpmath.sinh(self.hyperbolic(arg))

    def do_cosh(self, arg: Node) -> Any:
        return mpmath.cosh(self.hyperbolic(arg))

    def do_tanh(self, arg: Node) -> Any:
        return mpmath.tanh(self.hyperbolic(arg))

    def hyperbolic(self, arg: Node) -> Any:
        value = self(arg)
        if magnitude(value) > 12:
            raise TooBigError("a large hyperbolic argument")
        return value


def rational(value: Fraction) -> Any:
    """A rational as an mpmath number."""
    return mpmath.make_mpf(libmp.from_rational(value.numerator, value.denominator, mpmath.mp.prec, "n"))


def complex_size(value: Any) -> float:
    """|x| as a float; the caller has bounded it."""
    return float(abs(value))


def negligible(value: Any) -> bool:
    """Whether a value is zero up to the working precision."""
    return value == 0 or magnitude(value) < -0.8 * mpmath.mp.prec


def evaluate(node: Node, point: Mapping[str, Fraction], digits: int, real: bool = False) -> Any:
    """Evaluate one tree at one point.

    Args:
        node: the expression.
        point: a value for each of its free names.
        digits: decimal digits of working precision.
        real: whether values off the real line count as undefined.

    Raises:
        TooBigError, UndefinedError, UnparsableError
    """
    if size(node) > MAX_NODES:
        raise TooBigError("too many operations")
    with mpmath.workdps(digits):
        return NumericEvaluator(point, real)(node)


def agree(left: Any, right: Any, digits: int) -> bool:
    """Whether two values agree to four fifths of the digits, or cannot be told from zero."""
    with mpmath.workdps(digits):
        difference = abs(left - right)
        if difference == 0:
            return True
        scale = max(magnitude(left), magnitude(right))
        return magnitude(difference) < max(scale - 0.8 * mpmath.mp.prec, -0.9 * mpmath.mp.prec)


def equal(left: Node, right: Node, points: list[dict[str, Fraction]]) -> bool:
    """Decide whether two expressions have the same value wherever both exist.

    Args:
        left, right: expressions.
        points: values for their free names; a single empty point when there are none.

    Raises:
        TooBigError: a bound on operations or magnitude.
        UndefinedError: too few points at which both have a value.
    """
    free = bool(points[0])
    for real in (True, False) if free else (False,):
        verdict = equal_at(left, right, points, real)
        if verdict is not None:
            return verdict and not (free and disproved(left, right))
    raise UndefinedError("no values to compare")


def equal_at(left: Node, right: Node, points: list[dict[str, Fraction]], real: bool) -> bool | None:
    """Compare at the points where both sides are defined; None when they are too few."""
    large = size(left) + size(right) > MAX_SURE_NODES
    sure = (SURE_DIGITS_FREE if points[0] else SURE_DIGITS) // (2 if large else 1)
    defined = 0
    for point in points:
        try:
            quick = [evaluate(side, point, QUICK_DIGITS, real) for side in (left, right)]
            if not agree(quick[0], quick[1], QUICK_DIGITS // 2):
                return False
            exact = [evaluate(side, point, sure, real) for side in (left, right)]
        except UndefinedError:
            continue
        if not agree(exact[0], exact[1], sure):
            return False
        defined += 1
    return True if defined >= min(2, len(points)) else None


def ratio_sign(left: Node, right: Node, points: list[dict[str, Fraction]]) -> int:
    """The sign of the constant real c with left = c · right at every point; 0 when there is none."""
    ratios = []
    for point in points:
        try:
            bottom = evaluate(right, point, SURE_DIGITS_FREE)
            with mpmath.workdps(SURE_DIGITS_FREE):
                if not negligible(bottom):
                    ratios.append(evaluate(left, point, SURE_DIGITS_FREE) / bottom)
        except UndefinedError:
            continue
    if len(ratios) < 2 or any(not agree(ratio, ratios[0], SURE_DIGITS_FREE - 20) for ratio in ratios):
        return 0
    with mpmath.workdps(SURE_DIGITS_FREE):
        first = ratios[0]
        return (
            0 if negligible(first) or not negligible(mpmath.im(first)) else int(mpmath.sign(mpmath.re(first)))
        )
