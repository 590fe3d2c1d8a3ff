"""Text or LaTeX → a `Value`: lists, sets, intervals, matrices, relations, units, and expressions inside them.

The text is never evaluated as code: it passes through our own tokenizer and parser, which know a fixed list
of operators and functions and refuse everything else.
"""

import re
from collections.abc import Callable
from itertools import pairwise

from dapo_ref.verifier.expression import ExpressionParser
from dapo_ref.verifier.sets import as_interval
from dapo_ref.verifier.textual import to_ascii_math
from dapo_ref.verifier.tokens import Token, tokenize
from dapo_ref.verifier.values import Expr, Node, Rel, Seq, SetOp, Text, Value, contains, num
from dapo_ref.verifier.verdict import MAX_DEPTH, TooBigError, UnparsableError, UnsupportedError

_PAIRS = {"(": ")]", "[": ")]", "{": "}", "{}": ["{}"], "⌊": "⌋", "⌈": "⌉"}
_REFUSED_WORDS = frozenset(
    [
        "and",
        "or",
        "not",
        "no",
        "nor",
        "but",
        "if",
        "is",
        "are",
        "was",
        "be",
        "it",
        "wrong",
        "incorrect",
        "false",
        "maybe",
        "perhaps",
        "possibly",
        "except",
        "than",
        "plus",
        "minus",
        "over",
        "under",
        "hundred",
        "thousand",
        "million",
        "billion",
        "trillion",
        "dozen",
        "half",
        "squared",
        "cubed",
        "factorial",
        "choose",
        "mod",
        "modulo",
        "either",
        "neither",
        "between",
        "from",
        "because",
        "since",
        "unless",
        "without",
        "approximately",
        "about",
        "nearly",
        "none",
        "never",
        "cannot",
    ]
)
_LETTERS = frozenset(("m", "g", "s", "h", "L"))
_UNITS = {
    **dict.fromkeys(("centimeter", "centimetre", "cm"), "cm"),
    **dict.fromkeys(("millimeter", "millimetre", "mm"), "mm"),
    **dict.fromkeys(("kilometer", "kilometre", "km"), "km"),
    **dict.fromkeys(("meter", "metre", "m"), "m"),
    **dict.fromkeys(("inch", "inche", "in"), "inch"),
    **dict.fromkeys(("foot", "feet", "ft"), "foot"),
    **dict.fromkeys(("mile", "mi"), "mile"),
    **dict.fromkeys(("second", "sec", "s"), "second"),
    **dict.fromkeys(("minute", "min"), "minute"),
    **dict.fromkeys(("hour", "hr", "h"), "hour"),
    **dict.fromkeys(("day", "week", "month", "year"), None),
    **dict.fromkeys(("gram", "g"), "gram"),
    **dict.fromkeys(("kilogram", "kg"), "kg"),
    **dict.fromkeys(("dollar", "usd", "$"), "dollar"),
    **dict.fromkeys(("cent", "ct"), "cent"),
}
_DECIMAL_COMMA = re.compile(r"\s*\$?\s*([+-]?)0,(\d{3,})\s*\$?\s*", re.ASCII)


