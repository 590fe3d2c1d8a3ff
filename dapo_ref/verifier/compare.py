"""Whether two trees mean the same: structure by structure, exact values first, sympy for what is left.

What counts as equivalent (Eq. 7 needs `is_equivalent(ŷ, y)`) is stated in `docs/verifier.md`.
"""

from dapo_ref.verifier.exact import exact_value
from dapo_ref.verifier.names import (
    assignments,
    conditions_dropped,
    elements,
    equation,
    group_assignments,
    in_order_of_names,
    interchangeable,
    is_asked,
    is_expression,
    is_name,
    name_of,
    named_tuple,
    strip_name,
)
from dapo_ref.verifier.tree import BRACKETED, Node, contains, num, relation, rewrite, symbols, times
from dapo_ref.verifier.verdict import NeedsSymbolicError, TooBigError, UndefinedError, UnparsableError

MAX_COMPARISONS = 1_000  # of elements, in one verdict
SYMBOLIC_COST = 5  # one in sympy counts as this many
_SETS = BRACKETED | {"set", "cup", "cap", "setminus", "builder"}


class Comparison:
    """One comparison of an answer with a reference.

    Args:
        symbolic: whether sympy may run here; if not, needing it raises `NeedsSymbolicError`.

    Attributes:
        stage: what decided last: `structure`, `exact` or `sympy`.
    """

    def __init__(self, symbolic: bool) -> None:
        self.symbolic = symbolic
        self.count = 0
        self.stage = "structure"

    def same(self, a: Node, r: Node) -> bool:
        """Whether two values are equivalent; `a` is the answer's, `r` the reference's."""
        self.count += 1
        if self.count > MAX_COMPARISONS:
            raise TooBigError("too many comparisons")
        if a == r:
            return True
        if "either" in (a.op, r.op):
            return self.same(choose_reading(a, r), choose_reading(r, a))
        if is_expression(a) and is_expression(r):
            return self.same_values(a, r)
        if "list" in (a.op, r.op):
            return self.same_lists(a, r)
        if "rel" in (a.op, r.op):
            return self.same_relations(a, r)
        if "ratio" in (a.op, r.op):
            return self.same_ratios(a, r)
        if a.op in BRACKETED and r.op in BRACKETED and (a.op == r.op or len(a.args) > 2):
            if a.op != r.op and {a.op, r.op} != {"()", "[]"}:
                return False
            return self.in_order(in_order_of_names(list(a.args)), in_order_of_names(list(r.args)))
        if a.op == r.op == "set":
            return self.unordered(elements(a), elements(r))
        if "text" in (a.op, r.op):
            return letter(a) is not None and letter(a) == letter(r)
        single = [len(x.args) == 1 and x.op == "set" and is_expression(y) for x, y in ((a, r), (r, a))]
        if any(single):  # the solution set {5} names the one value 5
            return self.same(a.args[0] if single[0] else a, r.args[0] if single[1] else r)
        return self.same_sets(a, r)

    def in_order(self, left: list[Node], right: list[Node]) -> bool:
        return len(left) == len(right) and all(map(self.same, left, right))

    def unordered(self, left: list[Node], right: list[Node]) -> bool:
        """Whether the elements pair off, each counted once."""
        left, remaining = list(dict.fromkeys(left)), list(dict.fromkeys(right))
        if len(left) > len(remaining):
            left = [x for k, x in enumerate(left) if not any(self.same(x, y) for y in left[:k])]
        elif len(left) < len(remaining):
            remaining = [
                x for k, x in enumerate(remaining) if not any(self.same(x, y) for y in remaining[:k])
            ]
        for item in left:
            found = next((k for k, other in enumerate(remaining) if self.same(item, other)), None)
            if found is None:
                return False
            del remaining[found]
        return not remaining

    def same_lists(self, a: Node, r: Node) -> bool:
        """Bare lists: unordered against a list or a set, in order against a tuple; `p = 5, q = 2` by name."""
        if a.op == "list" and r.op not in _SETS | {"list"}:  # "3/4 or 0.75" is one value, twice
            items = conditions_dropped(a.args)
            return all(self.same(item, r) for item in items)
        left, right = conditions_dropped(elements(a)), conditions_dropped(elements(r))
        if a.op in BRACKETED or r.op in BRACKETED:
            tuples = [any(item.op in BRACKETED for item in items) for items in (left, right)]
            if a.op not in ("[]", "()", "list") or r.op not in ("[]", "()", "list") or any(tuples):
                return len(left) == len(right) == 1 and self.same(left[0], right[0])
            return self.in_order(in_order_of_names(left), in_order_of_names(right))
        named = assignments(left), assignments(right)
        if named[0] and named[1] and set(named[0]) == set(named[1]):
            return all(self.same(named[0][name], named[1][name]) for name in named[0])
        if all(map(name_of, left)) and all(map(name_of, right)):
            return self.unordered(left, right)
        left, right = group_assignments(left), group_assignments(right)
        return self.unordered(list(map(strip_name, left)), list(map(strip_name, right)))

    def same_ratios(self, a: Node, r: Node) -> bool:
        """3 : 4 = 6 : 8, and 3 : 4 is 3/4, but never an integer; times of day are no ratios."""
        if a.op == r.op == "ratio":
            if len(a.args) != len(r.args) or not all(map(is_expression, (*a.args, *r.args))):
                return False
            if is_clock(a) and is_clock(r):
                return self.in_order(list(a.args), list(r.args))
            crosses = [
                (times(x, r.args[j]), times(a.args[j], y))
                for i, (x, y) in enumerate(zip(a.args, r.args, strict=True))
                for j in range(i)
            ]
            zeros = [[exact_value(part) == 0 for part in node.args] for node in (a, r)]
            if len(a.args) == 2 and zeros[0][1]:
                return False  # 3 : 0 is the ratio of nothing
            return zeros[0] == zeros[1] and not all(zeros[0]) and all(self.same(x, y) for x, y in crosses)
        ratio, value = (a, r) if a.op == "ratio" else (r, a)
        if (
            len(ratio.args) != 2
            or not is_expression(value)
            or is_integer(value)
            or is_integer(ratio.args[1]) is None
        ):
            return False
        return exact_value(ratio.args[1]) != 0 and self.same(Node("div", ratio.args), value)

    def same_relations(self, a: Node, r: Node) -> bool:
        """Equations by value or up to a factor, inequalities as sets or up to a positive factor."""
        if a.op == r.op == "rel":
            return self.both_relations(a, r)
        if a.op == "rel":
            value = self.stated_value(a, r)
            if value is not None and self.same(value, r):
                return True
            return r.op in _SETS and equation(a) is None and self.same_sets(a, r)
        value = self.stated_value(r, None)
        if value is not None:
            return self.same(a, value)
        return a.op in _SETS and equation(r) is None and self.same_sets(a, r)

    def stated_value(self, node: Node, reference: Node | None) -> Node | None:
        """What `x = 5`, `m + n = 5`, `x ∈ S` or `1/3 ≈ 0.33` says the value is; None when it says none.

        A chain of equalities counts only if all its computable sides agree. An answer (`reference` given) may
        name any quantity that a problem may ask for; a reference has to name a single one.
        """
        ops, sides = node.args[0].args, node.args[1:]
        if "~" in ops:
            return self.rounded_value(ops, sides, reference)
        if ops == ("in",):
            return sides[1] if is_name(sides[0]) else None
        if set(ops) != {"="}:
            return None
        named = named_tuple(sides) if reference is not None else None
        if named:
            return Node("()", tuple(in_order_of_names(named)))
        integer = reference is not None and is_integer(reference) is True
        names = [is_name(side) if reference is None else is_asked(side, integer) for side in sides]
        values = [side for side, named in zip(sides, names, strict=True) if not named]
        if not values:
            return sides[-1] if len(sides) == 2 else None
        if any(not self.same(value, values[-1]) for value in values[:-1]):
            return None
        return values[-1]

    def rounded_value(
        self, ops: tuple[str, ...], sides: tuple[Node, ...], reference: Node | None
    ) -> Node | None:
        """The exact value before ≈, or what follows it where only a name stands before."""
        where = ops.index("~")
        exact, rounded = sides[: where + 1], sides[where + 1]
        if all(map(is_name, exact)):
            return rounded
        value = exact[0] if where == 0 else self.stated_value(relation(ops[:where], *exact), reference)
        approximated = (
            reference is not None and is_integer(reference) is False and exact_value(reference) is not None
        )
        return rounded if approximated and reference is not None and self.same(rounded, reference) else value

    def both_relations(self, a: Node, r: Node) -> bool:
        if equation(a) and equation(r):
            names = name_of(a), name_of(r)
            if names[0] is not None and names[1] is not None and interchangeable(names[0], names[1]):
                values = self.stated_value(a, r), self.stated_value(r, None)
                if values[0] is not None and values[1] is not None and self.same(values[0], values[1]):
                    return True
            return self.proportional(a, r)
        if a.args[0] == r.args[0] and all(map(self.same_sides, a.args[1:], r.args[1:])):
            return True
        if equation(a) or equation(r) or symbols(a) != symbols(r):
            return False
        try:
            return self.same_sets(a, r)
        except UnparsableError:
            return self.proportional(a, r)

    def same_sides(self, a: Node, r: Node) -> bool:
        try:
            return self.same(a, r)
        except (UnparsableError, UndefinedError):
            return False

    def proportional(self, a: Node, r: Node) -> bool:
        """Whether two relations of two sides are the same up to a factor, its sign turning inequalities."""
        sides = (*a.args[1:], *r.args[1:])
        if len(sides) != 4 or not all(map(is_expression, sides)) or contains(a, "matrix"):
            return False
        if symbols(a) != symbols(r) or not symbols(a):
            return False
        self.require_symbolic()
        from dapo_ref.verifier import algebra

        left, right = (
            algebra.build(Node("add", (pair[0], Node("neg", (pair[1],))))) for pair in (sides[:2], sides[2:])
        )
        ratio = algebra.constant_ratio(left, right)
        if ratio is None and equation(a) and equation(r):
            ratio = algebra.constant_ratio(algebra.numerator(left), algebra.numerator(right))
        if ratio is None:
            return False
        op = a.args[0].args[0]
        turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(op, op)
        return (op if ratio > 0 else turned) == r.args[0].args[0]

    def same_sets(self, a: Node, r: Node) -> bool:
        self.require_symbolic()
        from dapo_ref.verifier import sets

        return sets.same_set(sets.to_set(a), sets.to_set(r))

    def require_symbolic(self) -> None:
        if not self.symbolic:
            raise NeedsSymbolicError
        self.count += SYMBOLIC_COST
        self.stage = "sympy"

    def same_values(self, a: Node, r: Node) -> bool:
        """Single values, with what is written after them: units, moduli, percent signs, degrees."""
        a, a_unit = split_unit(a, r)
        r, r_unit = split_unit(r, a)
        if a_unit and r_unit and a_unit != r_unit:
            return False
        if a.op == r.op == "congruent":
            return self.equal(a.args[1], r.args[1]) and self.equal(
                *(Node("mod", node.args) for node in (a, r))
            )
        a, r = (node.args[0] if node.op == "congruent" else node for node in (a, r))
        if contains(a, "percent") or contains(r, "percent"):
            return self.same_percent(a, r)
        degrees = in_degrees(a), in_degrees(r)
        if any(degrees):
            if self.equal(
                *(bare(node, "deg") if flag else node for node, flag in zip((a, r), degrees, strict=True))
            ):
                return all(degrees) or not contains(r if degrees[0] else a, "deg")
            if all(degrees) or exact_value(bare(r if degrees[0] else a, "deg")) is not None:
                return False
        return self.equal(a, r)

    def same_percent(self, a: Node, r: Node) -> bool:
        """28 % is 28 (the sign is a unit that may be left out) and 0.28, but never an integer's 100-fold."""
        share = None if symbols(r) or contains(r, "percent") else exact_value(r)
        if (share is None or not 0 < share < 1) and self.equal(bare(a, "percent"), bare(r, "percent")):
            return True
        if contains(a, "percent") and contains(r, "percent"):
            return False
        plain = r if contains(a, "percent") else a
        return is_integer(plain) is not True and self.equal(a, r)

    def equal(self, a: Node, r: Node) -> bool:
        """Whether two expressions have the same value."""
        if a == r:
            return True
        a, r = written_out(a), written_out(r)
        if a.op == r.op == "matrix":
            rows = [list(node.args) for node in (a, r)]
            same_shape = len(rows[0]) == len(rows[1]) and len(rows[0][0].args) == len(rows[1][0].args)
            return same_shape and all(
                self.in_order(list(x.args), list(y.args)) for x, y in zip(*rows, strict=True)
            )
        if not symbols(a) and not symbols(r):
            values = exact_value(a), exact_value(r)
            if None not in values:
                self.stage = "exact"
                return values[0] == values[1]
        self.require_symbolic()
        from dapo_ref.verifier import algebra

        return algebra.same_value(algebra.build(a), algebra.build(r))


