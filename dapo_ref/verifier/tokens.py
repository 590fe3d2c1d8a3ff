"""Plain text or LaTeX → a flat list of tokens, in one linear pass.

What a blank, a comma or a word means is decided here, once: thousands groups become one number, a recurring
decimal gets one spelling, a word becomes text, and everything unknown is an error.
"""

import re
from typing import NamedTuple

from dapo_ref.verifier import vocabulary
from dapo_ref.verifier.verdict import MAX_CHARS, MAX_DEPTH, MAX_TOKENS, TooBigError, UnparsableError


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
_NUMBER_INSIDE = re.compile(
    rf"[1-9]\d{{0,2}}(?:{_GROUP_MARK}\d{{3}})+(?!\d){_TAIL}|{_PLAIN_NUMBER}", re.ASCII
)
_NUMBER_OUTSIDE = re.compile(
    rf"[1-9]\d{{0,2}}(?:(?:\.\d{{3}})+,\d{{1,2}}(?!\d)|(?:\.\d{{3}}){{2,}}(?!\d|[.,]\d))"  # 1.234,5
    rf"|[1-9]\d{{0,2}}(?:(?:{_GROUP_MARK}|,)\d{{3}})+(?!\d){_TAIL}"
    rf"|[1-9]\d?(?:,\d\d)+,\d{{3}}(?!\d|,\d)|{_PLAIN_NUMBER}",  # 12,34,567
    re.ASCII,
)
_EUROPEAN = re.compile(r"\d+(?:(?:\.\d{3})+,\d{1,2}|(?:\.\d{3}){2,})", re.ASCII)
_GROUP_MARKS = re.compile(r"[^\d.eE+-]", re.ASCII)
_ELLIPSIS = r"\s?(?:\.{3}|\\l?dots(?![a-z])|\\cdots)"
_RECURRING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar)\s*\{(\d+)\}|\((\d+)\)"
    rf"|\\dot\s*\{{?(\d)\}}?(?:(\d*)\\dot\s*\{{?(\d)\}}?)?|({_ELLIPSIS}))",
    re.ASCII,
)
_REPEATED = re.compile(r"(\d{1,12}?)\1+$", re.ASCII)  # what an ellipsis continues
_KINDS = {
    char: kind
    for kind, chars in {
        **{"open": "([{", "close": ")]}", "op": "+-*/^!%'_:", "rel": "=<>", "sep": ",;", "bar": "|"},
        "cur": "€£¥₹₽₩¢",
    }.items()
    for char in chars
}
_PAIRS = {pair: ("rel", op) for pair, op in vocabulary.RELATIONS.items()} | {"**": ("op", "^")}
_WORD = re.compile(r"[^\W\d_]+")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+\*?|.)", re.DOTALL)
_SIGN_ALONE = re.compile(r"\s*([+-])\s*\}")  # {-}5
_OUT_OF = re.compile(r"\s+of\s+(?=\d)")


