"""`dapo_ref/distributed/processes.py`: what it sets right in DeepSpeed without needing processes for it."""

import pytest
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import numa

import dapo_ref.distributed.processes  # noqa: F401


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
