"""Trees → sympy objects, node by node from a white list, and whether two of them have the same value.

sympy never sees text, and sizes are checked before each operation. It runs in a process that can be killed.
Importing this module imports sympy.
"""

import hashlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy

from dapo_ref.verifier.exact import MAX_FACTORIAL, check_binomial, check_power
from dapo_ref.verifier.tree import Node, num, rewrite
from dapo_ref.verifier.verdict import MAX_BITS, TooBigError, UndefinedError, UnparsableError

MAX_NODES = 2_000  # built in one verdict; a finite sum counts its terms
MAX_TERMS = 1_000
MAX_EXPONENT = 4 * MAX_BITS  # of the binary exponent of a number that is not rational: |x| < 2^131072
MAX_TOWER = 2  # of exponents with names
MAX_EXPANDED = 300  # terms that an expansion may have
QUICK_DIGITS = 15  # settle nearly every inequality
SURE_DIGITS = 1_000  # constants: a relative difference above 10^-800 is seen
SURE_DIGITS_FREE = 120  # with free names, at every point
POINTS = 6

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh")},
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in ("sin", "cos", "tan")},
    **{"tanh": sympy.tanh, "sign": sympy.sign, "max": sympy.Max, "min": sympy.Min},
}
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}
_UNBOUNDED = frozenset(("sign", "max", "min", "arcsin", "arccos", "arctan"))


def log2_size(value: Any) -> float:
    """log2 |x| of a number from 5 digits of it, minus infinity for zero.

    Raises:
        UndefinedError: it has no finite value.
    """
    parts = [part for part in value.evalf(5).as_real_imag() if part != 0]
    if any(not part.is_Float and not part.is_Rational for part in parts):
        raise UndefinedError("not finite")
    floats = [sympy.Float(part, 5)._mpf_ for part in parts]
    return max((float(exponent + size) for _, _, exponent, size in floats), default=float("-inf"))


def tower_height(expression: Any) -> int:
    """How many exponents with names stand on one another."""
    exponents = [p.exp for p in expression.atoms(sympy.Pow, sympy.exp) if p.exp.free_symbols]
    return 1 + max(map(tower_height, exponents), default=0)


