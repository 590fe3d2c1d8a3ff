"""Where problems come from: files, generated tasks, optional packages. Each is read as rows with an address.

Files are JSONL, a JSON array, CSV (a first line of names), TSV or parquet.

A row is a dictionary as the source holds it; `problems.py` decides which of its keys are question and answer.
Its address is what an error message names: `sums.jsonl:12` (line 12), `sums.parquet:row 12`
(counted from 1), `tiny:train#12` (counted from 0).
"""

import csv
import difflib
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dapo_ref.errors import DataError
from dapo_ref.layout import DEFAULT, Layout, has_column

Row = dict[str, Any]


class Addressed(NamedTuple):
    """A row and the place an error message names for it."""

    address: str
    row: Row


# As many problems as a generated task has, up to these; `:COUNT` asks for another number.
_GENERATED = {"train": 20_000, "test": 256}
_GYM = {"train": 5_000, "test": 256}  # some of its tasks take a fifth of a second a problem
_GYM_DRAWS = 10  # at most so many draws for a problem of the wanted split
_GENERATOR_SEED = 0  # not the run's seed: runs that differ in their seed share their data

_TASK_NAME = re.compile(r"(?P<name>\w+):(?P<split>train|test)(:(?P<count>[1-9]\d{0,6}))?")
_SOURCE_NAME = re.compile(r"(?P<name>\w+):(?P<rest>.*)", re.DOTALL)
_GYM_NAME = re.compile(r"(?P<name>\w+?)(:(?P<split>train|test))?(:(?P<count>[1-9]\d{0,6}))?")
_HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(:(?P<config>[\w.-]+)(?=:))?(:(?P<split>[\w.-]+))?")
_FILE_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".txt", ".gz", ".zip")

_COLUMNS = ("question", "problem", "answer", "prompt", "reward_model")
EXPECTED = (
    "expected `question` or `problem` beside `answer`, "
    "or verl's `prompt` (a chat list) beside `reward_model` (with `ground_truth`); "
    "question_column and answer_column name others"
)


def read_rows(source: str, layout: Layout = DEFAULT) -> Iterator[Addressed]:
    """Reads a source row by row; a file is never held in memory as a whole.

    Args:
        source: a JSONL, JSON, CSV, TSV or parquet file; `NAME:REST` for a row of `SOURCES`;
            `TASK:SPLIT[:COUNT]` of `dapo_ref.tiny.tasks`; `org/name[[:CONFIG]:SPLIT]` of the hub. A name that
            exists as a file is a file.
        layout: how rows are read; columns that are not needed may be left out.

    Returns:
        The rows in order, each with its address.

    Raises:
        DataError: the source does not exist, cannot be read, or needs a package that is not installed.
    """
    if Path(source).exists():
        return _file_rows(Path(source), layout)
    named = _SOURCE_NAME.fullmatch(source)
    if named and named["name"] in SOURCES:
        return SOURCES[named["name"]](named["rest"])
    if match := _TASK_NAME.fullmatch(source):
        known_split: Any = match["split"]  # train or test, says the pattern
        return _generated_rows(match["name"], known_split, match["count"])
    if (match := _HUB_NAME.fullmatch(source)) and not source.endswith(_FILE_SUFFIXES):
        return _hub_rows(match["name"], match["config"], match["split"] or "train", layout)
    raise DataError(
        f"{source}: no such file; data is a JSONL, JSON, CSV or parquet file, a generated TASK:SPLIT "
        "(train or test) such as tiny:train, reasoning_gym:TASK:SPLIT, or a hub name org/name"
    )


def require_layout(columns: list[str], where: str, layout: Layout = DEFAULT) -> None:
    """Raises DataError unless the columns are those of the layout, by default of a bare question or of verl's
    chat format."""
    layout = layout.of(columns)
    if layout.named:
        for path in (layout.question, layout.answer or "answer"):
            if path and not has_column(columns, path):
                raise DataError(f"{where}: no column `{path}` among {_listed(columns)}")
        return
    bare = ("question" in columns or "problem" in columns) and "answer" in columns
    chat = "prompt" in columns and "reward_model" in columns
    if not bare and not chat:
        raise DataError(f"{where}: no question and answer among {_listed(columns)}; {EXPECTED}")


