"""Runs that are killed, stopped, starved and poisoned, and resumed: `pytest -m faults`.

Each test ends with the run that was resumed being, bit for bit, the run that was not disturbed. When a fault
falls is named by the step and the update it falls in, or drawn from a fixed seed as a share of the calls of
an undisturbed run; nothing is counted in seconds.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import cycle

import pytest
import torch

from tests.support.faults import (
    OPTIONS,
    STEPS,
    Runs,
    assert_same,
    checkpoints,
    events,
    fault,
    same_weights,
    untimed,
)
from tests.support.helpers import ROOT

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    found = Runs(tmp_path_factory.mktemp("faults"))
    yield found
    found.close()


# --- SIGKILL ------------------------------------------------------------------------------------------------

PHASES = {
    "rollout": ["token", "score", "gather", "rollouts"],
    "update": ["logprobs", "backward", "step"],
    "checkpoint": ["write", "close", "begin", "finish", "manifest", "sync", "prune"],
    "metrics": ["metrics"],
}
MAIN_ONLY = {"rollouts", "begin", "finish", "manifest", "sync", "prune", "metrics"}


def moments(number):
    """(phase, event, rank, processes, action, share): the share is of the calls of an undisturbed run."""
    rng = random.Random(2503_14476)
    phases = cycle(["rollout", "update", "checkpoint", "rollout", "update", "checkpoint", "metrics"])
    for i in range(number):
        phase = next(phases)
        event = rng.choice(PHASES[phase])
        world = 1 if i % 4 == 0 else 2
        rank = 0 if event in MAIN_ONLY else rng.randrange(world)
        action = "kill in a line" if event == "metrics" else rng.choice(["kill", "kill all"])
        yield phase, event, rank, world, action, rng.random()


MOMENTS = list(moments(21))
IDS = [f"{i:02d} {e} rank {r} of {w} {a}" for i, (_, e, r, w, a, _) in enumerate(MOMENTS)]


@pytest.mark.parametrize("moment", MOMENTS, ids=IDS)
def test_killed(runs, tmp_path, moment):
    _, event, rank, world, action, share = moment
    whole = runs.undisturbed(world)
    count = 1 + int(share * events(whole, rank)[event])
    ended = runs.run(tmp_path / "run", world, faults=[fault(event, count, action, rank)])
    everyone = action == "kill all"
    assert ended.codes == [-9 if everyone or r == rank else 1 for r in range(world)]
    if world == 2 and not everyone:
        blamed = rf"rank {rank} does not answer" if rank else "process that keeps the store, is gone"
        assert re.search(blamed, ended.logs[1 - rank])
    runs.finish(tmp_path / "run", world)
    assert_same(tmp_path / "run", whole)


@pytest.mark.parametrize("world", [2])
def test_killed_again_and_again(runs, tmp_path, world):
    whole = runs.undisturbed(world)
    run = tmp_path / "run"
    rng = random.Random(world)
    runs.run(run, world, faults=[fault("step", 1, "kill all", step=3)])  # after the first checkpoint
    for event in ("load", "token", "backward", "write", "finish", "prune", "export"):
        count = 1 + (rng.randrange(3) if event in ("token", "backward", "write") else 0)
        ended = runs.run(run, world, "--resume", faults=[fault(event, count, "kill all")])
        assert ended.codes == [-9] * world, (event, count)
    runs.finish(run, world)
    assert_same(run, whole)


# --- SIGTERM, SIGINT ----------------------------------------------------------------------------------------

STOPS = {
    # place, event, call of it there, signal, ranks, processes, and the step whose checkpoint there is then
    "in the first rollout": ({"step": 1}, "token", 5, "SIGTERM", [0], 1, None),  # there is nothing to save
    "in a rollout": ({"step": 4}, "token", 3, "SIGTERM", [0, 1], 2, 3),
    # The other process hears of it when it has sampled its own share.
    "when a share is sampled": ({"step": 4}, "score", 1, "SIGINT", [1], 2, 3),
    "while π_old is computed": ({"step": 2, "update": 0}, "logprobs", 1, "SIGTERM", [1], 2, 1),
    "as the first update of a step begins": ({"step": 3, "update": 1}, "may stop", 1, "SIGINT", [0], 2, 2),
    # The weights are still those of the step before: the step is discarded.
    "in the first update of a step": ({"step": 2, "update": 1}, "backward", 1, "SIGINT", [0], 1, 1),
    # They are not any more: the step is finished, and its checkpoint is not one that was due.
    "after the first update of a step": ({"step": 1, "update": 2}, "logprobs", 1, "SIGINT", [0], 1, 1),
    "in the last micro-batches": ({"step": 3, "update": 2}, "backward", 1, "SIGTERM", [1], 2, 3),
    "while a checkpoint is written": ({"step": 2}, "write", 20, "SIGTERM", [1], 2, 2),
    "while metrics are written": ({"step": 3}, "metrics", 1, "SIGTERM", [0], 2, 3),
}


@pytest.mark.parametrize("moment", STOPS)
def test_told_to_stop(runs, tmp_path, moment):
    place, event, count, name, ranks, world, step = STOPS[moment]
    whole = runs.undisturbed(world)
    run = tmp_path / "run"
    ended = runs.run(run, world, faults=[fault(event, count, name, *ranks, **place)])
    assert ended.codes == [{"SIGTERM": 143, "SIGINT": 130}[name]] * world, ended.logs
    assert (checkpoints(run) or [None])[-1] == (f"step_{step:06d}" if step else None)
    runs.finish(run, world)
    assert untimed(run) == untimed(whole)
    assert same_weights(run, whole)


def test_a_second_signal_leaves_at_once(runs, tmp_path):
    whole = runs.undisturbed(2)
    # In an update of the last step that would be finished after one signal.
    faults = [fault("backward", 1, "twice", 0, step=STEPS, update=2)]
    ended = runs.run(tmp_path / "run", 2, faults=faults)
    assert ended.codes == [143, 1]
    assert checkpoints(tmp_path / "run") == ["step_000002"]
    runs.finish(tmp_path / "run", 2)
    assert_same(tmp_path / "run", whole)


def launched(folder, log, *options):
    """A run under accelerate's launcher with two processes, as the README starts it; its output in a file."""
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"),
        *("--config_file", str(ROOT / "configs/accelerate/zero3.yaml"), str(ROOT / "train.py")),
        *(*OPTIONS, "--output_dir", str(folder), *options),
    ]
    with log.open("w") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_launcher_passes_the_signal_on(runs, tmp_path, number):
    whole = runs.undisturbed(2)
    run, log = tmp_path / "run", tmp_path / "log"
    process = launched(run, log)
    metrics = run / "metrics.jsonl"
    while not metrics.exists() and process.poll() is None:  # the first step is done
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait() != 0
    output = log.read_text()
    assert f"stopped by {number.name} after step" in output
    assert checkpoints(run)[-1] == f"step_{len(untimed(run)):06d}"
    assert not others_of(run)
    runs.finish(run, 2)
    assert untimed(run) == untimed(whole)
    assert same_weights(run, whole)


