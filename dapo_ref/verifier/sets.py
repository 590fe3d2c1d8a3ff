"""Sets and intervals: reading inequalities as intervals, and carrying out simple unions and intersections."""

import math
from fractions import Fraction

from dapo_ref.verifier.exact import Evaluator
from dapo_ref.verifier.values import Expr, Node, Rel, Seq, SetOp, Value
from dapo_ref.verifier.verdict import InexactError, UndefinedError

_OO = Node("const", ("oo",))
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def flip(op: str) -> str:
    """The relation read from right to left."""
    return _FLIPPED.get(op, op)


def as_interval(relation: Rel) -> tuple[Value, Value] | None:
    """Read x ≥ 5, 5 ≤ x or 0 < x < 5 as the named quantity and an interval; None for any other relation."""
    if not all(op in _FLIPPED for op in relation.ops) or not all(isinstance(s, Expr) for s in relation.sides):
        return None
    ops, sides = list(relation.ops), list(relation.sides)
    if all(op in (">", ">=") for op in ops):
        ops, sides = [flip(op) for op in reversed(ops)], sides[::-1]
    if not all(op in ("<", "<=") for op in ops):
        return None
    plus, minus = Expr(_OO), Expr(Node("neg", (_OO,)))
    absolute = next((s for s in sides if isinstance(s, Expr) and s.node.op == "abs"), None)
    if absolute is not None and is_variable(inner := Expr(absolute.node.args[0])):
        return absolute_interval(inner, absolute, ops, sides)
    if len(ops) == 2 and is_variable(sides[1]):
        return sides[1], interval(sides[0], sides[2], ops[0], ops[1])
    if len(ops) == 1 and is_variable(sides[0]) and not is_variable(sides[1]):
        return sides[0], interval(minus, sides[1], "<", ops[0])
    if len(ops) == 1 and is_variable(sides[1]) and not is_variable(sides[0]):
        return sides[1], interval(sides[0], plus, ops[0], "<")
    return None


def absolute_interval(
    inner: Value, absolute: Value, ops: list[str], sides: list[Value]
) -> tuple[Value, Value] | None:
    """|x| < a, |x| > a and a < |x| < b as sets of x."""
    where = sides.index(absolute)
    low, high = sides[:where], sides[where + 1 :]
    if len(low) > 1 or len(high) > 1:
        return None
    if not low:
        return inner, interval(negative(high[0]), high[0], ops[0], ops[0])
    upper = high[0] if high else Expr(_OO)
    last = ops[1] if high else "<"
    return inner, SetOp(
        "cup",
        (interval(negative(upper), negative(low[0]), last, ops[0]), interval(low[0], upper, ops[0], last)),
    )


def negative(value: Value) -> Value:
    assert isinstance(value, Expr)
    return Expr(Node("neg", (value.node,)))


def is_variable(value: Value) -> bool:
    """A symbol, or one applied to another: x, f(x), |z|."""
    if not isinstance(value, Expr):
        return False
    node = value.node
    if node.op == "mul":
        return all(arg.op == "sym" for arg in node.args)
    return node.op == "sym" and node.args[0] != "mathbb_R"


def interval(low: Value, high: Value, left: str, right: str) -> Seq:
    """Build the interval with the given ends; `<=` closes one."""
    return Seq(("[" if left == "<=" else "(") + ("]" if right == "<=" else ")"), (low, high))


def rational(value: Value) -> Fraction | None:
    try:
        return Evaluator()(value.node) if isinstance(value, Expr) else None
    except (InexactError, UndefinedError):
        return None


def finite_or_interval(value: Value) -> Value:
    """Carry out a union of finite sets, or an intersection of finite sets or of two rational intervals."""
    if isinstance(value, Expr) and value.node == Node("sym", ("mathbb_R",)):
        return Seq("()", (Expr(Node("neg", (_OO,))), Expr(_OO)))
    if not isinstance(value, SetOp):
        return value
    parts = [finite_or_interval(part) for part in value.parts]
    sequences = [part for part in parts if isinstance(part, Seq)]
    if len(sequences) == len(parts) and all(part.kind == "{}" for part in sequences):
        return Seq("{}", combine(value.op, sequences))
    if value.op == "cap" and len(sequences) == len(parts) == 2 and all(len(p.items) == 2 for p in sequences):
        return intersect(*sequences) or value
    return SetOp(value.op, tuple(parts))


def key(value: Value) -> object:
    """Equal rationals are the same element however they are written."""
    exact = rational(value)
    return value if exact is None else exact


def combine(op: str, sets: list[Seq]) -> tuple[Value, ...]:
    """The elements of a union, intersection or difference of finite sets, in order of appearance."""
    tables = [{key(item): item for item in part.items} for part in sets]
    if op == "cup":
        return tuple({k: v for table in reversed(tables) for k, v in table.items()}.values())
    wanted = op == "cap"
    return tuple(v for k, v in tables[0].items() if all((k in table) == wanted for table in tables[1:]))


def bound(value: Value) -> Fraction | float | None:
    """An end of an interval: a rational, ±∞ (as a float, for comparison only), or None when it is neither."""
    if isinstance(value, Expr) and value.node == _OO:
        return math.inf
    if isinstance(value, Expr) and value.node == Node("neg", (_OO,)):
        return -math.inf
    return rational(value)


def intersect(a: Seq, b: Seq) -> Seq | None:
    """The intersection of two intervals with rational or infinite ends; None when it is not so simple."""
    ends = [end for end in map(bound, (*a.items, *b.items)) if end is not None]
    if len(ends) < 4 or "{}" in (a.kind, b.kind):
        return None
    low = max((ends[0], a.kind[0] == "(", 0), (ends[2], b.kind[0] == "(", 1))
    high = min((ends[1], a.kind[1] == "]", 0), (ends[3], b.kind[1] == "]", 1))
    if low[0] >= high[0]:
        return None
    items = (a, b)[low[2]].items[0], (a, b)[high[2]].items[1]
    return Seq(("(" if low[1] else "[") + ("]" if high[1] else ")"), items)
