"""One bare answer against one reference: from two texts to a status.

The stages, in order: integers, the same text, words, the tree's structure, exact values, sympy. Parsing comes
after the first two. Text decides only where a side is words or cannot be parsed.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from dapo_ref.verifier.clean import clean
from dapo_ref.verifier.compare import Comparison
from dapo_ref.verifier.extract import extract_answer
from dapo_ref.verifier.parse import parse
from dapo_ref.verifier.tree import BRACKETED, Node
from dapo_ref.verifier.verdict import (
    MAX_CHARS,
    NeedsSymbolicError,
    Status,
    TooBigError,
    UndefinedError,
    UnparsableError,
)
from dapo_ref.verifier.vocabulary import NO_SOLUTION, REAL_NUMBERS, SAME_WORDS

_INTEGER = re.compile(r"[+-]?(?:\d+|[1-9]\d{0,2}(?:,\d{3})+)", re.ASCII)
_TEXT_MACRO = re.compile(r"\\(?:text|mbox|mathrm|textbf|textit|textrm|operatorname)\s*\{([^{}\\]*)\}")
_WORDS = re.compile(r"\(?\s*([^\W\d_]+(?:[ '-]+[^\W\d_]+)*)\s*\)?")
_INK = re.compile(r"\\left(?![A-Za-z])|\\right(?![A-Za-z])|\\[,;:! ]|\\displaystyle|\$|\s")
_SPOKEN_SETS: dict[str | None, Node] = {"∅": Node("set", ()), "ℝ": Node("sym", ("mathbb_R",))}


@dataclass
class Decision:
    """A status, the stage that came to it, and the trees on the way."""

    status: Status
    stage: str
    trees: tuple[Node, ...] = ()


def read_integer(text: str) -> int | None:
    """The value of a plain integer of at most 1,000 digits; leading zeros and thousands commas are fine."""
    if len(text) > 1_000:
        return None
    text = text.strip().removeprefix("$").removesuffix("$")
    return int(text.replace(",", "")) if _INTEGER.fullmatch(text) else None


def read_words(text: str) -> str | None:
    """A text that is one word of three letters or more, or several words, without case; else None."""
    match = _WORDS.fullmatch(_TEXT_MACRO.sub(r"\1", text).strip("$. \t\n"))
    if match is None:
        return None
    found = re.sub(r"^(?:an?|the) ", "", " ".join(match[1].casefold().split()))
    for name, spoken in (("∅", NO_SOLUTION), ("ℝ", REAL_NUMBERS)):
        if found.replace(" ", "") in spoken:
            return name
    found = SAME_WORDS.get(found, found)
    return found if len(found) > 2 or found == "no" else None


def spelling(text: str) -> str:
    """The text without what only moves ink: blanks, sizes, dollar signs. Braces and signs stay."""
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    text = " ".join(_INK.sub(" ", text).split())
    return re.sub(r"(?<!\w) | (?!\w)", "", text)


@lru_cache(maxsize=4_096)
def read_reference(reference: str) -> tuple[str, Node | str]:
    """The cleaned text of a reference and its tree, or why it has none; a group shares one reference."""
    text = clean(reference, joined=True)
    try:
        return text, parse(text)
    except (UnparsableError, TooBigError, RecursionError) as error:
        return text, str(error)


def decide(answer: str, reference: str, *, symbolic: bool) -> Decision:
    """Decide on a bare answer, as `extract_answer` returns it: any status but `no_answer` and `timeout`.

    Raises NeedsSymbolicError if only sympy can decide and `symbolic`, leave to run it here, is false.
    """
    value, wanted_value = read_integer(answer), read_integer(reference)
    if value is not None and wanted_value is not None:
        return Decision(Status.CORRECT if value == wanted_value else Status.WRONG, "integers")
    if len(answer) > MAX_CHARS:
        return Decision(Status.TOO_BIG, "length")
    answer = clean(answer)
    if not answer:
        return Decision(Status.UNPARSABLE, "empty")
    wanted, r = read_reference(reference)
    if spelling(answer) == spelling(wanted):
        return Decision(Status.CORRECT, "same text")
    words = read_words(answer), read_words(wanted)
    if None not in words and (words[0] == words[1] or " " in f"{words[0]}{words[1]}"):
        return Decision(Status.CORRECT if words[0] == words[1] else Status.WRONG, "words")
    try:
        a = _SPOKEN_SETS.get(words[0]) or parse(answer)
    except (TooBigError, RecursionError) as error:
        return Decision(Status.TOO_BIG, f"parsing: {error}")
    except UnparsableError as error:
        return Decision(Status.UNPARSABLE, f"parsing: {error}")
    r = _SPOKEN_SETS.get(words[1], r)
    if isinstance(r, str):
        return Decision(Status.WRONG, f"the reference is not in the grammar: {r}", (a,))
    comparison = Comparison(symbolic)
    try:
        status = Status.CORRECT if comparison.same(a, r) else Status.WRONG
    except (TooBigError, RecursionError):  # depth is bounded, but the caller's stack may be nearly used up
        status = Status.TOO_BIG
    except (UnparsableError, UndefinedError):
        status = Status.UNPARSABLE
    several = a.op == "list" and r.op not in BRACKETED | {"list", "set", "cup", "cap"}
    if status is Status.WRONG and several:
        status = Status.MULTIPLE
    return Decision(status, comparison.stage, (a, r))


def compare(answer: str, reference: str, *, symbolic: bool) -> Status:
    """`decide` without the way it went."""
    return decide(answer, reference, symbolic=symbolic).status


def check_reference(reference: str) -> str | None:
    """One line that says why a reference does not verify against itself, bare or on an `Answer:` line; None
    if it does."""
    if read_integer(reference) is not None:
        return None
    if not reference.strip():
        return "the reference is empty"
    status = Status.CORRECT
    try:
        for answer in (reference, extract_answer(f"Answer: {reference}")):
            if status is Status.CORRECT:
                status = compare(answer, reference, symbolic=False) if answer else Status.NO_ANSWER
    except NeedsSymbolicError:
        return "the reference on an `Answer:` line is not recognised as itself"
    if status is Status.CORRECT:
        return None
    return f"the reference {reference[:60]!r} does not verify against itself ({status.value})"
