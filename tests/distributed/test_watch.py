"""`dapo_ref/distributed/watch.py`: the process that holds up the others is the one that is named."""

import subprocess
import sys

import pytest
import torch.distributed as dist

from dapo_ref.distributed.watch import Report, Watch, _held_up, _progress_of_those_behind
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


def behind(*pairs, entered=9):
    """Pairs (collectives entered, seconds of silence); each has reported in between."""
    after = [Report(6, count, "", "", silent) for count, silent in pairs]
    return _progress_of_those_behind([Report(5)] * len(after), after, entered)


def test_those_behind_are_waited_for_by_the_slowest_of_them():
    assert behind((9, 70.0), (8, 3.0), (7, 5.0)) == 5.0
    assert behind((9, 70.0), (9, 3.0)) is None  # all wait in the same place


def test_one_behind_that_left_or_does_not_answer_is_not_waited_for():
    before, after = [Report(5, 8), Report(5, 8)], [Report(6, 8), Report(6, 8)]
    assert _progress_of_those_behind(before, after, 9) == 0.0
    assert _progress_of_those_behind([], after, 9) is None  # the store was gone
    after[1].left = "ZeroDivisionError"
    assert _progress_of_those_behind(before, after, 9) is None
    after[1] = before[1]
    assert _progress_of_those_behind(before, after, 9) is None


TWO = """
import threading
import torch.distributed as dist
from dapo_ref.distributed.watch import Watch
store = dist.HashStore()
waiting, sampling = (Watch(store, rank, 2, timeout_s=1.0) for rank in (0, 1))
sampling.doing = "step 3: rollout"
waiting.start()
sampling.start()
waiting.enter()
sampling._end = lambda: None  # one process stands for both: the one that waits has to notice
for _ in range(300):
    if {progress}:
        sampling.alive()
    threading.Event().wait(0.01)
sampling.enter()
waiting.enter()
print("met")
waiting.close()
sampling.close()
"""


@pytest.mark.parametrize(("progress", "code"), [(True, 0), (False, 1)])
def test_a_process_that_samples_for_three_timeouts_is_waited_for_and_one_that_hangs_is_not(progress, code):
    done = subprocess.run(
        [sys.executable, "-c", TWO.format(progress=progress)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert ("met" in done.stdout) == progress
    said = "rank 1 is alive and has not come out of step 3: rollout"
    assert (said in done.stderr) == (not progress)


GROUP = """
import sys, threading
from datetime import timedelta
from types import SimpleNamespace
import torch.distributed as dist
from dapo_ref.distributed.processes import Processes
rank = int(sys.argv[1])
limit = timedelta(seconds=1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2, timeout=limit)
dist.barrier()
accelerator = SimpleNamespace(process_index=rank, num_processes=2, device="cpu")
processes = Processes(accelerator, seed=0, timeout_s=30)
with processes.watched():
    if rank == 1:
        threading.Event().wait(3)
    print(processes.sum([rank + 1]))
"""


def test_a_collective_waits_longer_than_the_limit_of_the_group(tmp_path):
    """Made with a limit of one second, one process comes three seconds late: the watch has 30."""
    command = [sys.executable, "-c", GROUP]
    both = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], cwd=ROOT, stdout=-1, stderr=-1, text=True
        )
        for rank in (0, 1)
    ]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert out == "[3.0]\n", err
