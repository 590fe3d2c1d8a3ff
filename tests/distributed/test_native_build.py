"""`dapo_ref/distributed/native_build.py`: a lock that a killed build left does not stop the next run."""

import logging
import os
import threading
import time

import pytest

from dapo_ref.distributed import native_build


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = tmp_path / "py_cpu" / "deepspeed_some_op" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_an_abandoned_lock_is_removed_with_a_word(lock, caplog):
    old = time.time() - native_build.ABANDONED_AFTER_S - 1
    os.utime(lock, (old, old))
    native_build.prepare()
    assert not lock.exists()
    assert f"{lock}: left by a build that was killed" in caplog.text


def test_a_build_by_others_is_waited_for_and_its_lock_left_alone(lock, caplog):
    caplog.set_level(logging.INFO)
    waiting = threading.Thread(target=native_build.prepare)
    waiting.start()
    waiting.join(timeout=1.0)
    assert waiting.is_alive()
    assert lock.exists()
    lock.unlink()  # the other build is done
    waiting.join(timeout=60)
    assert not waiting.is_alive()
    assert "another process compiles; waiting" in caplog.text
    assert "left by a build" not in caplog.text


def test_locks_of_other_extensions_are_not_touched(lock):
    other = lock.parent.parent / "somebody_elses" / "lock"
    other.parent.mkdir()
    other.touch()
    lock.unlink()
    os.utime(other, (0, 0))
    native_build.prepare()
    assert other.exists()
