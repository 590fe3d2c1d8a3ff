"""Tokens → expression tree: a precedence parser for plain text and LaTeX, driven by one table of operators.

Two bare numbers never multiply by standing side by side, and an integer before a proper fraction is a mixed
number.
"""

from collections.abc import Sequence
from fractions import Fraction

from dapo_ref.verifier import vocabulary
from dapo_ref.verifier.tokens import Token, number
from dapo_ref.verifier.tree import Node, joined, negative, num, symbols
from dapo_ref.verifier.verdict import MAX_DEPTH, TooBigError, UnparsableError, UnsupportedError

# Operator → how tightly it binds, how tightly what stands at its right has to, and the node it makes.
OPERATORS = {
    "choose": (1, 2, "binom"),
    "over": (1, 2, "div"),
    **dict.fromkeys(("+", "-", "pm", "mp"), (2, 3, "add")),
    "*": (3, 4, "mul"),
    "": (3, 5, "mul"),  # side by side
    "/": (3, 4, "div"),
    **dict.fromkeys(("%", "mod"), (3, 4, "mod")),
    "^": (5, 5, "pow"),
}
SIGNS = {"+": 4, "-": 4, "pm": 4, "mp": 4}  # before a value: how tightly it has to bind
BRACKETS = {"(": ")", "[": "]", "{": "}", "{}": "{}", "|": "|", "⌊": "⌋", "⌈": "⌉"}
ATOMS = frozenset(("num", "id", "const", "func", "macro", "open", "begin", "big"))
SIDE_ENDS = frozenset(("eof", "close", "rel", "sep", "setop", "arrow", "amp", "row", "end", "bar"))
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "sgn": "sign"}
_EULER = Node("const", ("e",))