class Builder:
    """Builds sympy objects from trees, keeping account of their number."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, node: Node) -> Any:
        """The sympy object of a tree: an expression or a matrix.

        Raises:
            TooBigError: a bound on nodes, powers, factorials or magnitude.
            UndefinedError: a division by zero, a logarithm of zero.
            UnparsableError: an operator outside the white list.
        """
        self.count += 1
        if self.count > MAX_NODES:
            raise TooBigError("too many operations")
        if node.op == "num":
            return sympy.Rational(node.args[0].numerator, node.args[0].denominator)
        if node.op == "sym":
            if node.args[0].startswith("mathbb_"):
                raise UnparsableError("a set is not a number")
            return sympy.Symbol(node.args[0], real=True)
        if node.op == "const":
            return _CONSTANTS[node.args[0]]
        if node.op == "matrix":
            return sympy.ImmutableMatrix([[self(entry) for entry in row.args] for row in node.args])
        if node.op in ("sum", "prod"):
            return self.series(node)
        name = node.op.removeprefix("fn:")
        handler = getattr(self, "do_" + name, None)
        if handler is None and name not in _FUNCTIONS:
            raise UnparsableError(f"{node.op} has no value")
        arguments = [self(arg) for arg in node.args]
        result = handler(*arguments) if handler else self.function(name, arguments)
        if not isinstance(result, sympy.MatrixBase) and result.has(sympy.nan, sympy.zoo):
            raise UndefinedError("not finite")
        return result

    def series(self, node: Node) -> Any:
        """A sum or product over a short range of integers, term by term."""
        variable, low, high, body = node.args
        first, last = self(low), self(high)
        if not (first.is_Integer and last.is_Integer) or last - first >= MAX_TERMS:
            raise TooBigError("a long sum")
        terms = [
            self(rewrite(body, lambda part, k=k: num(k) if part == variable else None))  # type: ignore[misc]
            for k in range(int(first), int(last) + 1)
        ]
        return self.do_add(*terms) if node.op == "sum" else self.do_mul(*terms)

    def do_add(self, *terms: Any) -> Any:
        if not any(isinstance(term, sympy.MatrixBase) for term in terms):
            return sympy.Add(*terms)
        total = terms[0]
        for term in terms[1:]:
            if getattr(term, "shape", None) != getattr(total, "shape", None):
                raise UndefinedError("shapes differ")
            total = total + term
        return total

    def do_mul(self, *factors: Any) -> Any:
        if not any(isinstance(factor, sympy.MatrixBase) for factor in factors):
            bits = sum(int(f.p).bit_length() + int(f.q).bit_length() for f in factors if f.is_Rational)
            if bits > 4 * MAX_BITS:
                raise TooBigError("a large product")
            return sympy.Mul(*factors)
        product = factors[0]
        for factor in factors[1:]:
            both = isinstance(product, sympy.MatrixBase) and isinstance(factor, sympy.MatrixBase)
            if both and product.shape[1] != factor.shape[0]:
                raise UndefinedError("shapes differ")
            product = product * factor
        return product

    def do_neg(self, value: Any) -> Any:
        return -value

    def do_div(self, top: Any, bottom: Any) -> Any:
        if bottom == 0 or isinstance(bottom, sympy.MatrixBase):
            raise UndefinedError("division by zero")
        return top / bottom

    def do_pow(self, base: Any, exponent: Any) -> Any:
        if isinstance(base, sympy.MatrixBase):
            if not (exponent.is_Integer and abs(exponent) <= 20 and base.is_square):
                raise UndefinedError("a power of a matrix")
            return base**exponent
        if base == 0 and exponent.is_nonpositive:
            raise UndefinedError("0 to a power that is not positive")
        if base.is_Rational and exponent.is_Integer:
            check_power(Fraction(int(base.p), int(base.q)), int(exponent))
        elif not exponent.is_number:
            if tower_height(exponent) >= MAX_TOWER:
                raise TooBigError("a tower of powers")
        elif exponent not in (sympy.oo, -sympy.oo):
            size = abs(log2_size(base)) if base.is_number and base != 0 else 1.0
            if log2_size(exponent) > 64 or max(size, 1e-9) * 2 ** log2_size(exponent) > MAX_EXPONENT:
                raise TooBigError("a large power")
        return sympy.Pow(base, exponent)

    def do_root(self, radicand: Any, degree: Any) -> Any:
        if not (degree.is_Integer and 1 <= degree <= 10_000):
            if degree.is_number:
                raise UndefinedError("a root of that degree")
            return sympy.Pow(radicand, 1 / degree)
        if radicand.is_number and radicand.is_negative and degree % 2:  # ∛−8 = −2
            return -sympy.Pow(-radicand, 1 / degree)
        return sympy.Pow(radicand, 1 / degree)

    def do_fact(self, value: Any) -> Any:
        if value.is_number and not (value.is_Integer and 0 <= value <= MAX_FACTORIAL):
            raise TooBigError("a factorial out of range")
        return sympy.factorial(value)

    def do_binom(self, top: Any, bottom: Any) -> Any:
        if top.is_Integer and bottom.is_Integer:
            check_binomial(int(top), int(bottom))
        elif top.is_number or not (bottom.is_Integer and 0 <= bottom <= 50):
            return sympy.binomial(top, bottom)
        else:
            return sympy.ff(top, bottom) / sympy.factorial(bottom)
        return sympy.binomial(top, bottom)

    def do_abs(self, value: Any) -> Any:
        return sympy.Abs(value)

    def do_floor(self, value: Any) -> Any:
        return sympy.floor(value)

    def do_ceil(self, value: Any) -> Any:
        return sympy.ceiling(value)

    def do_mod(self, left: Any, right: Any) -> Any:
        if right == 0:
            raise UndefinedError("mod 0")
        return sympy.Mod(left, right)

    def do_deg(self, value: Any) -> Any:
        return value * sympy.pi / 180

    def do_percent(self, value: Any) -> Any:
        return value / 100

    def do_log(self, value: Any, base: Any) -> Any:
        if value == 0 or base in (0, 1):
            raise UndefinedError("a logarithm that does not exist")
        return sympy.log(value, base)

    def do_gcd(self, *values: Any) -> Any:
        return self.integers(sympy.igcd, values)

    def do_lcm(self, *values: Any) -> Any:
        return self.integers(sympy.ilcm, values)

    def integers(self, function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        if not all(value.is_Integer for value in values) or len(values) < 2:
            raise UnparsableError("integers are needed")
        if sum(int(value).bit_length() for value in values) > MAX_BITS:
            raise TooBigError("a large multiple")
        return sympy.Integer(function(*map(int, values)))

    def do_det(self, matrix: Any) -> Any:
        if not matrix.is_square:
            raise UndefinedError("not square")
        if matrix.shape[0] > 4:
            raise TooBigError("a large determinant")
        return matrix.det(method="berkowitz")

    def function(self, name: str, arguments: list[Any]) -> Any:
        if any(isinstance(argument, sympy.MatrixBase) for argument in arguments):
            raise UndefinedError("a function of a matrix")
        if name not in _UNBOUNDED and arguments[0].is_number and log2_size(arguments[0]) > 64:
            raise TooBigError("a large argument")
        return _FUNCTIONS[name](*arguments)


def build(node: Node) -> Any:
    """The sympy object of an expression."""
    return Builder()(node)


def sample(name: str, index: int) -> Any:
    """A fixed, scattered rational for a name; the last points have signs of their own."""
    digest = hashlib.blake2b(f"{index}:{name}".encode("utf-8", "backslashreplace"), digest_size=8).digest()
    value = sympy.Rational(1_500 + int.from_bytes(digest, "big") % 21_500, 9_973)
    return -value if index >= POINTS // 2 and digest[0] % 2 else value


def points(*expressions: Any) -> list[dict[Any, Any]]:
    """Values for the free names of the expressions: half of the points positive, half of mixed sign."""
    names = sorted(set().union(*(e.free_symbols for e in expressions)), key=str)
    return [{name: sample(name.name, k) for name in names} for k in range(POINTS)] if names else [{}]


def evaluate(expression: Any, point: dict[Any, Any], digits: int) -> Any:
    """The value at a point as a number of sympy's; None where there is none."""
    value = expression.evalf(digits, subs=point, maxn=2 * digits + 100)
    parts = value.as_real_imag() if value.is_number else ()
    return value if parts and all(part.is_Float or part.is_Rational for part in parts) else None


