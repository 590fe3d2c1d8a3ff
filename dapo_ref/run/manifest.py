"""What makes a checkpoint whole: a list of its files with their sizes and hashes, itself hashed.

A folder without a manifest, or with one that does not fit its files, is broken, whatever else it holds. Files
and folders are flushed to the disk (fsync) before anything relies on them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dapo_ref.run.files import naming, sync

MANIFEST = "manifest.json"
PIECE_BYTES = 2**24

Entry = dict[str, Any]
"""`bytes` and `sha256` of a file."""


class BrokenError(ValueError):
    """A folder that is not what its manifest says; the message says in what."""


class HashingFile:
    """A new file that is hashed while it is written; `close` flushes it to the disk.

    Raises:
        OSError: from `write` and `close`. `torch.save` turns an error of `write` into another, which tells
            less: the first one is kept as `error`.
    """

    def __init__(self, file: Path) -> None:
        self.path = file
        self.error: OSError | None = None
        self._file = file.open("wb")
        self._hash = hashlib.sha256()
        self._bytes = 0

    def write(self, data: Any) -> int:
        """Appends bytes."""
        try:
            with naming(self.path):
                written = self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self._hash.update(data)
        self._bytes += written
        return written

    def flush(self) -> None:
        """Hands what is buffered to the operating system."""
        self._file.flush()

    def close(self) -> Entry:
        """Ends the file; returns its entry in a manifest."""
        with naming(self.path), self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}


def write_text(file: Path, text: str) -> Entry:
    """Writes a new file, flushes it to the disk and returns its entry in a manifest."""
    out = HashingFile(file)
    out.write(text.encode())
    return out.close()


def write_manifest(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Writes the manifest of a folder, whose files are on the disk already.

    Args:
        folder: its names are flushed to the disk too.
        entries: of each file, by its name.
    """
    content = json.dumps({"files": entries}, sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()
    write_text(folder / MANIFEST, json.dumps({"sha256": digest, "content": content}, indent=1))
    sync(folder)


def read_manifest(folder: Path) -> dict[str, Entry]:
    """The entries of a folder's files, by name.

    Raises:
        BrokenError: there is no manifest, or it is damaged itself.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        content = manifest["content"]
        if hashlib.sha256(content.encode()).hexdigest() != manifest["sha256"]:
            raise BrokenError(f"{MANIFEST} is damaged")
        files: dict[str, Entry] = json.loads(content)["files"]
    except FileNotFoundError as error:
        raise BrokenError(f"{MANIFEST} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenError(f"{MANIFEST} is damaged") from error
    return files


def check_file(file: Path, entry: Entry, alive: Callable[[], None] = lambda: None) -> None:
    """Compares a file with its entry.

    Args:
        alive: called with every piece of the file, which may take minutes to read.

    Raises:
        BrokenError: it is missing, has another size, or other contents.
    """
    try:
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise BrokenError(f"{file.name} has {size} bytes instead of {entry['bytes']}")
        found = hashlib.sha256()
        with file.open("rb") as content:
            while piece := content.read(PIECE_BYTES):
                found.update(piece)
                alive()
    except OSError as error:
        raise BrokenError(f"{file.name} cannot be read: {error.strerror}") from error
    if found.hexdigest() != entry["sha256"]:
        raise BrokenError(f"{file.name} does not have the contents that were written")
