"""Text or LaTeX → a `Node`: lists, sets, intervals, matrices, relations, units, and expressions inside them.

The text is never evaluated as code: it passes through our own tokenizer and parser, which know a fixed list
of operators and functions and refuse everything else.
"""

import re
from functools import partial

from dapo_ref.verifier import vocabulary
from dapo_ref.verifier.expression import CLOSING, SIDE_ENDS, ExpressionParser
from dapo_ref.verifier.textual import to_ascii_math
from dapo_ref.verifier.tokens import Token, tokenize
from dapo_ref.verifier.tree import (
    ARITHMETIC,
    BRACKETED,
    STRUCTURES,
    Node,
    contains,
    negative,
    num,
    relation,
    rewrite,
    symbols,
    times,
    walk,
)
from dapo_ref.verifier.verdict import UnparsableError, UnsupportedError

_COMMA_LIST = re.compile(r"\s*\$?\s*(\d{3}(?:,\d{3})+|\d\d?(?:,\d\d)+,\d{3})\s*\$?\s*", re.ASCII)
_DECIMAL_COMMA = re.compile(r"\s*\$?\s*([+-]?\d+),(\d+)\s*\$?\s*", re.ASCII)
_CLOCK = re.compile(r"(?:[01]?\d|2[0-3]):0\d")


