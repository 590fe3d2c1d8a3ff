"""Tokens → expression tree: a precedence parser for plain text and LaTeX.

Lowest to highest: `choose`, `+ −`, `· / mod` and juxtaposition, unary sign, `^`, postfix `! ′ °`. Two bare
numbers never multiply by standing side by side, and a bare integer before a proper fraction is a mixed
number.
"""

from fractions import Fraction

from dapo_ref.verifier.cursor import Cursor, number
from dapo_ref.verifier.tokens import Token
from dapo_ref.verifier.values import Node, determinant, num, times
from dapo_ref.verifier.verdict import (
    MAX_DEPTH,
    TooBigError,
    UnparsableError,
    UnsupportedError,
)

_CLOSING = {"(": ")", "[": "]", "{": "}", "{}": "{}", "⌊": "⌋", "⌈": "⌉"}
_ATOM_KINDS = frozenset(("num", "id", "const", "func", "macro", "open", "begin", "big"))
_MANY_ARGUMENTS = frozenset(("gcd", "lcm", "max", "min"))
_QUOTIENTS = {"/": "div", "mod": "mod"}
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "sgn": "sign"}


class ExpressionParser(Cursor):
    """Parses `tokens[pos:end]`; `pos` is where the expression stopped."""

    def expression(self) -> Node:
        """Sums, and `choose` below them."""
        self.descend()
        left = self.total()
        if self.accept("op", "choose"):
            left = Node("binom", (left, self.total()))
        elif self.accept("op", "over"):
            left = Node("div", (left, self.total()))
        self.depth -= 1
        return left

    def total(self) -> Node:
        terms = [self.product()]
        while self.peek().kind == "op" and self.peek().text in ("+", "-", "pm", "mp"):
            sign = self.peek().text
            self.pos += 1
            term = self.product()
            terms.append(term if sign == "+" else Node("neg" if sign == "-" else sign, (term,)))
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def product(self) -> Node:
        """Explicit and implicit products, left to right, so that 1/2x is x/2."""
        start = self.pos
        left = self.signed()
        quotients = 0
        while True:
            token = self.peek()
            if token.kind == "op" and token.text in ("*", "/", "mod"):
                self.pos += 1
                right = self.signed()
                quotients += token.text != "*"
                if quotients > MAX_DEPTH:
                    raise TooBigError("a row of quotients")
                left = (
                    times(left, right) if token.text == "*" else Node(_QUOTIENTS[token.text], (left, right))
                )
            elif self.starts_atom(token):
                left = self.juxtaposed(left, start)
            else:
                return left

    def starts_atom(self, token: Token) -> bool:
        if token.kind == "bar":
            return self.bars == 0
        return token.kind in _ATOM_KINDS and token.text not in ("pmod", "end")

    def juxtaposed(self, left: Node, start: int) -> Node:
        """`left` directly followed by a factor: a mixed number, a product, or nonsense such as `25 26`."""
        before, here = self.tokens[self.pos - 1], self.peek()
        bare = (before.kind == "num" and self.pos - 1 == start) or self.is_bare_group(start)
        if bare and left.op == "num" and left.args[0].denominator == 1:
            mixed = self.mixed_tail()
            if mixed is not None:
                return Node("add", (left, mixed))
        if here.kind == "num" or (here.kind == "open" and here.text == "{" and self.peek(1).kind == "num"):
            power = self.pos >= 2 and self.ends_power()
            if not power:
                raise UnparsableError("two numbers side by side")
        right = self.power()
        return times(left, right)

    def is_bare_group(self, start: int) -> bool:
        span = [token.kind for token in self.tokens[start : self.pos]]
        return span == ["open", "num", "close"] and self.tokens[start].text == "{"

    def ends_power(self) -> bool:
        """Whether the factor just read ends in an exponent or a factorial, as the 2^6 of `2^6 3^5`."""
        index = self.pos - 1
        if self.tokens[index].text == "!":
            return True
        if self.tokens[index].text == "}":
            level = 0
            while index > 0:
                level += {"close": 1, "open": -1}.get(self.tokens[index].kind, 0)
                if level == 0:
                    break
                index -= 1
        return index > 0 and self.tokens[index - 1].text == "^"

    def mixed_tail(self) -> Node | None:
        r"""The proper fraction of `1 1/2` or `1\frac{1}{2}`, if one of integers stands here."""
        saved = self.pos
        saved_tokens = self.tokens
        self.tokens = list(self.tokens)
        fraction = None
        if self.accept("macro", "frac"):
            top, bottom = self.argument(), self.argument()
        elif self.peek().kind == "num" and self.peek().space and self.sees("op", "/", 1):
            top = num(number(self.peek().text))
            self.pos += 2
            bottom = num(number(self.peek().text)) if self.peek().kind == "num" else num(0)
            self.pos += 1
        else:
            return None
        if top.op == bottom.op == "num" and 0 < top.args[0] < bottom.args[0]:
            both_integers = top.args[0].denominator == bottom.args[0].denominator == 1
            fraction = num(top.args[0] / bottom.args[0]) if both_integers else None
        if fraction is None:
            self.pos, self.tokens = saved, saved_tokens
        return fraction

    def signed(self) -> Node:
        token = self.peek()
        if token.kind == "op" and token.text in ("+", "-", "pm", "mp"):
            self.pos += 1
            self.descend()
            inner = self.signed()
            self.depth -= 1
            return inner if token.text == "+" else Node("neg" if token.text == "-" else token.text, (inner,))
        if token.kind == "cur":
            self.pos += 1
        return self.power()

    def power(self) -> Node:
        base = self.postfix()
        if not self.sees("op", "^"):
            return base
        self.pos += 1
        if self.accept("deg"):
            return Node("deg", (base,))
        exponent = self.exponent()
        if exponent.op == "deg_mark":
            return Node("deg", (base,))
        return Node("pow", (base, exponent))

    def exponent(self) -> Node:
        """What stands above: a group, or a signed atom, with towers reading from the right."""
        if self.peek().text == "{" and self.peek(1).kind == "deg" and self.peek(2).text == "}":
            self.pos += 3
            return Node("deg_mark", ())
        self.descend()
        negative = self.accept("op", "-")
        if not negative:
            self.accept("op", "+")
        result = self.power()
        self.depth -= 1
        return Node("neg", (result,)) if negative else result

    def postfix(self) -> Node:
        node = self.atom()
        if self.accept("op", "!"):
            if self.peek().text == "!":
                raise UnsupportedError("multiple factorials")
            node = Node("fact", (node,))
        if self.accept("deg"):
            node = Node("deg", (node,))
        if self.sees("op", "%") and self.peek(1).kind == "op" and self.peek(1).text in ("+", "-", "*", "/"):
            self.pos += 1  # 100% − 75%: inside an expression too, percent is a unit
        return node

    def atom(self) -> Node:
        token = self.peek()
        if token.kind == "big":
            return self.big_operator(token.text)
        if token.kind not in _ATOM_KINDS and token.kind != "bar":
            raise UnparsableError("a value is missing")
        self.pos += 1
        if token.kind == "num":
            return self.numeral(token)
        if token.kind == "id":
            return Node("sym", (token.text + self.suffix(),))
        if token.kind == "const":
            return self.constant(token)
        if token.kind == "func":
            return self.function(token.text)
        if token.kind == "macro":
            return self.macro(token.text)
        if token.kind == "begin":
            return self.environment(token.text)
        return self.bracketed(token)

    def big_operator(self, name: str) -> Node:
        r"""`\sum_{k=1}^{5} k` and `\prod`, over what is later checked to be a short range of integers.

        Raises:
            UnsupportedError: a limit, an integral, or any other form of bounds.
        """
        self.pos += 1
        if name not in ("\\sum", "\\prod") or not (self.accept("op", "_") and self.accept("open", "{")):
            raise UnsupportedError(name)
        variable = self.peek()
        self.pos += 1
        if variable.kind not in ("id", "const") or not self.accept("rel", "="):
            raise UnsupportedError(name)
        self.indices.add(variable.text)
        low = self.expression()
        if not (self.accept("close", "}") and self.accept("op", "^")):
            raise UnsupportedError(name)
        high = self.exponent()
        return Node(name[1:], (Node("sym", (variable.text,)), low, high, self.product()))

    def numeral(self, token: Token) -> Node:
        """A number, a numeral in another base (`52_8`, a value of its own) or a recurring decimal."""
        if self.accept("op", "_"):
            base = self.argument()
            if base.op != "num" or not token.text.isdecimal():
                raise UnparsableError("a subscript on a number")
            if base == num(10):
                return num(number(token.text))
            if not 2 <= base.args[0] <= 36 or base.args[0].denominator != 1:
                raise UnparsableError("not a base")
            return Node("sym", (f"{token.text.lstrip('0') or '0'} base {base.args[0].numerator}",))
        if "." in token.text and self.sees("macro", "overline"):
            return self.recurring(token.text)
        return num(number(token.text))

    def recurring(self, raw: str) -> Node:
        self.pos += 1
        self.expect("open", "{")
        period = self.peek().text
        self.expect("num")
        self.expect("close", "}")
        if not period.isdecimal() or len(period) > 100:
            raise UnparsableError("not a period")
        shift = len(raw.partition(".")[2])
        tail = Fraction(int(period), (10 ** len(period) - 1) * 10**shift)
        return num(number(raw) + tail)

    def constant(self, token: Token) -> Node:
        suffix = self.suffix()
        if suffix or token.text in self.indices:  # Σ over i: i is a name, not the imaginary unit
            return Node("sym", (token.text + suffix,))
        return Node("const", (token.text,))

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
                while self.peek().kind not in ("end", "close", "open"):
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
        self.descend()
        node = self.atom()
        self.depth -= 1
        return node

    def macro(self, name: str) -> Node:
        if name == "frac":
            top = self.argument()
            return Node("div", (top, self.argument()))
        if name == "binom":
            top = self.argument()
            return Node("binom", (top, self.argument()))
        if name == "sqrt":
            return self.root()
        if name == "overline":
            self.expect("open", "{")
            start = self.pos
            while self.peek().kind in ("num", "id", "const"):
                self.pos += 1
            self.expect("close", "}")
            return Node("sym", ("overline " + " ".join(t.text for t in self.tokens[start : self.pos - 1]),))
        raise UnparsableError("a misplaced macro")

    def root(self) -> Node:
        degree = num(2)
        if self.peek().kind == "open" and self.peek().text == "[":
            self.pos += 1
            degree = self.expression()
            self.expect("close", "]")
        token = self.peek()
        if token.kind == "num":  # \sqrt12 is read as the root of 12
            self.pos += 1
            return Node("root", (num(number(token.text)), degree))
        return Node("root", (self.argument(), degree))

    def bracketed(self, token: Token) -> Node:
        if token.kind == "bar":
            self.bars += 1
            inner = self.expression()
            self.expect("bar")
            self.bars -= 1
            return Node("abs", (inner,))
        if token.text not in _CLOSING or token.text == "{}":
            raise UnparsableError("a set is not a number")
        bars, self.bars = self.bars, 0
        inner = self.expression()
        self.bars = bars
        self.expect("close", _CLOSING[token.text])
        wrappers = {"⌊": "floor", "⌈": "ceil"}
        return Node(wrappers[token.text], (inner,)) if token.text in wrappers else inner

    def function(self, name: str) -> Node:
        r"""A named function: `\log_2 8`, `\sin^2 x`, `\sin^{-1} x`, with or without brackets."""
        name = _ALIASES.get(name, name)
        base = None
        power = None
        self.descend()
        if name == "log" and self.accept("op", "_"):
            base = self.argument()
        if self.accept("op", "^"):
            power = self.exponent()
        if power is not None and power == Node("neg", (num(1),)) and name in ("sin", "cos", "tan"):
            name, power = "arc" + name, None
        node = self.apply(name, self.arguments(name), base)
        self.depth -= 1
        return node if power is None else Node("pow", (node, power))

    def arguments(self, name: str) -> list[Node]:
        token = self.peek()
        if token.kind == "open" and token.text in ("(", "[", "{", "{}"):
            self.pos += 1
            inner = [self.expression()]
            while name in _MANY_ARGUMENTS and self.accept("sep", ","):
                inner.append(self.expression())
            self.expect("close", _CLOSING[token.text])
            return inner
        factors = [self.signed()]
        while self.peek().kind in ("num", "id", "const", "macro") and self.peek().text != "pmod":
            if self.peek().kind == "num":
                raise UnparsableError("two numbers side by side")
            factors.append(self.power())
        return [factors[0] if len(factors) == 1 else Node("mul", tuple(factors))]

    def apply(self, name: str, args: list[Node], base: Node | None) -> Node:
        if name in ("sqrt", "abs", "floor", "ceil"):
            return Node("root", (args[0], num(2))) if name == "sqrt" else Node(name, (args[0],))
        if name == "exp":
            return Node("pow", (Node("const", ("e",)), args[0]))
        if name == "ln":
            return Node("log", (args[0], Node("const", ("e",))))
        if name == "log":
            return Node("log", (args[0], base if base is not None else Node("sym", ("log base",))))
        return Node("fn:" + name, tuple(args))

    def environment(self, name: str) -> Node:
        """A matrix: rows of expressions; `vmatrix` is its determinant."""
        rows: list[list[Node]] = [[]]
        while not self.accept("end", name):
            if self.peek().kind == "row":
                self.pos += 1
                rows.append([])
            elif self.peek().kind == "amp" and rows[-1]:
                self.pos += 1
                rows[-1].append(self.expression())
            elif not rows[-1]:
                rows[-1].append(self.expression())
            else:
                raise UnparsableError("not a matrix")
        if not rows[-1]:
            rows.pop()
        if (
            not rows
            or any(len(row) != len(rows[0]) for row in rows)
            or not name.endswith(("matrix", "array"))
        ):
            raise UnparsableError("not a matrix")
        if name == "vmatrix":
            return determinant([list(row) for row in rows])
        return Node("matrix", tuple(tuple(row) for row in rows))
