"""Tokens → expression tree: a precedence parser for plain text and LaTeX.

Lowest to highest: `choose`, `+ −`, `· / mod` and juxtaposition, unary sign, `^`, postfix `! ′ ° %`. Two bare
numbers never multiply by standing side by side, and an integer before a proper fraction is a mixed number.
"""

from fractions import Fraction

from dapo_ref.verifier import vocabulary
from dapo_ref.verifier.cursor import Cursor, number
from dapo_ref.verifier.tokens import Token
from dapo_ref.verifier.tree import Node, negative, num, symbols, times
from dapo_ref.verifier.verdict import MAX_DEPTH, TooBigError, UnparsableError, UnsupportedError

CLOSING = {"{": "}", "{}": "{}", "⌊": "⌋", "⌈": "⌉"}
_ATOM_KINDS = frozenset(("num", "id", "const", "func", "macro", "open", "begin", "big"))
_MANY_ARGUMENTS = frozenset(("gcd", "lcm", "max", "min"))
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "sgn": "sign"}
_SIGNS = ("+", "-", "pm", "mp")
SIDE_ENDS = frozenset(("eof", "close", "rel", "sep", "setop", "arrow", "amp", "row", "end", "bar"))


class ExpressionParser(Cursor):
    """Parses one expression from the cursor on; `Parser` adds what may stand in brackets and around it."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.in_set = False  # where a bar or a colon begins the condition
        self.bars = 0  # open | … | pairs: inside one, a bar closes it
        self.side_start = 0  # where the side of a relation, or the element of a list, began

    def bracketed(self, token: Token) -> Node:
        raise NotImplementedError

    def environment(self, name: str) -> Node:
        raise NotImplementedError

    def expression(self) -> Node:
        """Sums, and `choose` below them."""
        self.descend()
        left = self.total()
        for word, op in (("choose", "binom"), ("over", "div")):
            if self.accept("op", word):
                left = Node(op, (left, self.total()))
        self.depth -= 1
        return left

    def total(self) -> Node:
        terms = [self.product()]
        while self.peek().kind == "op" and self.peek().text in _SIGNS:
            sign = self.peek().text
            self.pos += 1
            term = self.product()
            terms.append(term if sign == "+" else negative(term) if sign == "-" else Node(sign, (term,)))
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def product(self) -> Node:
        """Explicit and implicit products, left to right, so that 1/2x is x/2."""
        start = self.pos
        left = self.signed()
        quotients = 0
        while True:
            token = self.peek()
            if token.kind == "op" and token.text in ("*", "/", "mod", "%"):
                self.pos += 1
                right = self.signed()
                quotients += token.text != "*"
                if quotients > MAX_DEPTH:
                    raise TooBigError("a row of quotients")
                op = {"/": "div", "%": "mod"}.get(token.text, token.text)
                left = times(left, right) if op == "*" else Node(op, (left, right))
            elif self.starts_atom(token):
                if self.unit_follows(left, start) or self.modulus_follows():
                    return left
                self.check_neighbours()
                left = times(left, self.power())
            else:
                return left

    def starts_atom(self, token: Token) -> bool:
        if token.kind == "bar":
            return self.bars == 0
        return token.kind in _ATOM_KINDS and token.text != "pmod"

    def modulus_follows(self) -> bool:
        return self.sees("open", "(") and self.sees("op", "mod", 1)

    def unit_follows(self, left: Node, start: int) -> bool:
        """Whether all that is left of this side is a unit made of letters, as in `3s` or `20 m/s^2`."""
        if (
            start != self.side_start
            or symbols(left)
            or self.peek(-1).kind not in ("num", "close", "const", "text")
        ):
            return False
        index, letters = 0, 0
        while self.peek(index).kind not in SIDE_ENDS or self.peek(index).text == "}":
            kind, text, _ = self.peek(index)
            letters += kind == "id"
            fits = text in vocabulary.LETTER_UNITS if kind == "id" else kind == "text" or text in "^/23{}*-1"
            if not fits or (index == 0 and text == "{"):
                return False
            index += 1
        return letters > 0

    def check_neighbours(self) -> None:
        """Refuse `25 26`; `2^6 3^5` and `3! 5` are products."""
        if self.sees("num") or (self.sees("open", "{") and self.peek(1).kind == "num"):
            index = self.pos - 1
            if self.tokens[index].text == "}":
                level = 0
                while index > 0:
                    level += {"close": 1, "open": -1}.get(self.tokens[index].kind, 0)
                    if level == 0:
                        break
                    index -= 1
            if self.tokens[self.pos - 1].text != "!" and not (
                index > 0 and self.tokens[index - 1].text == "^"
            ):
                raise UnparsableError("two numbers side by side")

    def signed(self) -> Node:
        token = self.peek()
        if token.kind == "op" and token.text in _SIGNS:
            self.pos += 1
            self.descend()
            inner = self.signed()
            self.depth -= 1
            if token.text in ("+", "-"):
                return inner if token.text == "+" else negative(inner)
            return Node(token.text, (inner,))
        self.accept("cur")
        return self.power()

    def power(self) -> Node:
        base = self.postfix()
        if not self.accept("op", "^"):
            return base
        if self.accept("deg"):
            return self.degrees(base)
        exponent = self.exponent()
        return self.degrees(base) if exponent.op == "deg_mark" else Node("pow", (base, exponent))

    def degrees(self, base: Node) -> Node:
        if self.peek().text in ("C", "F") and self.peek(1).kind in SIDE_ENDS:
            self.pos += 1  # a temperature
        return Node("deg", (base,))

    def exponent(self) -> Node:
        """What stands above: a group, or a signed atom, with towers reading from the right."""
        if self.sees("open", "{") and self.sees("deg", None, 1) and self.sees("close", "}", 2):
            self.pos += 3
            return Node("deg_mark", ())
        self.descend()
        minus = self.accept("op", "-")
        if not minus:
            self.accept("op", "+")
        result = self.power()
        self.depth -= 1
        return negative(result) if minus else result

    def postfix(self) -> Node:
        node = self.atom()
        if self.accept("op", "!"):
            if self.sees("op", "!"):
                raise UnsupportedError("multiple factorials")
            node = Node("fact", (node,))
        if self.accept("deg"):
            node = self.degrees(node)
        if self.sees("op", "%") and not self.starts_atom(self.peek(1)):
            self.pos += 1
            node = Node("percent", (node,))
        return node

    def atom(self) -> Node:
        token = self.peek()
        if token.kind == "big":
            raise UnsupportedError(token.text)  # a limit, an integral, a sum
        if token.kind == "text" and token.text.lower() in vocabulary.NUMBER_WORDS:
            return self.number_words()
        if token.kind not in _ATOM_KINDS and token.kind != "bar":
            raise UnparsableError(f"a value is missing before {token.text!r}")
        self.pos += 1
        if token.kind == "num":
            return self.numeral(token)
        if token.kind == "id":
            return self.name(token)
        if token.kind == "const":
            suffix = self.suffix()
            return Node("sym" if suffix else "const", (token.text + suffix,))
        if token.kind == "func":
            return self.function(token.text)
        if token.kind == "macro":
            return self.macro(token.text)
        if token.kind == "begin":
            return self.environment(token.text)
        return self.bracketed(token)

    def number_words(self) -> Node:
        spoken: list[str] = []
        while self.sees("text") or (
            self.peek().text in ("-", "and") and self.sees("text", None, 1) and spoken
        ):
            word = self.peek().text.lower()
            if word not in ("-", "and"):
                if word not in vocabulary.NUMBER_WORDS and word not in vocabulary.SCALES:
                    break
                spoken.append(word)
            self.pos += 1
        value = vocabulary.spoken_number(spoken)
        if value is None:
            raise UnparsableError("number words out of order")
        return num(value)

    def name(self, token: Token) -> Node:
        """A name with its subscripts and primes; C(n, k) is a binomial."""
        if (
            token.text == "C"
            and self.sees("open", "(")
            and self.sees("num", None, 1)
            and self.sees("sep", ",", 2)
        ):
            top, bottom = self.peek(1), self.peek(3)
            if bottom.kind == "num" and self.sees("close", ")", 4):
                self.pos += 5
                return Node("binom", (num(number(top.text)), num(number(bottom.text))))
        return Node("sym", (token.text + self.suffix(),))

    def numeral(self, token: Token) -> Node:
        """A number, one in another base (`31_8` is 25), or the integer part of a mixed number."""
        value = number(token.text)
        if self.accept("op", "_"):
            base = self.argument()
            if base.op != "num" or not (token.text.isdecimal() and base.args[0] in range(2, 37)):
                raise UnparsableError("not a base")
            try:
                return num(int(token.text, int(base.args[0])))
            except ValueError:
                raise UnparsableError("a digit outside its base") from None
        before = self.peek(-2)
        starts = before.kind not in ("num", "id", "const", "close") and before.text not in ("^", "_", "/")
        tail = self.mixed_tail() if starts and token.text.isdecimal() else None
        return num(value) if tail is None else Node("add", (num(value), tail))

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
            mark = self.peek().text
            self.pos += 1
            if mark == "'":
                name += "'"
                continue
            token = self.peek()
            if token.kind == "open" and token.text == "{":
                self.pos += 1
                start = self.pos
                while self.peek().kind not in ("eof", "close", "open"):
                    self.pos += 1
                name += "_" + "".join(t.text for t in self.tokens[start : self.pos])
                self.expect("close", "}")
            elif token.kind in ("num", "id", "const", "text"):
                self.pos += 1
                name += "_" + token.text
            else:
                raise UnparsableError("an empty subscript")
        return name

    def argument(self) -> Node:
        r"""One LaTeX argument: a group, or a single character, as the 1 and the 2 of `\frac12`."""
        token = self.peek()
        if token.kind == "open" and token.text == "{":
            self.pos += 1
            inner = self.expression()
            self.expect("close", "}")
            return inner
        if token.kind == "num" and len(token.text) > 1 and token.text.isdecimal():
            self.tokens[self.pos] = Token("num", token.text[1:])
            return num(int(token.text[0]))
        if token.kind not in _ATOM_KINDS:
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
            if self.sees("num"):  # \sqrt12 is read as the root of 12
                self.pos += 1
                return Node("root", (num(number(self.peek(-1).text)), degree))
            return Node("root", (self.argument(), degree))
        if name == "overline":  # the segment AB, or digits in a row
            self.expect("open", "{")
            start = self.pos
            while self.peek().kind in ("num", "id", "const"):
                self.pos += 1
            self.expect("close", "}")
            return Node("sym", ("overline " + " ".join(t.text for t in self.tokens[start : self.pos - 1]),))
        raise UnparsableError("a misplaced macro")

    def function(self, name: str) -> Node:
        r"""A named function: `\log_2 8`, `\sin^2 x`, `\sin^{-1} x`, with or without brackets."""
        name = _ALIASES.get(name, name)
        base = power = None
        self.descend()
        if name == "log" and self.accept("op", "_"):
            base = self.argument()
        if self.accept("op", "^"):
            power = self.exponent()
        if power == num(-1) and name in ("sin", "cos", "tan"):
            name, power = "arc" + name, None
        node = self.apply(name, self.arguments(name), base)
        self.depth -= 1
        return node if power is None else Node("pow", (node, power))

    def arguments(self, name: str) -> list[Node]:
        token = self.peek()
        if token.kind == "open" and token.text in ("(", "[", "{", "{}"):
            self.pos += 1
            saved, self.bars = self.bars, 0
            inner = [self.expression()]
            while name in _MANY_ARGUMENTS and self.accept("sep", ","):
                inner.append(self.expression())
            self.bars = saved
            self.expect("close", {"(": ")", "[": "]"}.get(token.text) or CLOSING[token.text])
            return inner
        factors = [self.signed()]
        while self.peek().kind in ("num", "id", "const", "macro") and self.peek().text != "pmod":
            if self.peek().kind == "num":
                raise UnparsableError("two numbers side by side")
            factors.append(self.power())
        return [factors[0] if len(factors) == 1 else Node("mul", tuple(factors))]

    def apply(self, name: str, args: list[Node], base: Node | None) -> Node:
        if name == "sqrt":
            return Node("root", (args[0], num(2)))
        if name in ("abs", "floor", "ceil"):
            return Node(name, (args[0],))
        if name == "exp":
            return Node("pow", (Node("const", ("e",)), args[0]))
        if name == "ln":
            return Node("log", (args[0], Node("const", ("e",))))
        if name == "log":
            return Node("log", (args[0], base if base is not None else Node("sym", ("log base",))))
        return Node("fn:" + name, tuple(args))
