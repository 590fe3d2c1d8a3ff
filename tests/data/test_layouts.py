"""Data as it is: named columns, a pattern, tables and arrays, several sources with weights."""

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dapo_ref.config import Config, load_config
from dapo_ref.data import load_data, load_problems
from dapo_ref.data.mixture import split_sources
from dapo_ref.data.problems import value_at
from dapo_ref.errors import ConfigError, DataError
from dapo_ref.layout import Layout

GSM = {"task": {"q": "How many?", "tags": ["x"]}, "solution": "9 * 2 = 18 #### 1\n#### 18"}
GSM_LAYOUT = Layout(question="task.q", answer="solution", pattern=r"#### (.+)")


def write(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    return str(file)


def pairs(source: str, layout: Layout = GSM_LAYOUT) -> list[tuple[str, str]]:
    problems = load_problems(source, prompt_template="{question}", layout=layout)
    return [(p.messages[-1]["content"], p.reference) for p in problems]


def refusal(source: str, layout: Layout = GSM_LAYOUT) -> str:
    with pytest.raises(DataError) as error:
        pairs(source, layout)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("a", 1), ("b.c", 2), ("b.d.1", 4), ("e.f", 5)),
        *(("b.d.7", None), ("a.x", None), ("no", None), ("b.no.x", None)),
    ],
)
def test_a_path_leads_to_a_field(path: str, value: Any) -> None:
    assert value_at({"a": 1, "b": {"c": 2, "d": [3, 4]}, "e.f": 5}, path) == value


def test_named_columns_and_the_last_match_of_the_pattern(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", json.dumps(GSM) + "\n")
    assert pairs(file) == [("How many?", "18")]


def test_only_the_answer_may_be_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"problem": "p", "solution": "2"}\n')
    assert pairs(file, Layout(answer="solution")) == [("p", "2")]


def test_only_the_pattern_may_be_given_also_for_chat_data(tmp_path: Path) -> None:
    chat = {"prompt": [{"role": "user", "content": "c"}], "reward_model": {"ground_truth": "so #### 3"}}
    rows = [{"question": "q", "answer": "so #### 2"}, chat]
    file = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert pairs(file, Layout(pattern="#### (.+)")) == [("q", "2"), ("c", "3")]


def test_a_named_question_may_be_chat_messages(tmp_path: Path) -> None:
    row = {"turns": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "answer": 4}
    file = write(tmp_path / "a.jsonl", json.dumps(row) + "\n")
    (problem,) = load_problems(file, prompt_template="T {question}", layout=Layout(question="turns"))
    assert [m["content"] for m in problem.messages] == ["s", "u"]


