"""`dapo_ref/distributed/watch.py`: the process that holds up the others is the one that is named."""

import subprocess
import sys

import pytest
import torch.distributed as dist

from dapo_ref.distributed.watch import Report, Watch, _held_up
from tests.support.helpers import ROOT


def reports(*entered, beats=5, left=None):
    found = [Report(beats, count, f"step {rank}: update") for rank, count in enumerate(entered)]
    for rank, why in (left or {}).items():
        found[rank].left = why
    return found


def test_who_entered_fewer_collectives_is_named():
    assert _held_up(reports(9, 8, 9), reports(9, 8, 9, beats=6)) == [
        "rank 1 is alive and has not come out of step 1: update"
    ]


def test_who_no_longer_reports_is_named_wherever_it_is():
    after = reports(9, 9, 9, beats=6)
    after[2].beats = 5
    assert _held_up(reports(9, 9, 9), after) == [
        "rank 2 does not answer; it was last heard of in step 2: update"
    ]


def test_who_left_is_named_with_its_error_and_its_victims_are_not():
    left = {1: "ZeroDivisionError: division by zero", 2: "RuntimeError: connection closed by peer"}
    after = reports(9, 8, 9, beats=6, left=left)
    assert _held_up(reports(9, 8, 9), after) == [
        "rank 1 left in step 1: update (ZeroDivisionError: division by zero)"
    ]


def test_nobody_is_named_where_all_wait_in_the_same_place():
    assert _held_up(reports(9, 9), reports(9, 9, beats=6)) == []


@pytest.fixture
def store():
    return dist.HashStore()


def test_last_words_reach_the_others(store):
    mine, other = (Watch(store, rank, 2, timeout_s=0.02) for rank in (0, 1))
    mine.enter()
    other.doing = "step 3: rollout"
    with pytest.raises(ZeroDivisionError), other.last_words():
        raise ZeroDivisionError("division by\nzero")
    assert mine.missing().endswith("rank 1 left in step 3: rollout (ZeroDivisionError: division by zero)")


def test_a_store_that_is_gone_is_said(store):
    watch = Watch(store, 0, 2, timeout_s=0.02)
    watch._store = None
    assert watch.missing() == "the launcher, or the process that keeps the store, is gone"


CHILD = """
import threading
import torch.distributed as dist
from dapo_ref.distributed.watch import Watch
watch = Watch(dist.HashStore(), 0, 1, timeout_s=0.4)
watch.doing = "step 7: checkpoint"
watch.start()
if {progress}:
    for _ in range(40):
        watch.alive()
        threading.Event().wait(0.02)
    watch.close()
else:
    threading.Event().wait(20)
"""


@pytest.mark.parametrize(("progress", "code"), [(True, 0), (False, 1)])
def test_a_process_that_makes_no_progress_ends_itself(progress, code):
    script = CHILD.format(progress=progress)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    said = "rank 0 has made no progress for 0.4 s (process_group_timeout_s) in step 7: checkpoint"
    assert (said in done.stderr) == (not progress)
