"""`python -m dapo_ref.data`: what it says of columns, rows that fall out, references, lengths and overlap."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from dapo_ref.data import Problem, load_problems
from dapo_ref.data.__main__ import main
from dapo_ref.data.problems import is_sentence
from dapo_ref.data.survey import histogram, overlap, visible
from tests.support.helpers import char_tokenizer

ROWS = [
    {"q": "What is 1 + 1?", "r": "so #### 2", "level": 3},
    {"q": "What is 1 + 1?", "r": "thus #### 2", "level": 4},
    {"q": "Where?", "r": "#### the cat sat on the mat", "level": 1},
    {"q": "no mark", "r": "5", "level": 1},
    {"q": "", "r": "#### 5", "level": 1},
    {"q": "no mark either", "r": "6", "level": 1},
    {"q": "too big", "r": "#### " + "7" * 3000, "level": 1},
]
ARGUMENTS = ["--question_column", "q", "--answer_column", "r", "--answer_pattern", "#### (.+)"]


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def test_the_survey_says_what_became_of_each_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.jsonl", ROWS)
    assert main([file, *ARGUMENTS]) == 1  # a reference that does not verify
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{file}: 7 rows, 1 repeats dropped, 3 problems"
    assert f"1 rows fall out: `q` is empty ({file}:5)" in lines
    assert f"2 rows fall out: answer_pattern '#### (.+)' matches nothing ({file}:4, {file}:6)" in lines
    assert "2 references verify against themselves" in lines
    (refused,) = [line for line in lines if "no response could be right" in line]
    assert refused.startswith("1 references do not")
    assert f"{file}:7" in refused
    (prose,) = [line for line in lines if "look like sentences" in line]
    assert prose.startswith("1 ")
    assert "the cat sat on the mat" in prose
    assert "question: `q`, answer: `r`, picked by '#### (.+)'; `level` only for reward_function" in lines


def test_what_can_be_used_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence stays: the verifier can compare it."""
    out = tmp_path / "out.jsonl"
    main([write(tmp_path / "a.jsonl", ROWS), *ARGUMENTS, "--convert", str(out)])
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"level": 3, "question": "What is 1 + 1?", "answer": "2"},
        {"level": 1, "question": "Where?", "answer": "the cat sat on the mat"},
    ]
    assert f"{out}: 2 problems written" in capsys.readouterr().out
    assert main([str(out)]) == 0
    assert main([str(out), "--convert", str(tmp_path / "no" / "out.jsonl")]) == 1


def test_chat_data_are_converted_as_chat_data(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u Answer:"}]
    row = {"prompt": messages, "reward_model": {"ground_truth": "2"}, "ability": "math"}
    out = tmp_path / "out.jsonl"
    assert main([write(tmp_path / "a.jsonl", [row, row]), "--convert", str(out)]) == 0
    assert json.loads(out.read_text(encoding="utf-8")) == row


def test_problems_of_an_evaluation_file_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write(
        tmp_path / "a.jsonl", [{"question": q, "answer": 1} for q in ("One,  two?", "three", "four")]
    )
    held_out = write(
        tmp_path / "b.jsonl", [{"problem": q, "answer": 1} for q in ("one two", "Three.", "five")]
    )
    assert main([train, "--against", held_out]) == 0
    assert f"2 problems stand in {held_out}, too: {train}:1, {train}:2" in capsys.readouterr().out


def test_all_rows_unusable_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.jsonl", [{"question": "q", "answer": ""}])
    assert main([file]) == 1
    assert capsys.readouterr().err.startswith(f"error: {file}:1: `answer` is empty")


def test_a_histogram_counts_each_length_once() -> None:
    """Longest 19: ten bins of two."""
    lines = list(histogram([0, 1, 2, 19, 19], 18, "tokens"))
    assert lines[0] == "prompt tokens: median 2, longest 19"
    counts = [int(line.split()[1]) for line in lines[1:-1]]
    assert counts == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert lines[1].endswith("█" * 40)
    assert lines[2].count("█") == 20
    assert lines[-1] == "2 are longer than max_prompt_length 18: training drops them"
    assert len(list(histogram([3], 3, "tokens"))) == 1 + 4


def test_special_tokens_and_line_ends_are_visible() -> None:
    problem = Problem(({"role": "user", "content": "a \nb"},), "1", "test#0")
    assert visible(problem, char_tokenizer()) == "⟦<|bos|>⟧a \\n\nb\\n\n"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("Natalia sold half as many clips in May", True),
        ("the cat sat on the mat", True),
        (r"x \in \mathbb{R} \text{ and } y > 2", False),
        ("no real solutions", False),
        ("3 apples and 4 pears", False),
        ("42", False),
    ],
)
def test_prose_is_five_words_in_a_row(reference: str, expected: bool) -> None:
    assert is_sentence(reference) == expected


def test_training_warns_of_sentences(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "a.jsonl", [{"question": "q", "answer": "the cat sat on the mat"}])
    with caplog.at_level(logging.WARNING):
        load_problems(file, prompt_template="{question}")
    assert "1 references look like sentences" in caplog.text


def test_overlap_looks_at_the_question(tmp_path: Path) -> None:
    def problem(text: str) -> Problem:
        return Problem(({"role": "user", "content": text},), "1", text)

    assert overlap([problem("A b"), problem("c")], [problem("a, B!")]) == [problem("A b")]
