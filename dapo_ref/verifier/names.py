"""What only names a quantity, and what statements such as `x = 3 and y = 4` say about the named ones."""

from collections.abc import Sequence

from dapo_ref.verifier.tree import BRACKETED, STRUCTURES, Node, relation, symbols
from dapo_ref.verifier.vocabulary import TRIGONOMETRIC

OF_NAMES = frozenset(("floor", "ceil", "gcd", "lcm", "max", "min", "det"))  # that a problem may ask for


def is_expression(node: Node) -> bool:
    """Whether a node is a single value, a matrix or one with a unit included, and no structure."""
    return node.op == "unit" or node.op not in STRUCTURES | BRACKETED | {"either"}


def is_symbol(node: Node) -> bool:
    return node.op == "sym" and not node.args[0].startswith("mathbb_")


def is_applied(node: Node) -> bool:
    """f(3), AB, NO: a letter before letters, numbers or a tuple; 2x is a multiple, not a name."""
    if node.op != "mul" or not is_symbol(node.args[0]):
        return False
    return all(arg.op in ("sym", "num", "()") or is_applied(arg) for arg in node.args[1:])


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
    name = node.op.removeprefix("fn:")
    if name in OF_NAMES or (not integer and name in TRIGONOMETRIC):
        simple = all(is_name(arg) or arg.op == "num" for arg in node.args)
        return bool(symbols(node)) and (simple or name in ("floor", "ceil"))
    return is_name(node)


def interchangeable(a: Node, r: Node) -> bool:
    """Whether two names may stand for one quantity: the same, y and f(x), or one that is only described."""
    y_and_applied = any(
        x == Node("sym", ("y",)) and is_applied(f) and symbols(f.args[1]) for x, f in ((a, r), (r, a))
    )
    return a == r or "text" in (a.op, r.op) or y_and_applied


def equation(node: Node) -> tuple[Node, ...]:
    """The sides of a chain of equalities; none of anything else."""
    return node.args[1:] if node.op == "rel" and set(node.args[0].args) == {"="} else ()


def name_of(node: Node) -> Node | None:
    """The left side of `name = value`."""
    sides = equation(node)
    return sides[0] if sides and is_name(sides[0]) else None


def strip_name(node: Node) -> Node:
    """`x = 5` inside a list is 5."""
    sides = equation(node)
    named = len(sides) == 2 and is_name(sides[0]) and (not is_name(sides[1]) or sides[1].op == "()")
    return sides[1] if named else node


def elements(node: Node) -> list[Node]:
    """The elements of a list, set or tuple, without what is said about k in `kπ, k ∈ ℤ`; any other value is
    its own only element."""
    items = list(node.args) if node.op in ("list", "set", "()", "[]") else [node]
    kept = [item for item in items if not (item.op == "rel" and item.args[0].args == ("in",))]
    return kept or items


def assignments(items: Sequence[Node]) -> dict[Node, Node]:
    """`x = 3, y = 4` by name; empty unless every item is named, each name once."""
    named = {name: strip_name(item) for item in items if (name := name_of(item)) is not None}
    return named if len(named) == len(items) else {}


def in_order_of_names(items: Sequence[Node]) -> list[Node]:
    """What a tuple of the named values is: y = 4, x = 3 → 3, 4; a tuple lists its names alphabetically."""
    named = assignments(items)
    return [named[name] for name in sorted(named, key=str)] or list(map(strip_name, items))


def named_tuple(sides: Sequence[Node]) -> list[Node]:
    """The assignments in (y, x) = (3, 4)."""
    if [side.op for side in sides] != ["()", "()"] or len(sides[0].args) != len(sides[1].args):
        return []
    return [relation(("=",), *pair) for pair in zip(sides[0].args, sides[1].args, strict=True)]


def group_assignments(items: Sequence[Node]) -> list[Node]:
    """p = 5, q = 2, p = 7, q = 2 → (5, 2), (7, 2): names that repeat in a cycle make tuples."""
    names, values = list(map(name_of, items)), list(map(strip_name, items))
    period = len(set(names))
    if None in names or not 1 < period < len(names) or names != names[:period] * (len(names) // period):
        return values
    return [Node("()", tuple(values[k : k + period])) for k in range(0, len(values), period)]
