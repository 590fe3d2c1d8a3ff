"""`dapo_ref/run/manifest.py`: any change to a file is seen, and a file is replaced in one step."""

import errno
import os

import pytest

from dapo_ref.run.files import naming, replacing
from dapo_ref.run.manifest import (
    MANIFEST,
    BrokenError,
    HashingFile,
    check_file,
    read_manifest,
    write_manifest,
    write_text,
)

CONTENT = "some weights\n" * 100


def whole_folder(folder):
    entries = {"a.pt": write_text(folder / "a.pt", CONTENT), "b.json": write_text(folder / "b.json", "{}")}
    write_manifest(folder, entries)
    return folder


def check(folder):
    for name, entry in read_manifest(folder).items():
        check_file(folder / name, entry)


def flipped(data, position):
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_a_whole_folder_passes(tmp_path):
    check(whole_folder(tmp_path))
    assert read_manifest(tmp_path)["b.json"]["bytes"] == 2


@pytest.mark.parametrize("position", [0, 650, -1])
def test_a_flipped_bit_is_seen(tmp_path, position):
    file = whole_folder(tmp_path) / "a.pt"
    data = file.read_bytes()
    file.write_bytes(flipped(data, position % len(data)))
    with pytest.raises(BrokenError, match=r"a\.pt does not have the contents that were written"):
        check(tmp_path)


@pytest.mark.parametrize("size", [0, 1, len(CONTENT) - 1])
def test_a_file_of_another_size_is_seen(tmp_path, size):
    os.truncate(whole_folder(tmp_path) / "a.pt", size)
    with pytest.raises(BrokenError, match=rf"a\.pt has {size} bytes instead of {len(CONTENT)}"):
        check(tmp_path)


def test_a_missing_file_is_seen(tmp_path):
    (whole_folder(tmp_path) / "b.json").unlink()
    with pytest.raises(BrokenError, match=r"b\.json cannot be read: No such file"):
        check(tmp_path)


def test_a_folder_without_manifest_is_broken(tmp_path):
    (whole_folder(tmp_path) / MANIFEST).unlink()
    with pytest.raises(BrokenError, match=r"manifest\.json is missing"):
        check(tmp_path)


def test_every_byte_of_the_manifest_counts(tmp_path):
    # A flip may also leave it as good as it was: white space, the hash's name for a digit in upper case.
    file = whole_folder(tmp_path) / MANIFEST
    data = file.read_bytes()
    entries = read_manifest(tmp_path)
    seen = 0
    for position in range(len(data)):
        file.write_bytes(flipped(data, position))
        try:
            assert read_manifest(tmp_path) == entries
        except BrokenError:
            seen += 1
    assert seen >= len(data) - 20
    for size in range(len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(BrokenError, match=r"manifest\.json is damaged"):
            read_manifest(tmp_path)


def test_an_error_of_writing_names_the_file_and_is_kept(tmp_path):
    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    file = HashingFile(tmp_path / "shard")
    file._file.close()
    file._file = Full()
    with pytest.raises(OSError, match=r"No space left on device.*shard"):
        file.write(b"x")
    assert file.error is not None
    assert file.error.filename == str(tmp_path / "shard")


def test_errors_that_have_a_name_keep_it(tmp_path):
    with pytest.raises(OSError, match="inner"), naming(tmp_path / "outer"):
        raise FileNotFoundError(errno.ENOENT, "No such file", "inner")


def test_a_file_is_replaced_in_one_step(tmp_path, monkeypatch):
    file = tmp_path / "config.yaml"
    with replacing(file) as out:
        out.write("old")
    assert file.read_text() == "old"

    def killed(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)  # when the new one is written, before it has the name
    with pytest.raises(KeyboardInterrupt), replacing(file) as out:
        out.write("new")
    assert file.read_text() == "old"


def test_a_long_file_is_read_in_pieces_with_a_sign_of_life_for_each(tmp_path, monkeypatch):
    monkeypatch.setattr("dapo_ref.run.manifest.PIECE_BYTES", 500)
    entry = write_text(tmp_path / "a.pt", CONTENT)
    signs = []
    check_file(tmp_path / "a.pt", entry, lambda: signs.append(1))
    assert len(signs) == 3  # 1,300 bytes
