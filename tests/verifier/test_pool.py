"""The worker pool: order, laziness, deadlines, deaths, orphans. Waits here only guard against hanging."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dapo_ref import workers as workers_module
from dapo_ref.verifier import Status, VerifierPool, is_equivalent, judge
from dapo_ref.verifier import pool as pool_module

ROOT = str(Path(__file__).resolve().parents[2])
PATIENCE = 60.0  # seconds, far beyond what a busy machine needs


def symbolic_pair(k: int, right: bool = True) -> tuple[str, str]:
    """k√2 against √(2k²): only the symbolic stage decides it."""
    return f"Answer: {k}\\sqrt{{2}}", f"\\sqrt{{{2 * k * k + (not right)}}}"


def wait_until(condition) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def pool() -> Iterator[VerifierPool]:
    with VerifierPool(workers=2, timeout_s=PATIENCE, memory_mb=2048) as opened:
        yield opened


def worker_pids(pool: VerifierPool) -> list[int]:
    return [worker.process.pid for worker in pool._running if worker.ready]


def test_order_and_agreement_with_judge(pool: VerifierPool) -> None:
    pairs = [("Answer: 3", "3"), symbolic_pair(3), ("nothing", "3"), symbolic_pair(4, right=False)]
    pairs += [symbolic_pair(5), ("Answer: 3 or 4", "3"), ("Answer: 9^{9^9}", "3"), symbolic_pair(3)]
    expected = [judge(*pair) for pair in pairs]
    assert pool.judge_many(pairs) == expected
    assert pool.verify_many(pairs) == [True, True, False, False, True, False, False, True]
    assert pool.counts["cache_hits"] == 4  # the second pass's four symbolic tasks
    assert pool.counts["correct"] == 8


def test_no_process_before_a_symbolic_case(pool: VerifierPool) -> None:
    pool.judge_many([("Answer: 3", "3"), ("Answer: 2/4", "0.5"), ("Answer: 1, 2", "\\{2, 1\\}")])
    assert pool._running == []
    pool.judge_many([symbolic_pair(2)])
    assert len(pool._running) == 1


def test_submit_does_not_wait(pool: VerifierPool) -> None:
    exact = pool.submit("Answer: 3", "3")
    assert exact.verdict is not None
    tickets = [pool.submit(*symbolic_pair(k)) for k in range(2, 12)]
    assert len(pool._running) <= 2
    assert [pool.result(ticket).correct for ticket in reversed(tickets)] == [True] * 10


def test_equal_tasks_are_done_once(pool: VerifierPool) -> None:
    tickets = [pool.submit(*symbolic_pair(7)) for _ in range(5)]
    assert len(pool._pending) <= 1
    assert all(pool.result(ticket).correct for ticket in tickets)
    assert sum(worker.tasks_done for worker in pool._running) == 1
    assert not pool._pending
    assert all(worker.task is None for worker in pool._running)


def test_a_stuck_worker_costs_one_timeout() -> None:
    """A stopped process stands for a computation that never ends: only SIGKILL ends it."""
    with VerifierPool(workers=1, timeout_s=PATIENCE) as pool:
        assert pool.verify_many([symbolic_pair(2)]) == [True]
        (stuck,) = worker_pids(pool)
        os.kill(stuck, signal.SIGSTOP)
        pool.timeout_s = 0.5
        first = pool.submit(*symbolic_pair(3))
        pool.timeout_s = PATIENCE
        others = [pool.submit(*symbolic_pair(k)) for k in (4, 5)]
        assert pool.result(first).status is Status.TIMEOUT
        assert [pool.result(ticket).correct for ticket in others] == [True, True]
        assert pool.counts["killed"] == 1
        assert wait_until(lambda: not is_alive(stuck))
        assert pool.verify_many([symbolic_pair(3)]) == [True]  # a timeout is not remembered


def test_a_killed_worker_costs_one_verdict() -> None:
    with VerifierPool(workers=1, timeout_s=PATIENCE) as pool:
        pool.judge_many([symbolic_pair(2)])
        (victim,) = worker_pids(pool)
        os.kill(victim, signal.SIGSTOP)
        lost = pool.submit(*symbolic_pair(3))
        os.kill(victim, signal.SIGKILL)
        verdicts = pool.judge_many([symbolic_pair(k) for k in (4, 5, 6)])
        assert pool.result(lost).status is Status.TOO_BIG
        assert all(verdict.correct for verdict in verdicts)
        assert pool.counts["died"] == 1


def test_workers_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_LAUNCH", "raise SystemExit(3)")
    with VerifierPool(workers=1) as pool, pytest.raises(RuntimeError, match="cannot be started"):
        pool.judge_many([symbolic_pair(2)])
    assert pool.counts["died"] == workers_module.MAX_FAILED_STARTS


def test_a_busy_worker_without_a_parent_ends_by_its_own_alarm() -> None:
    """Its output is never read and its input never ends: only the alarm can end a computation under way."""
    stuck = "from dapo_ref.verifier import decide, worker; import time; worker.ALARM_AFTER_S = 0.2; "
    stuck += "worker._WARM_UP = (); decide.compare = lambda *a, **k: time.sleep(600); worker.main(1024, 0.1)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", stuck], cwd=ROOT, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        print('["1", "1"]', file=process.stdin, flush=True)
        assert process.wait(PATIENCE) == -signal.SIGALRM


def test_the_shared_worker_of_judge_is_not_used_after_a_fork() -> None:
    assert is_equivalent("\\sqrt{8}", "2\\sqrt{2}")
    pid = os.fork()
    if not pid:
        os._exit(0 if is_equivalent("\\sqrt{27}", "3\\sqrt{3}") and len(pool_module._shared) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert is_equivalent("\\sqrt{12}", "2\\sqrt{3}")


def test_recycling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "TASKS_PER_WORKER", 3)
    with VerifierPool(workers=1, timeout_s=PATIENCE) as pool:
        pids = set()
        for k in range(2, 12):
            assert pool.verify_many([symbolic_pair(k)]) == [True]
            pids.update(worker_pids(pool))
        assert len(pids) == 4  # ten tasks: 3 + 3 + 3 + 1
        assert wait_until(lambda: sum(map(is_alive, pids)) <= 1)


def test_limits_of_a_worker() -> None:
    with VerifierPool(workers=1, timeout_s=PATIENCE, memory_mb=1500) as pool:
        pool.judge_many([symbolic_pair(2)])
        (pid,) = worker_pids(pool)
        limits = {
            line[:25].strip(): line[25:].split()[0]
            for line in Path(f"/proc/{pid}/limits").read_text().splitlines()
        }
        assert limits["Max address space"] == str(1500 << 20)
        assert limits["Max file size"] == "0"
        assert limits["Max core file size"] == "0"
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "torch" not in maps


def test_threads_share_a_pool(pool: VerifierPool) -> None:
    results: dict[int, list[bool]] = {}

    def run(index: int) -> None:
        results[index] = pool.verify_many(
            [symbolic_pair(10 * index + k, right=k % 2 == 0) for k in range(1, 6)]
        )

    threads = [threading.Thread(target=run, args=(index,)) for index in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert results == {index: [False, True, False, True, False] for index in range(1, 5)}


SCRIPT = """
import sys, time
print("main module ran", flush=True)
sys.path.insert(0, sys.argv[1])
from dapo_ref.verifier import VerifierPool
pool = VerifierPool(workers=2, timeout_s=600)
pool.judge_many([("Answer: 2\\\\sqrt{2}", "\\\\sqrt{8}"), ("Answer: 2\\\\sqrt{3}", "\\\\sqrt{12}")])
print(*[worker.process.pid for worker in pool._running], flush=True)
time.sleep(600)
"""


def test_no_orphans_and_the_main_module_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "main_module.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script), ROOT], stdout=subprocess.PIPE, text=True)
    pids: list[int] = []
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "main module ran\n"
        pids += [int(word) for word in parent.stdout.readline().split()]
        assert pids
        assert all(map(is_alive, pids))
        parent.kill()
        assert wait_until(lambda: not any(map(is_alive, pids)))
        assert parent.communicate(timeout=PATIENCE)[0] == ""  # nothing ran the main module again
    finally:
        parent.kill()
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_close_ends_everything_and_is_final() -> None:
    pool = VerifierPool(workers=2, timeout_s=PATIENCE)
    pool.judge_many([symbolic_pair(2), symbolic_pair(3)])
    pids = worker_pids(pool)
    pool.close()
    pool.close()
    assert wait_until(lambda: not any(map(is_alive, pids)))
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit("Answer: 1", "1")


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"timeout_s": 0.0}, {"memory_mb": 0}])
def test_sizes_are_checked(arguments: dict) -> None:
    with pytest.raises(ValueError, match="positive"):
        VerifierPool(**arguments)
