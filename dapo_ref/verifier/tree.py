"""The bounded tree that an answer or a reference is parsed into. Nothing here computes."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple


class Node(NamedTuple):
    """An operator from a fixed list and its arguments.

    Leaves: `num` (a Fraction), `sym` (a name), `const` (pi, e, i, oo), `text` (words), `ops` (of a relation).
    Expressions: `add mul neg div pow root pm mp fact binom abs floor ceil mod log deg percent` and
    `fn:NAME`; `matrix` of `row`. Values: `unit` (value, unit), `congruent` (value, modulus).
    Structures: `list` (bare), `set`, the brackets `() [] (] [)`, `ratio`, `clock`, `cup cap setminus`,
    `builder` (element, condition), and `rel` (ops, side, side, …).
    """

    op: str
    args: tuple[Any, ...]


LEAVES = frozenset(("num", "sym", "const", "text", "ops"))
BRACKETED = frozenset(("()", "[]", "(]", "[)"))
STRUCTURES = frozenset(
    ("ops", "text", "list", "set", "ratio", "clock", "cup", "cap", "setminus", "builder", "rel", "unit")
)
ARITHMETIC = frozenset(
    ("add", "mul", "neg", "div", "pow", "root", "fact", "binom", "abs", "floor", "ceil", "mod", "deg", "log")
)


def num(value: int | Fraction) -> Node:
    """An exact rational leaf."""
    return Node("num", (Fraction(value),))


def negative(node: Node) -> Node:
    return num(-node.args[0]) if node.op == "num" else Node("neg", (node,))


def joined(op: str, left: Node, right: Node) -> Node:
    """A sum or product, kept flat so that a long row of terms or factors is not a deep tree."""
    return Node(op, (*left.args, right) if left.op == op else (left, right))


def relation(ops: tuple[str, ...], *sides: Node) -> Node:
    return Node("rel", (Node("ops", ops), *sides))


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    if node.op not in LEAVES:
        for arg in node.args:
            yield from walk(arg)


def contains(node: Node, *ops: str) -> bool:
    """Whether any of the operators occurs."""
    return any(part.op in ops for part in walk(node))


def symbols(node: Node) -> set[str]:
    """The names that occur."""
    return {part.args[0] for part in walk(node) if part.op == "sym"}


def rewrite(node: Node, change: Callable[[Node], Node | None]) -> Node:
    """A copy in which every part that `change` answers with a node is that node."""
    changed = change(node)
    if changed is not None:
        return changed
    return node if node.op in LEAVES else Node(node.op, tuple(rewrite(arg, change) for arg in node.args))
