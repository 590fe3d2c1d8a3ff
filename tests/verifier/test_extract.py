"""Which text is taken as the answer: precedence, wrapping, bounds; values follow the stated order."""

import pytest

from dapo_ref.verifier import extract_answer
from dapo_ref.verifier.clean import clean, find_boxes
from dapo_ref.verifier.extract import TAIL_CHARS


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Answer: 1\nAnswer: 2", "2"),  # the last label
        ("\\boxed{1}\nAnswer: 2", "2"),  # a label before a box
        ("Answer: 1\n\\boxed{2}", "1, 2"),  # a box after the label that says something else
        ("Answer: 1\n\\boxed{1}", "1"),
        ("Answer: 1\n\nWait, it should be 2.", None),  # taken back
        ("\\boxed{1} and, in the other case, \\boxed{2}", "1, 2"),
        ("\\boxed{1}, so the answer is \\boxed{2}", "2"),
        ("Answer:\n\nnothing here \\boxed{3}", "3"),  # the value may stand on the next line
        ("The answer is 1. \\boxed{2}", "2"),  # a box before a phrase
        ("<answer>4</answer> the answer is 5", "4"),  # a tag before a phrase
        ("the answer is 5\n\nso **6**", "5"),  # a phrase before bold
        ("\\fbox{1} or perhaps \\boxed{2}", "2"),
        ("\\fbox{1}", "1"),
        ("\\boxed{outer {inner} \\} rest}", "outer {inner} \\} rest"),
        ("\\boxed{1} then \\boxed{never closed", "1"),
        ("\\boxed 5 apples", "5"),
        ("\\boxed{1} and \\boxed{2}", "1, 2"),
        ("\\boxed{1}. Therefore it is \\boxed{2}", "2"),
        ("**Answer:** $\\frac{1}{2}$", "$\\frac{1}{2}$"),
        ("最终答案：12", "12"),
        ("Answer: 3<|im_end|>\nAnswer: 4", "3"),
        ("<think>Answer: 3</think> It is \\boxed{4}", "4"),
        ("Answer: 7. I hope it is correct.", "7"),
        ("We saw 5, 6 and 7", None),
        ("", None),
        ("Answer:", None),
        ('Put it after "Answer:".', None),
        ("\\boxed{}", None),
    ],
)
def test_marked_text(response: str, expected: str | None) -> None:
    assert extract_answer(response) == expected


def test_box_is_ignored_when_configured() -> None:
    assert extract_answer("so \\boxed{5}", boxed=False) is None
    assert (
        extract_answer("Answer: \\boxed{5}", boxed=False) == "5"
    )  # a box inside the label's value is unwrapped


def test_only_the_first_end_of_turn_counts_and_it_is_configurable() -> None:
    response = "Answer: 1</s>Answer: 2<STOP>Answer: 3"
    assert extract_answer(response) == "1"
    assert extract_answer("Answer: 1\nAnswer: 2<STOP>Answer: 3", end_of_turn=("<STOP>",)) == "2"
    assert extract_answer(response, end_of_turn=()) == "3"


def test_tail_is_bounded() -> None:
    filler = "x " * TAIL_CHARS
    assert extract_answer("Answer: 5\n" + filler) is None
    assert extract_answer(filler + "\nAnswer: 5") == "5"


def test_long_label_prefix_is_not_a_line_start() -> None:
    """`answer:` in the middle of a sentence is not a label, however the window before it is cut."""
    assert extract_answer("word " * 40 + "answer: 5") is None


def test_multi_line_display() -> None:
    response = "Answer:\n\\[\n\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}\n\\]\nDone."
    assert extract_answer(response) == "\\[\n\\begin{pmatrix} 1 \\\\\n 2 \\end{pmatrix}\n\\]"


def test_find_boxes_skips_inner_and_unbalanced() -> None:
    text = "\\boxed{a\\boxed{b}} \\boxed{c"
    assert find_boxes(text) == [(0, 18, "a\\boxed{b}")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The area is 25", "25"),
        ("it is not 25", "not 25"),
        ("25 is wrong, it is 26", "25 is wrong, it is 26"),
        ("25 (since 3 + 4 = 7)", "25"),
        ("25 (or 26)", "25 (or 26)"),
        ("25 (actually 26)", "25 (actually 26)"),
        ("x \\equiv 2 (mod 7)", "x \\equiv 2 (mod 7)"),
        ("25. It is not 26.", "25. It is not 26"),  # a second sentence with a number stays, to be refused
        ("about 25", "25"),
        ("25, in total, so that is all", "25"),
        ("25, which is not 26", "25, which is not 26"),
        ("25, at least", "25, at least"),
        ("\\boxed{24}\\boxed{25}", "24, 25"),
        ("25...", "25..."),
        ("25.", "25"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected
    assert clean(clean(text)) == expected  # an answer is cleaned again when it is compared
