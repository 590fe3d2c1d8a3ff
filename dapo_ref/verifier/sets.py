"""Sets and conditions on one name as sympy sets, and when two of them are the same. Imports sympy."""

from typing import Any

import sympy

from dapo_ref.verifier.algebra import build, same_value
from dapo_ref.verifier.exact import exact_value
from dapo_ref.verifier.names import is_expression, is_name
from dapo_ref.verifier.tree import BRACKETED, Node, negative, symbols
from dapo_ref.verifier.verdict import UndefinedError, UnparsableError

_REALS = sympy.Interval(-sympy.oo, sympy.oo)
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
_SETS = {
    **{"mathbb_R": _REALS, "mathbb_Z": sympy.S.Integers, "mathbb_N": sympy.S.Naturals},
    **{"mathbb_Q": sympy.S.Rationals, "mathbb_C": sympy.S.Complexes},
}


def interval(low: Any, high: Any, left_open: bool, right_open: bool) -> Any:
    """An interval that has elements; UndefinedError if its ends are not real or not in order."""
    if not (low.is_extended_real and high.is_extended_real) or low == high or (high - low).is_negative:
        raise UndefinedError("not an interval")
    return sympy.Interval(low, high, left_open, right_open)


def ray(op: str, bound: Any) -> Any:
    """The numbers below or above a bound."""
    if op in ("<", "<="):
        return interval(-sympy.oo, bound, True, op == "<")
    return interval(bound, sympy.oo, op == ">", True)


def to_set(node: Node) -> Any:
    """The sympy set that a node denotes; UnparsableError if it denotes none."""
    of_values = node.op in BRACKETED | {"set"} and all(map(is_expression, node.args))
    if node.op == "sym" and node.args[0] in _SETS:
        return _SETS[node.args[0]]
    if node.op == "set" and of_values:
        return sympy.FiniteSet(*map(build, node.args))
    if node.op in BRACKETED and of_values and len(node.args) == 2:
        low, high = map(build, node.args)
        return interval(low, high, node.op[0] == "(", node.op[1] == ")")
    if node.op == "setminus":
        whole, *removed = map(to_set, node.args)
        return sympy.Complement(whole, sympy.Union(*removed))
    if node.op in ("cup", "cap"):
        return (sympy.Union if node.op == "cup" else sympy.Intersection)(*map(to_set, node.args))
    if node.op == "builder":
        element, said = node.args
        conditions = said.args if said.op == "list" else (said,)
        return sympy.Intersection(*map(to_set, conditions + (element,) * (element.op == "rel")))
    if node.op == "rel":
        ops, sides = node.args[0].args, node.args[1:]
        if ops == ("in",) and is_name(sides[0]):
            return to_set(sides[1])
        return sympy.Intersection(*map(condition, sides, ops, sides[1:]))
    raise UnparsableError("not a set")


def condition(left: Node, op: str, right: Node) -> Any:
    """The values of one name for which a relation holds: a ray where it is linear, its two halves where it is
    |x| < c. Nothing else is solved."""
    if op not in _FLIPPED:
        raise UnparsableError("not a condition on a number")
    if not symbols(left):
        left, op, right = right, _FLIPPED[op], left
    if left.op == "abs" and not symbols(right) and (exact_value(right) or 0) > 0 and op != "!=":
        # |x| < 1 is −1 < x < 1
        join = sympy.Intersection if op in ("<", "<=") else sympy.Union
        return join(
            condition(left.args[0], op, right), condition(left.args[0], _FLIPPED[op], negative(right))
        )
    if is_name(left) and not symbols(right):
        bound = build(right)
        return sympy.Complement(_REALS, sympy.FiniteSet(bound)) if op == "!=" else ray(op, bound)
    difference = build(left) - build(right)
    slopes = [difference.diff(name) for name in difference.free_symbols]
    if len(slopes) != 1 or not slopes[0].is_Rational or op == "!=":
        raise UnparsableError("not a linear condition on one name")
    bound = -difference.subs(next(iter(difference.free_symbols)), 0) / slopes[0]
    return ray(op if slopes[0] > 0 else _FLIPPED[op], bound)


def same_set(left: Any, right: Any) -> bool:
    """Whether two sympy sets are equal: as sympy has them, or piece by piece with ends of the same value."""
    if left == right:
        return True
    mine, other = pieces(left), pieces(right)
    return all(any(same_piece(x, y) for y in other) for x in mine) and all(
        any(same_piece(x, y) for x in mine) for y in other
    )


def pieces(whole: Any) -> list[Any]:
    """Intervals and single points."""
    parts = whole.args if isinstance(whole, sympy.Union) else [whole]
    return [x for part in parts for x in (part.args if isinstance(part, sympy.FiniteSet) else [part])]


def same_piece(left: Any, right: Any) -> bool:
    if isinstance(left, sympy.Interval) and isinstance(right, sympy.Interval):
        same_kind = (left.left_open, left.right_open) == (right.left_open, right.right_open)
        return bool(same_kind) and same_value(left.start, right.start) and same_value(left.end, right.end)
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return same_value(left, right)
    return bool(left == right)
