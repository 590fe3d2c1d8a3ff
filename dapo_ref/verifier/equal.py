"""Equivalence in stages: the same text, exact numbers, structure element by element, and the symbolic stage
last.

Eq. 7 needs `is_equivalent(ŷ, y)`; what counts as equivalent is stated in `docs/verifier.md`.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from dapo_ref.verifier.exact import Evaluator, exact_points, numeric_points
from dapo_ref.verifier.extract import clean
from dapo_ref.verifier.parse import parse
from dapo_ref.verifier.sets import as_interval, finite_or_interval, flip
from dapo_ref.verifier.shapes import (
    MATRIX,
    as_matrix,
    distinct,
    elements,
    group_assignments,
    is_list,
    is_name,
    is_plain_symbol,
    is_reals,
    is_sum,
    is_tuple,
    name_of,
    named_set,
    signed_infinity,
    strip_name,
)
from dapo_ref.verifier.values import Expr, Node, Rel, Seq, SetOp, Text, Value, contains, symbols
from dapo_ref.verifier.verdict import (
    MAX_CHARS,
    InexactError,
    NeedsSymbolicError,
    Status,
    TooBigError,
    UndefinedError,
    UnparsableError,
)

MAX_COMPARISONS = 1_000  # of elements, in one verdict
SYMBOLIC_COST = 5  # a symbolic comparison counts as this many
_SIGN_SENSITIVE = frozenset(("abs", "floor", "ceil", "mod", "fn:sign", "fn:max", "fn:min"))
_INTEGER = re.compile(r"[+-]?(?:\d+|[1-9]\d{0,2}(?:,\d{3})+)", re.ASCII)
_DECORATION = re.compile(
    r"\\(?:left|right|displaystyle|,|;|!|:)|\\(?:text|mbox|mathrm|textbf)(?=\{)|[${}]|\\[()\[\]]"
)
_BLANK = re.compile(r"\s+")
_LOOSE_BLANK = re.compile(r"(?<!\w) | (?!\w)")


def read_integer(text: str) -> int | None:
    """The value of a plain integer of at most 1,000 digits; leading zeros and thousands commas are fine."""
    if len(text) > 1_000:
        return None
    text = text.strip().removeprefix("$").removesuffix("$")
    return int(text.replace(",", "")) if _INTEGER.fullmatch(text) else None


def plain_form(text: str) -> str:
    """The text without LaTeX decoration; blanks go except between letters or digits, which stay apart."""
    text = _BLANK.sub(" ", _DECORATION.sub(" ", text)).strip()
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _LOOSE_BLANK.sub("", text)
    letters = text.replace(" ", "")
    if len(letters) >= 3 and letters.isalpha() and not letters.isupper():  # words, not products of symbols
        text = text.casefold()
    return text


class Comparison:
    """One comparison of an answer with a reference.

    Args:
        symbolic: whether the symbolic stage may run here; if not, needing it raises `NeedsSymbolicError`.
    """

    def __init__(self, symbolic: bool) -> None:
        self.symbolic = symbolic
        self.count = 0

    def same(self, a: Value, r: Value) -> bool:
        """Whether two values are equivalent; `a` is the answer's, `r` the reference's."""
        self.count += 1
        if self.count > MAX_COMPARISONS:
            raise TooBigError("too many comparisons")
        if a == r:
            return True
        if isinstance(a, Text) or isinstance(r, Text):
            return self.same_text(a, r)
        if is_list(a) or is_list(r):
            return self.same_lists(a, r)
        if isinstance(a, Rel) or isinstance(r, Rel):
            return self.same_relations(a, r)
        if isinstance(a, SetOp) or isinstance(r, SetOp):
            return self.same_sets(a, r)
        if isinstance(a, Seq) and isinstance(r, Seq):
            return self.same_sequences(a, r)
        if isinstance(a, Expr) and isinstance(r, Expr):
            return (not a.unit or not r.unit or a.unit == r.unit) and self.same_nodes(a.node, r.node)
        if is_reals(a) or is_reals(r):
            return self.same_sets(a, r)
        single = [v for v in (a, r) if isinstance(v, Seq) and v.kind == "{}" and len(v.items) == 1]
        if single:  # the solution set {5} names the one value 5
            return self.same(*(v.items[0] if v in single else v for v in (a, r)))
        return False

    @staticmethod
    def same_text(a: Value, r: Value) -> bool:
        """Words equal words; a single symbol equals the same letter."""

        def letters(value: Value) -> str | None:
            if isinstance(value, Text):
                return value.words
            if isinstance(value, Expr) and value.node.op in ("sym", "const"):
                return str(value.node.args[0]).casefold()
            return None

        words = letters(a)
        return words is not None and words == letters(r)

    def same_lists(self, a: Value, r: Value) -> bool:
        """Bare lists: unordered against a list or a set, in order against a tuple; `p = 5, q = 2` by name."""
        if isinstance(a, Seq) and not isinstance(r, Seq | SetOp):  # "3/4 or 0.75" is one value, twice
            return all(self.same(item, r) for item in a.items)
        ordered = any(isinstance(v, Seq) and v.kind not in ("list", "{}") for v in (a, r))
        left, right = elements(a), elements(r)
        if ordered and len(left) == len(right):
            return all(self.same(strip_name(x), strip_name(y)) for x, y in zip(left, right, strict=True))
        left, right = distinct(group_assignments(left)), distinct(group_assignments(right))
        if any(is_tuple(item) for item in left) != any(is_tuple(item) for item in right):
            left, right = [strip_name(item) for item in left], [strip_name(item) for item in right]
        return self.same_unordered(left, right)

    def same_unordered(self, left: list[Value], right: list[Value]) -> bool:
        """Whether the elements pair off."""
        if len(left) != len(right):
            return False
        named = all(name_of(v) for v in left) and all(name_of(v) for v in right)
        remaining = list(right)
        for item in left:
            for index, other in enumerate(remaining):
                fits = self.same(item, other) if named else self.same(strip_name(item), strip_name(other))
                if fits:
                    del remaining[index]
                    break
            else:
                return False
        return True

    def same_sequences(self, a: Seq, r: Seq) -> bool:
        if a.kind == r.kind == "{}":
            return self.same_unordered(distinct(a.items), distinct(r.items))
        if a.kind == r.kind == "ratio":
            return self.same_ratios(a, r)
        if len(a.items) != len(r.items):
            return False
        vectors = len(a.items) > 2 and {a.kind, r.kind} <= {"()", "[]"}
        if a.kind != r.kind and not vectors:
            return False
        return all(self.same(strip_name(x), strip_name(y)) for x, y in zip(a.items, r.items, strict=True))

    def same_ratios(self, a: Seq, r: Seq) -> bool:
        """3:4 = 6:8: every cross product with the first terms agrees."""
        nodes = [[item.node for item in value.items if isinstance(item, Expr)] for value in (a, r)]
        if not len(nodes[0]) == len(nodes[1]) == len(a.items) == len(r.items):
            return False
        pairs = zip(*nodes, strict=True)
        first = next(pairs)
        return all(self.same_nodes(Node("mul", (x, first[1])), Node("mul", (first[0], y))) for x, y in pairs)

    def same_sets(self, a: Value, r: Value) -> bool:
        """Unions part by part in any order, after intersections of simple sets are carried out."""
        left, right = finite_or_interval(a), finite_or_interval(r)
        if isinstance(left, SetOp) and isinstance(right, SetOp):
            return left.op == right.op and self.same_unordered(list(left.parts), list(right.parts))
        if isinstance(left, SetOp) or isinstance(right, SetOp):
            return False
        return (left, right) != (a, r) and self.same(left, right)

    def same_relations(self, a: Value, r: Value) -> bool:
        """Equations by value or up to a factor, inequalities as intervals or up to a positive factor."""
        if isinstance(a, Rel) and isinstance(r, Rel):
            return self.both_relations(a, r)
        if isinstance(a, Rel):
            value = self.stated_value(a, of_answer=True)
            return value is not None and self.same(value, r)
        assert isinstance(r, Rel)
        value = self.stated_value(r, of_answer=False)
        return value is not None and self.same(a, value)

    def both_relations(self, a: Rel, r: Rel) -> bool:
        if set(a.ops) == set(r.ops) == {"="}:
            names = (a.sides[0], r.sides[0])
            if all(is_name(side) for side in names):
                values = self.stated_value(a, of_answer=True), self.stated_value(r, of_answer=True)
                same_names = names[0] == names[1] or not all(is_plain_symbol(side) for side in names)
                if same_names and None not in values and self.same(*values):  # type: ignore[arg-type]
                    return True
            return self.proportional(a, r)
        left, right = named_set(a), named_set(r)
        if left and right and left[0] == right[0] and self.same(left[1], right[1]):
            return True
        if a.ops == r.ops and all(self.same(x, y) for x, y in zip(a.sides, r.sides, strict=True)):
            return True
        return self.proportional(a, r)

    def stated_value(self, relation: Rel, of_answer: bool) -> Value | None:
        """What `x = 5`, `m + n = 5`, `x ∈ S` or `0 < x < 5` says the value is; None when it says none.

        A chain of equalities counts only if all its computable sides agree. An answer may name any quantity
        on the left; a reference has to name a single one.
        """
        interval = as_interval(relation)
        if interval is not None:
            return interval[1]
        if relation.ops == ("in",):
            return relation.sides[1] if is_name(relation.sides[0]) else None
        if set(relation.ops) != {"="}:
            return None
        values = [side for side in relation.sides if not is_name(side)]
        if not values:
            return relation.sides[-1] if len(relation.sides) == 2 else None
        if not of_answer and any(is_sum(side) for side in relation.sides if is_name(side)):
            return None
        if any(not self.same(value, values[-1]) for value in values[:-1]):
            return None
        return values[-1]

    def proportional(self, a: Rel, r: Rel) -> bool:
        """Whether two relations of two sides are the same up to a factor, its sign turning inequalities."""
        sides = [side for relation in (a, r) for side in relation.sides]
        if len(a.ops) != 1 or len(r.ops) != 1 or not all(isinstance(side, Expr) for side in sides):
            return False
        left, right = (Node("add", (s[0].node, Node("neg", (s[1].node,)))) for s in (sides[:2], sides[2:]))  # type: ignore[union-attr]
        names = symbols(left) | symbols(right)
        if symbols(left) != symbols(right) or not names:
            return False
        sign = self.factor_sign(left, right, names)
        if sign == 0:
            return False
        return (a.ops[0] if sign > 0 else flip(a.ops[0])) == r.ops[0]

    def factor_sign(self, left: Node, right: Node, names: set[str]) -> int:
        ratios = []
        try:
            for point in exact_points(names, signed=False):
                bottom = Evaluator(point)(right)
                if bottom != 0:
                    ratios.append(Evaluator(point)(left) / bottom)
            if len(ratios) >= 2:
                return 0 if len(set(ratios)) > 1 else (ratios[0] > 0) - (ratios[0] < 0)
            return 0
        except UndefinedError:
            return 0
        except InexactError:
            self.require_symbolic()
            from dapo_ref.verifier import symbolic

            return symbolic.ratio_sign(left, right, numeric_points(names, signed=False))

    def require_symbolic(self) -> None:
        if not self.symbolic:
            raise NeedsSymbolicError
        self.count += SYMBOLIC_COST

    def same_nodes(self, a: Node, r: Node) -> bool:
        """Whether two expressions have the same value."""
        if a == r:
            return True
        if a.op == "matrix" or r.op == "matrix" or contains(a, MATRIX) or contains(r, MATRIX):
            return self.same_matrices(as_matrix(a), as_matrix(r))
        infinite = signed_infinity(a), signed_infinity(r)
        if infinite != (0, 0):
            return infinite[0] == infinite[1]
        names = symbols(a) | symbols(r)
        if not names:
            exact = exact_value(a), exact_value(r)
            if None not in exact:
                return exact[0] == exact[1]
        else:
            verdict = exact_identity(a, r, names)
            if verdict is not None:
                return verdict
        self.require_symbolic()
        from dapo_ref.verifier import symbolic

        signed = contains(a, _SIGN_SENSITIVE) or contains(r, _SIGN_SENSITIVE)
        try:
            return symbolic.equal(a, r, numeric_points(names, signed))
        except UndefinedError:
            return False

    def same_matrices(
        self, a: tuple[tuple[Node, ...], ...] | None, r: tuple[tuple[Node, ...], ...] | None
    ) -> bool:
        if a is None or r is None or len(a) != len(r) or len(a[0]) != len(r[0]):
            return False
        pairs = [(x, y) for left, right in zip(a, r, strict=True) for x, y in zip(left, right, strict=True)]
        return all(self.same(Expr(x), Expr(y)) for x, y in pairs)


def exact_value(node: Node) -> Fraction | None:
    """The rational value of an expression without names; None when it has none that is exact.

    Raises:
        TooBigError: from the evaluation.
    """
    try:
        return Evaluator()(node)
    except InexactError:
        return None
    except UndefinedError:
        raise UnparsableError("undefined") from None


def exact_identity(a: Node, r: Node, names: set[str]) -> bool | None:
    """Compare rational functions exactly at fixed points; None when they are not rational functions."""
    signed = contains(a, _SIGN_SENSITIVE) or contains(r, _SIGN_SENSITIVE)
    compared = 0
    for point in exact_points(names, signed):
        try:
            if Evaluator(point)(a) != Evaluator(point)(r):
                return False
            compared += 1
        except InexactError:
            return None
        except UndefinedError:
            continue
    return compared >= 2


@lru_cache(maxsize=4_096)
def parse_reference(reference: str) -> Value:
    """`parse`, remembered: one reference is compared with a whole group of responses."""
    return parse(clean(reference, joined=True))


def compare(answer: str, reference: str, *, symbolic: bool) -> Status:
    """Decide on a bare answer.

    Args:
        answer: the text of the answer, as `extract_answer` returns it.
        reference: the reference.
        symbolic: whether the symbolic stage may run in this process.

    Returns:
        Any status but `no_answer` and `timeout`.

    Raises:
        NeedsSymbolicError: only the symbolic stage can decide, and `symbolic` is false.
    """
    left, right = read_integer(answer), read_integer(reference)
    if left is not None and right is not None:
        return Status.CORRECT if left == right else Status.WRONG
    if len(answer) > MAX_CHARS:
        return Status.TOO_BIG
    answer = clean(answer)
    if not answer:
        return Status.UNPARSABLE
    written, wanted = plain_form(answer), plain_form(clean(reference, joined=True))
    if written == wanted or ("\\text" in reference and written.casefold() == wanted.casefold()):
        return Status.CORRECT
    return attempt(lambda: compare_values(answer, reference, symbolic))


def compare_values(answer: str, reference: str, symbolic: bool) -> Status:
    a = parse(answer)
    r = parse_reference(reference)
    if Comparison(symbolic).same(a, r):
        return Status.CORRECT
    several = is_list(a) and not isinstance(r, Seq | SetOp)
    return Status.MULTIPLE if several else Status.WRONG


def attempt(decide: Callable[[], Status]) -> Status:
    """Run a decision; the named failures are verdicts, anything else is a bug and propagates."""
    try:
        return decide()
    except (
        TooBigError,
        RecursionError,
    ):  # our depth is bounded, but the caller's stack may be nearly used up
        return Status.TOO_BIG
    except (UnparsableError, UndefinedError, InexactError):
        return Status.UNPARSABLE


def is_equivalent(answer: str, reference: str) -> bool:
    """Whether a bare answer is equivalent to a reference (Eq. 7), all stages in this process.

    Args:
        answer: the answer's text, plain or LaTeX.
        reference: the reference's text.

    Returns:
        True only if equivalence was established. No text raises.
    """
    return compare(answer, reference, symbolic=True) is Status.CORRECT
