"""Proof of `dapo_ref/loss.py`: each term against its equation, its gradient, its kinks and its invariances.

Everything but `group_advantages`, which returns float32, is compared in float64. Where no line says otherwise
the tolerance is 1e-12 relative for sums of a few dozen terms; ε_low, ε_high are the paper's 0.2 and 0.28.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dapo_ref.loss import (
    clip_fractions,
    clipped_surrogate,
    dapo_loss,
    dual_clip,
    group_advantages,
    group_token_mean,
    importance_ratio,
    masked_surrogate,
    sample_level_mean,
    token_level_mean,
)
from tests.support import oracle
from tests.support.oracle import Group, ragged_groups

LOW, HIGH = 0.2, 0.28
CLIP = {"clip_eps_low": LOW, "clip_eps_high": HIGH}


def f64(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: Tensor, expected: Any, rel: float = 1e-12) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, rtol=rel, atol=rel)


# --- group_advantages: Eq. 4 and 9 --------------------------------------------------------------------------


def test_advantages_of_one_correct_in_four() -> None:
    """R = (1, −1, −1, −1): mean −0.5, deviations (1.5, −0.5, −0.5, −0.5), squares sum to 2.25 + 3·0.25 = 3.

    Bessel: std = √(3/3) = 1, so Â = deviations / (1 + 1e-6).
    Population: std = √(3/4) = 0.8660254, so Â = (1.7320508, −0.5773503, …) to 2e-6.
    """
    rewards = torch.tensor([[1.0, -1.0, -1.0, -1.0]])
    close(group_advantages(rewards), [[1.4999985, -0.4999995, -0.4999995, -0.4999995]], rel=1e-7)
    population = group_advantages(rewards, unbiased=False)
    close(population, [[1.7320488, -0.5773496, -0.5773496, -0.5773496]], rel=2e-7)


@pytest.mark.parametrize(
    ("num_correct", "unbiased", "of_correct", "of_wrong"),
    [
        # 1 of 16: mean −14/16 = −0.875, deviations 1.875 and −0.125, squares 3.515625 + 15·0.015625 = 3.75.
        (1, True, 3.75, -0.25),  # std = √(3.75/15) = 0.5
        (1, False, 3.8729833, -0.2581989),  # std = √(3.75/16) = 0.4841229
        # 8 of 16: mean 0, deviations ±1, squares 16.
        (8, True, 0.9682458, -0.9682458),  # std = √(16/15) = 1.0327956
        (8, False, 1.0, -1.0),  # std = 1
    ],
)
def test_published_advantages_for_sixteen_responses(
    num_correct: int, unbiased: bool, of_correct: float, of_wrong: float
) -> None:
    """The values before eps: it moves them by eps/std ≤ 2.1e-6 relative."""
    rewards = torch.tensor([[1.0] * num_correct + [-1.0] * (16 - num_correct)])
    advantages = group_advantages(rewards, unbiased=unbiased)
    close(advantages, [[of_correct] * num_correct + [of_wrong] * (16 - num_correct)], rel=2.2e-6)


def test_advantages_are_bessel_corrected_by_default() -> None:
    """G = 2, R = (1, −1): Bessel std √2, so Â = ±1/√2 and not ±1."""
    close(group_advantages(torch.tensor([[1.0, -1.0]])), [[math.sqrt(0.5), -math.sqrt(0.5)]], rel=1e-6)


def test_eps_is_added_to_the_std() -> None:
    """R = (2, 0) µ: deviations ±1 µ, Bessel std √2 µ; with eps = 1 µ, Â = ±1/(√2 + 1) = ±(√2 − 1).

    A maximum of the two would give 1/√2, eps under the root about 1e-3."""
    advantages = group_advantages(f64([2e-6, 0.0]), eps=1e-6)
    close(advantages, [[math.sqrt(2) - 1, 1 - math.sqrt(2)]], rel=1e-6)
    close(group_advantages(f64([2e-6, 0.0])), advantages)  # 1e-6 is the default


reward_matrices = st.integers(1, 6).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(-2, 1, width=32), min_size=size, max_size=size), min_size=1, max_size=5
    )
)


@given(reward_matrices, st.sampled_from([1e-6, 1e-3, 0.5]), st.booleans())
def test_advantages_match_equation_9(rewards: list[list[float]], eps: float, unbiased: bool) -> None:
    expected = [oracle.eq9_advantages(group, eps, unbiased) for group in rewards]
    # float32 out: half a unit in the last place is 6e-8. What a sum of 1e-16 can do to a group without spread
    # is 1e-16/eps.
    close(group_advantages(torch.tensor(rewards), eps, unbiased), expected, rel=1e-7)


@given(reward_matrices, st.integers(-8, 8))
def test_a_shift_of_rewards_changes_no_advantage(rewards: list[list[float]], shift: int) -> None:
    matrix = torch.tensor(rewards, dtype=torch.float64)
    close(group_advantages(matrix + shift), group_advantages(matrix), rel=1e-7)


@given(reward_matrices, st.sampled_from([0.25, 0.5, 2.0, 64.0]))
def test_a_scale_of_rewards_changes_advantages_by_eps_alone(rewards: list[list[float]], scale: float) -> None:
    """Â(cR; c·eps) = Â(R; eps), and with the same eps  Â(cR)/Â(R) = (s + eps)/(s + eps/c),  s the std."""
    matrix = torch.tensor(rewards, dtype=torch.float64)
    advantages = group_advantages(matrix)
    close(group_advantages(scale * matrix, eps=scale * 1e-6), advantages, rel=1e-7)
    std = matrix.std(dim=1, keepdim=True) if matrix.shape[1] > 1 else torch.zeros(len(matrix), 1)
    factor = (std + 1e-6) / (std + 1e-6 / scale)
    close(group_advantages(scale * matrix), advantages.double() * factor, rel=1e-6)


@given(reward_matrices, st.randoms(use_true_random=False))
def test_permuting_responses_and_groups_permutes_advantages(rewards: list[list[float]], rng: Any) -> None:
    matrix = torch.tensor(rewards)
    responses = rng.sample(range(matrix.shape[1]), matrix.shape[1])
    groups = rng.sample(range(len(matrix)), len(matrix))
    close(
        group_advantages(matrix[groups][:, responses]), group_advantages(matrix)[groups][:, responses], 1e-7
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("group_size", [1, 2, 3, 7, 10, 16])
def test_equal_rewards_have_advantage_exactly_zero(group_size: int, dtype: torch.dtype) -> None:
    """0.1 is no binary fraction: in float64 the mean of seven of them is not 0.1."""
    rewards = torch.tensor([[0.1] * group_size, [-1.3] * group_size], dtype=dtype)
    for unbiased in (True, False):
        assert group_advantages(rewards, unbiased=unbiased).tolist() == [[0.0] * group_size] * 2


def test_a_group_of_one_has_advantage_zero() -> None:
    """Its Bessel-corrected std is 0/0; taken as 0, the deviation 0 stays 0 and is not nan."""
    assert group_advantages(torch.tensor([[1.0], [-1.0], [-1.7]])).tolist() == [[0.0], [0.0], [0.0]]


def test_groups_do_not_see_each_other() -> None:
    """The first row of two, (1, −1 | 5, 5), is what it is alone; the second has no spread."""
    advantages = group_advantages(torch.tensor([[1.0, -1.0], [5.0, 5.0]]))
    assert advantages[0].tolist() == group_advantages(torch.tensor([[1.0, -1.0]]))[0].tolist()
    assert advantages[1].tolist() == [0.0, 0.0]


# --- importance_ratio: Eq. 6 and 9 --------------------------------------------------------------------------


def test_ratio_of_known_probabilities() -> None:
    """0.5 / 0.25 = 2;  0.2 / 0.4 = 0.5;  equal log-probabilities give exactly 1."""
    new, old = f64([0.5, 0.2, 0.3]).log(), f64([0.25, 0.4, 0.3]).log()
    ratio = importance_ratio(new, old)
    close(ratio, [[2.0, 0.5, 1.0]])
    assert ratio[0, 2].item() == 1.0


@given(ragged_groups())
def test_ratio_matches_equation_9(groups: list[Group]) -> None:
    for response in (r for group in groups for r in group):
        expected = [
            oracle.eq9_ratio(a, b) for a, b in zip(response.logprobs, response.old_logprobs, strict=True)
        ]
        close(importance_ratio(f64(response.logprobs), f64(response.old_logprobs)), [expected])


def test_ratio_has_no_gradient_to_the_old_policy() -> None:
    """d r / d log π_θ = r;  π_old is a constant even where its tensor asks for a gradient."""
    new, old = f64([0.5, 0.2]).log().requires_grad_(), f64([0.25, 0.4]).log().requires_grad_()
    ratio = importance_ratio(new, old)
    ratio.sum().backward()
    close(new.grad, [[2.0, 0.5]])
    assert old.grad is None


# --- clipped_surrogate: Eq. 10 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "term", "slope"),
    [
        # 0.8 and 1.28 are the bounds; slope is d term / d ratio.
        (1.5, 1.0, 1.28, 0.0),  # grew enough: min(1.5, 1.28)
        (1.5, -1.0, -1.5, -1.0),  # grew the wrong way: min(−1.5, −1.28)
        (0.5, 1.0, 0.5, 1.0),  # shrank the wrong way: min(0.5, 0.8)
        (0.5, -1.0, -0.8, 0.0),  # shrank enough: min(−0.5, −0.8)
        (1.25, 2.0, 2.5, 2.0),  # inside Clip-Higher, outside GRPO's 1.2
        (0.75, -2.0, -1.6, 0.0),  # outside 0.8, inside 1 − 0.28 = 0.72
        (1.0, -3.0, -3.0, -3.0),
        (1.5, 0.0, 0.0, 0.0),
        (0.5, 0.0, 0.0, 0.0),
    ],
)
def test_clip_by_side_and_sign(ratio: float, advantage: float, term: float, slope: float) -> None:
    r = f64([ratio]).requires_grad_()
    surrogate = clipped_surrogate(r, f64(advantage), LOW, HIGH)
    surrogate.sum().backward()
    close(surrogate.detach(), [[term]])
    assert r.grad.item() == slope


@given(ragged_groups(), st.sampled_from([(0.2, 0.28), (0.2, 0.2), (0.0, 0.1), (0.3, 0.0)]))
def test_clip_matches_equation_10(groups: list[Group], eps: tuple[float, float]) -> None:
    batch = oracle.pad(groups)
    ratio = importance_ratio(batch.logprobs, batch.old_logprobs).requires_grad_()
    surrogate = clipped_surrogate(ratio, batch.advantages, *eps)
    surrogate.sum().backward()
    for i, advantage in enumerate(batch.advantages.tolist()):
        rs = ratio[i].tolist()
        close(surrogate[i].detach(), [oracle.eq10_term(r, advantage, *eps) for r in rs])
        off_kinks = [j for j, r in enumerate(rs) if min(abs(r - 1 + eps[0]), abs(r - 1 - eps[1])) > 1e-9]
        close(ratio.grad[i][off_kinks], [oracle.eq10_slope(rs[j], advantage, *eps) for j in off_kinks])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(("bound", "beyond"), [(1.0 - LOW, 0.0), (1.0 + HIGH, 2.0)])
def test_on_a_kink_the_gradient_is_still_whole(bound: float, beyond: float, advantage: float) -> None:
    """At r = 1−ε_low and r = 1+ε_high the two terms of the min are equal, and so is their slope taken from
    inside: value Â·bound, gradient Â. The next float beyond is clipped where the sign of Â says so."""
    ratio = f64([bound, math.nextafter(bound, beyond), math.nextafter(bound, 1.0)]).requires_grad_()
    surrogate = clipped_surrogate(ratio, f64(advantage), LOW, HIGH)
    surrogate.sum().backward()
    assert surrogate[0, 0].item() == advantage * bound
    binds = (beyond > bound) == (advantage > 0)
    assert ratio.grad.tolist() == [[advantage, 0.0 if binds else advantage, advantage]]


def test_clip_gradcheck_away_from_kinks() -> None:
    ratio = f64([0.5, 0.9, 1.25, 1.6], [0.5, 0.9, 1.25, 1.6]).requires_grad_()
    advantages = f64(0.7, -1.3)
    assert torch.autograd.gradcheck(lambda r: clipped_surrogate(r, advantages, LOW, HIGH), ratio)


# --- dual_clip: the authors' bound (D3) ---------------------------------------------------------------------


def test_dual_clip_bounds_negative_advantages_alone() -> None:
    """c = 3, Â = −1: −5 → −3, −2 stays. Â = +1 and Â = 0 stay, however low."""
    surrogate = f64([-5.0, -2.0], [-5.0, 1.28], [-0.0, 0.0]).requires_grad_()
    bounded = dual_clip(surrogate, f64(-1.0, 1.0, 0.0), 3.0)
    bounded.sum().backward()
    assert bounded.tolist() == [[-3.0, -2.0], [-5.0, 1.28], [0.0, 0.0]]
    assert surrogate.grad.tolist() == [[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]


def test_dual_clip_binds_beyond_ratio_c() -> None:
    """c = 10, Â = −0.5: r = 10 is −5 and on the bound, r = 12 would be −6 and is held at −5."""
    ratio, advantages = f64([1.0, 9.0, 10.0, 12.0]), f64(-0.5)
    surrogate = clipped_surrogate(ratio, advantages, LOW, HIGH)
    close(dual_clip(surrogate, advantages, 10.0), [[-0.5, -4.5, -5.0, -5.0]])


@given(ragged_groups(), st.sampled_from([1.1, 1.5, 10.0]))
def test_dual_clip_matches_its_transcription(groups: list[Group], c: float) -> None:
    batch = oracle.pad(groups)
    ratio = importance_ratio(batch.logprobs, batch.old_logprobs)
    surrogate = clipped_surrogate(ratio, batch.advantages, LOW, HIGH)
    bounded = dual_clip(surrogate, batch.advantages, c)
    for i, advantage in enumerate(batch.advantages.tolist()):
        close(bounded[i], [oracle.dual_clip_term(x, advantage, c) for x in surrogate[i].tolist()])


def test_dual_clip_gradcheck_away_from_kinks() -> None:
    surrogate = f64([-5.0, -2.0], [-5.0, 1.0]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dual_clip(x, f64(-1.0, 1.0), 3.0), surrogate)


# --- Aggregation: Eq. 12, Eq. 8 as printed, Eq. 5 -----------------------------------------------------------

# Two groups of two responses of 1, 3 | 2, 2 tokens; 99 stands at padding.
X = f64([1.0, 99.0, 99.0], [2.0, 3.0, 4.0], [5.0, 6.0, 99.0], [7.0, 8.0, 99.0])
MASK = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]], dtype=torch.bool)
GROUP_TOKENS = torch.tensor([4, 4, 4, 4])


def test_token_level_mean_by_hand() -> None:
    """(1 + 2+3+4 + 5+6 + 7+8) / 8 = 36/8. The number is as given: by 16 it is half, float or tensor."""
    assert token_level_mean(X, MASK, 8).item() == 4.5
    assert token_level_mean(X, MASK, 16.0).item() == 2.25
    assert token_level_mean(X, MASK, torch.tensor(16)).item() == 2.25


def test_sample_level_mean_by_hand() -> None:
    """Means of responses 1, 9/3, 11/2, 15/2; (1 + 3 + 5.5 + 7.5) / 4 = 4.25, where Eq. 12 has 4.5."""
    assert sample_level_mean(X, MASK, 4).item() == 4.25
    assert sample_level_mean(X, MASK, torch.tensor(8)).item() == 2.125


def test_group_token_mean_by_hand() -> None:
    """Groups of 1 + 3 and of 1 + 1 tokens: (1 + 2+3+4)/4 = 2.5 and (5 + 7)/2 = 6; (2.5 + 6)/2 = 4.25,
    where Eq. 12 over the mini-batch has 22/6."""
    mask = MASK.clone()
    mask[2:, 1] = False
    assert group_token_mean(X, mask, torch.tensor([4, 4, 2, 2]), 2).item() == 4.25
    assert group_token_mean(X, mask, torch.tensor([4, 4, 2, 2]), torch.tensor(4)).item() == 2.125


def test_a_row_without_tokens_adds_nothing() -> None:
    """Its length is 0: 0/0 would be nan. The others keep the denominators they had."""
    mask = MASK.clone()
    mask[1] = False
    assert sample_level_mean(X, mask, 4).item() == (1 + 5.5 + 7.5) / 4
    assert token_level_mean(X, mask, 8).item() == 27 / 8
    none = torch.zeros_like(MASK)
    assert group_token_mean(X, none, torch.zeros(4, dtype=torch.long), 2).item() == 0.0


Aggregate = Callable[[Tensor, Tensor, slice], Tensor]
AGGREGATIONS: dict[str, Aggregate] = {
    "token_level_mean": lambda x, mask, rows: token_level_mean(x, mask, 8),
    "group_token_mean": lambda x, mask, rows: group_token_mean(x, mask, GROUP_TOKENS[rows], 2),
    "sample_level_mean": lambda x, mask, rows: sample_level_mean(x, mask, 4),
}


@pytest.mark.parametrize("aggregate", AGGREGATIONS.values(), ids=AGGREGATIONS.keys())
def test_micro_batches_add_up(aggregate: Aggregate) -> None:
    """Each of the 8 ways to cut 4 rows into runs gives the same sum, the gradient included."""
    whole = X.clone().requires_grad_()
    aggregate(whole, MASK, slice(0, 4)).backward()
    for cuts in ([1], [2], [3], [1, 2], [1, 3], [2, 3], [1, 2, 3]):
        x = X.clone().requires_grad_()
        edges = [0, *cuts, 4]
        rows = [slice(a, b) for a, b in pairwise(edges)]
        total = sum(aggregate(x[r], MASK[r], r) for r in rows)
        total.backward()
        close(total.detach(), aggregate(X, MASK, slice(0, 4)))
        close(x.grad, whole.grad)


@pytest.mark.parametrize("aggregate", AGGREGATIONS.values(), ids=AGGREGATIONS.keys())
@pytest.mark.parametrize("filler", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_out_values_reach_no_aggregate(aggregate: Aggregate, filler: float) -> None:
    x = X.masked_fill(~MASK, filler).requires_grad_()
    value = aggregate(x, MASK, slice(0, 4))
    value.backward()
    assert value.item() == aggregate(X, MASK, slice(0, 4)).item()
    assert (x.grad == 0).tolist() == (~MASK).tolist()


@pytest.mark.parametrize("aggregate", AGGREGATIONS.values(), ids=AGGREGATIONS.keys())
def test_aggregation_gradcheck(aggregate: Aggregate) -> None:
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: aggregate(y, MASK, slice(0, 4)), x)


# --- The objective: Eq. 8, 10, 12 and the baseline Eq. 5 ----------------------------------------------------


def loss_of(batch: oracle.Padded, rows: slice = slice(None), **changes: Any) -> Tensor:
    """`dapo_loss` of some rows, the tokens counted over all of them."""
    arguments = {"num_tokens": int(batch.response_mask.sum()), **CLIP, **changes}
    return dapo_loss(
        batch.logprobs[rows],
        batch.old_logprobs[rows],
        batch.advantages[rows],
        batch.response_mask[rows],
        **arguments,
    )


def grad_of(batch: oracle.Padded) -> Tensor:
    logprobs = batch.logprobs
    batch.logprobs = logprobs.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss_of(batch), batch.logprobs)
    batch.logprobs = logprobs
    return grad


def surrogate_of(batch: oracle.Padded, low: float = LOW, high: float = HIGH) -> Tensor:
    return masked_surrogate(
        batch.logprobs,
        batch.old_logprobs,
        batch.advantages,
        batch.response_mask,
        clip_eps_low=low,
        clip_eps_high=high,
    )


def test_dapo_loss_by_hand() -> None:
    """Two responses of 2 and 1 tokens, Â = 2 and −1, old probabilities 0.25, 0.4 | 0.5.

    New 0.5, 0.4 | 0.25: ratios 2, 1 | 0.5. Terms min(4, 2.56), 2 | min(−0.5, −0.8): 2.56 + 2 − 0.8 = 3.76.
    N = 3, loss −3.76/3. Gradient −Â r/N: 0 (clipped), −2/3 | 0 (clipped), 0 (padding).
    """
    logprobs = f64([0.5, 0.4], [0.25, 1.0]).log().requires_grad_()
    old_logprobs = f64([0.25, 0.4], [0.5, 1.0]).log()
    mask = torch.tensor([[True, True], [True, False]])
    loss = dapo_loss(logprobs, old_logprobs, f64(2.0, -1.0), mask, num_tokens=3, **CLIP)
    loss.backward()
    close(loss.detach(), -3.76 / 3)
    close(logprobs.grad, [[0.0, -2 / 3], [0.0, 0.0]])


@given(ragged_groups(), st.integers(0, 3))
def test_dapo_loss_matches_equation_12_over_the_mini_batch(groups: list[Group], extra: int) -> None:
    close(loss_of(oracle.pad(groups, extra)), -oracle.eq12_objective(groups, LOW, HIGH))


@given(ragged_groups())
def test_group_token_mean_matches_equation_8_as_printed(groups: list[Group]) -> None:
    batch = oracle.pad(groups)
    objective = group_token_mean(surrogate_of(batch), batch.response_mask, batch.group_tokens, len(groups))
    close(objective, oracle.eq8_objective(groups, LOW, HIGH))


@given(ragged_groups())
def test_sample_level_mean_with_symmetric_clip_is_equation_5_without_kl(groups: list[Group]) -> None:
    batch = oracle.pad(groups)
    objective = sample_level_mean(surrogate_of(batch, 0.2, 0.2), batch.response_mask, len(batch.advantages))
    close(objective, oracle.eq5_objective(groups, 0.2))


@given(ragged_groups())
def test_token_normalisations_agree_on_one_group(groups: list[Group]) -> None:
    """D1 is a choice of weights between groups: of one group alone both are the same mean."""
    batch = oracle.pad(groups[:1])
    printed = group_token_mean(surrogate_of(batch), batch.response_mask, batch.group_tokens, 1)
    close(-printed, loss_of(batch))


@given(ragged_groups())
def test_gradient_is_minus_advantage_times_ratio_over_tokens(groups: list[Group]) -> None:
    """−Â·r/N, exactly 0 where the clip binds and at padding. Ratios are random, never on a kink."""
    batch = oracle.pad(groups, extra=1)
    grad = grad_of(batch)
    responses = [response for group in groups for response in group]
    num_tokens = sum(len(response.logprobs) for response in responses)
    for i, response in enumerate(responses):
        for t, (new, old) in enumerate(zip(response.logprobs, response.old_logprobs, strict=True)):
            ratio = oracle.eq9_ratio(new, old)
            expected = -oracle.eq10_slope(ratio, response.advantage, LOW, HIGH) * ratio / num_tokens
            assert grad[i, t].item() == pytest.approx(expected, rel=1e-12, abs=0)
        assert grad[i, len(response.logprobs) :].eq(0).all()


def test_dapo_loss_gradcheck_away_from_kinks() -> None:
    """Ratios 0.55, 0.9, 1.25 and 1.6 for each sign of Â; the padded column moves nothing."""
    old = f64([-1.0] * 5, [-2.0] * 5)
    new = (old + f64([0.55, 0.9, 1.25, 1.6, 7.0]).log()).requires_grad_()
    mask = torch.tensor([[True] * 4 + [False]] * 2)
    assert torch.autograd.gradcheck(
        lambda x: dapo_loss(x, old, f64(0.7, -1.3), mask, num_tokens=8, **CLIP), new
    )


@given(ragged_groups())
def test_first_update_of_a_rollout(groups: list[Group]) -> None:
    """π_θ = π_old: every r is 1, no clip binds, loss −Σ Âᵢ|oᵢ|/N and gradient −Âᵢ/N."""
    batch = oracle.pad(groups)
    batch.old_logprobs = batch.logprobs
    lengths = batch.response_mask.sum(dim=1)
    close(loss_of(batch), -(batch.advantages * lengths).sum() / lengths.sum())
    close(grad_of(batch), -batch.advantages.unsqueeze(1) * batch.response_mask / lengths.sum())


@given(ragged_groups(), st.data())
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(
    groups: list[Group], data: st.DataObject
) -> None:
    """Losses and gradients of the parts add up, whatever the parts, each cut to its own longest row."""
    batch = oracle.pad(groups)
    num_rows = len(batch.advantages)
    order = data.draw(st.permutations(range(num_rows)))
    edges = sorted({0, num_rows, *data.draw(st.sets(st.integers(1, max(num_rows - 1, 1))))})
    logprobs = batch.logprobs.clone().requires_grad_()
    num_tokens = int(batch.response_mask.sum())
    total = f64(0.0).sum()
    for first, last in pairwise(edges):
        rows = order[first:last]
        width = int(batch.response_mask[rows].sum(dim=1).max())
        part = dapo_loss(
            logprobs[rows, :width],
            batch.old_logprobs[rows, :width],
            batch.advantages[rows],
            batch.response_mask[rows, :width],
            num_tokens=num_tokens,
            **CLIP,
        )
        part.backward()
        total += part.detach()
    close(total, loss_of(batch))
    close(logprobs.grad, grad_of(batch))


@pytest.mark.parametrize("filler", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@given(groups=ragged_groups(), extra=st.integers(0, 4))
def test_padding_content_and_amount_change_nothing(filler: float, groups: list[Group], extra: int) -> None:
    """Not a bit of the gradient; the loss only by the order in which a longer row is summed."""
    plain, padded = oracle.pad(groups), oracle.pad(groups, extra, filler)
    width = plain.logprobs.shape[1]
    close(loss_of(padded), loss_of(plain))
    grad = grad_of(padded)
    assert torch.equal(grad[:, :width], grad_of(plain))
    assert grad[:, width:].eq(0).all()


def test_one_bad_old_logprob_under_the_mask_reaches_no_gradient() -> None:
    """log π_old = −inf at padding would be a ratio of inf, and 0 · inf = nan on the way back: even though a
    mask stops it later, a search for the origin of a nan in training must not end at padding."""
    logprobs = f64([-1.0, -1.0]).requires_grad_()
    mask = torch.tensor([[True, False]])
    with torch.autograd.set_detect_anomaly(True):  # raises at any nan inside the backward pass
        loss = dapo_loss(logprobs, f64([-1.0, -math.inf]), f64(2.0), mask, num_tokens=1, **CLIP)
        loss.backward()
    assert loss.item() == -2.0
    assert logprobs.grad.tolist() == [[-2.0, 0.0]]


@given(ragged_groups(), st.randoms(use_true_random=False))
def test_order_of_responses_and_groups_does_not_matter(groups: list[Group], rng: Any) -> None:
    shuffled = [rng.sample(group, len(group)) for group in rng.sample(groups, len(groups))]
    close(loss_of(oracle.pad(shuffled)), loss_of(oracle.pad(groups)))


@given(ragged_groups(), st.integers(-3, 3))
def test_a_shift_of_rewards_does_not_change_the_loss(groups: list[Group], shift: int) -> None:
    """Rewards to loss, both through the package; float32 advantages, so 1e-6."""
    batch = oracle.pad(groups)
    rewards = f64(*[[response.reward for response in group] for group in groups])
    batch.advantages = group_advantages(rewards).flatten().double()
    loss = loss_of(batch)
    batch.advantages = group_advantages(rewards + shift).flatten().double()
    close(loss_of(batch), loss, rel=1e-6)


@given(ragged_groups())
def test_groups_without_spread_give_no_loss_and_no_gradient(groups: list[Group]) -> None:
    """Equal rewards, or a group of one: Â = 0 exactly, so that loss and gradient are exactly 0."""
    batch = oracle.pad(groups)
    rewards = torch.full((len(groups), len(groups[0])), 0.3, dtype=torch.float64)
    batch.advantages = group_advantages(rewards).flatten().double()
    assert loss_of(batch).item() == 0.0
    assert grad_of(batch).eq(0).all()


def test_one_response_in_the_batch() -> None:
    """Â = 1.5, ratios 1, 1.2: −1.5·(1 + 1.2)/2 = −1.65; gradient −1.5/2 and −1.5·1.2/2."""
    old = f64([-1.0, -2.0])
    new = (old + f64([1.0, 1.2]).log()).requires_grad_()
    loss = dapo_loss(new, old, f64(1.5), torch.ones(1, 2, dtype=torch.bool), num_tokens=2, **CLIP)
    loss.backward()
    close(loss.detach(), -1.65)
    close(new.grad, [[-0.75, -0.9]])


@pytest.mark.parametrize("filler", [0.0, math.nan])
def test_a_micro_batch_without_valid_tokens_adds_exactly_zero(filler: float) -> None:
    """The mini-batch has 7 tokens elsewhere. The loss is still part of the graph, so that a rank that holds
    only padding can call backward like the others."""
    logprobs = torch.full((2, 3), filler, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    loss = dapo_loss(logprobs, logprobs.detach(), f64(1.0, -1.0), mask, num_tokens=7, **CLIP)
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad.eq(0).all()


def test_a_far_ratio_has_a_finite_gradient_of_zero_where_the_clip_binds() -> None:
    """float32, log-ratio ±80: r = 5.5e34 and 1.8e-35. Â > 0 is bound above, Â < 0 below; the other two pull
    back with −Â·r/N (D9: the log-ratio itself is not bounded)."""
    logprobs = torch.tensor([[80.0, -80.0], [80.0, -80.0]], requires_grad=True)
    mask = torch.ones(2, 2, dtype=torch.bool)
    loss = dapo_loss(logprobs, torch.zeros(2, 2), torch.tensor([1.0, -1.0]), mask, num_tokens=4, **CLIP)
    loss.backward()
    expected = [[0.0, -math.exp(-80) / 4], [math.exp(80) / 4, 0.0]]
    torch.testing.assert_close(logprobs.grad, torch.tensor(expected), rtol=1e-5, atol=0)


# --- clip_fractions -----------------------------------------------------------------------------------------


def test_clip_fractions_by_hand() -> None:
    """Ratios 0.7, 1.5, 1 in each row. Â > 0 counts 1.5, Â < 0 counts 0.7, Â = 0 nothing, padding nothing."""
    ratio = f64(*[[0.7, 1.5, 1.0, 9.0, 0.1]] * 4)
    mask = torch.tensor([[True] * 3 + [False] * 2] * 4)
    low, high = clip_fractions(ratio, f64(1.0, -1.0, 0.0, 2.0), mask, LOW, HIGH)
    assert (low.item(), high.item()) == (1, 2)


def test_clip_fractions_count_beyond_the_bounds_only() -> None:
    """float32 as in training: 0.8 and 1.28 themselves are not clipped, their neighbours beyond are."""
    bounds = torch.tensor([[1.0 - LOW, 1.0 + HIGH]])
    beyond = torch.nextafter(bounds, torch.tensor([[0.0, 2.0]]))
    ratio = torch.cat([bounds, beyond], dim=1).repeat(2, 1)
    low, high = clip_fractions(ratio, torch.tensor([1.0, -1.0]), torch.ones_like(ratio).bool(), LOW, HIGH)
    assert (low.item(), high.item()) == (1, 1)


@given(ragged_groups())
def test_clip_fractions_count_the_tokens_without_gradient(groups: list[Group]) -> None:
    """Valid tokens with Â ≠ 0 and gradient 0 are the clipped ones, and parts of a batch add up."""
    batch = oracle.pad(groups, extra=1)
    ratio = importance_ratio(batch.logprobs, batch.old_logprobs)
    low, high = clip_fractions(ratio, batch.advantages, batch.response_mask, LOW, HIGH)
    stopped = (grad_of(batch) == 0) & batch.response_mask
    assert low.item() == stopped[batch.advantages < 0].sum().item()
    assert high.item() == stopped[batch.advantages > 0].sum().item()
    parts = [
        clip_fractions(
            ratio[i : i + 1], batch.advantages[i : i + 1], batch.response_mask[i : i + 1], LOW, HIGH
        )
        for i in range(len(ratio))
    ]
    assert (sum(p[0].item() for p in parts), sum(p[1].item() for p in parts)) == (low.item(), high.item())


# --- Bad input ----------------------------------------------------------------------------------------------

ONES, TRUE = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
WIDE, ROWS, THREE = torch.ones(2, 4), torch.ones(2), torch.ones(3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: group_advantages(torch.ones(4)), ["rewards", "[P, G]", "[4]"]),
        (lambda: group_advantages(torch.ones(4, 0)), ["rewards", "G ≥ 1", "[4, 0]"]),
        (lambda: group_advantages(ONES, eps=0.0), ["eps", "above 0", "0.0"]),
        (lambda: importance_ratio(ONES, WIDE), ["old_logprobs", "[2, 4]", "logprobs", "[2, 3]"]),
        (lambda: importance_ratio(ONES, torch.ones(1, 3)), ["old_logprobs", "[1, 3]", "[2, 3]"]),
        (lambda: clipped_surrogate(ONES, THREE, LOW, HIGH), ["advantages", "[3]", "ratio", "[2, 3]"]),
        (lambda: clipped_surrogate(ONES, ONES, LOW, HIGH), ["advantages", "[B]", "[2, 3]"]),
        (lambda: clipped_surrogate(ROWS, ROWS, LOW, HIGH), ["ratio", "[B, T]", "[2]"]),
        (lambda: dual_clip(ONES, THREE, 3.0), ["advantages", "[3]", "surrogate", "[2, 3]"]),
        (lambda: dual_clip(ONES, ROWS, 1.0), ["clip_ratio_c", "above 1", "1.0"]),
        (lambda: dual_clip(ONES, ROWS, math.nan), ["clip_ratio_c", "nan"]),
        (lambda: token_level_mean(WIDE, TRUE, 6), ["response_mask", "[2, 3]", "x", "[2, 4]"]),
        (lambda: token_level_mean(ONES, ONES, 6), ["response_mask", "bool", "float32"]),
        (lambda: token_level_mean(ONES, TRUE, 0), ["num_tokens", "above 0", "0.0"]),
        (lambda: token_level_mean(ONES, TRUE, torch.tensor(0)), ["num_tokens", "above 0", "0.0"]),
        (lambda: token_level_mean(ONES, TRUE, math.nan), ["num_tokens", "nan"]),
        (lambda: group_token_mean(WIDE, TRUE, ROWS, 1), ["response_mask", "[2, 3]", "x", "[2, 4]"]),
        (lambda: group_token_mean(ONES, TRUE, THREE, 1), ["group_tokens", "[3]", "x", "[2, 3]"]),
        (lambda: group_token_mean(ONES, TRUE, ROWS, 0), ["num_groups", "above 0", "0.0"]),
        (lambda: sample_level_mean(WIDE, TRUE, 2), ["response_mask", "[2, 3]", "x", "[2, 4]"]),
        (lambda: sample_level_mean(ONES, TRUE, -1), ["num_responses", "above 0", "-1.0"]),
        (
            lambda: dapo_loss(ONES, WIDE, ROWS, TRUE, num_tokens=6, **CLIP),
            ["old_logprobs", "[2, 4]", "[2, 3]"],
        ),
        (
            lambda: dapo_loss(WIDE, WIDE, ROWS, TRUE, num_tokens=6, **CLIP),
            ["response_mask", "[2, 3]", "[2, 4]"],
        ),
        (lambda: dapo_loss(ONES, ONES, THREE, TRUE, num_tokens=6, **CLIP), ["advantages", "[3]", "[2, 3]"]),
        (
            lambda: dapo_loss(ONES, ONES, ROWS, ONES, num_tokens=6, **CLIP),
            ["response_mask", "bool", "float32"],
        ),
        (lambda: dapo_loss(ONES, ONES, ROWS, TRUE, num_tokens=0, **CLIP), ["num_tokens", "above 0", "0.0"]),
        (lambda: clip_fractions(WIDE, ROWS, TRUE, LOW, HIGH), ["response_mask", "[2, 3]", "ratio", "[2, 4]"]),
        (lambda: clip_fractions(ONES, THREE, TRUE, LOW, HIGH), ["advantages", "[3]", "ratio", "[2, 3]"]),
    ],
)
def test_bad_input_is_refused_by_name(call: Callable[[], Any], words: list[str]) -> None:
    """The message names the argument and both shapes or values."""
    with pytest.raises(ValueError, match=r"\S") as error:
        call()
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{error.value!s} lacks {missing}"
