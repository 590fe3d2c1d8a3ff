"""Files that are whole or not there, whatever happens to the process that writes them.

A file is written beside its final name, flushed to the disk (fsync), and renamed when it is complete.
"""

import contextlib
import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Gives an error of writing the file's name, which Python leaves out."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(file)) from error


def sync(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[IO[str]]:
    """A text file to write, which takes the place of `file` when the block ends without an error.

    A reader finds the old file or the new one, whole.

    Raises:
        OSError: it cannot be written; `file` is as it was.
    """
    partial = file.with_name(file.name + ".tmp")
    with naming(partial), partial.open("w", encoding="utf-8") as out:
        yield out
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)
    sync(file.parent)


class MetricsFile:
    """`metrics.jsonl`, appended a line at a time and safe to cut back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a line and flushes it to the disk.

        Raises:
            OSError: it cannot be written.
        """
        append_lines(self.path, [record])

    def cut_after(self, step: int) -> None:
        """Drops the lines of later steps, and a last line that was not finished."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        with replacing(self.path) as file:
            file.writelines(kept)


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows of JSON and flushes them to the disk.

    Raises:
        OSError: they cannot be written.
    """
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, compressed if its name ends in .gz, that may still be written: a last line that is
    not finished is left out."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    rows = []
    for line in text.split("\n"):
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
