"""`Processes.seed` and how work is shared: what depends on the run's seed, a key and the rank, and on nothing
else."""

import itertools
import pickle
from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dapo_ref.types import Rollout
from tests.support.helpers import OneProcess
from tests.support.plain_engine import in_threads


def seeded(seed: int, key: tuple[int, ...], rank: int) -> int:
    process = OneProcess(seed)
    process.rank = rank
    process.seed(*key)
    return torch.initial_seed()


def test_runs_steps_rounds_and_ranks_have_seeds_of_their_own() -> None:
    grid = list(itertools.product(range(3), range(5), range(4), range(4)))
    seeds = {(seed, step, round, rank): seeded(seed, (step, round), rank) for seed, step, round, rank in grid}
    assert len(set(seeds.values())) == len(grid)
    assert all(0 <= value < 2**63 for value in seeds.values())


def test_a_seed_follows_from_its_key_alone() -> None:
    """Resuming draws what the run that was not stopped draws: the numbers stay what they were."""
    assert seeded(0, (0, 0), 0) == seeded(0, (0, 0), 0) == 4661661911302352151
    torch.rand(7)
    assert seeded(3, (10, 2), 1) == seeded(3, (10, 2), 1) == 797856759435937809


@pytest.mark.parametrize("world_size", [1, 2, 3])
@given(count=st.integers(0, 11))
def test_shares_hold_everything_once_and_come_back_in_order(world_size: int, count: int) -> None:
    items = list(range(count))

    def work(process):  # type: ignore[no-untyped-def]
        mine = process.share(items)
        return list(mine), process.gather_in_order([10 * item for item in mine])

    found = in_threads(world_size, work)
    assert sorted(item for mine, _ in found for item in mine) == items
    sizes = [len(mine) for mine, _ in found]
    assert max(sizes) - min(sizes) <= 1
    assert [together for _, together in found] == [[10 * item for item in items]] * world_size


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
