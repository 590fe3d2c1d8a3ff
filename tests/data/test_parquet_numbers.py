"""References in a parquet file: the shortest digits of their column's own type, and nothing but numbers."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dapo_ref.data import DataError, load_problems

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NUMBERS = [
    # Python would write these as 0.0999755859375, 0.10000000149011612 and 16777216.0.
    (pa.float16(), 0.1, "0.1"),
    (pa.float32(), 0.1, "0.1"),
    (pa.float32(), 16777216.0, "16777216"),
    (pa.float32(), 3.14159, "3.14159"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), 3.0, "3"),
    (pa.decimal128(10, 3), Decimal("2.500"), "2.5"),
    (pa.decimal128(10, 2), Decimal("100.00"), "100"),
    (pa.int8(), -128, "-128"),
    (pa.int16(), 32767, "32767"),
    (pa.int32(), -5, "-5"),
    (pa.int64(), 2**62, "4611686018427387904"),
    (pa.uint8(), 255, "255"),
    (pa.uint16(), 65535, "65535"),
    (pa.uint32(), 2**32 - 1, "4294967295"),
    (pa.uint64(), 2**64 - 1, "18446744073709551615"),
    (pa.dictionary(pa.int8(), pa.float32()), 0.1, "0.1"),
]


def column(kind: Any, value: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return pa.array([value], type=kind.value_type).dictionary_encode()
    return pa.array([value], type=kind)


def references(path: Path, table: Any) -> list[str]:
    parquet.write_table(table, path)
    problems = load_problems(str(path), prompt_template="{question}")
    return [problem.reference for problem in problems]


@pytest.mark.parametrize(("kind", "value", "expected"), NUMBERS, ids=str)
def test_a_number_has_the_shortest_text_of_its_type(
    tmp_path: Path, kind: Any, value: Any, expected: str
) -> None:
    answers = column(kind, value)
    bare = pa.table({"question": ["1?"], "answer": answers})
    assert references(tmp_path / "bare.parquet", bare) == [expected]
    chat = pa.array([[{"role": "user", "content": "Answer: ?"}]])
    nested = pa.StructArray.from_arrays([answers], names=["ground_truth"])
    verl = pa.table({"prompt": chat, "reward_model": nested})
    assert references(tmp_path / "verl.parquet", verl) == [expected]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), datetime.date(2024, 1, 2)),
        (pa.timestamp("s"), datetime.datetime(2024, 1, 2)),
        (pa.bool_(), True),
        (pa.float32(), float("nan")),
        (pa.float16(), float("inf")),
        (pa.decimal128(5, 2), None),
    ],
    ids=str,
)
def test_what_is_no_number_is_refused_with_its_row(tmp_path: Path, kind: Any, value: Any) -> None:
    table = pa.table({"question": ["1?"], "answer": column(kind, value)})
    with pytest.raises(DataError, match=r"t.parquet:row 1: `answer` (must be|is empty).* number, found"):
        references(tmp_path / "t.parquet", table)