class ExpressionParser:
    """Parses one expression from a position on; `Parser` adds what may stand in brackets and around it."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = list(tokens)  # a copy: reading \frac12 splits a token in two
        self.pos = 0
        self.depth = 0
        self.in_set = False  # where a bar or a colon begins the condition
        self.bars = 0  # open | … | pairs: inside one, a bar closes it
        self.side_start = 0  # where the side of a relation, or the element of a list, began

    def bracketed(self, token: Token) -> Node:
        """What a bracket or an environment opens; `Parser` has it."""
        raise NotImplementedError

    def peek(self, offset: int = 0) -> Token:
        index = self.pos + offset
        return self.tokens[index] if 0 <= index < len(self.tokens) else Token("eof", "")

    def sees(self, kind: str, text: str | None = None, offset: int = 0) -> bool:
        token = self.peek(offset)
        return token.kind == kind and text in (None, token.text)

    def next(self) -> Token:
        self.pos += 1
        return self.peek(-1)

    def accept(self, kind: str, text: str | None = None) -> bool:
        seen = self.sees(kind, text)
        self.pos += seen
        return seen

    def expect(self, kind: str, text: str | None = None) -> None:
        if not self.accept(kind, text):
            raise UnparsableError(f"expected {text or kind}")

    def run(self, *kinds: str) -> list[str]:
        """The texts of the tokens from here on that are of these kinds."""
        start = self.pos
        while self.peek().kind in kinds:
            self.pos += 1
        return [token.text for token in self.tokens[start : self.pos]]

    def descend(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooBigError("nested too deeply")

    def expression(self, level: int = 0) -> Node:
        """What stands here, with all operators that bind at least as tightly as `level`."""
        self.descend()
        start, nested = self.pos, 0
        left = last = self.operand()
        while (op := self.operator(left, start)) is not None and OPERATORS[op][0] >= level:
            _, binding, name = OPERATORS[op]
            nested += name not in ("add", "mul")
            if nested > MAX_DEPTH:
                raise TooBigError("a row of quotients")
            number_next = self.sees("num") or (self.sees("open", "{") and self.sees("num", None, 1))
            if op == "" and self.words_meet_a_value():
                raise UnparsableError("a number in words beside another value")
            if op == "" and number_next and last.op not in ("pow", "fact"):
                raise UnparsableError("two numbers side by side")  # 2^6 3^5 and 3! 5 are products
            self.pos += op != ""
            last = self.expression(binding)
            if op in SIGNS:
                left = joined("add", left, signed(op, last))
            else:
                left = joined("mul", left, last) if name == "mul" else Node(name, (left, last))
            last = left if op == "^" else last
        self.depth -= 1
        return left

    def operator(self, left: Node, start: int) -> str | None:
        """The operator that follows; None at the end of an expression, and before a unit or a modulus."""
        token = self.peek()
        if token.kind == "op":
            after_degrees = token.text == "^" and left.op == "deg"  # cos 30°^2 is a square of the cosine
            return token.text if token.text in OPERATORS and not after_degrees else None
        ends = not self.starts_atom(token) or self.unit_follows(left, start) or self.modulus_follows()
        return None if ends else ""

    def starts_atom(self, token: Token) -> bool:
        if token.kind == "bar":
            return self.bars == 0
        return token.kind in ATOMS and token.text != "pmod"

    def words_meet_a_value(self) -> bool:
        """Whether a number in words stands before or after: `25 (twenty-five)` is no product."""
        return "text" in (self.peek(-1).kind, self.peek(self.sees("open")).kind)

    def modulus_follows(self) -> bool:
        return self.sees("open", "(") and self.sees("op", "mod", 1)

    def unit_follows(self, left: Node, start: int) -> bool:
        """Whether all that is left of this side is a unit made of letters, as in `3s` or `20 m/s^2`."""
        after_value = self.peek(-1).kind in ("num", "close", "const", "text")
        if start != self.side_start or not after_value or symbols(left):
            return False
        rest, unit = self.rest_as_unit()
        return unit is not None and any(token.kind == "id" for token in rest)

    def rest_as_unit(self) -> tuple[list[Token], str | None]:
        """The tokens up to the end of this side, and the unit that they spell; None if they spell none."""
        depth, rest = 0, []
        for token in self.tokens[self.pos :]:
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            ends = token.kind in SIDE_ENDS and token.text != "}"
            if depth < 0 or (ends and not depth) or token.text == ":":
                break
            rest.append(token)
        plain = all(token.kind in ("text", "id", "cur", "num", "op", "open", "close") for token in rest)
        return rest, vocabulary.unit(" ".join(token.text for token in rest)) if plain else None

    def operand(self) -> Node:
        """A value with the signs before and the marks after it: −x, 5!, 30°, 28%."""
        if self.peek().kind == "op" and self.peek().text in SIGNS:
            sign = self.next().text
            return signed(sign, self.expression(SIGNS[sign]))
        self.accept("cur")
        node = self.atom()
        if self.accept("op", "!"):
            if self.sees("op", "!"):
                raise UnsupportedError("multiple factorials")
            node = Node("fact", (node,))
        if self.accept("deg"):
            node = Node("deg", (node,))
        elif self.sees("op", "%") and not self.starts_atom(self.peek(1)):
            self.pos += 1
            node = Node("percent", (node,))
        return node

    def atom(self) -> Node:
        token = self.peek()
        if token.kind == "text" and token.text.lower() in vocabulary.NUMBER_WORDS:
            return self.number_words()
        if token.kind not in ATOMS and token.kind != "bar":
            raise UnparsableError(f"a value is missing before {token.text!r}")
        self.pos += 1
        match token.kind:
            case "big":  # a limit, an integral, a sum
                raise UnsupportedError(token.text)
            case "num":
                return self.numeral(token)
            case "id":
                return self.name(token)
            case "const":
                suffix = self.suffix()
                return Node("sym" if suffix else "const", (token.text + suffix,))
            case "func":
                return self.function(_ALIASES.get(token.text, token.text))
            case "macro":
                return self.macro(token.text)
        return self.bracketed(token)

    def number_words(self) -> Node:
        spoken: list[str] = []
        while self.sees("text") or (
            spoken and self.peek().text in ("-", "and") and self.sees("text", None, 1)
        ):
            word = self.peek().text.lower()
            if word not in vocabulary.NUMBER_WORDS | vocabulary.SCALES | {"-": 0, "and": 0}:
                break
            spoken.append(word)
            self.pos += 1
        value = vocabulary.spoken_number([word for word in spoken if word not in ("-", "and")])
        if value is None:
            raise UnparsableError("number words out of order")
        return num(value)

    def name(self, token: Token) -> Node:
        """A name with its subscripts and primes; C(5, 2) is a binomial."""
        ahead = self.tokens[self.pos : self.pos + 5]
        if token.text == "C" and [t.kind for t in ahead] == ["open", "num", "sep", "num", "close"]:
            self.pos += 5
            return Node("binom", (num(number(ahead[1].text)), num(number(ahead[3].text))))
        return Node("sym", (token.text + self.suffix(),))

    def numeral(self, token: Token) -> Node:
        """A number, one in another base (`31_8` is 25), or the integer part of a mixed number."""
        if self.accept("op", "_"):
            base = self.argument()
            if base.op != "num" or base.args[0] not in range(2, 37):
                raise UnparsableError("not a base")
            try:
                return num(int(token.text, int(base.args[0])))
            except ValueError:
                raise UnparsableError("a digit outside its base") from None
        value = num(number(token.text))
        before = self.peek(-2)
        if before.kind in ("num", "id", "const", "close") or before.text in ("^", "_", "/"):
            return value
        tail = self.mixed_tail() if token.text.isdecimal() else None
        return value if tail is None else Node("add", (value, tail))

    def mixed_tail(self) -> Node | None:
        r"""The proper fraction of `1 1/2` or `1\frac{1}{2}`, if one of integers stands here."""
        saved, saved_tokens = self.pos, list(self.tokens)
        top = bottom = num(0)
        if self.accept("macro", "frac"):
            top, bottom = self.argument(), self.argument()
        elif self.sees("num") and self.peek().space and self.sees("op", "/", 1) and self.sees("num", None, 2):
            top, bottom = num(number(self.peek().text)), num(number(self.peek(2).text))
            self.pos += 3
        p, q = (part.args[0] if part.op == "num" else Fraction(0) for part in (top, bottom))
        if 0 < p < q and p.denominator == q.denominator == 1:
            return num(p / q)
        self.pos, self.tokens = saved, saved_tokens
        return None

    def suffix(self) -> str:
        """Subscripts and primes belong to the name."""
        name = ""
        while self.peek().kind == "op" and self.peek().text in ("_", "'"):
            if self.next().text == "'":
                name += "'"
            elif self.accept("open", "{"):
                inside = self.run("num", "id", "const", "text", "op", "sep", "rel", "arrow", "func")
                name += "_" + "".join(inside)
                self.expect("close", "}")
            elif self.peek().kind in ("num", "id", "const", "text"):
                name += "_" + self.next().text
            else:
                raise UnparsableError("an empty subscript")
        return name

    def argument(self) -> Node:
        r"""One LaTeX argument: a group, or a single character, as the 1 and the 2 of `\frac12`."""
        token = self.peek()
        if self.accept("open", "{"):
            inner = self.expression()
            self.expect("close", "}")
            return inner
        if token.kind == "num" and len(token.text) > 1 and token.text.isdecimal():
            self.tokens[self.pos] = Token("num", token.text[1:])
            return num(int(token.text[0]))
        if token.kind not in ATOMS:
            raise UnparsableError("a missing argument")
        self.descend()
        node = self.atom()
        self.depth -= 1
        return node

    def macro(self, name: str) -> Node:
        if name in ("frac", "binom"):
            top = self.argument()
            return Node("div" if name == "frac" else name, (top, self.argument()))
        if name == "sqrt":
            degree = num(2)
            if self.accept("open", "["):
                degree = self.expression()
                self.expect("close", "]")
            # \sqrt12 is read as the root of 12
            value = num(number(self.next().text)) if self.sees("num") else self.argument()
            return Node("root", (value, degree))
        if name == "overline":  # the segment AB, or digits in a row
            grouped = self.accept("open", "{")
            text = " ".join(self.run("num", "id", "const") if grouped else [self.next().text])
            if grouped:
                self.expect("close", "}")
            return Node("sym", (f"overline {text}",))
        raise UnparsableError("a misplaced macro")

    def function(self, name: str) -> Node:
        r"""A named function: `\log_2 8`, `\sin^2 x`, `\sin^{-1} x`, with or without brackets."""
        base = self.argument() if name == "log" and self.accept("op", "_") else Node("sym", ("log base",))
        power = self.expression(OPERATORS["^"][1]) if self.accept("op", "^") else None
        if power == num(-1) and name in ("sin", "cos", "tan"):
            name, power = "arc" + name, None
        args = self.arguments(name)
        match name:
            case "sqrt":
                node = Node("root", (args[0], num(2)))
            case "abs" | "floor" | "ceil":
                node = Node(name, args)
            case "exp":
                node = Node("pow", (_EULER, args[0]))
            case "ln" | "log":
                node = Node("log", (args[0], _EULER if name == "ln" else base))
            case _:
                node = Node("fn:" + name, args)
        return node if power is None else Node("pow", (node, power))

    def arguments(self, name: str) -> tuple[Node, ...]:
        """What a function is applied to: brackets, or the factors that follow, as in `\\sin 2x`."""
        token = self.peek()
        if token.kind == "open" and token.text in ("(", "[", "{", "{}"):
            self.pos += 1
            saved, self.bars = self.bars, 0
            inner = [self.expression()]
            while name in ("gcd", "lcm", "max", "min") and self.accept("sep", ","):
                inner.append(self.expression())
            self.bars = saved
            self.expect("close", BRACKETS[token.text])
            return tuple(inner)
        product = self.expression(SIGNS["+"])
        while self.peek().kind in ("num", "id", "const", "macro") and self.peek().text != "pmod":
            if self.sees("num"):
                raise UnparsableError("two numbers side by side")
            product = joined("mul", product, self.expression(OPERATORS["^"][0]))
        return (product,)


def signed(sign: str, value: Node) -> Node:
    """A value with a sign before it; ± and ∓ stay in the tree until `choose_signs`."""
    if sign in ("+", "-"):
        return value if sign == "+" else negative(value)
    return Node(sign, (value,))