class Parser(ExpressionParser):
    """Recursive descent: lists bind loosest, then relations, set operations, ratios, values with units."""

    def whole(self) -> Node:
        node = self.value()
        if not self.sees("eof"):
            raise UnparsableError(f"{self.peek().text!r} is left over")
        return node

    def value(self) -> Node:
        """A single value, or a list of them between separators, of which `, and` is one."""
        outer = self.side_start
        items, joiners = [self.relation()], set()
        while self.peek().kind in ("sep", "arrow"):
            if self.sees("arrow"):  # 2x = 10 ⇒ x = 5 states its last part
                if items[-1].op != "rel" or self.peek().text not in ("\\Rightarrow", "\\implies"):
                    raise UnparsableError("an arrow")
                self.pos += 1
                items[-1] = self.relation()
                continue
            run = []
            while self.sees("sep"):
                run.append(self.peek().text)
                self.pos += 1
            if run.count(",") > 1:
                raise UnparsableError("an empty element")
            if self.sees("eof"):
                break
            joiners.update(run)
            items.append(self.relation())
        self.side_start = outer
        if len(items) == 1:
            return items[0]
        return join_inequalities(items, joiners) or Node("list", tuple(items))

    def relation(self) -> Node:
        ops: list[str] = []
        if self.peek().text in ("=", "~") and self.pos == 0:  # `= 25`, `≈ 25`
            self.pos += 1
        sides = [self.side()]
        while self.sees("rel"):
            ops.append(self.peek().text)
            self.pos += 1
            sides.append(self.side())
        return relation(tuple(ops), *sides) if ops else sides[0]

    def side(self) -> Node:
        """One side of a relation: a set operation, or mathematics that is not evaluated, as words."""
        start, depth = self.pos, self.depth
        try:
            parts = [self.ratio()]
            operators = set()
            while self.sees("setop"):
                operators.add(self.peek().text)
                self.pos += 1
                parts.append(self.ratio())
        except UnsupportedError:
            if depth:
                raise
            self.depth = depth
            while not (
                self.peek().kind in ("eof", "rel") or (self.sees("sep") and self.peek().text != "quad")
            ):
                self.pos += 1
            return Node("text", (" ".join(token.text for token in self.tokens[start : self.pos]),))
        if len(operators) > 1:
            raise UnparsableError("mixed set operations")
        return Node(operators.pop(), tuple(parts)) if operators else parts[0]

    def ratio(self) -> Node:
        start = self.pos
        parts = [self.quantity()]
        while self.sees("op", ":") and not self.in_set:
            self.pos += 1
            parts.append(self.quantity())
        if len(parts) == 1:
            return parts[0]
        if parts[0].op == "sym" and len(parts) == 2 and not symbols(parts[1]):
            return relation(("=",), *parts)  # `n: 25`
        written = "".join(token.text for token in self.tokens[start : self.pos])
        return Node("clock" if _CLOCK.fullmatch(written) else "ratio", tuple(parts))

    def quantity(self) -> Node:
        """Words, or an expression with what may follow a value: a unit, a degree, a modulus."""
        token = self.peek()
        if token.kind in ("text", "dots") and token.text.lower() not in vocabulary.NUMBER_WORDS:
            return self.words()
        self.side_start = self.pos
        dollar = self.sees("cur", "$") or (self.sees("cur", "$", 1) and self.sees("op"))
        node = self.expression()
        if self.modulus_follows() or self.sees("macro", "pmod"):
            return Node("congruent", (node, self.modulus()))
        node = self.with_unit(node)
        return Node("unit", (node, Node("text", ("dollar",)))) if dollar and node.op != "unit" else node

    def words(self) -> Node:
        spoken = []
        while self.peek().kind in ("text", "dots", "id", "const"):
            spoken.append(self.peek().text)
            self.pos += 1
        joined = " ".join(spoken).casefold()
        return (
            Node("set", ()) if joined.replace(" ", "") in vocabulary.NO_SOLUTION else Node("text", (joined,))
        )

    def modulus(self) -> Node:
        if self.accept("macro", "pmod"):
            return self.argument()
        self.pos += 2  # "(mod"
        modulus = self.expression()
        self.expect("close", ")")
        return modulus

    def with_unit(self, node: Node) -> Node:
        """Read the rest of this side as a unit.

        Raises:
            UnparsableError: it is anything else, such as `halves`, `(wrong)` or `below zero`.
        """
        powers: dict[str, int] = {}
        letter, value = self.peek(), node
        last, sign, dimension, count = "", 1, 1, 0
        while self.peek().kind not in SIDE_ENDS and not self.sees("op", ":"):
            kind, text, _ = self.peek()
            self.pos += 1
            word = vocabulary.singular(text)
            count += 1
            if count > 8:
                raise UnparsableError("more than a unit")
            if kind == "deg":
                node = self.degrees(node)
            elif kind == "op" and text == "%" and node.op != "percent":
                node = Node("percent", (node,))
            elif kind == "op" and text == "^" and last:
                powers[last] = powers.get(last, 0) + sign * (self.unit_power() - 1)
            elif (kind == "op" and text == "/") or word == "per":
                sign = -1
            elif kind == "op" and text == "*" and powers:
                continue
            elif kind == "text" and word in vocabulary.SCALES and not powers:
                node = times(num(vocabulary.SCALES[word]), node)
            elif word in vocabulary.DIMENSION_WORDS and self.sees("text"):
                dimension = vocabulary.DIMENSION_WORDS[word]
            elif word in vocabulary.AFTER_DIMENSION and last:
                powers[last] *= vocabulary.AFTER_DIMENSION[word]
            else:
                last = self.unit_name(kind, text)
                powers[last] = powers.get(last, 0) + sign * dimension
                dimension = 1
        name = unit_name(powers)
        if not name:
            return node
        product = (times(value, Node("sym", (letter.text,))),) if count == 1 and letter.kind == "id" else ()
        return Node("unit", (node, Node("text", (name,)), *product))

    @staticmethod
    def unit_name(kind: str, text: str) -> str:
        """The name of one unit in the tables."""
        word = vocabulary.singular(text)
        if kind == "cur":
            return "dollar" if text == "$" else text
        if kind == "op" and text == "'":
            return "foot"
        if kind == "id" and text in vocabulary.LETTER_UNITS:
            return vocabulary.MEASURES[text.lower()]
        if kind == "text" and vocabulary.is_unit_word(text):
            return vocabulary.MEASURES.get(word, "counted")
        raise UnparsableError(f"{text!r} is not a unit")

    def unit_power(self) -> int:
        """`cm^2`, `cm^{2}`."""
        braced = self.accept("open", "{")
        sign = -1 if self.accept("op", "-") else 1
        token = self.peek()
        self.expect("num")
        if braced:
            self.expect("close", "}")
        if token.text not in ("1", "2", "3", "4"):
            raise UnparsableError("a power of a unit")
        return sign * int(token.text)

    def bracketed(self, token: Token) -> Node:
        """What stands between two brackets: a grouped value, or a tuple, interval or set."""
        outer = self.bars, self.side_start, self.in_set
        self.in_set = token.text == "{}"
        self.bars = int(self.in_set or token.kind == "bar")
        node = self.inside(token)
        self.bars, self.side_start, self.in_set = outer
        return node

    def inside(self, token: Token) -> Node:
        if token.kind == "bar":
            inner = self.expression()
            self.expect("bar")
            return Node("abs", (inner,))
        if token.text in ("⌊", "⌈"):
            inner = self.expression()
            self.expect("close", CLOSING[token.text])
            return Node("floor" if token.text == "⌊" else "ceil", (inner,))
        if token.text == "{}" and self.accept("close", "{}"):
            return Node("set", ())
        inner = self.value()
        if token.text == "{}" and (self.accept("bar") or self.accept("op", ":")):
            inner = Node("builder", (inner, self.value()))
        elif token.text == "{}" or (token.text == "{" and inner.op == "list"):
            inner = Node("set", inner.args if inner.op == "list" else (inner,))
        if token.text in CLOSING:
            self.expect("close", CLOSING[token.text])
            return inner
        closing = self.peek().text
        self.expect("close")
        brackets = token.text + closing
        if brackets not in BRACKETED or (inner.op != "list" and brackets not in ("()", "[]")):
            raise UnparsableError("brackets do not match")
        return Node(brackets, inner.args) if inner.op == "list" else inner

    def environment(self, name: str) -> Node:
        """A matrix: rows of expressions. `vmatrix` is its determinant, `cases` a tuple of its rows."""
        rows: list[list[Node]] = [[]]
        self.descend()
        while not self.accept("end", name):
            if self.accept("row"):
                rows.append([])
            elif self.accept("amp"):
                if not rows[-1]:
                    raise UnparsableError("an empty cell")
                rows[-1].append(self.value())
            elif not rows[-1]:
                rows[-1].append(self.value())
            else:
                raise UnparsableError("not a matrix")
        self.depth -= 1
        if not rows[-1]:
            rows.pop()
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise UnparsableError("rows of different lengths")
        if name == "cases":
            return Node("()", tuple(Node("()", tuple(row)) for row in rows))
        if name == "vmatrix" and len(rows) == len(rows[0]) <= 4:
            return determinant(rows)
        if name not in vocabulary.MATRICES:
            raise UnsupportedError("an unknown environment")
        return Node("matrix", tuple(Node("row", tuple(row)) for row in rows))