def test_the_launcher_ends_the_run_when_a_rank_is_killed(runs, tmp_path):
    whole = runs.undisturbed(2)
    run, log = tmp_path / "run", tmp_path / "log"
    process = launched(run, log)
    while not (run / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    victim = [pid for pid in others_of(run) if environment(pid).get("RANK") == "1"]
    os.kill(victim[0], signal.SIGKILL)
    assert process.wait() != 0
    assert re.search(r"rank\s*: 1 .*\n.*exitcode\s*: -9", log.read_text())
    assert not others_of(run)
    runs.finish(run, 2)
    assert_same(run, whole)


def others_of(folder):
    """Processes that have a run's folder in their command line, the launcher left out."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode().split("\0")
        except OSError:
            continue
        if str(folder) in words and "accelerate.commands.launch" not in words:
            found.append(pid)
    return found


def environment(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return dict(pair.split("=", 1) for pair in file.read().decode().split("\0") if "=" in pair)


# --- A rank that dies or hangs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "update", "action", "message"),
    [
        ("backward", 1, "freeze", "rank 1 does not answer; it was last heard of in step"),
        # Its own watch ends it at about the same time: which of the two is seen is a matter of a second.
        (
            "score",
            0,
            "hang",
            "rank 1 (is alive and has not come out of|does not answer; it was last heard of in) step",
        ),
        (
            "logprobs",
            2,
            "raise",
            r"rank 1 left in step \d: update \(ZeroDivisionError: a fault of the program",
        ),
    ],
)
def test_a_rank_that_hangs_or_fails_is_named(runs, tmp_path, event, update, action, message):
    whole = runs.undisturbed(2)
    ended = runs.run(
        tmp_path / "run",
        2,
        *("--process_group_timeout_s", "30"),
        faults=[fault(event, 1, action, 1, step=2, update=update)],
        left_behind=[1] if action in ("freeze", "hang") else [],
    )
    assert ended.codes[0] == 1
    assert re.search(message, ended.logs[0]), ended.logs[0]
    runs.finish(tmp_path / "run", 2)
    assert_same(tmp_path / "run", whole)


# --- Damaged checkpoints ------------------------------------------------------------------------------------


def cut(file):
    os.truncate(file, file.stat().st_size // 2)


def empty(file):
    os.truncate(file, 0)


def flip(file):
    data = bytearray(file.read_bytes())
    data[random.Random(file.name).randrange(len(data))] ^= 0x10
    file.write_bytes(data)


DAMAGES = [
    *(("rank_00000.pt", cut), ("rank_00001.pt", empty), ("rank_00001.pt", flip)),
    *(("loop.json", flip), ("manifest.json", flip), ("manifest.json", os.unlink)),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_damaged_checkpoint_is_passed_over(runs, tmp_path, name, damage):
    whole = runs.undisturbed(2)
    run = tmp_path / "run"
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("events.*", "model"))
    damage(run / "checkpoints" / f"step_{STEPS:06d}" / name)
    ended = runs.finish(run, 2)
    assert re.search(rf"passing over .*step_{STEPS:06d}, which is broken: {name}", ended.logs[0])
    assert "resuming after step 2" in ended.logs[0]
    assert_same(run, whole)


def test_if_no_checkpoint_is_whole_nothing_is_touched(runs, tmp_path):
    whole = runs.undisturbed(2)
    run = tmp_path / "run"
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("events.*", "model"))
    for name in checkpoints(run):
        flip(run / "checkpoints" / name / "rank_00001.pt")
    ended = runs.run(run, 2, "--resume")
    assert ended.codes == [2, 2]
    assert "none of the 2 checkpoints" in ended.logs[0]
    assert untimed(run) == untimed(whole)
    assert checkpoints(run) == checkpoints(whole)


# --- Disk ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 20 MB: one checkpoint of 11 MB fits, and one being written beside it does not."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_too_small_is_said_before_it_is_full(runs, small_disk):
    whole = runs.undisturbed(2)
    run = small_disk / "run"
    ended = runs.run(run, 2)
    assert ended.codes == [2, 2]
    assert "checkpoints will need" in ended.logs[0]
    assert re.search(
        r"error: checkpoint of step 4 not written: rank 0: 1\d\.\d+ MB are needed", ended.logs[0]
    )
    assert checkpoints(run) == ["step_000002"]
    subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
    runs.finish(run, 2)
    assert_same(run, whole)


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_disk_that_fills_up_while_a_checkpoint_is_written(runs, small_disk, policy):
    whole = runs.undisturbed(2)
    run = small_disk / "run"
    # The space check passes and the disk is full in the middle of the file: another program filled it.
    filler = small_disk / "filler"
    subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
    half = events(whole, 1)["write"] // 4  # of one of its two files
    faults = [fault("write", half, f"fill {filler}", 1, step=STEPS)]
    ended = runs.run(run, 2, "--on_checkpoint_error", policy, faults=faults)
    assert "No space left on device" in ended.logs[0]
    assert "rank_00001.pt" in ended.logs[0]
    assert checkpoints(run)[0] == "step_000002"
    if policy == "stop":
        assert ended.codes == [2, 2]
        filler.unlink()
        runs.finish(run, 2)
        assert_same(run, whole)
    else:
        assert untimed(run)[-1]["step"] == STEPS
        assert untimed(run) == untimed(whole)


@pytest.mark.parametrize("event", ["metrics", "rollouts"])
def test_a_disk_that_is_full_elsewhere_is_a_clear_error(runs, tmp_path, event):
    whole = runs.undisturbed(2)
    ended = runs.run(tmp_path / "run", 2, faults=[fault(event, 1, "no space", 0, step=3)])
    assert ended.codes[0] == 1
    assert "No space left on device; the run can be resumed" in ended.logs[0]
    assert "Traceback" not in ended.logs[0]
    runs.finish(tmp_path / "run", 2)
    assert_same(tmp_path / "run", whole)


# --- Numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "world"), [("nan", 2), ("inf", 2), ("nan", 1)])
def test_a_loss_that_is_not_finite_skips_the_update_everywhere(runs, tmp_path, value, world):
    faults = [fault("loss", 1, value, world - 1, step=2, update=1)]
    ended = runs.run(tmp_path / "whole", world, faults=faults)
    assert ended.codes == [0] * world, ended.logs
    records = untimed(tmp_path / "whole")
    assert sum(record["updates/skipped"] for record in records) == 1
    assert records[-1]["updates"] == untimed(runs.undisturbed(world))[-1]["updates"]
    saved = sorted((tmp_path / "whole" / "bad_updates").iterdir())
    assert len(saved) == world
    bad = torch.load(saved[-1], weights_only=True)
    assert not all(map(torch.isfinite, torch.tensor(bad["losses"])))
    assert bad["microbatches"][0]["input_ids"].dim() == 2
    # Killed later and resumed it is the same run: the skipped update is in the checkpoint.
    later = [*faults, fault("metrics", 1, "kill all", 0, step=STEPS)]
    assert runs.run(tmp_path / "run", world, faults=later).codes == [-9] * world
    runs.finish(tmp_path / "run", world)
    assert untimed(tmp_path / "run") == records
    assert same_weights(tmp_path / "run", tmp_path / "whole")


def test_too_many_updates_in_a_row_stop_the_run(runs, tmp_path):
    faults = [fault("loss", 1, "nan", 1, step=step, update=update) for step in (2, 3) for update in (1, 2)]
    ended = runs.run(tmp_path / "run", 2, "--max_skipped_updates", "3", faults=faults)
    assert ended.codes == [2, 2]
    assert "error: 3 updates in a row had a loss or gradient that is not finite" in ended.logs[0]


# --- Another number of processes ----------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_processes_goes_on(runs, tmp_path, before, after):
    run = tmp_path / "run"
    half = runs.run(run, before, "--rollout_steps", "2")
    assert half.codes == [0] * before
    model = tmp_path / "half"
    shutil.copytree(run / "model", model / "model")
    # Nothing left to do: what is exported are the weights that were read, to the last bit.
    ended = runs.run(run, after, "--rollout_steps", "2", "--resume")
    assert f"the checkpoint is of {before} processes, this run has {after}" in ended.logs[0]
    assert same_weights(run, model)
    # And it goes on, with counters, schedule and data where they were.
    ended = runs.finish(run, after)
    records, expected = untimed(run), untimed(runs.undisturbed(2))
    assert [r["step"] for r in records] == [r["step"] for r in expected]
    assert [r["lr"] for r in records] == [r["lr"] for r in expected]
    assert [r["updates"] for r in records] == [r["updates"] for r in expected]


@pytest.mark.parametrize(("before", "between"), [(1, 2), (2, 3)])
def test_there_and_back_is_the_same_checkpoint(runs, tmp_path, before, between):
    run = tmp_path / "run"
    assert runs.run(run, before, "--rollout_steps", "2").codes == [0] * before
    source = run / "checkpoints" / "step_000002"
    there, back = tmp_path / "there", tmp_path / "back"
    for origin, target, world in ((source, there, between), (there, back, before)):
        ended = runs.run(run, world, argv=[str(origin), str(target), *OPTIONS], reshard=True)
        assert ended.codes == [0] * world, ended.logs
        state = json.loads((source / "loop.json").read_text())
        (target / "loop.json").write_text(json.dumps({**state, "num_processes": world}))
    for rank in range(before):
        old, new = (
            torch.load(folder / f"rank_{rank:05d}.pt", weights_only=True) for folder in (source, back)
        )
        assert old["numel"] == new["numel"]
        assert old["others"] == new["others"]
        for name, pieces in old["pieces"].items():
            assert set(pieces) == {"weight", "exp_avg", "exp_avg_sq"}
            assert all(torch.equal(piece, new["pieces"][name][key]) for key, piece in pieces.items())
