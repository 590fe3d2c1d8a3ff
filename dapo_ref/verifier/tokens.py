"""Plain text or LaTeX → a flat list of tokens, in one linear pass.

What a blank, a comma or a word means is decided here, once: thousands groups become one number, a recurring
decimal gets one spelling, a word becomes text, and everything unknown is an error.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from dapo_ref.verifier import vocabulary
from dapo_ref.verifier.textual import brace_pairs
from dapo_ref.verifier.verdict import MAX_BITS, MAX_CHARS, MAX_DEPTH, MAX_TOKENS, TooBigError, UnparsableError


class Token(NamedTuple):
    """One token: its kind, its text, and whether a blank stood before it."""

    kind: str
    text: str
    space: bool = False


# A thousands group has a non-zero head of at most three digits, then threes only; `(?!\d)` refuses 123,4567.
# Between brackets a bare comma separates elements: (3,456) is a pair.
_GROUP_MARK = r"(?:\ ?\{,\ ?\}|,\\!\ ?|\\,|\\\ |\ |'|_)"
_TAIL = r"(?:\.\d+)?"
_PLAIN_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?![\w.]))?"
_BRACED_COMMA = r"(?:0\{,\}\d+|\d+\{,\}(?:\d\d?|\d{4,}))(?!\d)"  # 3{,}5 is 3.5
_NUMBER_INSIDE = re.compile(
    rf"[1-9]\d{{0,2}}(?:{_GROUP_MARK}\d{{3}})+(?!\d){_TAIL}|{_BRACED_COMMA}|{_PLAIN_NUMBER}", re.ASCII
)
_NUMBER_OUTSIDE = re.compile(
    rf"[1-9]\d{{0,2}}(?:(?:\.\d{{3}})+,\d{{1,2}}(?!\d)|(?:\.\d{{3}}){{2,}}(?!\d|[.,]\d))"  # 1.234,5
    rf"|[1-9]\d{{0,2}}(?:(?:{_GROUP_MARK}|,)\d{{3}})+(?!\d){_TAIL}"
    rf"|[1-9]\d?(?:,\d\d)+,\d{{3}}(?!\d|,\d)|{_BRACED_COMMA}|{_PLAIN_NUMBER}",  # 12,34,567
    re.ASCII,
)
_EUROPEAN = re.compile(r"\d+(?:(?:\.\d{3})+,\d{1,2}|(?:\.\d{3}){2,})|" + _BRACED_COMMA, re.ASCII)
_POINTED = str.maketrans({".": "", ",": ".", "{": "", "}": ""})
_GROUP_MARKS = re.compile(r"[^\d.eE+-]", re.ASCII)
_RECURRING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar)\s*\{(\d+)\}|\((\d+)\)"
    r"|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?|(\s?(?:\.{3}|\\l?dots(?![a-z])|\\cdots)))",
    re.ASCII,
)
_REPEATED = re.compile(r"(\d{1,12}?)\1+$", re.ASCII)  # what an ellipsis continues
_NOTATION = [  # old or split notations → the one that the tokens know
    (re.compile(r"\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![A-Za-z]))"), r"\\degree "),
    (re.compile(r"\\degree\s*(?:\\(?:text|mathrm)\s*\{\s*C\s*\}|C(?!\w))"), r"\\text{celsius}"),
    (re.compile(r"\\degree\s*(?:\\(?:text|mathrm)\s*\{\s*F\s*\}|F(?!\w))"), r"\\text{fahrenheit}"),
    (re.compile(r"(?<![\w}])\((\d+)\)\s?_"), r"\1_"),  # (52)_8
    (re.compile(r"(?<!\d)\\?\$\s?(\d[\d.,]*)[Kk](?![\w$])"), r"\1\\text{ thousand}"),  # $5K, no kelvin
    (re.compile(r"\{\s*\\(?:rm|bf|it)\s+([^{}\\]*)\}"), r"\\text{\1}"),
]
_KINDS = {
    char: kind
    for kind, chars in {
        **{"open": "([{", "close": ")]}", "op": "+-*/^!%'_:", "rel": "=<>", "sep": ",;", "bar": "|"},
        "cur": "€£¥₹₽₩¢",
    }.items()
    for char in chars
}
_PAIRS = {pair: ("rel", op) for pair, op in vocabulary.RELATIONS.items() if len(pair) > 1} | {
    "**": ("op", "^")
}
_WORD = re.compile(r"[^\W\d_]+")
_COMMAND = re.compile(r"\\(?:q?quad|[A-Za-z]+\*?|.)", re.DOTALL)  # \quadx is a slip for \quad x
_EMPTY_OR_SIGN = re.compile(r"\{\s*([+-]?)\s*\}")  # {}5, {-}5
_OUT_OF = re.compile(r"\s+of\s+(?=\d)")


def number(raw: str) -> Fraction:
    """Read a decimal literal, `0.1(6)` included, exactly; TooBigError at a power of ten beyond `MAX_BITS`."""
    if raw.endswith(")"):
        start, _, period = raw[:-1].partition("(")
        shift = len(start.partition(".")[2])
        return Fraction(start + "0") + Fraction(int(period), (10 ** len(period) - 1) * 10**shift)
    mantissa, _, exponent = raw.lower().partition("e")
    if exponent and (len(exponent) > 6 or abs(int(exponent)) * 4 > MAX_BITS):
        raise TooBigError("exponent")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)


def recurring(match: re.Match[str]) -> str | None:
    """One spelling, `0.1(6)`, for all recurring decimals; None where an ellipsis continues no period."""
    whole, digits, *periods, ellipsis = match.groups(default="")
    period = "".join(periods)
    if ellipsis:
        repeated = _REPEATED.search(digits)
        if repeated is None:
            return None
        digits, period = digits[: repeated.start()], repeated[1]
    return f"{whole or '0'}.{digits}({period})"


class _Tokenizer:
    """The state of one pass: where we are, what came before, and how deep in brackets we stand."""

    def __init__(self, text: str, tokens: list[Token], level: int = 0, prose: bool = False) -> None:
        self.text = text
        self.tokens = tokens  # so far; those of \text{…} go to the list of the text around it
        self.level = level  # of \text{…} and fonts
        self.prose = prose  # inside \text{…} after a value: every word is text
        self.pos = 0
        self.depth = 0  # of ( [ \{
        self.in_env = 0  # matrices and cases
        self.displays = 0  # align and its like, which are no structure
        self.space = False

    def emit(self, kind: str, text: str) -> None:
        if len(self.tokens) >= MAX_TOKENS:
            raise TooBigError("too many tokens")
        self.tokens.append(Token(kind, text, self.space))
        self.space = False

    def last(self) -> Token:
        return self.tokens[-1] if self.tokens else Token("start", "")

    def after_value(self) -> bool:
        """Whether the last token ends a value, so that a word here can be its unit."""
        return self.last().kind in ("num", "close", "text", "deg", "cur") or self.last().text == "pi"

    def run(self) -> None:
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char in " \t\r\n\f\v~$":
                self.space = True
                self.pos += 1
            elif re.match(r"\.?[0-9]", self.text[self.pos : self.pos + 2]):
                self.number()
            elif char == "\\":
                self.command()
            elif char.isalpha():
                self.word()
            else:
                self.punctuation(char)
        if self.displays:
            raise UnparsableError("a display that does not end")

    def number(self) -> None:
        match = _RECURRING.match(self.text, self.pos)
        text = recurring(match) if match else None
        if text is None:
            match = (_NUMBER_INSIDE if self.depth else _NUMBER_OUTSIDE).match(self.text, self.pos)
            assert match is not None
            european = _EUROPEAN.fullmatch(match[0])
            text = match[0].translate(_POINTED) if european else match[0]
        assert match is not None
        self.pos = match.end()
        self.emit("num", text if "(" in text else _GROUP_MARKS.sub("", text))

    def punctuation(self, char: str) -> None:
        pair = self.text[self.pos : self.pos + 2]
        # Nothing waits for a group here, as a fraction or an exponent does.
        free = char == "{" and self.last().kind not in ("macro", "op", "func", "close")
        group = _EMPTY_OR_SIGN.match(self.text, self.pos) if free else None
        self.pos = group.end() if group else self.pos + (2 if pair in _PAIRS else 1)
        if group:
            if group[1]:
                self.emit("op", group[1])
        elif pair in _PAIRS:
            self.emit(*_PAIRS[pair])
        elif char in _KINDS:
            if char in "()[]":
                self.depth = max(0, self.depth + (1 if char in "([" else -1))
            self.emit(_KINDS[char], char)
        elif char == "&" and self.in_env:
            self.emit("amp", char)
        elif char == "&" and self.displays:
            self.space = True
        elif char == '"' and self.after_value():
            self.emit("text", "in")
        elif char == "." and self.last().kind in ("text", "cur"):
            self.space = True  # an abbreviation, as in "sq. units"
        elif char != "." or self.text[self.pos :].strip(" \t\r\n$})]"):
            raise UnparsableError(f"{char!r} is outside the grammar")  # a full stop may end the text, once

    def word(self) -> None:
        """Classify a run of letters: a fixed word, a unit or other text, or separate symbols."""
        match = _WORD.match(self.text, self.pos)
        assert match is not None
        word = match[0]
        self.pos = match.end()
        kind, text = vocabulary.WORDS.get(word.lower(), ("", ""))
        after_value = self.after_value()
        if after_value and word == "out" and (match := _OUT_OF.match(self.text, self.pos)):
            self.pos = match.end()
            self.emit("op", "/")
        elif after_value and word in vocabulary.AFTER_VALUE:
            self.emit(*vocabulary.AFTER_VALUE[word])
        elif kind == "func" and after_value and not self.text[self.pos :].strip(" .$"):
            self.emit("text", word)  # 30 sec; without an argument it is no function
        elif kind and (kind != "sep" or self.tokens or self.prose):
            self.emit(kind, text)
        elif word in vocabulary.GREEK and len(word) > 2:
            self.emit("id", word)
        elif self.is_text(word):
            self.emit("text", word)
        else:
            for letter in word:
                self.emit(*(("const", letter.lower()) if letter in "eiI" else ("id", letter)))

    def is_text(self, word: str) -> bool:
        if len(word) == 1:
            return not word.isascii() or (self.prose and word in vocabulary.LETTER_UNITS)
        if self.prose or not word.isascii() or word.lower() in vocabulary.NUMBER_WORDS:
            return True
        if len(word) >= 4 and not vocabulary.VOWELS.isdisjoint(word):
            return True
        return self.after_value() and (word == "per" or vocabulary.is_unit_word(word))

    def command(self) -> None:
        match = _COMMAND.match(self.text, self.pos)
        name = match[0] if match else "\\ "  # a lone backslash ends the text
        self.pos += len(name)
        kind, text = vocabulary.COMMANDS.get(name, ("", ""))
        if kind in ("prose", "font"):
            self.macro(name, kind == "prose")
        elif kind in ("begin", "end"):
            self.environment(kind)
        elif kind == "setting":  # the {red} of a colour; what it applies to follows
            self.group()
            self.space = True
        elif kind == "row" and self.text[self.pos : self.pos + 1].isalpha() and not self.in_env:
            self.pos -= 1  # a doubled escape
        elif (
            kind == "blank"
            or (kind == "row" and not self.in_env)
            or (text == "quad" and self.last().kind in ("start", "sep", "open", "rel", "amp", "row"))
        ):
            self.space = True
        elif kind:
            self.depth = max(0, self.depth + {"open": 1, "close": -1}.get(kind, 0))
            self.emit(kind, text)
        else:
            raise UnparsableError(f"unknown command {name[:20]}")

    def group(self) -> str:
        """Step over a group in braces; returns what stands in it."""
        end = brace_pairs(self.text, self.pos).get(self.pos)
        if end is None:
            raise UnparsableError("a command without its group")
        content = self.text[self.pos + 1 : end]
        self.pos = end + 1
        return content

    def environment(self, which: str) -> None:
        """Fold `{pmatrix}` into its token, and the column specification of `array` with it."""
        name = self.group()
        if which == "begin" and name == "array" and self.text[self.pos : self.pos + 1] == "{":
            self.group()
        name, step = name.rstrip("*"), 1 if which == "begin" else -1
        if name in vocabulary.DISPLAYS:
            self.displays, self.space = self.displays + step, True
        else:
            self.in_env += step
            self.emit(which, name)
        if min(self.in_env, self.displays) < 0 or self.in_env > MAX_DEPTH:
            raise UnparsableError("environments do not balance")

    def macro(self, name: str, prose: bool) -> None:
        """`\\text{…}` and fonts: joiners, units and words become text, anything else is read as maths."""
        while self.text[self.pos : self.pos + 1] == " ":
            self.pos += 1
        content = self.text[self.pos : self.pos + 1]
        if content == "{":
            content = self.group().strip()
        elif name == "\\mathbb" and content.isalpha():
            self.pos += 1
        else:
            content = ""
        letters = content.rstrip(". ")
        if name == "\\mathbb" and letters in ("R", "Z", "N", "Q", "C"):
            self.emit("id", f"mathbb_{letters}")
        elif self.after_value() and letters in vocabulary.LETTER_UNITS and name != "\\mathbf":
            self.emit("text", letters)
        elif content in ("", "."):
            self.space = True
        else:
            prose = prose or (name == "\\mathrm" and len(letters) > 1)
            self.inline(content, prose and self.after_value())

    def inline(self, content: str, prose: bool) -> None:
        """Read a group on its own and put braces around it, so that it cannot join its neighbours."""
        if self.level >= MAX_DEPTH:
            raise TooBigError("macros nested too deeply")
        first, space = len(self.tokens), self.space
        inner = _Tokenizer(content, self.tokens, self.level + 1, prose)
        inner.space, self.space = space, False
        inner.run()
        kinds = {token.kind for token in self.tokens[first:]}
        if not kinds or not kinds <= {"text", "sep", "op", "deg", "func", "cur"}:
            self.tokens.insert(first, Token("open", "{", space))
            self.emit("close", "}")


def tokenize(text: str) -> list[Token]:
    """Split what `to_ascii_math` returned into tokens; nothing is computed yet.

    Raises UnparsableError at what is outside the grammar, TooBigError beyond `MAX_CHARS` or `MAX_TOKENS`.
    """
    if len(text) > MAX_CHARS:
        raise TooBigError("too long")
    tokens: list[Token] = []
    for pattern, known in _NOTATION:
        text = pattern.sub(known, text)
    _Tokenizer(text, tokens).run()
    return tokens
