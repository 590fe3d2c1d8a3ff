"""The recipe's rule against a literal transcription of it with regular expressions."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_ref.verifier import Status, recipe_judge
from dapo_ref.verifier.recipe import _DELETED, _REWRITTEN, last_labelled, normalise


def transcription(text: str) -> str:
    """The rule as published, step by step; its tables are shared with the implementation."""
    text = text.split("=")[-1]
    for old, new in [*_REWRITTEN, *((word, "") for word in _DELETED)]:
        text = text.replace(old, new)
    text = re.sub(r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$", text)
    for macro in ("text", "textbf", "overline"):
        text = re.sub(rf"\\{macro}\{{(.*?)\}}", r"\1", text)
    text = re.sub(r"\\boxed\{(.*)\}", r"\1", text)
    text = re.sub(r"(frac)([^{])(.)", r"frac{\2}{\3}", text)
    text = re.sub(r"(sqrt)([^{])", r"sqrt{\2}", text).replace("$", "")
    if text.replace(",", "").isdigit():
        text = text.replace(",", "")
    return text.strip()


PIECES = [
    "\\frac",
    "\\sqrt",
    "{",
    "}",
    "$",
    "1",
    "23",
    ",",
    " ",
    "=",
    "\\text{",
    "\\textbf{",
    "\\boxed{",
    "cm",
    "a ",
    "\\overline{",
    "x",
    ".",
]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_normalise_matches_the_transcription(text: str) -> None:
    assert normalise(text) == transcription(text)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["Answer", "answer:", ":", " ", "\n", "5", "ANSWER :"]), max_size=20).map(
        "".join
    )
)
def test_last_label_matches_the_transcription(text: str) -> None:
    found = re.findall(r"(?i)answer\s*:\s*([^\n]+)", text)
    assert last_labelled(text) == (found[-1] if found else "[INVALID]")


@pytest.mark.parametrize(
    ("response", "reference", "status"),
    [
        ("Answer: 25", "25", Status.CORRECT),
        ("Answer: x = 25 cm", "25", Status.CORRECT),
        ("Answer: 1,234", "1234", Status.CORRECT),
        ("Answer: 025", "25", Status.WRONG),  # what our own rule accepts and the recipe does not
        ("Answer: 25.0", "25", Status.WRONG),
        ("so \\boxed{25}", "25", Status.NO_ANSWER),
        ("Answer: 1 2", "12", Status.CORRECT),  # … and the other way round
        ("Answer: 1, 2", "12", Status.CORRECT),
        ("Answer: 24 = 25", "25", Status.CORRECT),
        ("Answer: $25$ or $26$", "25", Status.CORRECT),
        ("Answer: \\frac{50}{2}", "25", Status.WRONG),
        ("Answer: 5^2", "25", Status.WRONG),
        ("Answer: 25\n" + "x" * 300, "25", Status.NO_ANSWER),
    ],
)
def test_recipe(response: str, reference: str, status: Status) -> None:
    assert recipe_judge(response, reference).status is status