def _listed(columns: list[str]) -> str:
    return ", ".join(f"`{column}`" for column in columns) or "no keys"


# ------------------------------------------------------------------------------------------------------------
# Files


def _file_rows(path: Path, layout: Layout) -> Iterator[Addressed]:
    try:
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; give a JSONL or parquet file") from error
    if is_parquet or path.suffix == ".parquet":
        return _parquet_rows(path, layout)
    if path.suffix in _DELIMITERS:
        return _csv_rows(path)
    return _json_rows(path) if _is_array(path) else _jsonl_rows(path)


_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def _csv_rows(path: Path) -> Iterator[Addressed]:
    """A table whose first line has the names of its columns; all cells are text."""
    csv.field_size_limit(1 << 27)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, delimiter=_DELIMITERS[path.suffix], strict=True)
            names = next(lines, [])
            for cells in lines:
                if len(cells) != len(names) and cells:
                    raise DataError(
                        f"{path}:{lines.line_num}: {len(cells)} cells below {len(names)} names of columns"
                    )
                if cells:
                    yield Addressed(f"{path}:{lines.line_num}", dict(zip(names, cells, strict=True)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a table: {_one_line(error)}") from error


def _is_array(path: Path) -> bool:
    """Whether a file begins with a bracket and its first line alone is no JSON: an array over lines, or one
    of objects."""
    with path.open("rb") as file:
        first = next((line.strip() for line in file if line.strip(b"\xef\xbb\xbf \t\r\n")), b"")
    first = first.removeprefix(b"\xef\xbb\xbf")
    return first[:1] == b"[" and first[1:].lstrip()[:1] in (b"", b"{")


def _json_rows(path: Path) -> Iterator[Addressed]:
    """One array of objects; it is held in memory as a whole."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a JSON array: {_one_line(error)}") from error
    for number, row in enumerate(rows, start=1):
        address = f"{path}:item {number}"
        if not isinstance(row, dict):
            raise DataError(f"{address}: expected a JSON object, found {type(row).__name__}")
        yield Addressed(address, row)


def _jsonl_rows(path: Path) -> Iterator[Addressed]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                address = f"{path}:{number}"
                yield Addressed(address, _json_object(line.rstrip(), address))


def _json_object(line: bytes, address: str) -> Row:
    try:
        row = json.loads(
            line.decode("utf-8-sig"), parse_float=Decimal, parse_constant=_refuse_constant
        )  # Decimal: a reference keeps the digits that were written
    except UnicodeDecodeError as error:
        raise DataError(
            f"{address}: not UTF-8 text ({error.reason}); expected one JSON object a line"
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{address}: broken JSON: {error.msg} (column {error.colno}); expected one JSON object a line, "
            f"found {_start(line)}"
        ) from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, NaN, [[[[…
        raise DataError(f"{address}: broken JSON: {error}; expected one JSON object a line") from error
    if not isinstance(row, dict):
        raise DataError(f"{address}: expected one JSON object a line, found {type(row).__name__}")
    return row


def _start(line: bytes) -> str:
    """How a line begins: a table, or a list over several lines, is known by it."""
    text = line.decode("utf-8-sig", errors="replace")
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parquet_rows(path: Path, layout: Layout) -> Iterator[Addressed]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{path}: reading parquet needs pyarrow: `pip install pyarrow`, or convert the file to JSONL"
        ) from error
    try:
        file = parquet.ParquetFile(path)
        columns = file.schema_arrow.names
        require_layout(columns, str(path), layout)
        number = 0
        wanted = [c for c in columns if c in _COLUMNS or layout.keep_fields or layout.named]
        for batch in file.iter_batches(batch_size=1024, columns=wanted):
            kinds = {field.name: field.type for field in batch.schema}
            for row in batch.to_pylist():
                number += 1
                yield Addressed(f"{path}:row {number}", {key: _exact(row[key], kinds[key]) for key in row})
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as parquet: {_one_line(error)}") from error


def _exact(value: Any, kind: Any) -> Any:
    """A cell with the digits of its column's type: a float32 0.1 is 0.1, not the 0.10000000149 that Python
    makes of it.

    Args:
        kind: pyarrow's type of the cell.
    """
    from pyarrow import types

    if types.is_struct(kind) and value is not None:
        return {field.name: _exact(value[field.name], field.type) for field in kind}
    if isinstance(value, float | np.floating) and (types.is_float16(kind) or types.is_float32(kind)):
        narrow = np.float16 if types.is_float16(kind) else np.float32
        return Decimal(str(narrow(value)))
    return value.normalize() if isinstance(value, Decimal) and value.is_finite() else value


# ------------------------------------------------------------------------------------------------------------
# Generators and packages


def _generated_rows(task: str, split: Literal["train", "test"], count: str | None) -> Iterator[Addressed]:
    from dapo_ref.tiny import tasks

    source = f"{task}:{split}"
    if task not in tasks.TASKS:
        known = sorted({*tasks.TASKS, *SOURCES})
        nearest = difflib.get_close_matches(task, known, n=1, cutoff=0.0)[0]
        raise DataError(
            f"{source}: no such file, and no generated task or source {task!r}; did you mean {nearest!r}? "
            f"(there are: {', '.join(known)})"
        )

    def generate(number: int) -> list[dict[str, str]]:
        return tasks.generate(task, split, number, _GENERATOR_SEED)

    try:
        rows = generate(int(count)) if count else _up_to(_GENERATED[split], generate)
    except ValueError as error:
        raise DataError(f"{source}:{count}: {error}; ask for fewer") from error
    return (Addressed(f"{source}#{index}", dict(row)) for index, row in enumerate(rows))


def _up_to(count: int, generate: Callable[[int], list[dict[str, str]]]) -> list[dict[str, str]]:
    """The first `count` problems, or all of a task that has fewer: `generate` raises beyond them."""
    low, high = 0, count + 1  # generate(low) works, generate(high) does not or is not wanted
    rows: list[dict[str, str]] = []
    attempt = count
    while high - low > 1:
        try:
            rows, low = generate(attempt), attempt
        except ValueError:
            high = attempt
        attempt = (low + high) // 2
    return rows


def _reasoning_gym_rows(rest: str) -> Iterator[Addressed]:
    """`TASK[:SPLIT[:COUNT]]`. The splits are disjoint: as in `dapo_ref.tiny`, a hash of the question
    decides."""
    match = _GYM_NAME.fullmatch(rest)
    if match is None:
        raise DataError(f"reasoning_gym:{rest}: expected reasoning_gym:TASK[:train|test[:COUNT]]")
    task, split = match["name"], match["split"] or "train"
    count = int(match["count"] or _GYM[split])
    source = f"reasoning_gym:{task}"
    try:
        import reasoning_gym
    except ImportError as error:
        raise DataError(f"{source}: this source needs a package: `pip install reasoning-gym`") from error
    from dapo_ref.tiny.tasks import split_of

    try:
        entries = reasoning_gym.create_dataset(task, size=_GYM_DRAWS * count, seed=_GENERATOR_SEED)
    except ValueError as error:
        raise DataError(f"{source}: {_one_line(error)}") from error
    drawn = (Addressed(f"{source}:{split}#{i}", entries[i]) for i in range(_GYM_DRAWS * count))
    return islice((entry for entry in drawn if split_of(entry.row["question"]) == split), count)


def _hub_rows(name: str, config: str | None, split: str, layout: Layout) -> Iterator[Addressed]:
    source = ":".join(part for part in (name, config, split) if part)
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{name}: no such file; to read it as a data set of the hub, `pip install datasets`, "
            "or download its JSONL or parquet file and give that"
        ) from error
    try:
        named = [config] if config else []
        table = datasets.load_dataset(name, *named, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"{source}: no such file, and not to be had from the hub ({_one_line(error)}); check name, split "
            "and network, or download its JSONL or parquet file and give that"
        ) from error
    require_layout(table.column_names, source, layout)
    return (Addressed(f"{source}:row {number}", row) for number, row in enumerate(table, start=1))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


Source = Callable[[str], Iterator[Addressed]]
"""(what stands after `NAME:` in `data`) → rows with keys `question` and `answer`, each with its address."""

SOURCES: dict[str, Source] = {"reasoning_gym": _reasoning_gym_rows}
"""To train on data of another kind, add a function and a row; `data: NAME:REST` calls it. See
docs/extending.md."""
