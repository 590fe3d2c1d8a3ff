"""Proof of `dapo_ref/dynamic_sampling.py`: Eq. 11, the buffer of Algorithm 1, the size of a refill (D4)."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dapo_ref.dynamic_sampling import (
    AcceptanceRate,
    GroupBuffer,
    any_outcome,
    has_mixed_outcomes,
    next_round_size,
    pass_rate_within,
)
from dapo_ref.loss import group_advantages
from dapo_ref.reward import correctness_reward, soft_overlong_penalty
from tests.support import oracle

# --- Eq. 11 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [1, 2, 3, 4])
def test_constraint_matches_equation_11_on_every_group(group_size: int) -> None:
    """All 2^G outcomes: 0 of 2, 2 of 4, 6 of 8 and 14 of 16 qualify."""
    outcomes = list(itertools.product([False, True], repeat=group_size))
    kept = has_mixed_outcomes(torch.tensor(outcomes)).tolist()
    assert kept == [oracle.eq11_keeps(list(correct)) for correct in outcomes]
    assert sum(kept) == 2**group_size - 2


@given(st.data())
def test_constraint_matches_equation_11_over_random_shapes(data: st.DataObject) -> None:
    """[P, Q, G]: the last dimension is the group."""
    p, q, group_size = (data.draw(st.integers(1, n)) for n in (3, 3, 6))
    size = p * q * group_size
    flat = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    correct = torch.tensor(flat).reshape(p, q, group_size)
    expected = [[oracle.eq11_keeps(group) for group in row] for row in correct.tolist()]
    assert has_mixed_outcomes(correct).tolist() == expected


def test_a_group_of_one_never_qualifies() -> None:
    assert has_mixed_outcomes(torch.tensor([[True], [False]])).tolist() == [False, False]


def test_a_length_penalty_does_not_make_an_all_wrong_group_qualify() -> None:
    """Four wrong answers, one of them at the cap: shaped rewards −1, −1, −1, −2 differ and have advantages of
    0.5 and −1.5, which would reward short wrong answers. Counted by answers, 0 of 4 are right."""
    correct = torch.tensor([[False] * 4])
    penalty = soft_overlong_penalty(torch.tensor([[10, 10, 10, 100]]), 100, 50)
    shaped = correctness_reward(correct) + penalty
    torch.testing.assert_close(
        group_advantages(shaped), torch.tensor([[0.5, 0.5, 0.5, -1.5]]), rtol=3e-6, atol=0
    )
    assert has_mixed_outcomes(correct).tolist() == [False]
    with pytest.raises(ValueError, match="never on rewards"):
        has_mixed_outcomes(shaped)


def test_without_dynamic_sampling_every_group_qualifies() -> None:
    correct = torch.tensor([[True, True], [True, False], [False, False]])
    assert any_outcome(correct).tolist() == [True, True, True]
    buffer = GroupBuffer[str](2, any_outcome)
    assert buffer.add(["a", "b", "c"], correct) == 3
    assert buffer.groups == ["a", "b"]


# --- GroupBuffer: Algorithm 1, lines 4–8 --------------------------------------------------------------------


def outcomes(*rows: str) -> Tensor:
    """`"10"` is one right and one wrong."""
    return torch.tensor([[answer == "1" for answer in row] for row in rows])


def test_buffer_by_hand() -> None:
    """Capacity 3. Round 1 keeps b, d of four. Round 2 has three that qualify, one too many twice over: e is
    kept, f and h are surplus."""
    buffer = GroupBuffer[str](3)
    assert (buffer.missing, buffer.full) == (3, False)
    assert buffer.add(list("abcd"), outcomes("11", "10", "00", "01")) == 2
    assert (buffer.groups, buffer.missing, buffer.full) == (["b", "d"], 1, False)
    assert buffer.add(list("efgh"), outcomes("10", "01", "00", "10")) == 3
    assert (buffer.groups, buffer.missing, buffer.full) == (["b", "d", "e"], 0, True)
    assert (buffer.rounds, buffer.groups_generated, buffer.groups_qualified) == (2, 8, 5)
    assert (buffer.groups_all_correct, buffer.groups_all_wrong) == (1, 2)


def test_a_full_buffer_discards_what_comes_and_counts_it() -> None:
    buffer = GroupBuffer[str](1)
    buffer.add(["a"], outcomes("10"))
    assert buffer.add(["b"], outcomes("01")) == 1
    assert buffer.groups == ["a"]
    assert (buffer.groups_generated, buffer.groups_qualified) == (2, 2)


def test_groups_that_never_qualify_are_counted_and_not_kept() -> None:
    """What a caller needs to stop instead of asking for ever: rounds and generated groups grow."""
    buffer = GroupBuffer[str](2)
    for _ in range(3):
        assert buffer.add(["x", "y"], outcomes("11", "00")) == 0
    assert (buffer.groups, buffer.full) == ([], False)
    assert (buffer.rounds, buffer.groups_generated, buffer.groups_qualified) == (3, 6, 0)
    assert (buffer.groups_all_correct, buffer.groups_all_wrong) == (3, 3)


@given(st.data(), st.integers(1, 6), st.integers(1, 4))
def test_buffer_keeps_the_first_qualifying_groups_whole_and_in_order(
    data: st.DataObject, capacity: int, group_size: int
) -> None:
    """Against one loop over all rounds. A group carries its own outcomes, so that a row that came to stand
    beside another group's answers would show."""
    rounds = data.draw(
        st.lists(
            st.lists(st.tuples(*[st.booleans()] * group_size), min_size=1, max_size=5), min_size=1, max_size=4
        )
    )
    buffer = GroupBuffer[tuple[int, tuple[bool, ...]]](capacity)
    expected: list[tuple[int, tuple[bool, ...]]] = []
    number = 0
    for answers in rounds:
        groups = []
        for correct in answers:
            group = (number, correct)
            number += 1
            groups.append(group)
            if oracle.eq11_keeps(list(correct)) and len(expected) < capacity:
                expected.append(group)
        buffer.add(groups, torch.tensor(answers))
        assert buffer.missing == capacity - len(expected)
    assert buffer.groups == expected


