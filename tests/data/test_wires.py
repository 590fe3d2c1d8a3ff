"""`dapo_ref/data/`: what only shows in larger or unusual sources, and what the log and the command say."""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dapo_ref.data import load_data, load_problems
from dapo_ref.data.__main__ import main
from dapo_ref.errors import DataError
from dapo_ref.layout import Layout
from tests.data.test_data import CHAT_TEMPLATE, word_tokenizer
from tests.data.test_layouts import config, sources  # noqa: F401  (a fixture)


def load(source: Any, **changes: Any) -> Any:
    return load_problems(str(source), prompt_template="{question}", **changes)


def test_a_gym_task_is_drawn_from_one_seed_with_room_for_both_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten draws for a problem that is wanted; the sizes of a split that gives none."""
    asked = []

    class Lazy:
        def __getitem__(self, i: int) -> dict[str, str]:
            return {"question": f"{i} + 1?", "answer": str(i + 1)}

    def create_dataset(name: str, **settings: Any) -> Lazy:
        asked.append((name, settings))
        return Lazy()

    monkeypatch.setitem(sys.modules, "reasoning_gym", SimpleNamespace(create_dataset=create_dataset))
    assert len(load("reasoning_gym:sums", check_references=False)) == 5000
    found = load("reasoning_gym:sums:test")
    assert len(found) == 256
    assert found[0].source.startswith("reasoning_gym:sums:test#")
    assert len(load("reasoning_gym:sums:train:3")) == 3
    sizes = (50_000, 2560, 30)
    assert asked == [("sums", {"size": size, "seed": 0}) for size in sizes]


def test_an_array_keeps_the_digits_that_were_written_and_counts_from_one(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(
        '\ufeff[\n{"question": "a", "answer": 0.10},\n{"question": "b", "answer": 2}]', encoding="utf-8"
    )
    assert [(p.reference, p.source) for p in load(file)] == [
        ("0.10", f"{file}:item 1"),
        ("2", f"{file}:item 2"),
    ]
    file.write_text('[\n{"question": "a", "answer": NaN}]', encoding="utf-8")
    with pytest.raises(DataError, match="NaN is not JSON"):
        load(file)


def test_rows_of_parquet_are_counted_over_its_batches_and_other_columns_come_where_they_are_wanted(
    tmp_path: Path,
) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    rows = [{"question": f"q{i}", "answer": i, "worth": 2 * i} for i in range(1030)]
    parquet.write_table(pa.Table.from_pylist(rows), file)
    found = load(file)
    assert [p.source for p in found[1022:1026]] == [f"{file}:row {n}" for n in range(1023, 1027)]
    assert found[7].fields == {}
    assert load(file, layout=Layout(keep_fields=True))[7].fields == {"worth": 14}


@pytest.mark.parametrize(
    ("written", "reference"), [("1e29", "1" + "0" * 29), ("1e30", "1E+30"), ("true", None), ("-0.0", "0")]
)
def test_a_number_of_many_digits_stays_a_power(tmp_path: Path, written: str, reference: str | None) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"question": "q", "answer": {written}}}\n', encoding="utf-8")
    if reference is None:
        with pytest.raises(DataError, match="`answer` must be text or a number, found bool True"):
            load(file)
    else:
        assert load(file)[0].reference == reference


def test_a_table_may_begin_with_a_byte_order_mark_and_hold_long_cells(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"\ufeffquestion,answer\n{'x' * 200_000},1\n", encoding="utf-8")
    (problem,) = load(file)
    assert (len(problem.messages[0]["content"]), problem.source) == (200_000, f"{file}:2")


def test_the_log_has_each_sources_share_of_an_epoch_and_what_was_dropped(
    sources: list[str],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Four of the first and two of the second; weights 1 and 3 make them 4 and 12."""
    caplog.set_level(logging.INFO)
    load_data(config(sources))
    assert f"{sources[0]}: 4 of 6 prompts of an epoch (66.7 %)" in caplog.text
    assert f"{sources[1]}: 1 problems stand in an earlier source, dropped" in caplog.text
    load_data(config(sources, data_weights="1, 3"))
    assert f"{sources[1]}: 12 of 16 prompts of an epoch (75.0 %)" in caplog.text


def test_the_command_reads_columns_and_limit_as_training_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word_tokenizer(bos=True, chat_template=CHAT_TEMPLATE).save_pretrained(tmp_path / "model")
    file = tmp_path / "a.jsonl"
    rows = [{"q": "a b", "r": "so #### 7", "x": 1}, {"q": "c", "r": "#### 8", "x": 2}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    named = ["--question_column=q", "--answer_column=r", "--answer_pattern=#### (.+)", "--show=1"]
    shown = ["--prompt_template={question}", f"--model={tmp_path / 'model'}", "--max_prompt_length=4"]
    assert main([str(file), *named, *shown]) == 0
    output = capsys.readouterr().out
    assert "question: `q`, answer: `r`, picked by '#### (.+)'; `x` only for reward_function\n" in output
    assert f"--- {file}:1, reference 7\n" in output
    assert "1 are longer than max_prompt_length 4: training drops them\n" in output  # 5 and 4 tokens
    assert "--- the same as 5 tokens, special ones in" in output
