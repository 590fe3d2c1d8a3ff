"""Small questions about the shape of a value: is it a list, does it only name a quantity?"""

from collections.abc import Iterable

from dapo_ref.verifier.sets import as_interval
from dapo_ref.verifier.values import Expr, Node, Rel, Seq, Text, Value, contains, symbols

MATRIX = frozenset(("matrix",))


def as_matrix(node: Node) -> tuple[tuple[Node, ...], ...] | None:
    """Carry out sums, signs and scalar multiples of matrices, entry by entry."""
    if node.op == "matrix":
        return node.args
    if node.op == "neg":
        inner = as_matrix(node.args[0])
        return inner and tuple(tuple(Node("neg", (entry,)) for entry in row) for row in inner)
    if node.op == "add":
        parts = [as_matrix(arg) for arg in node.args]
        if any(part is None or len(part) != len(parts[0] or ()) for part in parts):
            return None
        rows = zip(*(part for part in parts if part is not None), strict=True)
        return tuple(tuple(Node("add", entries) for entries in zip(*row, strict=False)) for row in rows)
    if node.op == "mul" and not any(contains(arg, MATRIX) for arg in node.args[:-1]):
        inner = as_matrix(node.args[-1])
        return inner and tuple(tuple(Node("mul", (*node.args[:-1], entry)) for entry in row) for row in inner)
    return None


def signed_infinity(node: Node) -> int:
    """+1 or −1 for ±∞ itself, else 0."""
    if node == Node("const", ("oo",)):
        return 1
    return -signed_infinity(node.args[0]) if node.op == "neg" else 0


def is_list(value: Value) -> bool:
    return isinstance(value, Seq) and value.kind == "list"


def is_tuple(value: Value) -> bool:
    return isinstance(value, Seq) and value.kind in ("()", "[]")


def is_reals(value: Value) -> bool:
    return isinstance(value, Expr) and value.node == Node("sym", ("mathbb_R",))


def elements(value: Value) -> list[Value]:
    """The elements of a list, set or tuple; any other value is its own only element."""
    if isinstance(value, Seq) and value.kind != "ratio":
        return list(value.items)
    return [value]


def distinct(items: Iterable[Value]) -> list[Value]:
    return list(dict.fromkeys(items))


def named_set(relation: Rel) -> tuple[Value, Value] | None:
    """The quantity and the set of x ∈ S or of an inequality."""
    if relation.ops == ("in",):
        return relation.sides[0], relation.sides[1]
    return as_interval(relation)


def is_plain_symbol(value: Value) -> bool:
    return isinstance(value, Expr) and value.node.op == "sym"


def is_sum(value: Value) -> bool:
    return isinstance(value, Expr) and value.node.op == "add"


def is_name(value: Value) -> bool:
    """Whether a side of an equation only names a quantity: x, f(3), AB, NO/BO, m + n, (x, y), a limit."""
    match value:
        case Text():
            return True
        case Seq(kind, items):
            return kind in ("()", "ratio") and all(is_name(item) for item in items)
        case Expr(node, _):
            return bool(symbols(node)) and names_only(node)
    return False


def names_only(node: Node) -> bool:
    if node.op == "mul" and len(node.args) == 2 and node.args[0].op == "sym" and node.args[1].op == "num":
        return True  # f(3); a number before the name would be a coefficient
    if node.op in ("mul", "div", "add", "neg", "abs", "floor", "ceil"):
        return all(map(names_only, node.args))
    return node.op == "sym" or (node.op.startswith("fn:") and all(map(names_only, node.args)))


def name_of(value: Value) -> Value | None:
    """The left side of `name = value`."""
    if isinstance(value, Rel) and set(value.ops) == {"="} and is_name(value.sides[0]):
        return value.sides[0]
    return None


def strip_name(value: Value) -> Value:
    """`x = 5` inside a list is 5."""
    if isinstance(value, Rel) and len(value.sides) == 2 and name_of(value) and not is_name(value.sides[1]):
        return value.sides[1]
    return value


def group_assignments(items: list[Value]) -> list[Value]:
    """p = 5, q = 2, p = 7, q = 2 → (5, 2), (7, 2): names that repeat in a cycle make tuples."""
    names = [name_of(item) for item in items]
    if len(items) < 4 or None in names:
        return items
    period = next((k for k in range(1, len(names)) if names[k] == names[0]), len(names))
    cyclic = len(names) % period == 0 and all(names[k] == names[k % period] for k in range(len(names)))
    if period < 2 or period == len(names) or not cyclic:
        return items
    values = [strip_name(item) for item in items]
    return [Seq("()", tuple(values[k : k + period])) for k in range(0, len(values), period)]
