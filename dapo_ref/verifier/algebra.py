"""Trees → sympy objects, node by node from a white list, and whether two of them have the same value.

sympy never sees text, and sizes are checked before each operation. It runs in a process that can be killed.
Importing this module imports sympy.
"""

import functools
import hashlib
import math
import operator
from collections.abc import Callable
from typing import Any

import sympy

from dapo_ref.verifier.exact import MAX_FACTORIAL, Evaluator, check_binomial
from dapo_ref.verifier.tree import STRUCTURES, Node
from dapo_ref.verifier.verdict import MAX_BITS, InexactError, TooBigError, UndefinedError, UnparsableError

MAX_NODES = 2_000  # built in one verdict
MAX_EXPONENT = 4 * MAX_BITS  # of the binary exponent of a number that is not rational: |x| < 2^131072
MAX_ARGUMENT_BITS = 64  # of an angle, a floor or a hyperbolic function
MAX_TOWER = 2  # of exponents with names
MAX_EXPANDED = 300  # terms that an expansion may have
QUICK_DIGITS = 15  # settle nearly every inequality
SURE_DIGITS = 1_000  # constants: a relative difference above 10^-800 is seen
SURE_DIGITS_FREE = 120  # with free names, at every point
POINTS = 6

_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}
_GROWING = {  # or periodic: their arguments have to be of moderate size
    **{name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{name: getattr(sympy, name) for name in ("sinh", "cosh", "tanh")},
    **{"floor": sympy.floor, "ceil": sympy.ceiling},
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_GROWING,
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in ("sin", "cos", "tan")},
    **{"sign": sympy.sign, "max": sympy.Max, "min": sympy.Min, "abs": sympy.Abs, "mod": sympy.Mod},
    **{"add": sympy.Add, "mul": sympy.Mul, "div": operator.truediv, "neg": operator.neg},
    **{"deg": lambda x: x * sympy.pi / 180, "percent": lambda x: x / 100},
    **{"row": sympy.Tuple, "matrix": lambda *rows: sympy.ImmutableMatrix(rows)},
}


class Builder:
    """Builds sympy objects from trees, keeping account of their number and of the exact work."""

    def __init__(self) -> None:
        self.count = 0
        self.exact = Evaluator()

    def __call__(self, node: Node) -> Any:
        """The sympy object of an expression; what is rational is computed without sympy.

        Raises TooBigError at a bound, UndefinedError where there is no finite value, UnparsableError at an
        operator outside the white list.
        """
        self.count += 1
        if self.count > MAX_NODES:
            raise TooBigError("too many operations")
        if node.op == "const":
            return _CONSTANTS[node.args[0]]
        if node.op == "sym" and not node.args[0].startswith("mathbb_"):
            return sympy.Symbol(node.args[0], real=True)
        if node.op == "sym" or node.op in STRUCTURES:
            raise UnparsableError("not a value")
        try:
            value = self.exact(node)
            return sympy.Rational(value.numerator, value.denominator)
        except InexactError:
            pass
        args = list(map(self, node.args))
        if node.op != "neg" and {sympy.oo, -sympy.oo} & set(args):
            raise UndefinedError("arithmetic on infinity")
        of_matrices = any(isinstance(arg, sympy.MatrixBase) for arg in args)
        result = (apply_to_matrices if of_matrices else apply)(node.op.removeprefix("fn:"), *args)
        if result.has(sympy.nan, sympy.zoo):
            raise UndefinedError("not finite")
        return result


def build(node: Node) -> Any:
    """The sympy object of an expression."""
    return Builder()(node)


def apply(op: str, x: Any, *rest: Any) -> Any:
    """The value of one operator, at least one of whose arguments is not rational."""
    y: Any = rest[0] if rest else None
    match op:
        case "pow":
            check_size(x, y)
            return sympy.Pow(x, y)
        case "root":
            if y.is_number and not (y.is_Integer and 1 <= y <= 10_000):
                raise UndefinedError("a root of that degree")
            real = x.is_number and x.is_negative and y.is_odd  # ∛−8 = −2
            return -sympy.Pow(-x, 1 / y) if real else sympy.Pow(x, 1 / y)
        case "log":
            if x == 0 or y in (0, 1):
                raise UndefinedError("a logarithm that does not exist")
            return sympy.log(x, y)
        case "fact":
            if x.is_number and not (x.is_Integer and 0 <= x <= MAX_FACTORIAL):
                raise TooBigError("a factorial out of range")
            return sympy.factorial(x)
        case "binom":
            if x.is_Integer and y.is_Integer:
                check_binomial(int(x), int(y))
            elif not x.is_number and y.is_Integer and 0 <= y <= 50:
                return sympy.ff(x, y) / sympy.factorial(y)
            return sympy.binomial(x, y)
        case "gcd" | "lcm" if all(arg.is_Integer for arg in (x, *rest)):
            if sum(int(arg).bit_length() for arg in (x, *rest)) > MAX_BITS:
                raise TooBigError("a large multiple")
            return sympy.Integer(getattr(math, op)(*map(int, (x, *rest))))
    if op not in _FUNCTIONS:
        raise UnparsableError(f"{op} has no value")
    if op in _GROWING and x.is_number and log2_size(x) > MAX_ARGUMENT_BITS:
        raise TooBigError("a large argument")
    return _FUNCTIONS[op](x, *rest)


