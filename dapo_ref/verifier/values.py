"""What a parsed answer can be: an expression tree, or a structure of them.

An expression is a `Node`: an operator from a white list over nodes, numbers or names. Nothing here computes.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from dapo_ref.verifier.verdict import TooBigError, UnparsableError


class Node(NamedTuple):
    """An expression: `op` and its arguments.

    Leaves: `num` (a Fraction), `sym` (a name), `const` (pi, e, i or oo). Inner nodes: `add`, `mul`, `neg`,
    `div`, `pow`, `root` (radicand, degree), `pm`, `mp`, `fact`, `binom`, `abs`, `floor`, `ceil`, `mod`,
    `deg`, `log` (argument, base), `sum` and `prod` (name, low, high, body), `matrix` (rows) and `fn:NAME`.
    """

    op: str
    args: tuple[Any, ...]


def num(value: int | Fraction) -> Node:
    """An exact rational leaf."""
    return Node("num", (Fraction(value),))


@dataclass(frozen=True)
class Expr:
    """A single value, with the unit that was written after it (canonical, empty when there is none)."""

    node: Node
    unit: str = ""


@dataclass(frozen=True)
class Seq:
    """Several values in order. `kind`: `list` (bare), `set`, `ratio`, or the two brackets, such as `[)`."""

    kind: str
    items: "tuple[Value, ...]"


@dataclass(frozen=True)
class Rel:
    """A chain of relations: sides[0] ops[0] sides[1] ops[1] …"""

    ops: tuple[str, ...]
    sides: "tuple[Value, ...]"


@dataclass(frozen=True)
class SetOp:
    """A union (`cup`), intersection (`cap`) or difference (`setminus`) of sets."""

    op: str
    parts: "tuple[Value, ...]"


@dataclass(frozen=True)
class Text:
    """Words, or mathematics that is not evaluated (`opaque`): equal only to the same words."""

    words: str
    opaque: bool = False


Value: TypeAlias = Expr | Seq | Rel | SetOp | Text


def children(value: Value) -> tuple[Value, ...]:
    """The values directly inside a structure."""
    match value:
        case Seq(_, items):
            return items
        case Rel(_, sides):
            return sides
        case SetOp(_, parts):
            return parts
    return ()


def symbols(node: Node) -> set[str]:
    """The free names of an expression."""
    if node.op == "sym":
        return {node.args[0]}
    if node.op in ("num", "const"):
        return set()
    if node.op in ("sum", "prod"):
        variable, low, high, body = node.args
        return symbols(low) | symbols(high) | (symbols(body) - symbols(variable))
    if node.op == "matrix":
        return set().union(*(symbols(entry) for row in node.args for entry in row))
    return set().union(*(symbols(arg) for arg in node.args))


def contains(node: Node, ops: frozenset[str]) -> bool:
    """Whether any of the operators occurs in the expression."""
    if node.op in ops:
        return True
    if node.op in ("num", "sym", "const"):
        return False
    if node.op == "matrix":
        return any(contains(entry, ops) for row in node.args for entry in row)
    return any(contains(arg, ops) for arg in node.args)


def size(node: Node) -> int:
    """The number of nodes."""
    if node.op in ("num", "sym", "const"):
        return 1
    if node.op == "matrix":
        return 1 + sum(size(entry) for row in node.args for entry in row)
    return 1 + sum(map(size, node.args))


def times(left: Node, right: Node) -> Node:
    """A product, kept flat so that a long row of factors is not a deep tree."""
    return Node("mul", (*left.args, right) if left.op == "mul" else (left, right))


def determinant(rows: list[list[Node]]) -> Node:
    """Expand a determinant of at most 4 × 4 by its first row."""
    if len(rows) != len(rows[0]):
        raise UnparsableError("not square")
    if len(rows) > 4:
        raise TooBigError("a large determinant")
    if len(rows) == 1:
        return rows[0][0]
    terms = []
    for column, entry in enumerate(rows[0]):
        minor = determinant([row[:column] + row[column + 1 :] for row in rows[1:]])
        term = Node("mul", (entry, minor))
        terms.append(term if column % 2 == 0 else Node("neg", (term,)))
    return Node("add", tuple(terms))
