"""`dapo_ref/run/checkpoint.py`: whole or not there, the newest whole one is taken, and the last one stays."""

import errno
import logging
from types import SimpleNamespace

import pytest

from dapo_ref.config import Config
from dapo_ref.errors import ConfigError, TrainingError
from dapo_ref.run import checkpoint
from dapo_ref.run.folder import RunFolder
from dapo_ref.run.manifest import read_manifest
from tests.support.helpers import OneProcess
from tests.support.plain_engine import in_threads


class FakeEngine(OneProcess):
    """The part of the engine that checkpoints need."""

    def __init__(self):
        super().__init__()
        self.content = "weights"
        self.error = None

    def bytes_of_state(self):
        return 1000

    def save_state(self, file):
        if self.error:
            file.write(b"hal")
            raise self.error
        file.write(self.content.encode())


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def folder(tmp_path):
    found = RunFolder(tmp_path / "run")
    found.open(Config())
    return found


def save(engine, folder, step, **options):
    return checkpoint.save(engine, folder, {"step": step, "updates": 4 * step}, Config(**options))


def names(folder):
    return sorted(path.name for path in (folder.path / "checkpoints").iterdir())


def damage(folder, step, name="rank_00000.pt"):
    (folder.path / "checkpoints" / f"step_{step:06d}" / name).write_text("dirt")


def test_what_is_saved_is_found(engine, folder):
    assert checkpoint.newest_whole(engine, folder) is None
    for step in (2, 4):
        assert save(engine, folder, step)
    path, state = checkpoint.newest_whole(engine, folder)
    assert path.name == "step_000004"
    assert state == {"step": 4, "updates": 16, "num_processes": 1}
    assert [checkpoint.exists(engine, folder, step) for step in (3, 4)] == [False, True]


def test_only_the_newest_stay(engine, folder):
    for step in (1, 2, 3, 10):
        save(engine, folder, step, keep_checkpoints=2)
    assert names(folder) == ["step_000003", "step_000010"]


def test_broken_ones_are_passed_over_said_and_set_aside(engine, folder, caplog):
    for step in (1, 2, 3):
        save(engine, folder, step, keep_checkpoints=9)
    damage(folder, 3)
    damage(folder, 2, "manifest.json")
    path, _ = checkpoint.newest_whole(engine, folder)
    assert path.name == "step_000001"
    assert [record.args[1] for record in caplog.records] == [
        "rank_00000.pt has 4 bytes instead of 7",
        "manifest.json is damaged",
    ]
    assert names(folder) == ["broken_step_000002", "broken_step_000003", "step_000001"]
    save(engine, folder, 2, keep_checkpoints=9)  # there is a newer whole one now
    assert names(folder) == ["step_000001", "step_000002"]


def test_a_broken_one_in_the_way_is_replaced(engine, folder):
    save(engine, folder, 2)
    damage(folder, 2)
    save(engine, folder, 2)
    assert checkpoint.newest_whole(engine, folder)[0].name == "step_000002"
    assert names(folder) == ["step_000002"]


def test_if_none_is_whole_nothing_is_changed(engine, folder):
    for step in (1, 2):
        save(engine, folder, step)
        damage(folder, step)
    with pytest.raises(ConfigError, match=r"none of the 2 checkpoints in .* is whole; nothing was changed"):
        checkpoint.newest_whole(engine, folder)
    assert names(folder) == ["step_000001", "step_000002"]


def test_half_written_ones_do_not_count(engine, folder):
    save(engine, folder, 1)
    for name in ("partial_step_000002", "removed_step_000000"):
        (folder.path / "checkpoints" / name).mkdir()
    assert checkpoint.newest_whole(engine, folder)[0].name == "step_000001"
    save(engine, folder, 2)
    assert names(folder) == ["step_000001", "step_000002"]


@pytest.mark.parametrize("keep", [1, 2])
def test_an_error_leaves_the_former_ones_intact(engine, folder, caplog, keep):
    save(engine, folder, 1, keep_checkpoints=keep)
    engine.error = OSError(errno.ENOSPC, "No space left on device", "rank_00000.pt")
    with pytest.raises(TrainingError, match=r"checkpoint of step 2 not written: rank 0: .*No space left"):
        save(engine, folder, 2, keep_checkpoints=keep)
    assert names(folder) == ["step_000001"]
    assert not save(engine, folder, 2, keep_checkpoints=keep, on_checkpoint_error="continue")
    assert "going on (on_checkpoint_error: continue)" in caplog.text
    assert checkpoint.newest_whole(engine, folder)[0].name == "step_000001"
    engine.error = None
    assert save(engine, folder, 3, keep_checkpoints=keep)