def matching_brace(text: str, start: int) -> int:
    """Return the index of the `}` that closes the `{` at `start`, or -1; escaped braces do not count."""
    depth = 0
    i = start
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] == "{":
            depth += 1
        elif text[i] == "}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return -1


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

    def __init__(self, text: str, level: int, prose: bool = False) -> None:
        self.text = text
        self.level = level
        self.prose = prose  # inside \text{…} after a value: every word is text
        self.pos = 0
        self.depth = 0  # of ( [ \{
        self.in_env = 0
        self.space = False
        self.tokens: list[Token] = []

    def emit(self, kind: str, text: str) -> None:
        if len(self.tokens) >= MAX_TOKENS:
            raise TooBigError("too many tokens")
        self.tokens.append(Token(kind, text, self.space))
        self.space = False

    def after_value(self) -> bool:
        """Whether the last token ends a value, so that a word here can be its unit."""
        last = self.tokens[-1] if self.tokens else Token("end", "")
        return last.kind in ("num", "close", "text", "deg", "cur") or last.text == "pi"

    def fits_nothing(self) -> bool:
        """Whether nothing here waits for a group, as a fraction or an exponent does."""
        return not self.tokens or self.tokens[-1].kind not in ("macro", "op", "func", "close")

    def run(self) -> list[Token]:
        while self.pos < len(self.text):
            self.step()
        return self.tokens

    def step(self) -> None:
        char = self.text[self.pos]
        if char in " \t\r\n\f\v~$":
            self.space = True
            self.pos += 1
        elif char.isascii() and (char.isdigit() or (char == "." and self.text[self.pos + 1 :][:1].isdigit())):
            self.number()
        elif char == "\\":
            self.command()
        elif char.isalpha():
            word = _WORD.match(self.text, self.pos)
            assert word is not None
            self.pos = word.end()
            self.word(word[0])
        else:
            self.punctuation(char)

    def number(self) -> None:
        found = _RECURRING.match(self.text, self.pos)
        spelled = recurring(found) if found else None
        if found and spelled:
            self.pos = found.end()
            self.emit("num", spelled)
            return
        match = (_NUMBER_INSIDE if self.depth else _NUMBER_OUTSIDE).match(self.text, self.pos)
        assert match is not None
        self.pos = match.end()
        text = match[0]
        if _EUROPEAN.fullmatch(text):
            text = text.replace(".", "").replace(",", ".")
        self.emit("num", _GROUP_MARKS.sub("", text))

    def punctuation(self, char: str) -> None:
        pair = self.text[self.pos : self.pos + 2]
        self.pos += 2 if pair in _PAIRS else 1
        kind = _KINDS.get(char)
        if pair in _PAIRS:
            self.emit(*_PAIRS[pair])
        elif char == "{" and self.text[self.pos :].lstrip()[:1] == "}" and self.fits_nothing():
            self.pos = self.text.index("}", self.pos) + 1  # {}5
        elif char == "{" and (sign := _SIGN_ALONE.match(self.text, self.pos)) and self.fits_nothing():
            self.pos = sign.end()
            self.emit("op", sign[1])
        elif kind:
            if char in "()[]":
                self.depth = max(0, self.depth + (1 if kind == "open" else -1))
            self.emit(kind, char)
        elif char == "&" and self.in_env:
            self.emit("amp", char)
        elif char == '"' and self.after_value():
            self.emit("text", "in")
        elif char == "." and self.tokens and self.tokens[-1].kind in ("text", "cur"):
            self.space = True  # an abbreviation, as in "sq. units"
        elif char != "." or self.text[self.pos :].strip(" \t\r\n$})]"):
            raise UnparsableError(f"{char!r} is outside the grammar")  # a full stop may end the text, once

    def word(self, word: str) -> None:
        """Classify a run of letters: a fixed word, a unit or other text, or separate symbols."""
        kind, text = vocabulary.WORDS.get(word.lower(), ("", ""))
        if word == "out" and self.after_value() and (match := _OUT_OF.match(self.text, self.pos)):
            self.pos = match.end()
            self.emit("op", "/")
        elif word == "to" and self.after_value():
            self.emit("op", ":")
        elif self.after_value() and word in ("min", "degree", "degrees", "deg"):
            self.emit(*(("text", word) if word == "min" else ("deg", "deg")))
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
        if match is None:  # a lone backslash ends the text
            self.pos += 1
            return
        self.pos = match.end()
        name = match[0]
        if name == "\\\\":
            self.row()
        elif name in vocabulary.IGNORED:
            self.space = True
        elif name in vocabulary.WITH_SETTING:  # the {red} of a colour; what it applies to follows
            self.group()
            self.space = True
        elif name.startswith(("\\quad", "\\qquad")):  # \quadx is a slip for \quad x
            self.pos -= len(name) - (5 if name.startswith("\\quad") else 6)
            self.space = True
            if self.tokens and self.tokens[-1].kind not in ("sep", "open", "rel", "amp", "row"):
                self.emit("sep", "quad")
        elif name in vocabulary.TEXT_MACROS or name in vocabulary.FONT_MACROS:
            self.macro(name)
        elif name in ("\\begin", "\\end"):
            self.environment(name[1:])
        else:
            self.simple_command(name)

    def row(self) -> None:
        """`\\\\` ends a matrix row; before a letter it is a doubled escape; elsewhere it is a blank."""
        if self.in_env:
            self.emit("row", "")
        elif self.text[self.pos : self.pos + 1].isalpha():
            self.pos -= 1
        else:
            self.space = True

    def group(self) -> str:
        """Step over a group in braces; returns what stands in it."""
        end = matching_brace(self.text, self.pos) if self.text[self.pos : self.pos + 1] == "{" else -1
        if end < 0:
            raise UnparsableError("a command without its group")
        content = self.text[self.pos + 1 : end]
        self.pos = end + 1
        return content

    def simple_command(self, name: str) -> None:
        if name not in vocabulary.COMMANDS:
            raise UnparsableError(f"unknown command {name[:20]}")
        kind, text = vocabulary.COMMANDS[name]
        self.depth = max(0, self.depth + {"open": 1, "close": -1}.get(kind, 0))
        self.emit(kind, text)

    def environment(self, which: str) -> None:
        """Fold `{pmatrix}` into its token, and the column specification of `array` with it."""
        name = self.group()
        if which == "begin" and name == "array" and self.text[self.pos : self.pos + 1] == "{":
            self.group()
        self.in_env += 1 if which == "begin" else -1
        if not 0 <= self.in_env <= MAX_DEPTH:
            raise UnparsableError("environments do not balance")
        self.emit(which, name.rstrip("*"))

    def macro(self, name: str) -> None:
        """`\\text{…}` and fonts: joiners, units and words become text, anything else is read as maths."""
        while self.text[self.pos : self.pos + 1] == " ":
            self.pos += 1
        following = self.text[self.pos : self.pos + 1]
        if following != "{" and not (name == "\\mathbb" and following.isalpha()):
            self.space = True
            return
        self.pos += following != "{"
        content = self.group().strip() if following == "{" else following
        letters = content.rstrip(". ")
        if name == "\\mathbb" and letters in ("R", "Z", "N", "Q", "C"):
            self.emit("id", f"mathbb_{letters}")
        elif self.after_value() and letters in vocabulary.LETTER_UNITS and name != "\\mathbf":
            self.emit("text", letters)
        elif content not in ("", "."):
            is_prose = name in vocabulary.TEXT_MACROS or (name == "\\mathrm" and len(letters) > 1)
            self.inline(content, prose=is_prose and self.after_value())
        else:
            self.space = True

    def inline(self, content: str, prose: bool) -> None:
        """Read a group on its own and put braces around it, so that it cannot join its neighbours."""
        if self.level >= MAX_DEPTH:
            raise TooBigError("macros nested too deeply")
        inner = _Tokenizer(content, self.level + 1, prose)
        seed = self.tokens[-1:]
        inner.tokens.extend(seed)
        tokens = inner.run()[len(seed) :]
        loose = tokens and all(token.kind in ("text", "sep", "op", "deg", "func") for token in tokens)
        if not loose:
            self.emit("open", "{")
        for token in tokens:
            self.space = token.space or self.space
            self.emit(token.kind, token.text)
        if not loose:
            self.emit("close", "}")


def tokenize(text: str) -> list[Token]:
    """Split an answer or a reference into tokens.

    Args:
        text: what `to_ascii_math` returned.

    Returns:
        At most `MAX_TOKENS` tokens; nothing is computed yet.

    Raises:
        UnparsableError: a character or command outside the grammar.
        TooBigError: more than `MAX_CHARS` characters, or too many tokens.
    """
    if len(text) > MAX_CHARS:
        raise TooBigError("too long")
    return _Tokenizer(text, 0).run()
