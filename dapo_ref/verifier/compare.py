"""Whether two trees mean the same: structure by structure, exact values first, sympy for what is left.

What counts as equivalent (Eq. 7 needs `is_equivalent(ŷ, y)`) is stated in `docs/verifier.md`.
"""

from collections.abc import Sequence

from dapo_ref.verifier.exact import exact_value
from dapo_ref.verifier.names import (
    assignments,
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
)
from dapo_ref.verifier.tree import BRACKETED, Node, contains, joined, num, relation, rewrite, symbols
from dapo_ref.verifier.verdict import NeedsSymbolicError, TooBigError, UndefinedError, UnparsableError

MAX_COMPARISONS = 1_000  # of elements, in one verdict
SYMBOLIC_COST = 5  # one in sympy counts as this many
_SETS = BRACKETED | {"set", "cup", "cap", "setminus", "builder"}


class Comparison:
    """One comparison of an answer with a reference."""

    def __init__(self, symbolic: bool) -> None:
        self.symbolic = symbolic  # whether sympy may run here; if not, needing it raises `NeedsSymbolicError`
        self.count = 0
        self.stage = "structure"  # what decided last: this, `exact` or `sympy`

    def same(self, a: Node, r: Node) -> bool:
        """Whether two values are equivalent; `a` is the answer's, `r` the reference's."""
        self.count += 1
        if self.count > MAX_COMPARISONS:
            raise TooBigError("too many comparisons")
        if a == r:
            return True
        ops = {a.op, r.op}
        if "either" in ops:
            return self.same(choose_reading(a, r), choose_reading(r, a))
        if is_expression(a) and is_expression(r):
            return self.same_values(a, r)
        if "list" in ops:
            return self.same_lists(a, r)
        if "rel" in ops:
            return self.both_relations(a, r) if len(ops) == 1 else self.relation_and_value(a, r)
        if "ratio" in ops:
            return self.both_ratios(a, r) if len(ops) == 1 else self.ratio_and_value(a, r)
        if ops <= BRACKETED and (len(ops) == 1 or len(a.args) > 2):
            comparable = len(ops) == 1 or ops == {"()", "[]"}
            return comparable and self.in_order(in_order_of_names(a.args), in_order_of_names(r.args))
        if ops == {"set"}:
            return self.unordered(elements(a), elements(r))
        if "text" in ops:
            return letter(a) is not None and letter(a) == letter(r)
        if "set" in ops and (is_expression(a) or is_expression(r)):  # the solution set {5} names the value 5
            values = a.args if a.op == "set" else r.args
            return len(values) == 1 and (
                self.same(values[0], r) if a.op == "set" else self.same(a, values[0])
            )
        return self.same_sets(a, r)

    def in_order(self, left: Sequence[Node], right: Sequence[Node]) -> bool:
        return len(left) == len(right) and all(map(self.same, left, right))

    def unordered(self, left: Sequence[Node], right: Sequence[Node]) -> bool:
        """Whether each element has an equal one on the other side; the same value twice is one value."""
        unmatched = list(right)
        for x in left:
            found = next((k for k, y in enumerate(unmatched) if self.same(x, y)), None)
            if found is not None:
                del unmatched[found]
            elif not any(self.same(x, y) for y in right if y not in unmatched):
                return False
        return all(any(self.same(x, y) for x in left) for y in unmatched)

    def same_lists(self, a: Node, r: Node) -> bool:
        """Bare lists: unordered against a list or a set, in order against a tuple; `p = 5, q = 2` by name."""
        left, right = elements(a), elements(r)
        if a.op == "list" and r.op not in _SETS | {"list"}:  # "3/4 or 0.75" is one value, twice
            return all(self.same(item, r) for item in left)
        if {a.op, r.op} & BRACKETED:
            if {a.op, r.op} <= {"()", "[]", "list"} and not any(x.op in BRACKETED for x in (*left, *right)):
                return self.in_order(in_order_of_names(left), in_order_of_names(right))
            return len(left) == len(right) == 1 and self.same(left[0], right[0])
        mine, other = assignments(left), assignments(right)
        if mine and mine.keys() == other.keys():
            return all(self.same(mine[name], other[name]) for name in mine)
        if all(map(name_of, left)) and all(map(name_of, right)):
            return self.unordered(left, right)
        return self.unordered(group_assignments(left), group_assignments(right))

    def both_ratios(self, a: Node, r: Node) -> bool:
        """3 : 4 = 6 : 8; times of day are no ratios, and 3 : 0 is the ratio of nothing."""
        if len(a.args) != len(r.args) or not all(map(is_expression, (*a.args, *r.args))):
            return False
        if is_clock(a) and is_clock(r):
            return self.in_order(a.args, r.args)
        whole = next((k for k, part in enumerate(a.args) if exact_value(part) != 0), -1)
        if exact_value(r.args[whole]) == 0 or (len(a.args) == 2 and exact_value(a.args[1]) == 0):
            return False
        x, y = a.args[whole], r.args[whole]
        return self.in_order([joined("mul", p, y) for p in a.args], [joined("mul", q, x) for q in r.args])

    def ratio_and_value(self, a: Node, r: Node) -> bool:
        """3 : 4 is 3/4, but never an integer."""
        ratio, value = (a, r) if a.op == "ratio" else (r, a)
        if len(ratio.args) != 2 or not is_expression(value) or is_integer(value):
            return False
        return exact_value(ratio.args[1]) != 0 and self.same(Node("div", ratio.args), value)

    def relation_and_value(self, a: Node, r: Node) -> bool:
        """A relation for a value, by what it states or as a set."""
        value = self.stated_value(a, r) if a.op == "rel" else self.stated_value(r, None)
        if value is not None:
            same = self.same(value, r) if a.op == "rel" else self.same(a, value)
            if same or a.op != "rel":
                return same
        return (
            not equation(a) and not equation(r) and {a.op, r.op} <= _SETS | {"rel"} and self.same_sets(a, r)
        )

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
        if reference is not None and (named := named_tuple(sides)):
            return Node("()", tuple(in_order_of_names(named)))
        integer = reference is not None and is_integer(reference) is True
        values = [x for x in sides if not (is_name(x) if reference is None else is_asked(x, integer))]
        if not values:
            return sides[-1] if len(sides) == 2 else None
        said = values[-1]
        if said.op == "congruent":  # 7^2 ≡ 1 (mod 8): the sides agree up to the modulus
            values = [Node("mod", (value, said.args[1])) for value in (*values[:-1], said.args[0])]
        return said if all(self.same(value, values[-1]) for value in values[:-1]) else None

    def rounded_value(
        self, ops: tuple[str, ...], sides: tuple[Node, ...], reference: Node | None
    ) -> Node | None:
        """The exact value before ≈, or what follows it where only a name stands before."""
        where = ops.index("~")
        exact, rounded = sides[: where + 1], sides[where + 1]
        if all(map(is_name, exact)):
            return rounded
        decimal = None if reference is None or is_integer(reference) is not False else exact_value(reference)
        if decimal is not None and self.same(rounded, num(decimal)):
            return rounded
        return self.stated_value(relation(ops[:where], *exact), reference) if where else exact[0]

    def both_relations(self, a: Node, r: Node) -> bool:
        """Equations by value or up to a factor, inequalities as sets or up to a positive factor."""
        if equation(a) and equation(r):
            names = name_of(a), name_of(r)
            if names[0] is not None and names[1] is not None and interchangeable(names[0], names[1]):
                value, wanted = self.stated_value(a, r), self.stated_value(r, None)
                if value is not None and wanted is not None and self.same(value, wanted):
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
        if len(sides) != 4 or not all(is_expression(side) and not contains(side, "matrix") for side in sides):
            return False
        if symbols(a) != symbols(r) or not symbols(a):
            return False
        self.require_symbolic()
        from dapo_ref.verifier import algebra

        left, right = (algebra.build(x) - algebra.build(y) for x, y in (sides[:2], sides[2:]))
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
            same_modulus = self.equal(a.args[1], r.args[1])
            return same_modulus and self.equal(Node("mod", a.args), Node("mod", r.args))
        a, r = (node.args[0] if node.op == "congruent" else node for node in (a, r))
        if contains(a, "percent") or contains(r, "percent"):
            return self.same_percent(a, r)
        degrees = [in_degrees(a), in_degrees(r)]
        if any(degrees) and "rad^1" not in (a_unit, r_unit):
            x, y = (bare(node, "deg") if in_degrees(node) else node for node in (a, r))
            if self.equal(x, y):
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
        if a.op == r.op and a.op in ("matrix", "row"):
            return self.in_order(a.args, r.args)
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


def letter(node: Node) -> str | None:
    """The letters of a word or a single name, without case."""
    return node.args[0].casefold() if node.op in ("text", "sym", "const") else None


def is_integer(node: Node) -> bool | None:
    """Whether an expression is an integer; None when that is not a question of exact values."""
    if not is_expression(node) or symbols(node):
        return None
    try:
        value = exact_value(node.args[0] if node.op == "unit" else node)
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
    return in_degrees(node.args[0]) if node.op in ("neg", "div") else node.op == "deg"