def test_an_error_of_naming_it_leaves_the_former_ones_intact(engine, folder, monkeypatch):
    save(engine, folder, 1, keep_checkpoints=1)

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_manifest", full)
    with pytest.raises(TrainingError, match="No space left"):
        save(engine, folder, 2, keep_checkpoints=1)
    assert names(folder) == ["step_000001"]


def test_space_is_checked_first(engine, folder, monkeypatch, caplog):
    free = SimpleNamespace(free=999)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: free)
    engine.error = AssertionError("nothing must be written")
    with pytest.raises(TrainingError, match=r"0\.00 MB are needed and 0\.00 MB are free"):
        save(engine, folder, 1)
    free.free = 2999  # keep_checkpoints 2 and the one being written
    checkpoint.warn_of_little_space(engine, folder, Config())
    assert "make room or lower keep_checkpoints" in caplog.text
    caplog.clear()
    free.free = 3000
    checkpoint.warn_of_little_space(engine, folder, Config())
    assert caplog.text == ""


def test_another_number_of_processes_is_said(engine, caplog):
    caplog.set_level(logging.INFO)
    checkpoint.say_what_differs(engine, {"num_processes": 1})
    assert caplog.text == ""
    checkpoint.say_what_differs(engine, {"num_processes": 2})
    assert "the checkpoint is of 2 processes, this run has 1. Exact: weights, optimiser" in caplog.text


class Threads(FakeEngine):
    """One of several processes that are threads."""

    def __init__(self, processes):
        super().__init__()
        self.rank, self.world_size, self.is_main = processes.rank, processes.world_size, processes.is_main
        self.gather, self.content = processes.gather, f"weights of {processes.rank}"


def test_each_process_writes_and_checks_its_own_part(folder):
    def written(processes):
        return save(Threads(processes), folder, 2)

    assert in_threads(3, written) == [True] * 3
    path = folder.path / "checkpoints/step_000002"
    assert [(path / f"rank_0000{rank}.pt").read_text() for rank in range(3)] == [
        f"weights of {rank}" for rank in range(3)
    ]
    entries = read_manifest(path)
    assert sorted(entries) == ["loop.json", *(f"rank_0000{rank}.pt" for rank in range(3))]

    def found(processes):
        try:
            return checkpoint.newest_whole(Threads(processes), folder)[1]["num_processes"]
        except ConfigError:
            return "none is whole"

    assert in_threads(2, found) == [3] * 2
    for rank in range(3):  # a file that another process checks is seen by all
        whole = (path / f"rank_0000{rank}.pt").read_text()
        damage(folder, 2, f"rank_0000{rank}.pt")
        assert in_threads(2, found) == ["none is whole"] * 2
        (path / f"rank_0000{rank}.pt").write_text(whole)


def test_an_error_of_one_process_is_an_error_of_all(folder, caplog):
    def written(processes):
        engine = Threads(processes)
        engine.error = OSError(errno.ENOSPC, "No space left on device") if processes.rank == 1 else None
        return save(engine, folder, 2, on_checkpoint_error="continue")

    assert in_threads(2, written) == [False, False]
    assert names(folder) == []
    assert caplog.text.count("rank 1: ") == 1  # said once


def test_shards_are_read_in_the_order_of_all_who_wrote(engine, folder):
    read = []
    engine.load_state = lambda files: read.extend(files)
    checkpoint.load_state(engine, folder.path, written_by=11)
    assert [path.name for path in read] == [f"rank_{rank:05d}.pt" for rank in range(11)]


def test_space_counts_what_is_there_already_and_only_if_checkpoints_are_wanted(
    engine, folder, monkeypatch, caplog
):
    save(engine, folder, 1)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: SimpleNamespace(free=1999))
    checkpoint.warn_of_little_space(engine, folder, Config(keep_checkpoints=2, checkpoint_every=0))
    assert caplog.text == ""
    checkpoint.warn_of_little_space(engine, folder, Config(keep_checkpoints=2))  # one and the one written
    assert "checkpoints will need 0.00 MB more" in caplog.text
    caplog.clear()
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: SimpleNamespace(free=2000))
    checkpoint.warn_of_little_space(engine, folder, Config(keep_checkpoints=2))
    assert caplog.text == ""


def test_a_checkpoint_has_its_name_on_the_disk_before_it_counts(engine, folder, monkeypatch):
    synced = []
    monkeypatch.setattr(checkpoint, "sync", lambda path: synced.append((path.name, names(folder))))
    save(engine, folder, 1)
    assert synced == [("checkpoints", ["step_000001"])]
    assert engine.watch.doing == "step 1: checkpoint"
