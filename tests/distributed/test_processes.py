"""`dapo_ref/distributed/processes.py`: what it sets right in DeepSpeed without needing processes for it."""

import pickle
from array import array

import pytest
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import numa

import dapo_ref.distributed.processes  # noqa: F401
from dapo_ref.types import Rollout


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


def test_processes_hand_each_other_tokens_as_int32() -> None:
    """Four bytes a token and the same list of ints on the other side; a list of large ones takes five."""
    ids = list(range(100_000, 110_000))
    rollout = Rollout(ids, "text", truncated=True, reward=0.5, logprobs=array("f", [-1.0]))
    sent = pickle.dumps(rollout)
    assert len(sent) < 4 * len(ids) + 2000
    back = pickle.loads(sent)
    assert back == rollout
    assert back.response_ids == ids
    assert type(back.response_ids[0]) is int
    assert back.logprobs == array("f", [-1.0])