def choose_reading(node: Node, other: Node) -> Node:
    """A comma read in two ways: a list where the other side has several values, else a number.

    A decimal comma is read only where the other side is a number but no integer.
    """
    if node.op != "either":
        return node
    number, several = node.args
    if other.op in _SETS | {"list"}:
        return several
    return number if is_integer(number) or is_integer(other) is False else several


def written_out(node: Node) -> Node:
    """Sums and multiples of matrices as one matrix, entry by entry: A + B, 2 A, A/3, −A."""
    if node.op not in ("add", "mul", "div", "neg"):
        return node
    args = tuple(map(written_out, node.args))
    shapes = {(len(arg.args), len(arg.args[0].args)) for arg in args if arg.op == "matrix"}
    count = sum(arg.op == "matrix" for arg in args)
    wanted = len(args) if node.op == "add" else 1
    if count != wanted or len(shapes) != 1 or (node.op == "div" and args[0].op != "matrix"):
        return node
    ((rows, columns),) = shapes

    def entry(i: int, j: int) -> Node:
        return Node(node.op, tuple(arg.args[i].args[j] if arg.op == "matrix" else arg for arg in args))

    return Node("matrix", tuple(Node("row", tuple(entry(i, j) for j in range(columns))) for i in range(rows)))


def letter(node: Node) -> str | None:
    """The letters of a word or a single name, without case."""
    return node.args[0].casefold() if node.op in ("text", "sym", "const") else None