# --- The size of a refill (D4) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "rate", "limit", "multiple_of", "size"),
    [
        (512, 1.0, 1536, 1, 512),  # first round of a run: a batch
        (512, 0.5, 1536, 1, 1024),  # 512 / 0.5
        (512, 0.25, 1536, 1, 1536),  # 2048, held at the limit
        (1, 0.5, 1536, 1, 2),  # one missing group asks for two prompts, not for a round
        (3, 0.4, 1536, 1, 8),  # 7.5, rounded up
        (3, 0.4, 1536, 8, 8),
        (1, 1.0, 1536, 8, 8),  # one prompt a process at least
        (5, 0.5, 1536, 4, 12),  # 10, up to a multiple of 4
        (512, 0.1, 1534, 8, 1528),  # the limit, down to a multiple of 8
        (4, 0.5, 3, 8, 8),  # a limit below one prompt a process
    ],
)
def test_round_size_by_hand(missing: int, rate: float, limit: int, multiple_of: int, size: int) -> None:
    assert next_round_size(missing, rate, limit, multiple_of) == size


@given(st.integers(1, 600), st.floats(0.01, 1.0), st.integers(1, 2000), st.sampled_from([1, 2, 3, 8]))
def test_round_size_is_the_least_multiple_expected_to_fill_the_batch(
    missing: int, rate: float, limit: int, multiple_of: int
) -> None:
    size = next_round_size(missing, rate, limit, multiple_of)
    enough = [n for n in range(multiple_of, 70000, multiple_of) if n * rate >= missing * (1 - 1e-12)][:1]
    within = max((n for n in range(0, limit + 1, multiple_of)), default=0) or multiple_of
    assert size in (min(enough[0], within), min(enough[0] + multiple_of, within))
    assert size == within or size * rate >= missing * (1 - 1e-12)


def test_acceptance_rate_by_hand() -> None:
    """(qualified + 1) / (generated + 1): 1/1; 2 of 8, 3/9; 3 of 10, 4/11; halved, 2.5/6."""
    rate = AcceptanceRate()
    assert rate.value == 1.0
    rate.update(qualified=2, generated=8)
    assert rate.value == 3 / 9
    rate.update(qualified=1, generated=2)
    assert rate.value == 4 / 11
    rate.end_step()
    assert rate.value == 2.5 / 6


def test_acceptance_rate_never_reaches_zero() -> None:
    """A round in which nothing qualified: 1/513, so that the next size is defined."""
    rate = AcceptanceRate()
    rate.update(qualified=0, generated=512)
    assert rate.value == 1 / 513
    assert next_round_size(512, rate.value, 1536) == 1536


def test_acceptance_rate_follows_the_policy() -> None:
    """20 steps of 900 of 1,000, then 100 of 1,000: after k steps the old ones weigh 2^−k. Sums before the
    last halving are 2·(1 − 2^−20)·1000 and so on, so that the rate after 4 is near 0.1 + 0.8/16 = 0.15."""
    rate = AcceptanceRate()
    for qualified in [900] * 20 + [100] * 4:
        rate.update(qualified, 1000)
        rate.end_step()
    assert rate.value == pytest.approx(0.15, abs=1e-3)


def test_acceptance_rate_survives_a_checkpoint() -> None:
    rate = AcceptanceRate()
    rate.update(37, 101)
    rate.end_step()
    restored = AcceptanceRate(**rate.state_dict())
    for r in (rate, restored):
        r.update(5, 9)
    assert restored.state_dict() == rate.state_dict() == {"qualified": 23.5, "generated": 59.5}