def is_admissible(domain: list[Any], point: dict[Any, Any]) -> bool:
    """Whether no root or logarithm has to choose a branch at a point."""
    values = [evaluate(part, point, QUICK_DIGITS) for part in domain]
    return all(value is not None and value.is_real and value >= 0 for value in values)


def agree(left: Any, right: Any, digits: int) -> bool:
    """Whether two values agree to four fifths of the digits, or differ by less than nine tenths of them."""
    difference = abs(left - right)
    if difference == 0:
        return True
    scale = max(log2_size(left), log2_size(right))
    bits = 3.32 * digits
    return log2_size(difference) < max(scale - 0.8 * bits, -0.9 * bits)


def agree_everywhere(left: Any, right: Any, where: list[dict[Any, Any]], digits: int) -> bool | None:
    """Compare at the points at which both have a value; None when they are too few."""
    compared = 0
    for point in where:
        values = evaluate(left, point, digits), evaluate(right, point, digits)
        if None in values:
            continue
        if not agree(*values, digits):
            return False
        compared += 1
    return True if compared >= min(2, len(where)) else None


def expanded(expression: Any) -> Any:
    """The expansion of a small expression; anything larger comes back as it is."""
    terms = 1
    for part in sympy.preorder_traversal(expression):
        if part.is_Pow and part.base.is_Add and part.exp.is_Integer and part.exp > 1:
            terms *= len(part.base.args) ** min(int(part.exp), 50)
        elif part.is_Mul:
            for factor in part.args:
                terms *= len(factor.args) if factor.is_Add else 1
        if terms > MAX_EXPANDED:
            return expression
    return sympy.expand(expression)


def same_value(left: Any, right: Any) -> bool:
    """Whether two sympy expressions have the same value wherever both exist.

    sympy's own arithmetic and `expand` come first, numbers refute, and what neither settles is accepted on
    agreement at `SURE_DIGITS` digits (constants) or `SURE_DIGITS_FREE` at several points (free names).

    Raises:
        UndefinedError: too few points at which both have a value.
    """
    if left == right:
        return True
    if {left, right} & {sympy.oo, -sympy.oo}:
        return False
    difference = left - right
    if difference.is_Rational:
        return bool(difference == 0)
    where = points(left, right)
    domain = [p.base for e in (left, right) for p in e.atoms(sympy.Pow) if not p.exp.is_integer]
    domain += [p.args[0] for e in (left, right) for p in e.atoms(sympy.log)]
    if domain and where != [{}]:
        where = [point for point in where if is_admissible(domain, point)] or where
    verdict = agree_everywhere(left, right, where, QUICK_DIGITS)
    if not verdict:
        if verdict is None:
            raise UndefinedError("no values to compare")
        return False
    difference = expanded(difference)
    if difference.is_Rational:
        return bool(difference == 0)
    return agree_everywhere(left, right, where, SURE_DIGITS if where == [{}] else SURE_DIGITS_FREE) is True


def constant_ratio(left: Any, right: Any) -> Any:
    """The real constant c ≠ 0 with left = c · right as functions of their names; None when there is none."""
    if left.free_symbols != right.free_symbols or not left.free_symbols:
        return None
    ratios = []
    for point in points(left, right):
        values = evaluate(left, point, 40), evaluate(right, point, 40)
        if None not in values and values[1] != 0:
            ratios.append(values[0] / values[1])
    if len(ratios) < 2 or not ratios[0].is_real or not all(agree(r, ratios[0], 30) for r in ratios):
        return None
    ratio = sympy.Rational(str(ratios[0])).limit_denominator(10**9)
    if ratio and agree(ratio, ratios[0], 30):
        return ratio if same_value(left, ratio * right) else None
    return ratios[0] if ratios[0] != 0 else None


def numerator(expression: Any) -> Any:
    """What has to vanish for a rational expression to vanish."""
    return sympy.expand(sympy.fraction(sympy.together(expression))[0])


def same_object(left: Any, right: Any) -> bool:
    """Whether two built objects are equal: expressions by value, matrices entry by entry."""
    matrices = [isinstance(value, sympy.MatrixBase) for value in (left, right)]
    if not any(matrices):
        return same_value(left, right)
    if not all(matrices) or left.shape != right.shape:
        return False
    return all(map(same_value, left, right))