def test_the_other_fields_leave_out_both_columns(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", json.dumps(GSM | {"level": 3}) + "\n")
    layout = dataclasses.replace(GSM_LAYOUT, keep_fields=True)
    (problem,) = load_problems(file, prompt_template="{question}", layout=layout)
    assert problem.fields == {"level": 3}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GSM | {"solution": "18"}, "a.jsonl:1: answer_pattern '#### (.+)' matches nothing in str '18'"),
        ({"task": {}, "solution": "#### 1"}, "a.jsonl:1: `task.q` is missing"),
        ({"q": 1, "solution": "#### 1"}, "a.jsonl:1: no column `task.q` among `q`, `solution`"),
        ({"task": {"q": "?"}, "answer": "1"}, "a.jsonl:1: no column `solution` among `task`, `answer`"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    assert message in refusal(write(tmp_path / "a.jsonl", json.dumps(row) + "\n"))


def test_a_source_beside_the_data_may_have_a_known_layout(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"question": "q", "answer": "2"}\n')
    assert "no column `task.q`" in refusal(file)
    assert pairs(file, dataclasses.replace(GSM_LAYOUT, optional=True)) == [("q", "2")]


def test_csv_and_tsv_with_quotes_and_lines_in_cells(tmp_path: Path) -> None:
    table = '\ufeffquestion,answer,note\n"a, ""b""\nc",1,x\n\nd,2,\n'
    file = write(tmp_path / "a.csv", table)
    assert pairs(file, Layout()) == [('a, "b"\nc', "1"), ("d", "2")]
    (first, second) = load_problems(file, prompt_template="{question}")
    assert (first.source, second.source) == (f"{file}:3", f"{file}:5")
    assert pairs(write(tmp_path / "a.tsv", "problem\tanswer\nx, y\t3\n"), Layout()) == [("x, y", "3")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\nq\n", "a.csv:2: 1 cells below 2 names of columns"),
        ("question,answer\nq,\n", "a.csv:2: `answer` is empty"),
        ("question,reply\nq,1\n", "a.csv:2: no question and answer among `question`, `reply`"),
        ('question,answer\n"q,1\n', "a.csv: cannot be read as a table"),
        ("question,answer\n", "no problems: the data set is empty"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(write(tmp_path / "a.csv", text), Layout())


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_read_like_lines(tmp_path: Path, indent: int | None) -> None:
    rows = [{"question": "a", "answer": 0.1}, {"question": "b", "answer": 2}]
    file = write(tmp_path / "a.json", "\ufeff" + json.dumps(rows, indent=indent))
    assert pairs(file, Layout()) == [("a", "0.1"), ("b", "2")]
    assert load_problems(file, prompt_template="{question}")[1].source == f"{file}:item 2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"question": "a",\n]', "a.json: not a JSON array: "),
        ('[\n{"question": "a", "answer": 1},\n3]', "a.json:item 2: expected a JSON object, found int"),
    ],
)
def test_a_broken_array_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(write(tmp_path / "a.json", text), Layout())


def test_parquet_with_nested_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    parquet.write_table(pa.Table.from_pylist([GSM]), file)
    assert pairs(str(file)) == [("How many?", "18")]


def test_a_hub_name_has_configuration_and_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Table(list[dict[str, Any]]):
        column_names = ("question", "answer")

    def load_dataset(*names: str, split: str) -> Table:
        asked.append((*names, split))
        return Table([{"question": "q", "answer": "#### 2"}])

    errors = SimpleNamespace(DatasetsError=RuntimeError)
    stub = SimpleNamespace(load_dataset=load_dataset, exceptions=errors)
    monkeypatch.setitem(sys.modules, "datasets", stub)
    for name in ("openai/gsm8k:main:test", "openai/gsm8k:test", "openai/gsm8k"):
        pairs(name, Layout(pattern="#### (.+)"))
    assert asked == [
        ("openai/gsm8k", "main", "test"),
        ("openai/gsm8k", "test"),
        ("openai/gsm8k", "train"),
    ]


# ------------------------------------------------------------------------------------------------------------
# Several sources


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Four problems, of which one stands in the other file too, and two in another layout."""
    first = "".join(f'{{"question": "a{i}", "answer": {i}}}\n' for i in range(4))
    second = "".join(f'{{"q": "{q}", "r": 1}}\n' for q in ("b0", "b1", "a0"))
    return [write(tmp_path / "a.jsonl", first), write(tmp_path / "b.jsonl", second)]


def config(sources: list[str], **changes: Any) -> Config:
    named = {"question_column": "q", "answer_column": "r", "prompt_template": "{question}"}
    return Config(data=", ".join(sources), **(named | changes))


def test_sources_follow_one_another_without_repeats(sources: list[str]) -> None:
    found = [p.messages[0]["content"] for p in load_data(config(sources))]
    assert found == ["a0", "a1", "a2", "a3", "b0", "b1"]


@pytest.mark.parametrize(
    ("weights", "counts"),
    [("1, 1", (4, 4)), ("1,3", (4, 12)), ("4, 1", (8, 2)), ("2, 1.5", (4, 3))],
)  # fmt: skip
def test_weights_are_shares_of_an_epoch(sources: list[str], weights: str, counts: tuple[int, int]) -> None:
    """Four of a and two of b: the larger for its weight stands there once, the other as often as it takes."""
    found = Counter(p.messages[0]["content"] for p in load_data(config(sources, data_weights=weights)))
    a, b = (sum(n for q, n in found.items() if q[0] == letter) for letter in "ab")
    assert (a, b) == counts
    assert len(found) == 6
    assert (
        max(n for q, n in found.items() if q[0] == "b") - min(n for q, n in found.items() if q[0] == "b") <= 1
    )


@pytest.mark.parametrize("weights", ["1", "1, 2, 3", "0, 1"])
def test_weights_that_do_not_fit_are_refused(sources: list[str], weights: str) -> None:
    with pytest.raises(ConfigError, match="data_weights needs a number above 0 for each of the 2 sources"):
        load_data(config(sources, data_weights=weights))


def test_a_run_picks_its_answers_by_the_pattern(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"q": "a", "r": "2 + 2 #### 4"}\n')
    assert [p.reference for p in load_data(config([file], answer_pattern="#### (.+)"))] == ["4"]


def test_a_source_that_adds_nothing_is_refused(sources: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"all problems of .*a\.jsonl stand in an earlier source"):
        load_data(config([sources[0], sources[0]]))


def test_a_file_with_a_comma_in_its_name_is_one_source(tmp_path: Path) -> None:
    file = write(tmp_path / "a, b.jsonl", '{"question": "q", "answer": "2"}\n')
    assert split_sources(file) == [file]
    assert split_sources("a.jsonl, b.parquet") == ["a.jsonl", "b.parquet"]


def test_lists_of_a_file_are_sources_and_weights(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "data: [a.jsonl, b.parquet]\ndata_weights: [1, 0.5]\n")
    found = load_config(["--config", file])
    assert (found.data, found.data_weights) == ("a.jsonl, b.parquet", "1, 0.5")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"answer_pattern": "####"}, "answer_pattern must be a regular expression with one group"),
        ({"answer_pattern": "(a)(b)"}, "one group"),
        ({"answer_pattern": "(a"}, "one group"),
        ({"data_weights": "1;2"}, "data_weights must be numbers with commas"),
        ({"data_weights": "-1"}, "data_weights must be numbers"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**values)
