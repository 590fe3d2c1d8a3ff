"""What only names a quantity, and what a statement such as `x = 5` or `x = 3 and y = 4` says its value is."""

from collections.abc import Sequence

from dapo_ref.verifier.tree import STRUCTURES, Node, relation, symbols
from dapo_ref.verifier.vocabulary import TRIGONOMETRIC

_FUNCTION_NAMES = frozenset(f"fn:{name}" for name in TRIGONOMETRIC)


def is_symbol(node: Node) -> bool:
    return node.op == "sym" and not node.args[0].startswith("mathbb_")


def is_applied(node: Node) -> bool:
    """f(3), AB, NO: a letter before letters, numbers or a tuple; 2x is a multiple, not a name."""
    return (
        node.op == "mul"
        and is_symbol(node.args[0])
        and all(arg.op in ("sym", "num", "()") for arg in node.args[1:])
    )


def is_name(node: Node) -> bool:
    """Whether a side only names one quantity: x, f(3), AB, |AB|, |S|, NO/BO, (x, y), words."""
    if node.op in ("()", "ratio", "div"):
        return all(map(is_name, node.args))
    if node.op == "abs":
        return is_applied(node.args[0]) or (is_symbol(node.args[0]) and node.args[0].args[0].isupper())
    return node.op == "text" or is_symbol(node) or is_applied(node)


def is_asked(node: Node, integer: bool) -> bool:
    """Whether a problem may ask for this side: a name, m + n, x − y, sin x where the value is no integer."""
    if node.op == "add":
        return all(is_name(term.args[0] if term.op == "neg" else term) for term in node.args)
    if node.op in ("floor", "ceil"):
        return is_name(node.args[0])
    return is_name(node) or (not integer and node.op in _FUNCTION_NAMES and is_name(node.args[0]))


def equation(node: Node) -> tuple[Node, ...] | None:
    """The sides of a chain of equalities."""
    return node.args[1:] if node.op == "rel" and set(node.args[0].args) == {"="} else None


def name_of(node: Node) -> Node | None:
    """The left side of `name = value`."""
    sides = equation(node)
    return sides[0] if sides and is_name(sides[0]) else None


def strip_name(node: Node) -> Node:
    """`x = 5` inside a list is 5."""
    sides = equation(node)
    if sides and len(sides) == 2 and is_name(sides[0]) and (not is_name(sides[1]) or sides[1].op == "()"):
        return sides[1]
    return node


def elements(node: Node) -> list[Node]:
    """The elements of a list, set or tuple; any other value is its own only element."""
    return list(node.args) if node.op in ("list", "set", "()", "[]") else [node]


def conditions_dropped(items: Sequence[Node]) -> list[Node]:
    """`kπ, k ∈ ℤ` without what is said about k."""
    kept = [item for item in items if not (item.op == "rel" and item.args[0].args == ("in",))]
    return kept or list(items)


def assignments(items: Sequence[Node]) -> dict[Node, Node] | None:
    """`x = 3, y = 4` by name; None unless every item is named, each name once."""
    names = [name_of(item) for item in items]
    if None in names or len(set(names)) < len(names):
        return None
    return {name: strip_name(item) for name, item in zip(names, items, strict=True) if name is not None}


def in_order_of_names(items: list[Node]) -> list[Node]:
    """What a tuple of the named values is: y = 4, x = 3 → 3, 4; a tuple lists its names alphabetically."""
    named = assignments(items)
    return [named[name] for name in sorted(named, key=str)] if named else [strip_name(item) for item in items]


def named_tuple(sides: Sequence[Node]) -> list[Node] | None:
    """The assignments in (y, x) = (3, 4)."""
    if len(sides) != 2 or any(side.op != "()" for side in sides) or len(sides[0].args) != len(sides[1].args):
        return None
    return [relation(("=",), *pair) for pair in zip(sides[0].args, sides[1].args, strict=True)]


def group_assignments(items: list[Node]) -> list[Node]:
    """p = 5, q = 2, p = 7, q = 2 → (5, 2), (7, 2): names that repeat in a cycle make tuples."""
    names = [name_of(item) for item in items]
    if len(items) < 4 or None in names:
        return items
    period = next((k for k in range(1, len(names)) if names[k] == names[0]), len(names))
    cyclic = len(names) % period == 0 and all(names[k] == names[k % period] for k in range(len(names)))
    if period < 2 or period == len(names) or not cyclic:
        return items
    values = [strip_name(item) for item in items]
    return [Node("()", tuple(values[k : k + period])) for k in range(0, len(values), period)]


def interchangeable(a: Node, r: Node) -> bool:
    """Whether two names may stand for one quantity: the same, y and f(x), or one that is only described."""
    if a == r or "text" in (a.op, r.op):
        return True
    values = [node.op == "sym" and node.args[0] == "y" for node in (a, r)]
    applied = [is_applied(node) and bool(symbols(node.args[1])) for node in (a, r)]
    return (values[0] and applied[1]) or (values[1] and applied[0])


def is_expression(node: Node) -> bool:
    """Whether a node is a single value, a matrix included, and no structure."""
    return node.op == "unit" or node.op not in STRUCTURES | {"()", "[]", "(]", "[)", "either"}
