"""Text → `Node`: lists, sets, intervals, matrices, relations, units, and expressions inside them.

The text is never evaluated as code: it passes through our own tokenizer and parser, which know a fixed list
of operators and functions and refuse everything else.
"""

import re
from functools import partial

from dapo_ref.verifier import vocabulary
from dapo_ref.verifier.expression import BRACKETS, ExpressionParser
from dapo_ref.verifier.textual import to_ascii_math
from dapo_ref.verifier.tokens import Token, tokenize
from dapo_ref.verifier.tree import (
    ARITHMETIC,
    BRACKETED,
    STRUCTURES,
    Node,
    contains,
    joined,
    num,
    relation,
    rewrite,
    symbols,
    walk,
)
from dapo_ref.verifier.verdict import UnparsableError, UnsupportedError

_COMMA_LIST = re.compile(r"\s*\$?\s*(\d{3}(?:,\d{3})+|\d\d?(?:,\d\d)+,\d{3})\s*\$?\s*", re.ASCII)
_DECIMAL_COMMA = re.compile(r"\s*\$?\s*([+-]?\d+),(\d+)\s*\$?\s*", re.ASCII)
_CLOCK = re.compile(r"(?:[01]?\d|2[0-3]):0\d")
_APPLIED = {"|": "abs", "⌊": "floor", "⌈": "ceil"}  # brackets that are functions


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
                if items[-1].op != "rel" or self.next().text != "implies":
                    raise UnparsableError("an arrow")
                items[-1] = self.relation()
                continue
            run = self.run("sep")
            if run.count(",") > 1:
                raise UnparsableError("an empty element")
            if self.peek().kind in ("eof", "row", "end"):
                break
            joiners.update(run)
            items.append(self.relation())
        self.side_start = outer
        if len(items) == 1:
            return items[0]
        # `x < 1 or x > 2` is one condition
        op = {"or": "cup", "and": "cap"}.get(joiners.pop()) if len(joiners) == 1 else None
        if op and all(item.op == "rel" and "=" not in item.args[0].args for item in items):
            return Node("builder", (Node("text", ("",)), Node(op, tuple(items))))
        return Node("list", tuple(items))

    def relation(self) -> Node:
        ops: list[str] = []
        if self.peek().text in ("=", "~") and self.pos == 0:  # `= 25`, `≈ 25`
            self.pos += 1
        sides = [self.side()]
        while self.sees("rel"):
            ops.append(self.next().text)
            sides.append(self.side())
        return relation(tuple(ops), *sides) if ops else sides[0]

    def side(self) -> Node:
        """One side of a relation: a set operation, or mathematics that is not evaluated, as words."""
        start, depth = self.pos, self.depth
        operators = set()
        try:
            parts = [self.ratio()]
            while self.sees("setop"):
                operators.add(self.next().text)
                parts.append(self.ratio())
        except UnsupportedError:
            if depth:
                raise
            self.depth = depth
            level = 0  # of braces: the `=` in \sum_{k=1} ends no side
            while not self.sees("eof") and (
                level or self.peek().kind not in ("rel", "sep") or self.sees("sep", "quad")
            ):
                level += {"{": 1, "}": -1}.get(self.next().text, 0)
            return Node("text", (" ".join(token.text for token in self.tokens[start : self.pos]),))
        if len(operators) > 1:
            raise UnparsableError("mixed set operations")
        return Node(operators.pop(), tuple(parts)) if operators else parts[0]

    def ratio(self) -> Node:
        start = self.pos
        parts = [self.quantity()]
        while not self.in_set and self.accept("op", ":"):
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
            words = " ".join(self.run("text", "dots", "id", "const")).casefold()
            empty = words.replace(" ", "") in vocabulary.NO_SOLUTION
            return Node("set", ()) if empty else Node("text", (words,))
        self.side_start = self.pos
        signed = self.sees("op")
        currency = vocabulary.unit(self.peek(signed).text) if self.sees("cur", None, signed) else ""
        node = self.expression()
        if self.accept("macro", "pmod"):
            return Node("congruent", (node, self.argument()))
        if self.modulus_follows():
            self.pos += 2  # "(mod"
            node = Node("congruent", (node, self.expression()))
            self.expect("close", ")")
            return node
        node = self.with_unit(node)
        if not currency or node.op != "unit":
            return Node("unit", (node, Node("text", (currency,)))) if currency else node
        if node.args[1].args[0] != currency and "^-" not in node.args[1].args[0]:
            raise UnparsableError("two units")  # $5 per hour, but neither $5K nor $5 cents
        return node

    def with_unit(self, value: Node) -> Node:
        """Read the rest of this side: `million`, a unit; UnparsableError at more."""
        node, first, start = value, self.peek(), self.pos
        while self.sees("text") and (scale := vocabulary.SCALES.get(self.peek().text.casefold())):
            node = joined("mul", num(scale), node)
            self.pos += 1
        rest, unit = self.rest_as_unit()
        if unit is None:
            raise UnparsableError(f"{' '.join(token.text for token in rest)[:40]!r} is not a unit")
        self.pos += len(rest)
        as_product = first.kind == "id" and self.pos == start + 1  # 3s may be 3 times s
        product = (joined("mul", value, Node("sym", (first.text,))),) if as_product else ()
        return Node("unit", (node, Node("text", (unit,)), *product)) if unit else node

    def bracketed(self, token: Token) -> Node:
        """What stands between two brackets: a grouped value, or a tuple, interval, set or matrix."""
        if token.kind == "begin":
            return self.environment(token.text)
        outer = self.bars, self.side_start, self.in_set
        self.in_set = token.text == "{}"
        self.bars = int(self.in_set or token.kind == "bar")
        opening, inner = token.text, self.inside(token.text)
        self.bars, self.side_start, self.in_set = outer
        closing = self.next().text
        if inner.op == "list" and opening + closing in BRACKETED:
            return Node(opening + closing, inner.args)
        if closing != BRACKETS[opening]:
            raise UnparsableError("brackets do not match")
        return inner

    def inside(self, opening: str) -> Node:
        if opening in _APPLIED:
            return Node(_APPLIED[opening], (self.expression(),))
        if opening == "{}" and self.sees("close", "{}"):
            return Node("set", ())
        inner = self.value()
        if opening == "{}" and (self.accept("bar") or self.accept("op", ":")):
            return Node("builder", (inner, self.value()))
        if opening == "{}" or (opening == "{" and inner.op == "list"):
            return Node("set", inner.args if inner.op == "list" else (inner,))
        return inner

    def environment(self, name: str) -> Node:
        """A matrix: rows of expressions. `vmatrix` is its determinant, `cases` a tuple of its rows."""
        rows: list[tuple[Node, ...]] = []
        while not self.accept("end", name):
            row = [self.value()]
            while self.accept("amp"):
                row.append(self.value())
            rows.append(tuple(row))
            if not self.accept("row") and not self.sees("end"):
                raise UnparsableError("not a matrix")
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise UnparsableError("rows of different lengths")
        if name == "cases":
            return Node("()", tuple(Node("()", row) for row in rows))
        if name not in vocabulary.MATRICES and name != "vmatrix":
            raise UnsupportedError("an unknown environment")
        matrix = Node("matrix", tuple(Node("row", row) for row in rows))
        return Node("det", (matrix,)) if name == "vmatrix" else matrix


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
    """The tree of a bare answer or reference, plain or LaTeX; nothing has been computed but literals.

    ± is written out. Where a comma can be read in two ways the tree is `either` of a number and a list, for
    the other side to choose from. Raises UnparsableError, and TooBigError beyond a bound.
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