def apply_to_matrices(op: str, *args: Any) -> Any:
    """Sums of matrices, multiples and determinants; UnparsableError at anything else."""
    shapes = [arg.shape for arg in args if isinstance(arg, sympy.MatrixBase)]
    if op == "add" and len(shapes) == len(args) and len(set(shapes)) == 1:
        return functools.reduce(operator.add, args)
    if op == "mul" and len(shapes) == 1:
        return functools.reduce(operator.mul, args)
    if op == "neg" or (op == "div" and len(shapes) == 1 and isinstance(args[0], sympy.MatrixBase)):
        return _FUNCTIONS[op](*args)
    if op == "det" and shapes[0] in ((1, 1), (2, 2), (3, 3), (4, 4)):
        return args[0].det(method="berkowitz")
    raise UnparsableError("arithmetic of matrices")


def log2_size(value: Any) -> float:
    """log2 |x| of a number from 5 digits of it, minus infinity for zero; UndefinedError if not finite."""
    parts = [part for part in value.evalf(5).as_real_imag() if part != 0]
    if any(not part.is_Float and not part.is_Rational for part in parts):
        raise UndefinedError("not finite")
    floats = [sympy.Float(part, 5)._mpf_ for part in parts]
    return max((float(exponent + size) for _, _, exponent, size in floats), default=float("-inf"))


def tower_height(expression: Any) -> int:
    """How many exponents with names stand on one another."""
    exponents = [p.exp for p in expression.atoms(sympy.Pow, sympy.exp) if p.exp.free_symbols]
    return 1 + max(map(tower_height, exponents), default=0)


def check_size(base: Any, exponent: Any) -> None:
    """Raise before a power that does not exist or would be too big to look at."""
    if base == 0 and exponent.is_nonpositive:
        raise UndefinedError("0 to a power that is not positive")
    if not exponent.is_number:
        if tower_height(exponent) >= MAX_TOWER:
            raise TooBigError("a tower of powers")
    else:
        size = abs(log2_size(base)) if base.is_number and base != 0 else 1.0
        if log2_size(exponent) > 64 or max(size, 1e-9) * 2 ** log2_size(exponent) > MAX_EXPONENT:
            raise TooBigError("a large power")


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
    scale, bits = max(log2_size(left), log2_size(right)), 3.32 * digits
    return difference == 0 or log2_size(difference) < max(scale - 0.8 * bits, -0.9 * bits)


def agree_everywhere(left: Any, right: Any, where: list[dict[Any, Any]], digits: int) -> bool | None:
    """Compare at the points at which both have a value; None when they are too few."""
    compared = 0
    for point in where:
        values = evaluate(left, point, digits), evaluate(right, point, digits)
        if None not in values:
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
            terms *= math.prod(len(factor.args) for factor in part.args if factor.is_Add)
        if terms > MAX_EXPANDED:
            return expression
    return sympy.expand(expression)


def same_value(left: Any, right: Any) -> bool:
    """Whether two sympy expressions have the same value wherever both exist.

    sympy's own arithmetic and `expand` come first, numbers refute, and what neither settles is accepted on
    agreement at `SURE_DIGITS` digits (constants) or `SURE_DIGITS_FREE` at several points (free names).
    UndefinedError: at too few points both have a value.
    """
    matrices = [isinstance(side, sympy.MatrixBase) for side in (left, right)]
    if any(matrices):
        return all(matrices) and left.shape == right.shape and all(map(same_value, left, right))
    if left == right or {left, right} & {sympy.oo, -sympy.oo}:
        return bool(left == right)
    difference = left - right
    if difference.is_Rational:
        return bool(difference == 0)
    where = points(left, right)
    domain = [p.base for e in (left, right) for p in e.atoms(sympy.Pow) if not p.exp.is_integer]
    domain += [p.args[0] for e in (left, right) for p in e.atoms(sympy.log)]
    if domain and where != [{}]:
        where = [point for point in where if is_admissible(domain, point)] or where
    verdict = agree_everywhere(left, right, where, QUICK_DIGITS)
    if verdict is None:
        raise UndefinedError("no values to compare")
    if not verdict:
        return False
    difference = expanded(difference)
    if difference.is_Rational:
        return bool(difference == 0)
    return agree_everywhere(left, right, where, SURE_DIGITS if where == [{}] else SURE_DIGITS_FREE) is True


def constant_ratio(left: Any, right: Any) -> Any:
    """The real constant c ≠ 0 with left = c · right as functions of their names; None when there is none."""
    if left.free_symbols != right.free_symbols or not left.free_symbols:
        return None
    values = [(evaluate(left, point, 40), evaluate(right, point, 40)) for point in points(left, right)]
    ratios = [x / y for x, y in values if x is not None and y is not None and y != 0]
    if len(ratios) < 2 or not ratios[0].is_real or not all(agree(q, ratios[0], 30) for q in ratios):
        return None
    ratio = sympy.Rational(str(ratios[0])).limit_denominator(10**9)
    if ratio and agree(ratio, ratios[0], 30):
        return ratio if same_value(left, ratio * right) else None
    return ratios[0] if ratios[0] != 0 else None


def numerator(expression: Any) -> Any:
    """What has to vanish for a rational expression to vanish."""
    return sympy.expand(sympy.fraction(sympy.together(expression))[0])
