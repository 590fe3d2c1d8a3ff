"""Plain text or LaTeX → a flat list of tokens, in one linear pass.

What a blank, a comma or a word means is decided here, once: thousands groups become one number, a word
after a value becomes text (a unit, if the parser finds it at the end), and everything unknown is an error.
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
_SAFE_GROUP = r"(?:\ ?\{,\ ?\}|,\\!\ ?|\\,|\\\ |\ )"
_TAIL = r"(?:\.\d+)?"
_EXPONENT = r"(?:[eE][+-]?\d+(?![\w.]))?"
_PLAIN_NUMBER = rf"(?:\d+\.(?=\\overline)|\d+{_TAIL}|\.\d+){_EXPONENT}"
_NUMBER_OUTSIDE = re.compile(
    rf"[1-9]\d{{0,2}}(?:(?:{_SAFE_GROUP}|,)\d{{3}})+(?!\d){_TAIL}|{_PLAIN_NUMBER}", re.ASCII
)
_NUMBER_INSIDE = re.compile(
    rf"[1-9]\d{{0,2}}(?:{_SAFE_GROUP}\d{{3}})+(?!\d){_TAIL}|{_PLAIN_NUMBER}", re.ASCII
)
_GROUP_MARKS = re.compile(r"[^\d.eE+-]", re.ASCII)
_WORD = re.compile(r"[^\W\d_]+")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+\*?|.)", re.DOTALL)


def matching_brace(text: str, start: int) -> int:
    """Return the index of the `}` that closes the `{` at `start`, or -1; escaped braces do not count."""
    depth = 0
    i = start
    while i < len(text):
        char = text[i]
        if char == "\\":
            i += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return -1


class _Tokenizer:
    """The state of one pass: where we are, what came before, and how deep in brackets we stand."""

    def __init__(self, text: str, level: int, prose: bool = False) -> None:
        self.text = text
        self.level = level
        self.prose = prose  # inside \text{…} after a value: every word is text
        self.pos = 0
        self.depth = 0  # of ( [ \{ : inside them a bare comma separates elements, 3,456 is not one number
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
        if not self.tokens:
            return False
        last = self.tokens[-1]
        return last.kind in ("num", "close", "text", "deg", "cur") or (
            last.kind == "const" and last.text == "pi"
        )

    def run(self) -> list[Token]:
        while self.pos < len(self.text):
            self.step()
        return self.tokens

    def step(self) -> None:
        char = self.text[self.pos]
        if char in " \t\r\n\f\v~$":
            self.space = True
            self.pos += 1
        elif char.isascii() and (
            char.isdigit() or (char == "." and self.text[self.pos + 1 : self.pos + 2].isdigit())
        ):
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
        pattern = _NUMBER_INSIDE if self.depth else _NUMBER_OUTSIDE
        match = pattern.match(self.text, self.pos)
        assert match is not None
        self.pos = match.end()
        self.emit("num", _GROUP_MARKS.sub("", match[0]))

    def punctuation(self, char: str) -> None:
        pair = self.text[self.pos : self.pos + 2]
        if pair in ("**", "<=", ">=", "==", "!=", ":="):
            self.pos += 2
            self.emit("rel", vocabulary.RELATIONS[pair]) if pair != "**" else self.emit("op", "^")
            return
        self.pos += 1
        if char in "([":
            self.depth += 1
            self.emit("open", char)
        elif char in ")]":
            self.depth = max(0, self.depth - 1)
            self.emit("close", char)
        elif char in "{}":
            self.emit("open" if char == "{" else "close", char)
        elif char in "+-*/^!%'_:":
            self.emit("op", char)
        elif char in "=<>":
            self.emit("rel", char)
        elif char in ",;":
            self.emit("sep", char)
        elif char == "|":
            self.emit("bar", char)
        elif char == "&" and self.in_env:
            self.emit("amp", char)
        elif char in vocabulary.CURRENCY:
            self.emit("cur", char)
        elif char == "." and self.tokens and self.tokens[-1].kind == "text":
            self.space = True  # an abbreviation, as in "sq. units"
        elif char == "." and not self.text[self.pos :].strip(" \t\r\n$.})]"):
            self.require_single_stop()
        else:
            raise UnparsableError("a character outside the grammar")

    def require_single_stop(self) -> None:
        """A full stop may end the text, once: `25..26` and `25...` are not 25."""
        if "." in self.text[self.pos :]:
            raise UnparsableError("dots")

    def word(self, word: str) -> None:
        """Classify a run of letters: joiner, function, constant, unit, other text, or separate symbols."""
        lowered = word.lower()
        if lowered in vocabulary.JOINERS:
            self.emit("sep", vocabulary.JOINERS[lowered])
        elif lowered in vocabulary.FUNCTIONS and len(word) > 1:
            self.emit("func", lowered)
        elif word in ("pi", "Pi", "PI"):
            self.emit("const", "pi")
        elif lowered in ("inf", "infty", "infinity", "oo"):
            self.emit("const", "oo")
        elif word in vocabulary.GREEK and len(word) > 2:
            self.emit("id", word)
        elif lowered == "mod":
            self.emit("op", "mod")
        elif lowered in ("percent", "pct", "percentage"):
            self.emit("op", "%")
        elif lowered in ("degree", "degrees") and self.after_value():
            self.emit("deg", "deg")
        elif lowered in ("usd", "eur", "rs"):
            self.emit("cur", lowered)
        elif self.is_text(word):
            self.emit("text", word)
        else:
            for letter in word:
                self.letter(letter)

    def is_text(self, word: str) -> bool:
        if len(word) == 1:
            return not word.isascii() or (self.prose and word in vocabulary.LETTER_UNITS)
        if self.prose or not word.isascii() or (len(word) >= 4 and not vocabulary.VOWELS.isdisjoint(word)):
            return True
        return word in vocabulary.SHORT_UNITS and self.after_value()

    def letter(self, letter: str) -> None:
        if letter == "e":
            self.emit("const", "e")
        elif letter in "iI":
            self.emit("const", "i")
        else:
            self.emit("id", letter)

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
        elif name in vocabulary.WITH_SETTING:
            self.skip_setting()
        elif name.startswith(("\\quad", "\\qquad")):  # \quadx is a slip for \quad x
            self.pos -= len(name) - (5 if name.startswith("\\quad") else 6)
            self.wide_space()
        elif name in vocabulary.TEXT_MACROS or name in vocabulary.FONT_MACROS:
            self.macro(name)
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

    def skip_setting(self) -> None:
        """Step over the `{red}` of a colour or the `{1cm}` of a space; what it applies to follows."""
        end = matching_brace(self.text, self.pos) if self.text[self.pos : self.pos + 1] == "{" else -1
        if end < 0:
            raise UnparsableError("a setting without its group")
        self.pos = end + 1
        self.space = True

    def wide_space(self) -> None:
        """A quad between two values separates them, unless a separator already does."""
        self.space = True
        if self.tokens and self.tokens[-1].kind not in ("sep", "open", "rel", "amp", "row"):
            self.emit("sep", "quad")

    def simple_command(self, name: str) -> None:
        if name in vocabulary.RELATIONS:
            self.emit("rel", vocabulary.RELATIONS[name])
        elif name in vocabulary.OPERATORS:
            self.emit("op", vocabulary.OPERATORS[name])
        elif name in vocabulary.BRACKETS:
            kind, text = vocabulary.BRACKETS[name]
            self.depth = max(0, self.depth + {"open": 1, "close": -1}.get(kind, 0))
            self.emit(kind, text)
        elif name in ("\\cup", "\\cap", "\\setminus"):
            self.emit("setop", name[1:])
        elif name[1:] in vocabulary.FUNCTIONS and name != "\\sqrt":
            self.emit("func", name[1:])
        elif name == "\\pi":
            self.emit("const", "pi")
        elif name == "\\infty":
            self.emit("const", "oo")
        elif name in ("\\emptyset", "\\varnothing"):
            self.emit("empty", name)
        elif name in ("\\circ", "\\degree"):
            self.emit("deg", "deg")
        elif name[1:] in vocabulary.GREEK:
            self.emit("id", name[1:])
        else:
            self.rare_command(name)

    def rare_command(self, name: str) -> None:
        if name in vocabulary.ELLIPSES:
            self.emit("dots", "...")
        elif name in vocabulary.BIG_OPERATORS:
            self.emit("big", name)
        elif name in ("\\%", "\\$"):
            self.emit("op" if name == "\\%" else "cur", name[1])
        elif name in vocabulary.ARROWS:
            self.emit("arrow", name)
        elif name in vocabulary.FIGURES:
            self.emit("id", name)
        elif name == "\\prime":
            self.emit("op", "'")
        elif name in vocabulary.MACROS:
            self.emit("macro", vocabulary.MACROS[name])
            if vocabulary.MACROS[name] in ("begin", "end"):
                self.environment(vocabulary.MACROS[name])
        else:
            raise UnparsableError("an unknown command")

    def environment(self, which: str) -> None:
        """Fold `{pmatrix}` into the token before it, and the column specification of `array` with it."""
        end = matching_brace(self.text, self.pos) if self.text[self.pos : self.pos + 1] == "{" else -1
        if end < 0:
            raise UnparsableError("an environment without a name")
        name = self.text[self.pos + 1 : end]
        self.pos = end + 1
        if which == "begin" and name == "array" and self.text[self.pos : self.pos + 1] == "{":
            self.pos = matching_brace(self.text, self.pos) + 1
        self.in_env += 1 if which == "begin" else -1
        if not 0 <= self.in_env <= MAX_DEPTH:
            raise UnparsableError("environments do not balance")
        self.tokens[-1] = Token(which, name.rstrip("*"), self.tokens[-1].space)

    def macro(self, name: str) -> None:
        """`\\text{…}` and fonts: joiners, units and words become text, anything else is read as maths."""
        while self.text[self.pos : self.pos + 1] == " ":
            self.pos += 1
        if self.text[self.pos : self.pos + 1] != "{":
            self.space = True
            return
        end = matching_brace(self.text, self.pos)
        if end < 0:
            raise UnparsableError("braces do not balance")
        content = self.text[self.pos + 1 : end].strip()
        self.pos = end + 1
        letters = content.rstrip(". ")
        if name == "\\mathbb" and letters in ("R", "Z", "N", "Q", "C"):
            self.emit("id", f"mathbb_{letters}")
        elif name in vocabulary.TEXT_MACROS and self.after_value() and letters in vocabulary.LETTER_UNITS:
            self.emit("text", letters)
        elif content:
            is_prose = name in vocabulary.TEXT_MACROS or (name == "\\mathrm" and len(letters) > 1)
            self.inline(content, prose=is_prose and self.after_value())
        else:
            self.space = True

    def inline(self, content: str, prose: bool) -> None:
        """Read a group on its own and put braces around it, so that it cannot join its neighbours."""
        if self.level >= MAX_DEPTH:
            raise TooBigError("macros nested too deeply")
        inner = _Tokenizer(content, self.level + 1, prose)
        if self.after_value():
            inner.tokens.append(self.tokens[-1])
        seed = len(inner.tokens)
        tokens = inner.run()[seed:]
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
