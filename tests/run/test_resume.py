"""Runs that are killed, stopped or damaged and then resumed are the runs that were not: the short version of
`test_faults.py`, with two real processes."""

import shutil

import pytest

from tests.support.faults import Runs, assert_same, checkpoints, events, fault, same_weights, untimed


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    found = Runs(tmp_path_factory.mktemp("resume"))
    yield found
    found.close()


def test_killed_while_a_checkpoint_is_written_and_resumed(runs, tmp_path):
    whole = runs.undisturbed(2)
    half = events(whole, 1)["write"] // 4  # of one of its two files
    ended = runs.run(tmp_path / "run", 2, faults=[fault("write", half, "kill all", 1, step=4)])
    assert ended.codes == [-9, -9]
    assert checkpoints(tmp_path / "run") == ["partial_step_000004", "step_000002"]
    ended = runs.finish(tmp_path / "run", 2)
    assert "resuming after step 2" in ended.logs[0]
    assert_same(tmp_path / "run", whole)


def test_told_to_stop_in_a_rollout_and_resumed(runs, tmp_path):
    # The second rollout: the step is discarded, and the checkpoint is that of step 1, which was not due.
    ended = runs.run(tmp_path / "run", 2, faults=[fault("score", 1, "SIGTERM", 1, step=2)])
    assert ended.codes == [143, 143]
    assert checkpoints(tmp_path / "run") == ["step_000001"]
    runs.finish(tmp_path / "run", 2)
    assert untimed(tmp_path / "run") == untimed(runs.undisturbed(2))
    assert same_weights(tmp_path / "run", runs.undisturbed(2))


def test_a_damaged_checkpoint_is_passed_over_by_another_number_of_processes(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs.undisturbed(2), run, ignore=shutil.ignore_patterns("events.*"))
    file = run / "checkpoints/step_000004/rank_00001.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    ended = runs.finish(run, 1)
    assert "step_000004, which is broken: rank_00001.pt does not have the contents" in ended.logs[0]
    assert "the checkpoint is of 2 processes, this run has 1" in ended.logs[0]
    assert [record["step"] for record in untimed(run)] == [1, 2, 3, 4]
    assert untimed(run)[:2] == untimed(runs.undisturbed(2))[:2]