def determinant(rows: list[list[Node]]) -> Node:
    """The determinant of a small square of expressions, expanded along its first row."""
    if len(rows) == 1:
        return rows[0][0]
    minors = (determinant([row[:k] + row[k + 1 :] for row in rows[1:]]) for k in range(len(rows)))
    terms = (times(entry, minor) for entry, minor in zip(rows[0], minors, strict=True))
    return Node("add", tuple(negative(term) if k % 2 else term for k, term in enumerate(terms)))


def unit_name(powers: dict[str, int]) -> str:
    """One name for a unit, `cm^2` or `mile/hour`; empty when it only counts things."""
    for name, parts in (("mph", ("mile", "hour")), ("kph", ("km", "hour"))):
        if powers.pop(name, 0):
            powers |= {parts[0]: 1, parts[1]: -1}
    named = {name: power for name, power in powers.items() if power and name != "counted"}
    return "" if "counted" in powers else " ".join(f"{name}^{named[name]}" for name in sorted(named))


def join_inequalities(items: list[Node], joiners: set[str]) -> Node | None:
    """`x < 1 or x > 2` as one condition; None unless it is a row of inequalities."""
    op = {"or": "cup", "and": "cap"}.get(joiners.pop()) if len(joiners) == 1 else None
    inequalities = all(item.op == "rel" and "=" not in item.args[0].args for item in items)
    return Node("builder", (Node("text", ("",)), Node(op, tuple(items)))) if op and inequalities else None


def choose_signs(node: Node) -> Node:
    """Write ± as two values, flattening them into the list or set they stand in; ∓ takes the other sign."""
    if not contains(node, "pm", "mp"):
        return node
    if node.op in ("list", "set", *BRACKETED, "cup", "cap", "setminus"):
        items: list[Node] = []
        for item in map(choose_signs, node.args):
            items.extend(item.args if item.op == "list" and node.op in ("list", "set") else (item,))
        return Node(node.op, tuple(items))

    def signed(upper: bool, part: Node) -> Node | None:
        if part.op not in ("pm", "mp"):
            return None
        inner = rewrite(part.args[0], partial(signed, upper))
        return inner if (part.op == "pm") == upper else Node("neg", (inner,))

    return Node("list", tuple(rewrite(node, partial(signed, upper)) for upper in (True, False)))


def parse(text: str) -> Node:
    """Parse an answer or a reference.

    Args:
        text: the bare answer, plain or LaTeX, dollar signs and boxes allowed.

    Returns:
        Its tree, with ± written out; nothing has been computed but literals. Where a comma can be read in two
        ways the tree is `either` of a number and a list, for the other side to choose from.

    Raises:
        UnparsableError: not in the grammar.
        TooBigError: beyond a bound on length, depth or digits.
    """
    text = to_ascii_math(text)
    node = choose_signs(Parser(tokenize(text)).whole())
    if any(part.op in ARITHMETIC and any(arg.op in STRUCTURES for arg in part.args) for part in walk(node)):
        raise UnparsableError("arithmetic on what is not a number")
    if match := _COMMA_LIST.fullmatch(text):
        return Node("either", (node, Node("list", tuple(num(int(part)) for part in match[1].split(",")))))
    if (match := _DECIMAL_COMMA.fullmatch(text)) and node.op == "list":
        return Node("either", (Parser(tokenize(f"{match[1]}.{match[2]}")).whole(), node))
    return node