class _Structure:
    """Recursive descent over slices of one token list, with the matching brackets found beforehand."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.match = self.pair_brackets()

    def pair_brackets(self) -> dict[int, int]:
        match: dict[int, int] = {}
        stack: list[int] = []
        for index, (kind, text, _) in enumerate(self.tokens):
            if kind in ("open", "begin"):
                stack.append(index)
                if len(stack) > MAX_DEPTH:
                    raise TooBigError("nested too deeply")
            elif kind in ("close", "end"):
                if not stack:
                    raise UnparsableError("brackets do not balance")
                opening = self.tokens[stack[-1]]
                fits = opening.text == text if kind == "end" else text in _PAIRS.get(opening.text, "")
                if not fits:
                    raise UnparsableError("brackets do not match")
                match[stack.pop()] = index
        if stack:
            raise UnparsableError("brackets do not balance")
        return match

    def positions(self, lo: int, hi: int, wanted: Callable[[Token], bool]) -> list[int]:
        """The indices in [lo, hi) outside all brackets whose token is wanted."""
        found = []
        index = lo
        while index < hi:
            if wanted(self.tokens[index]):
                found.append(index)
            index = self.match.get(index, index) + 1
        return found

    def split(self, lo: int, hi: int, cuts: list[int]) -> list[tuple[int, int]]:
        edges = [lo - 1, *cuts, hi]
        return [(a + 1, b) for a, b in pairwise(edges)]

    def value(self, lo: int, hi: int) -> Value:
        """The value of a slice: lists bind loosest, then relations, then set operations."""
        if lo >= hi:
            raise UnparsableError("empty")
        cuts = self.positions(lo, hi, lambda t: t.text in ("\\Rightarrow", "\\implies"))
        if cuts and self.positions(
            lo, cuts[0], lambda t: t.kind == "rel"
        ):  # 2x = 10 ⇒ x = 5 states its last part
            return self.value(cuts[-1] + 1, hi)
        cuts = self.positions(lo, hi, lambda t: t.kind == "sep")
        if cuts:
            return self.sequence("list", lo, hi, cuts)
        cuts = self.positions(lo, hi, lambda t: t.kind == "rel")
        if cuts:
            return self.relation(lo, hi, cuts)
        cuts = self.positions(lo, hi, lambda t: t.kind == "setop")
        if cuts:
            operators = {self.tokens[cut].text for cut in cuts}
            if len(operators) > 1:
                raise UnparsableError("mixed set operations")
            parts = tuple(self.as_set(self.value(*span)) for span in self.split(lo, hi, cuts))
            return SetOp(operators.pop(), parts)
        if self.match.get(lo) == hi - 1 and self.tokens[lo].kind == "open":
            wrapped = self.wrapped(lo, hi)
            if wrapped is not None:
                return wrapped
        return self.single(lo, hi)

    @staticmethod
    def as_set(value: Value) -> Value:
        """In a set operation plain braces mean a set: {1,2} ∪ {3}."""
        return Seq("{}", value.items) if isinstance(value, Seq) and value.kind == "list" else value

    def sequence(self, kind: str, lo: int, hi: int, cuts: list[int]) -> Value:
        """Elements between separators. `1, 2, and 3` has two separators in a row, which count as one."""
        spans = [span for span in self.split(lo, hi, cuts) if span[0] < span[1]]
        if not spans or (kind != "list" and len(spans) <= len(cuts) - cuts.count(hi - 1)):
            raise UnparsableError("an empty element")
        items = tuple(self.value(*span) for span in spans)
        joiners = {self.tokens[cut].text for cut in cuts}
        if kind == "list" and joiners in ({"or"}, {"and"}) and all(isinstance(item, Rel) for item in items):
            joined = join_inequalities(items, "cup" if joiners == {"or"} else "cap")
            if joined is not None:
                return joined
        return items[0] if kind == "list" and len(items) == 1 else Seq(kind, items)

    def relation(self, lo: int, hi: int, cuts: list[int]) -> Value:
        ops = tuple(self.tokens[cut].text for cut in cuts)
        sides = []
        for span in self.split(lo, hi, cuts):
            try:
                sides.append(self.value(*span))
            except UnsupportedError:  # a limit or a sum may still be said to equal something
                sides.append(Text(self.raw(*span), opaque=True))
        return Rel(ops, tuple(sides))

    def wrapped(self, lo: int, hi: int) -> Value | None:
        """A slice that is one pair of brackets; None when it is only a bracketed expression."""
        brackets = self.tokens[lo].text + self.tokens[hi - 1].text
        if brackets == "{}{}":
            return self.braced_set(lo + 1, hi - 1)
        if self.tokens[lo].text == "{":
            return self.value(lo + 1, hi - 1) if lo + 1 < hi - 1 else None
        if self.tokens[lo].text not in ("(", "["):
            return None
        cuts = self.positions(lo + 1, hi - 1, lambda t: t.kind == "sep")
        if cuts:
            return self.sequence(brackets, lo + 1, hi - 1, cuts)
        if brackets in ("()", "[]") and lo + 1 < hi - 1:
            return self.value(lo + 1, hi - 1)
        return None

    def braced_set(self, lo: int, hi: int) -> Value:
        if lo == hi:
            return Seq("{}", ())
        if self.positions(lo, hi, lambda t: t.kind in ("bar", "rel") or t.text == ":"):
            return Text(self.raw(lo, hi), opaque=True)  # set-builder notation
        cuts = self.positions(lo, hi, lambda t: t.kind == "sep")
        return self.sequence("{}", lo, hi, cuts) if cuts else Seq("{}", (self.value(lo, hi),))

    def raw(self, lo: int, hi: int) -> str:
        return " ".join(token.text for token in self.tokens[lo:hi])

    def single(self, lo: int, hi: int) -> Value:
        """An element: words, a ratio, or an expression with its unit."""
        kinds = {token.kind for token in self.tokens[lo:hi]}
        if kinds == {"empty"}:
            return Seq("{}", ())
        if kinds <= {"text", "dots"}:
            return Text(self.raw(lo, hi).casefold())
        cuts = self.positions(lo, hi, lambda t: t.kind == "op" and t.text == ":")
        if cuts:
            return Seq("ratio", tuple(self.value(*span) for span in self.split(lo, hi, cuts)))
        lo = self.drop_article(lo, hi)
        tokens, end = self.with_letter_unit(lo, hi)
        parser = ExpressionParser(tokens, lo, end)
        node = parser.expression()
        unit = self.unit(parser.tokens[parser.pos :])
        if any(token.kind == "cur" for token in tokens[lo : lo + 2]):
            unit = unit or "dollar" * any(token.text == "$" for token in tokens[lo : lo + 2])
        return Expr(node, unit or "degree" * (node.op == "deg"))

    def drop_article(self, lo: int, hi: int) -> int:
        """A currency sign may lead."""
        return lo + 1 if self.tokens[lo].kind == "cur" and lo + 1 < hi else lo

    def with_letter_unit(self, lo: int, hi: int) -> tuple[list[Token], int]:
        """`25 m`, `25 m^2`, `25 m/s`: a spaced letter at the end is a unit; `25m` is a product."""
        tokens = self.tokens[:hi]
        units = [
            i for i in range(lo + 1, hi) if tokens[i].kind in ("id", "text") and tokens[i].text in _LETTERS
        ]
        if not units or any(t.kind == "id" and t.text not in _LETTERS for t in tokens[lo:hi]):
            return tokens, hi
        first, before = units[0], tokens[units[0] - 1]
        follows_number = before.kind == "num" and tokens[first].space
        if not follows_number and not (before.text == "/" and tokens[first - 2].kind == "text"):
            return tokens, hi
        rest = [t.text for t in tokens[first + 1 : hi] if t.text not in _LETTERS and t.kind != "text"]
        if set(rest) <= {"/", "^", "2", "3", "{", "}"}:
            tokens[first:] = [t._replace(kind="text") if t.kind == "id" else t for t in tokens[first:]]
        return tokens, hi

    def unit(self, tail: list[Token]) -> str:
        """Check that what follows the expression is a unit, and give its canonical name.

        Raises:
            UnparsableError: anything else is left over.
        """
        words = []
        index = 0
        while index < len(tail):
            token = tail[index]
            word = token.text.casefold()
            if (
                token.kind == "text"
                and word not in _REFUSED_WORDS
                and word.removesuffix("s") not in _REFUSED_WORDS
            ):
                words.append(token.text)
            elif token.kind == "op" and token.text == "^" and words:
                index = self.skip_power(tail, index)
            elif token.kind == "op" and token.text == "/" and words and index + 1 < len(tail):
                words.append("/")
            elif token.kind == "op" and token.text == "%" and not words:
                words.append("%")
            elif token.kind == "macro" and token.text == "pmod":
                break  # a modulus: what value is meant stands before it
            elif token.kind not in ("deg", "cur"):
                raise UnparsableError("something follows the value")
            index += 1
        if len(words) > 6:
            raise UnparsableError("more than a unit")
        return canonical_unit(words)

    @staticmethod
    def skip_power(tail: list[Token], index: int) -> int:
        """`cm^2`, `cm^{2}`: step over the exponent of a unit."""
        rest = [token.text for token in tail[index + 1 : index + 4]]
        if rest[:1] in (["2"], ["3"]):
            return index + 1
        if len(rest) == 3 and rest[0] == "{" and rest[1] in ("2", "3") and rest[2] == "}":
            return index + 3
        raise UnparsableError("a power of a unit")


def join_inequalities(items: tuple[Value, ...], op: str) -> Value | None:
    """`x < 1 or x > 2` as one set of x; None unless all are inequalities in one name."""
    sets = [as_interval(item) for item in items if isinstance(item, Rel)]
    named = [found for found in sets if found is not None]
    if len(named) < len(items) or any(name != named[0][0] for name, _ in named):
        return None
    return Rel(("in",), (named[0][0], SetOp(op, tuple(part for _, part in named))))


def canonical_unit(words: list[str]) -> str:
    """One word of a known dimension under one name; anything else, and compound units, as no unit at all."""
    if words == ["%"]:
        return "%"
    if len(words) != 1:
        return ""
    word = words[0].casefold()
    singular = word[:-1] if word.endswith("s") and len(word) > 2 else word
    name = _UNITS.get(singular, "")
    return singular if name is None else name


def substitute_sign(node: Node, positive: bool) -> Node:
    """Choose the upper or the lower sign of every ± and ∓ at once."""
    if node.op in ("num", "sym", "const"):
        return node
    if node.op == "matrix":
        return Node("matrix", tuple(tuple(substitute_sign(e, positive) for e in row) for row in node.args))
    args = tuple(substitute_sign(arg, positive) for arg in node.args)
    if node.op in ("pm", "mp"):
        return args[0] if (node.op == "pm") == positive else Node("neg", args)
    return Node(node.op, args)


_SIGNS = frozenset(("pm", "mp"))


def expand(value: Value) -> Value:
    """Write ± as two values, flattening them into the list or set they stand in."""
    match value:
        case Expr(node, unit) if contains(node, _SIGNS):
            both = (Expr(substitute_sign(node, True), unit), Expr(substitute_sign(node, False), unit))
            return Seq("list", both)
        case Seq(kind, items):
            flat: list[Value] = []
            for item in map(expand, items):
                inner = (
                    item.items
                    if isinstance(item, Seq) and item.kind == "list" and kind != "ratio"
                    else (item,)
                )
                flat.extend(inner)
            return Seq(kind, tuple(flat))
        case Rel(("=",) as ops, (left, right)):
            expanded = expand(right)
            if isinstance(expanded, Seq) and expanded.kind == "list":
                return Seq("list", tuple(Rel(ops, (left, item)) for item in expanded.items))
        case SetOp(op, parts):
            return SetOp(op, tuple(map(expand, parts)))
    return value


def parse(text: str) -> Value:
    """Parse an answer or a reference.

    Args:
        text: the bare answer, plain or LaTeX, dollar signs and boxes allowed.

    Returns:
        Its value, with ± expanded; nothing has been computed but literals.

    Raises:
        UnparsableError: not in the grammar.
        TooBigError: beyond a bound on length, depth or digits.
    """
    decimal_comma = _DECIMAL_COMMA.fullmatch(text)
    if decimal_comma:  # 0,125 cannot be a thousands group
        text = f"{decimal_comma[1]}0.{decimal_comma[2]}"
    tokens = tokenize(to_ascii_math(text))
    while tokens and tokens[-1].kind == "sep":
        tokens.pop()
    return expand(_Structure(tokens).value(0, len(tokens)))


def integer(value: int) -> Expr:
    """An integer as a value."""
    return Expr(num(value))