def is_integer(node: Node) -> bool | None:
    """Whether an expression is an integer; None when that is not a question of exact values."""
    if not is_expression(node) or symbols(node):
        return None
    try:
        value = exact_value(split_unit(node, num(0))[0])
    except (UndefinedError, TooBigError):
        return None
    return False if value is None else value.denominator == 1


def is_clock(node: Node) -> bool:
    """Whether a ratio is also a time of day, as 3 : 30 is."""
    values = [part.args[0] if part.op == "num" else -1 for part in node.args]
    return len(values) == 2 and 0 <= values[0] < 24 and 10 <= values[1] < 60


def split_unit(node: Node, other: Node) -> tuple[Node, str]:
    """The value and its unit; `3s` is a product where the other side has the name s."""
    if node.op != "unit":
        return node, ""
    value, unit, *product = node.args
    if product and symbols(product[0]) & symbols(other):
        return product[0], ""
    return value, unit.args[0]


def bare(node: Node, op: str) -> Node:
    """The tree without a mark: 30° → 30."""
    return rewrite(node, lambda part: bare(part.args[0], op) if part.op == op else None)


def in_degrees(node: Node) -> bool:
    """Whether a value is a number of degrees: 30°, 30° + 15°, 3 · 30°; 30° + 15 is not."""
    if node.op == "add":
        return all(map(in_degrees, node.args))
    if node.op == "mul":
        return sum(map(in_degrees, node.args)) == 1
    if node.op in ("neg", "div"):
        return in_degrees(node.args[0])
    return node.op == "deg"
