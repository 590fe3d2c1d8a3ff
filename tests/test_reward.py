"""Proof of `dapo_ref/reward.py`: Eq. 7, Eq. 13 and overlong filtering (§3.4)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dapo_ref.loss import dapo_loss, group_advantages
from dapo_ref.reward import correctness_reward, overlong_filter, soft_overlong_penalty
from tests.support import oracle

L_MAX, L_CACHE = 20480, 4096  # §4.1; the slope starts beyond 16,384


@given(st.lists(st.booleans(), max_size=8))
def test_reward_matches_equation_7(correct: list[bool]) -> None:
    reward = correctness_reward(torch.tensor(correct, dtype=torch.bool))
    assert reward.tolist() == [oracle.eq7_reward(c) for c in correct]


@pytest.mark.parametrize(
    ("length", "penalty"),
    [
        (0, 0.0),
        (16383, 0.0),
        (16384, 0.0),  # L_max − L_cache: the last length without a penalty
        (16385, -1 / 4096),  # (16384 − 16385) / 4096
        (17408, -0.25),  # −1024 / 4096
        (18432, -0.5),  # −2048 / 4096
        (20479, -4095 / 4096),
        (20480, -1.0),  # L_max: −4096 / 4096, the foot of the slope
        (20481, -1.0),  # L_max + 1: the third line
        (40000, -1.0),
    ],
)
def test_penalty_at_paper_lengths(length: int, penalty: float) -> None:
    """Quotients by 4096 are exact in float32."""
    assert soft_overlong_penalty(torch.tensor([length]), L_MAX, L_CACHE).tolist() == [penalty]


@given(
    st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    st.lists(st.integers(0, 400), min_size=1, max_size=20),
)
def test_penalty_matches_equation_13(limits: tuple[int, int], lengths: list[int]) -> None:
    """Over random limits, L_cache = L_max among them. float32 out: 6e-8."""
    expected = torch.tensor([oracle.eq13_penalty(length, *limits) for length in lengths])
    penalty = soft_overlong_penalty(torch.tensor(lengths), *limits)
    torch.testing.assert_close(penalty, expected, rtol=1e-7, atol=0)


def test_cache_as_long_as_the_cap_punishes_from_the_first_token() -> None:
    """L_cache = L_max = 4: −|y|/4."""
    assert soft_overlong_penalty(torch.arange(6), 4, 4).tolist() == [0.0, -0.25, -0.5, -0.75, -1.0, -1.0]


def test_shaped_reward_is_the_sum_of_both() -> None:
    """Right and short +1; right at the cap 1 − 1 = 0; wrong halfway −1 − 0.5; wrong at the cap −2."""
    correct = torch.tensor([True, True, False, False])
    lengths = torch.tensor([100, 20480, 18432, 20480])
    reward = correctness_reward(correct) + soft_overlong_penalty(lengths, L_MAX, L_CACHE)
    assert reward.tolist() == [1.0, 0.0, -1.5, -2.0]


def test_filter_masks_truncated_responses_and_no_other() -> None:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    before = mask.clone()
    filtered = overlong_filter(mask, torch.tensor([True, False, False, True]))
    assert filtered.int().tolist() == [[0, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert torch.equal(mask, before)


def test_filter_stops_the_gradient_and_leaves_the_advantages() -> None:
    """R = (1, −1, −1, −1), the last truncated. Its place in mean and std stays: Â is 1.5, −0.5, −0.5 as with
    all four (without it they would be 2/√3 = 1.1547 and −0.5774). N is the 3 tokens left: gradient −Â/3."""
    advantages = group_advantages(torch.tensor([[1.0, -1.0, -1.0, -1.0]])).flatten()
    mask = overlong_filter(torch.ones(4, 1, dtype=torch.bool), torch.tensor([False, False, False, True]))
    logprobs = torch.full((4, 1), -1.0, requires_grad=True)
    loss = dapo_loss(
        logprobs,
        logprobs.detach(),
        advantages,
        mask,
        clip_eps_low=0.2,
        clip_eps_high=0.28,
        num_tokens=mask.sum(),
    )
    loss.backward()
    expected = torch.tensor([[-0.5], [0.5 / 3], [0.5 / 3], [0.0]])
    torch.testing.assert_close(logprobs.grad, expected, rtol=2e-6, atol=0)


ONES, TRUE = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: correctness_reward(torch.tensor([1.0, 0.0])), ["correct", "bool", "float32"]),
        (lambda: correctness_reward(torch.tensor([1, 0])), ["correct", "bool", "int64"]),
        (lambda: soft_overlong_penalty(torch.ones(2), 8, 0), ["cache_length 0", "max_length 8"]),
        (lambda: soft_overlong_penalty(torch.ones(2), 8, -1), ["cache_length -1", "max_length 8"]),
        (lambda: soft_overlong_penalty(torch.ones(2), 8, 9), ["cache_length 9", "max_length 8"]),
        (lambda: overlong_filter(ONES, TRUE[:, 0]), ["response_mask", "bool", "float32"]),
        (lambda: overlong_filter(TRUE, ONES[:, 0]), ["truncated", "bool", "float32"]),
        (lambda: overlong_filter(TRUE, TRUE[0]), ["truncated", "[2]", "response_mask", "[2, 3]", "[3]"]),
        (lambda: overlong_filter(TRUE[0], TRUE[0]), ["response_mask", "[B, T]", "[3]"]),
    ],
)
def test_bad_input_is_refused_by_name(call: Callable[[], Any], words: list[str]) -> None:
    """The message names the argument and both shapes or values."""
    with pytest.raises(ValueError, match=r"\S") as error:
        call()
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{error.value!s} lacks {missing}"
