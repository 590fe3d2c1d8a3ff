"""`dapo_ref/distributed/processes.py`: what it tells the group and the watch, without processes for it."""

import contextlib
import io
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import numa
from torch.distributed import ReduceOp

import dapo_ref.distributed.accelerator  # noqa: F401  (counts DeepSpeed's devices once)
from dapo_ref.distributed import processes as module
from dapo_ref.distributed.processes import Processes
from tests.support.helpers import OneProcess


def test_devices_are_counted_once_not_with_every_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    if get_accelerator().device_name() != "cpu":
        pytest.skip("a GPU's devices are counted without a process")
    started = []
    listing = b"available: 1 nodes (0)\nnode 0 cpus: 0 1\n"
    monkeypatch.delenv("LOCAL_SIZE", raising=False)
    monkeypatch.setattr(numa.subprocess, "check_output", lambda *a: started.append(a) or listing)
    numa.get_numa_cores.cache_clear()
    try:
        assert [get_accelerator().device_count() for _ in range(3)] == [1, 1, 1]
        assert len(started) == 1
    finally:
        numa.get_numa_cores.cache_clear()


class Watched:
    """Stands in for the watch; writes down what is asked of it."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda: self.log.append(name)

    @contextlib.contextmanager
    def last_words(self) -> Iterator[None]:
        self.log.append("last_words")
        yield

    def missing(self) -> str:
        return "rank 1 is silent"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """Rank 1 of 3 without a process group: a collective doubles each value and is written down."""
    log: list[str] = []
    accelerator: Any = SimpleNamespace(
        process_index=1, num_processes=3, is_main_process=False, is_local_main_process=True,
        device=torch.device("cpu"), wait_for_everyone=lambda: log.append("wait"),
        free_memory=lambda: log.append("free"),
    )  # fmt: skip
    c10d = module.dist.distributed_c10d
    monkeypatch.setattr(module, "Watch", Watched)
    monkeypatch.setattr(module, "gather_object", lambda items: [0, *items, 2])
    monkeypatch.setattr(c10d, "_get_default_store", lambda: "store")
    monkeypatch.setattr(c10d, "_set_pg_timeout", lambda limit: log.append(str(limit)))
    monkeypatch.setattr(module.dist, "destroy_process_group", lambda: log.append("destroy"))

    def all_reduce(tensor: torch.Tensor, op: Any) -> None:
        log.append(str(op))
        tensor *= 2

    monkeypatch.setattr(module.dist, "all_reduce", all_reduce)
    found = Processes(accelerator, seed=3, timeout_s=40)
    found.log = log  # type: ignore[attr-defined]
    return found


def test_every_collective_is_entered_and_is_what_its_name_says(watched: Any) -> None:
    assert (watched.rank, watched.world_size, watched.is_main) == (1, 3, False)
    assert watched.watch.arguments == ("store", 1, 3, 40)
    assert watched.gather([7]) == [0, 7, 2]
    assert watched.sum([2.0**24 + 1, 0.5]) == [2.0**25 + 2, 1.0]  # in double: tokens of a step are many
    assert watched.max([1.0]) == [2.0]
    watched.barrier()
    assert watched.watch.log == ["enter"] * 4
    assert watched.log == [str(ReduceOp.SUM), str(ReduceOp.MAX), "wait"]


def test_memory_is_that_of_the_largest_process_in_mb(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3 * 2**10))
    assert watched.peak_memory_mb() == 6.0  # 3 MB here; the collective doubles it
    assert watched.log == [str(ReduceOp.MAX)]


def test_only_the_main_process_shows_progress(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal: Any = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    assert watched.progress(3, "steps").disable
    with OneProcess().progress(3, "steps") as bar:
        assert not bar.disable
    terminal.isatty = lambda: False
    assert OneProcess().progress(3, "steps").disable


def test_the_groups_limit_is_off_while_the_watch_runs_and_back_afterwards(
    watched: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with watched.watched():
        assert watched.watch.log == ["start", "last_words"]
        assert watched.log == [str(module.WATCHED_LIMIT)]
    assert watched.watch.log == ["start", "last_words", "close"]
    assert watched.log[1:] == [str(timedelta(seconds=100))]  # a minute more than a rank may be silent
    error = type(module.CONSEQUENCES[1], (RuntimeError,), {})
    with pytest.raises(RuntimeError), watched.watched():
        raise error("connection closed")
    assert "a collective failed on rank 1: rank 1 is silent" in caplog.text
    assert watched.watch.log[-1] == "close"
    watched.close()
    assert watched.log[-2:] == ["free", "destroy"]