def groups_generated_in_a_run(shares: list[float], batch: int, world_size: int, seed: int) -> list[int]:
    """By each step, where a group qualifies with the step's share."""
    rng = random.Random(seed)
    rate = AcceptanceRate()
    steps = []
    for share in shares:
        buffer = GroupBuffer[int](batch)
        while not buffer.full:
            size = next_round_size(buffer.missing, rate.value, 3 * batch, world_size)
            mixed = [rng.random() < share for _ in range(size)]
            qualified = buffer.add(range(size), torch.tensor([[True, not m] for m in mixed]))
            rate.update(qualified, size)
            assert buffer.rounds <= 10  # the authors' limit
        rate.end_step()
        steps.append(buffer.groups_generated)
    return steps


@pytest.mark.parametrize(
    "shares",
    [
        [0.5] * 40,
        [0.3] * 40,
        [0.8 - 0.015 * step for step in range(40)],  # falls as the policy learns: 0.8 to 0.215
        [0.2 + 0.015 * step for step in range(40)],
    ],
    ids=["half", "three tenths", "falling", "rising"],
)
def test_a_run_generates_little_more_than_acceptance_requires(shares: list[float]) -> None:
    """512 groups a step on 8 processes: the least is 512 / share. A refill of full rounds (1,536) would be
    1.5 × at a share of one half."""
    generated = groups_generated_in_a_run(shares, batch=512, world_size=8, seed=0)
    least = sum(512 / share for share in shares)
    assert least * 0.97 <= sum(generated) <= 1.15 * least


def test_a_shortfall_of_one_costs_a_few_prompts() -> None:
    """After 511 of 1,022: 1 / (512/1023) = 1.998, two prompts, where a full round would be 1,536."""
    buffer, rate = GroupBuffer[int](512), AcceptanceRate()
    rate.update(buffer.add(range(1022), outcomes(*["10", "11"] * 511)), 1022)
    assert buffer.missing == 1
    assert next_round_size(buffer.missing, rate.value, 1536) == 2


# --- Bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: has_mixed_outcomes(torch.ones(2, 3)), ["correct", "bool", "float32"]),
        (lambda: has_mixed_outcomes(torch.tensor(True)), ["correct", "[..., G]", "[]"]),
        (lambda: has_mixed_outcomes(torch.ones(2, 0).bool()), ["correct", "G ≥ 1", "[2, 0]"]),
        (lambda: any_outcome(torch.ones(2, 3)), ["correct", "bool", "float32"]),
        (lambda: GroupBuffer[str](0), ["capacity", "at least 1", "0"]),
        (lambda: GroupBuffer[str](1).add(["a", "b"], outcomes("10")), ["correct", "[2, G]", "[1, 2]"]),
        (lambda: GroupBuffer[str](1).add(["a"], outcomes("10")[0]), ["correct", "[1, G]", "[2]"]),
        (lambda: GroupBuffer[str](1).add(["a"], torch.ones(1, 2)), ["correct", "bool", "float32"]),
        (lambda: next_round_size(0, 0.5, 8), ["missing", "at least 1", "0"]),
        (lambda: next_round_size(1, 0.0, 8), ["acceptance_rate", "(0, 1]", "0.0"]),
        (lambda: next_round_size(1, 1.5, 8), ["acceptance_rate", "(0, 1]", "1.5"]),
        (lambda: next_round_size(1, math.nan, 8), ["acceptance_rate", "nan"]),
        (lambda: next_round_size(1, 0.5, 0), ["max_prompts", "at least 1", "0, 1"]),
        (lambda: next_round_size(1, 0.5, 8, 0), ["multiple_of", "at least 1", "8, 0"]),
    ],
)
def test_bad_input_is_refused_by_name(call: Callable[[], Any], words: list[str]) -> None:
    """The message names the argument and both shapes or values."""
    with pytest.raises(ValueError, match=r"\S") as error:
        call()
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{error.value!s} lacks {missing}"


def test_a_refused_round_leaves_the_buffer_as_it_was() -> None:
    buffer = GroupBuffer[str](1)
    with pytest.raises(ValueError, match="correct must be bool"):
        buffer.add(["a"], torch.ones(1, 2))
    assert (buffer.rounds, buffer.groups_generated, buffer.groups) == (0, 0, [])


@pytest.mark.parametrize("size", range(1, 9))
def test_pass_rates_are_strict_bounds_and_eq_11_by_default(size: int) -> None:
    for right in range(size + 1):
        correct = torch.tensor([[True] * right + [False] * (size - right)])
        assert pass_rate_within(0, 1)(correct).tolist() == has_mixed_outcomes(correct).tolist()
        assert pass_rate_within(0.25, 0.75)(correct).tolist() == [0.25 < right / size < 0.75]


@pytest.mark.parametrize("bounds", [(0.5, 0.5), (0.6, 0.4), (-0.1, 1), (0, 1.1)])
def test_pass_rates_out_of_order_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="bounds"):
        pass_rate_within(*bounds)


def test_pass_rates_are_of_answers_never_of_rewards() -> None:
    with pytest.raises(ValueError, match="correct must be bool"):
        pass_rate_within(0, 1)(torch.ones(2, 4))
