"""`batching.py`: denominators counted once, the same number of micro-batches on every process."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_ref.policy.batching import collate, microbatches, minibatches
from dapo_ref.policy.packing import Block
from dapo_ref.types import Batch
from tests.support.helpers import filled_batch, random_groups

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def test_collate_keeps_groups_together_and_in_order():
    groups = random_groups([[3, 5], [2, 4], [1, 6]])
    batch = collate(groups, overlong_filtering=False)
    assert batch.group_index.tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.lengths.tolist() == [3, 5, 2, 4, 1, 6]
    flat = [rollout for group in groups for rollout in group.rollouts]
    assert batch.response_ids == [rollout.response_ids for rollout in flat]
    assert batch.rewards.tolist() == [rollout.reward for rollout in flat]
    assert batch.prompt_ids == [group.prompt_ids for group in groups for _ in group.rollouts]
    assert not batch.filtered.any()


def test_overlong_filtering_trains_all_but_the_truncated():
    batch = collate(random_groups([[3, 5, 4]]), overlong_filtering=True)
    assert batch.filtered.tolist() == [False, False, True]
    # The truncated response leaves the token count of Eq. 12 too: 3 + 5, not 12.
    batch.advantages = torch.zeros(3)
    (mini,) = minibatches(batch, 3)
    assert (mini.num_tokens, mini.num_responses, mini.num_groups) == (8, 3, 1)
    (micro,) = microbatches(batch, mini.rows, 1000, 1, 0)
    assert micro.response_mask.sum() == 8
    assert micro.group_tokens.tolist() == [8, 8, 8]


def test_minibatches_hold_whole_groups_in_data_order():
    batch = filled_batch(random_groups([[1, 2]] * 6))
    minis = minibatches(batch, responses_per_update=4)
    assert [mini.rows for mini in minis] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [mini.num_tokens for mini in minis] == [6, 6, 6]  # 2 · (1 + 2)


def test_a_batch_that_is_not_full_is_cut_as_evenly_as_groups_allow():
    # 5 groups of 2 at 4 responses (2 groups) an update: 3 updates of 2, 2 and 1 groups.
    minis = minibatches(filled_batch(random_groups([[1, 1]] * 5)), responses_per_update=4)
    assert [mini.num_groups for mini in minis] == [2, 2, 1]


layouts = pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])


@layouts
@settings(max_examples=60, deadline=None)
@given(lengths=lengths, budget=st.integers(1, 400), world=st.integers(1, 5))
def test_processes_share_the_rows_and_run_in_step(packed, lengths, budget, world):
    batch = filled_batch(random_groups([lengths]))
    plans = [microbatches(batch, range(len(lengths)), budget, world, rank, packed) for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    rows = [row for plan in plans for micro in plan for row in micro.rows]
    assert sorted(rows) == list(range(len(lengths)))
    for micro in (micro for plan in plans for micro in plan):
        if len(micro.rows) > 1:
            assert micro.input_ids.numel() <= budget
    tokens = sum(int(micro.response_mask.sum()) for plan in plans for micro in plan)
    assert tokens == sum(lengths)


@settings(max_examples=60, deadline=None)
@given(lengths=lengths, budget=st.integers(70, 400), world=st.integers(1, 5))
def test_no_plan_with_fewer_rounds_fits_the_budget(lengths, budget, world):
    # Filling micro-batches greedily, longest first, is the least number of runs of consecutive sizes.
    batch = filled_batch(random_groups([lengths]))
    prompt = len(batch.prompt_ids[0])
    count, first, size = 1, None, 0
    for length in sorted((prompt + n for n in lengths), reverse=True):
        first = first or length
        if (size + 1) * first > budget:
            count, first, size = count + 1, length, 0
        size += 1
    padded = microbatches(batch, range(len(lengths)), budget, world, 0, packed=False)
    assert len(padded) == -(-count // world)
    # Packed: greedily in order, the prompt once a run.
    count, used = 1, prompt
    for length in lengths:
        if used + length > budget and used > prompt:
            count, used = count + 1, prompt
        used += length
    assert len(microbatches(batch, range(len(lengths)), budget, world, 0)) == -(-count // world)


def heavy_tailed_batch() -> Batch:
    """16 groups of 8, geometric lengths with a mean of about a quarter of the cap of 100."""
    torch.manual_seed(0)
    lengths = torch.empty(16, 8).geometric_(1 / 28).clamp(max=100).int()
    return filled_batch(random_groups(lengths.tolist()))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_packed_micro_batches_hold_no_padding_and_hardly_a_prompt_twice(world):
    batch = heavy_tailed_batch()
    plans = [microbatches(batch, range(128), 500, world, rank) for rank in range(world)]
    micros = [micro for plan in plans for micro in plan]
    computed = [micro.input_ids.numel() for micro in micros]
    prompts = [len(batch.prompt_ids[row]) for row in range(0, 128, 8)]
    needed = int(batch.lengths.sum()) + sum(prompts)
    # Each cut between micro-batches goes through one group at most, whose prompt is computed once more.
    assert sum(computed) <= needed + max(prompts) * (len(micros) - 1)
    assert max(computed) - min(computed) <= 100 + max(prompts)  # balanced to about one response


def test_what_runs_at_the_same_time_is_of_about_the_same_length():
    # Padded rows on two processes, room for two of the longest: each round deals neighbours by length to
    # both, so that no process waits for a much longer row of the other.
    batch = filled_batch(random_groups([[5, 1, 8, 3, 7, 2, 6, 4]]))
    prompt = len(batch.prompt_ids[0])
    plans = [microbatches(batch, range(8), 2 * (prompt + 8), 2, rank, packed=False) for rank in range(2)]
    (first, second) = (batch.lengths[a.rows + b.rows].tolist() for a, b in zip(*plans, strict=True))
    assert min(first) > max(second)
    assert len(first) + len(second) == 8


@layouts
@pytest.mark.parametrize("beginning", [[], [9] * 16], ids=["", "shared beginning"])
def test_rows_of_a_micro_batch_carry_their_own_values(beginning, packed):
    batch = filled_batch(random_groups([[4, 1, 3], [2, 6, 5]]))
    batch.prompt_ids[:] = [beginning + ids for ids in batch.prompt_ids]
    for micro in microbatches(batch, range(6), 30 + len(beginning), 1, 0, packed):
        ids, positions = micro.input_ids.flatten(), micro.position_ids.flatten()
        for i, row in enumerate(micro.rows):
            prompt, response = batch.prompt_ids[row], batch.response_ids[row]
            predictors = micro.predictors[i, : len(response)]
            assert ids[predictors].tolist() == [prompt[-1], *response[:-1]]
            assert positions[predictors].tolist() == list(range(len(prompt) - 1, len(prompt + response) - 1))
            assert micro.response_ids[i, : len(response)].tolist() == response
            assert micro.response_mask[i].tolist() == [
                t < len(response) for t in range(micro.response_mask.shape[1])
            ]
            assert micro.advantages[i] == batch.advantages[row]
            assert micro.group_tokens[i] == (8 if row < 3 else 13)  # 4 + 1 + 3, 2 + 6 + 5


def test_a_group_packed_by_hand():
    # Prompt at 0–1, responses of 1 and 2 tokens at 2 and at 3–4; both go on from the prompt's position 1.
    batch = filled_batch(random_groups([[1, 2]]))
    for row in range(2):
        batch.prompt_ids[row] = [7, 8]
    batch.response_ids = [[4], [5, 6]]
    (micro,) = microbatches(batch, [0, 1], 100, 1, 0)
    assert micro.input_ids.tolist() == [[7, 8, 4, 5, 6]]
    assert micro.position_ids.tolist() == [[0, 1, 2, 2, 3]]
    assert micro.predictors.tolist() == [[1, 0], [1, 3]]
    assert micro.response_ids.tolist() == [[4, 0], [5, 6]]
    assert micro.packing.blocks == [Block(1, 2, 2), Block(2, 2, 4)]
    assert micro.packing.queries.tolist() == [0, 1, *(3, 4), *(2, 2)]
    assert micro.packing.keys.tolist() == [0, 1, *(0, 1, 3, 4), *(0, 1, 2, 2)]
    # Results: prompt 0–1, then the longer response 2–3, then the shorter one 4 and its filler.
    assert micro.packing.home.tolist() == [0, 1, 4, 2, 3]


@layouts
def test_a_process_without_rows_gets_an_empty_micro_batch(packed):
    batch = filled_batch(random_groups([[4]]))
    (busy,), (idle,) = (microbatches(batch, [0], 100, 2, rank, packed) for rank in range(2))
    assert busy.rows == [0]
    assert idle.rows == []
    assert not idle.response_mask.any()


@layouts
@pytest.mark.parametrize("budget", [1, 13, 40, 1000])
def test_one_row_alone_may_exceed_the_budget(budget, packed):
    batch = filled_batch(random_groups([[50, 2]]))
    micros = microbatches(batch, [0, 1], budget, 1, 0, packed)
    assert sorted(row for micro in micros for row in micro.rows) == [0, 1]
