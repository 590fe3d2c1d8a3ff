"""The ladder's task and start: right text, ways that are told apart, small weights."""

import random
from dataclasses import replace

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo_ref.tiny import MODEL_DIR
from dapo_ref.tiny.make_columns import (
    CROWD,
    LESSON,
    build_tokenizer,
    demonstrate,
    on_the_right_way,
    parse,
    way_of,
)
from dapo_ref.tiny.tasks import COLUMNS, generate

START = MODEL_DIR.parent / "columns"
NO_SLIP = {"slip_guess": 0.0, "slip_brisk": 0.0, "slip_careful": 0.0}


def carries(question: str) -> bool:
    return any(a + b > 9 for a, b in parse(question))


def test_answers_are_sums_and_half_of_the_problems_have_no_carry() -> None:
    problems = generate("columns", "train", 2000, seed=1)
    for problem in problems:
        first, second = problem["question"].removesuffix(" = ?").split(" + ")
        assert int(first) + int(second) == int(problem["answer"])
        assert len(first) == len(second)
        assert len(first) in COLUMNS
    share = sum(carries(problem["question"]) for problem in problems) / 2000
    assert 0.44 < share < 0.56  # 0.5 ± 5 standard deviations


@pytest.mark.parametrize("careful", [0.0, 1.0])
def test_without_a_slip_careful_is_always_right_and_brisk_where_nothing_is_carried(careful: float) -> None:
    crowd = replace(CROWD, careful=dict.fromkeys(COLUMNS, careful), guess=0.0, **NO_SLIP)
    rng = random.Random(0)
    for problem in generate("columns", "train", 300, seed=2):
        response = demonstrate(problem["question"], crowd, rng)
        right = response.splitlines()[-1] == f"Answer: {problem['answer']}"
        assert right == (careful == 1.0 or not carries(problem["question"]))
        assert way_of(response) == ("careful" if careful else "brisk")


def test_a_guess_has_no_column() -> None:
    crowd = replace(CROWD, careful=dict.fromkeys(COLUMNS, 0.0), guess=1.0)
    response = demonstrate("47 + 38 = ?", crowd, random.Random(0))
    assert way_of(response) == "guess"
    assert len(response.splitlines()) == 2  # opening and answer


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("So\n7+8+0=15\n4+3", True),
        ("So\n7+8+0=15\nHmm\n7+8+0=15\nHmm\n", True),
        ("So\n7+8+0=15\n4+3+1=08\nAnswer: 8", True),
        ("So\n7+8+0=14\n4+3", False),  # a slip
        ("So\n7+8+0=15\n4+3+0=07\n", False),  # the carry forgotten
        ("So\n7+8=5\n4+3", False),  # brisk
        ("So\n7+8+0=15\n5+3+1=09\n", False),  # another problem's column
        ("So\n", False),  # nothing yet
    ],
)
def test_on_the_right_way(response: str, expected: bool) -> None:
    assert on_the_right_way("47 + 38 = ?", response) is expected


def test_text_survives_the_tokenizer_and_a_column_is_two_or_three_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(START)
    text = "Let's see\n7+8=5\nHmm\n7+8+0=15\n4+3+1=08\nAnswer: 85"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.unk_token_id not in ids
    assert len(ids) == 1 + 2 + 1 + 3 + 3 + 1 + 2
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()


def test_no_demonstration_has_an_unknown_token() -> None:
    tokenizer = build_tokenizer()
    rng = random.Random(0)
    for problem in generate("columns", "train", 300, seed=3):
        for crowd in (LESSON, CROWD):
            text = problem["question"] + "\n" + demonstrate(problem["question"], crowd, rng)
            assert tokenizer.unk_token_id not in tokenizer.encode(text, add_special_tokens=False)


def test_shipped_start_is_small() -> None:
    assert sum(file.stat().st_size for file in START.iterdir()) < 500_000
    model = AutoModelForCausalLM.from_pretrained(START)
    assert 160_000 < model.num_parameters() < 180_000
