"""`dapo_ref/loss_variants.py`: the equations of their papers, gradients, invariances, harmless padding."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dapo_ref.loss import dual_clip, masked_ratio, sample_level_mean, token_level_mean
from dapo_ref.loss_variants import (
    centred_advantages,
    cispo_surrogate,
    constant_length_mean,
    dual_clipped,
    gspo_surrogate,
    leave_one_out_advantages,
    sequence_ratio,
    truncated_importance_weight,
)
from tests.support import oracle
from tests.support.oracle import Group, ragged_groups

LOW, HIGH = 0.2, 0.28
CLIP = {"clip_eps_low": LOW, "clip_eps_high": HIGH}
Surrogate = Callable[..., Tensor]


def f64(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def gspo_objective(batch: oracle.Padded, logprobs: Tensor) -> Tensor:
    args = (logprobs, batch.old_logprobs, batch.advantages, batch.response_mask)
    return sample_level_mean(gspo_surrogate(*args, **CLIP), batch.response_mask, len(batch.advantages))


def cispo_objective(batch: oracle.Padded, logprobs: Tensor) -> Tensor:
    args = (logprobs, batch.old_logprobs, batch.advantages, batch.response_mask)
    num_tokens = int(batch.response_mask.sum())
    return token_level_mean(cispo_surrogate(*args, **CLIP), batch.response_mask, num_tokens)


OBJECTIVES = {"gspo": gspo_objective, "cispo": cispo_objective}
each_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def gradient(objective: Callable[[oracle.Padded, Tensor], Tensor], batch: oracle.Padded) -> Tensor:
    logprobs = batch.logprobs.clone().requires_grad_()
    objective(batch, logprobs).backward()
    assert logprobs.grad is not None
    return logprobs.grad


# --- The ratio of a response --------------------------------------------------------------------------------


def test_the_ratio_of_a_response_is_the_geometric_mean_of_its_tokens() -> None:
    """Ratios 2 and 8: √16 = 4. One token of ratio 3: 3. What stands at padding is not seen."""
    new = f64([2.0, 8.0], [3.0, 100.0]).log()
    mask = torch.tensor([[True, True], [True, False]])
    found = sequence_ratio(new, torch.zeros_like(new), mask)
    torch.testing.assert_close(found, f64([4.0, 4.0], [3.0, 3.0]))


def test_a_response_without_trained_tokens_has_ratio_one() -> None:
    new = f64([math.nan, math.inf])
    assert sequence_ratio(new, new, torch.zeros(1, 2, dtype=torch.bool)).tolist() == [[1.0, 1.0]]


# --- The equations ------------------------------------------------------------------------------------------


@given(ragged_groups())
def test_gspo_matches_its_equation(groups: list[Group]) -> None:
    batch = oracle.pad(groups, extra=1, filler=math.nan)
    found = gspo_objective(batch, batch.logprobs).item()
    assert found == pytest.approx(oracle.gspo_objective(groups, LOW, HIGH), rel=1e-10, abs=1e-12)


@given(ragged_groups())
def test_cispo_matches_its_equation(groups: list[Group]) -> None:
    batch = oracle.pad(groups, extra=1, filler=math.nan)
    found = cispo_objective(batch, batch.logprobs).item()
    assert found == pytest.approx(oracle.cispo_objective(groups, LOW, HIGH), rel=1e-10, abs=1e-12)


def test_gspo_clips_the_response_as_a_whole() -> None:
    """Token ratios 2 and 0.5 have the geometric mean 1: nothing is clipped. 2 and 2 are: Â > 0 at 1.28."""
    new = f64([2.0, 0.5], [2.0, 2.0]).log()
    mask = torch.ones(2, 2, dtype=torch.bool)
    found = gspo_surrogate(new, torch.zeros_like(new), f64(1.0, 1.0), mask, **CLIP)
    torch.testing.assert_close(found, f64([1.0, 1.0], [1.28, 1.28]))


def test_cispo_bounds_the_weight_on_both_sides() -> None:
    """Weights of ratios 0.5, 1.1, 3: 0.8, 1.1, 1.28, for either sign of Â; times Â · log π."""
    ratios = f64([0.5, 1.1, 3.0], [0.5, 1.1, 3.0])
    new = torch.full_like(ratios, -2.0)
    mask = torch.ones(2, 3, dtype=torch.bool)
    found = cispo_surrogate(new, new - ratios.log(), f64(1.0, -1.0), mask, **CLIP)
    torch.testing.assert_close(found, f64([-1.6, -2.2, -2.56], [1.6, 2.2, 2.56]))


# --- Gradients ----------------------------------------------------------------------------------------------


@given(ragged_groups())
def test_gspo_spreads_the_gradient_of_a_response_evenly(groups: list[Group]) -> None:
    """d/d log π of 1/B · min(s Â, …) is s Â / (B |o|) at each token, 0 where the clip binds."""
    batch = oracle.pad(groups, extra=1)
    grad = gradient(gspo_objective, batch)
    ratios = sequence_ratio(batch.logprobs, batch.old_logprobs, batch.response_mask)[:, 0].tolist()
    responses = [response for group in groups for response in group]
    for i, (response, ratio) in enumerate(zip(responses, ratios, strict=True)):
        count = len(response.logprobs)
        slope = oracle.eq10_slope(ratio, response.advantage, LOW, HIGH) * ratio / count / len(responses)
        assert grad[i, :count].tolist() == pytest.approx([slope] * count, rel=1e-10, abs=1e-14)
        assert grad[i, count:].eq(0).all()


@given(ragged_groups())
def test_cispo_leaves_every_token_its_gradient(groups: list[Group]) -> None:
    """weight · Â / N, with the clipped weight as a constant."""
    batch = oracle.pad(groups, extra=1)
    grad = gradient(cispo_objective, batch)
    num_tokens = int(batch.response_mask.sum())
    for i, response in enumerate(response for group in groups for response in group):
        for t in range(len(response.logprobs)):
            expected = oracle.cispo_weight(response, t, LOW, HIGH) * response.advantage / num_tokens
            assert grad[i, t].item() == pytest.approx(expected, rel=1e-10, abs=1e-14)
        assert grad[i, len(response.logprobs) :].eq(0).all()


@each_objective
def test_no_gradient_reaches_the_old_policy(objective: Callable[[oracle.Padded, Tensor], Tensor]) -> None:
    batch = oracle.pad([[oracle.Response([-1.0, -2.0], [-1.1, -1.9], 0.0, 0.7)]])
    batch.old_logprobs.requires_grad_()
    logprobs = batch.logprobs.clone().requires_grad_()
    objective(batch, logprobs).backward()
    assert batch.old_logprobs.grad is None or batch.old_logprobs.grad.eq(0).all()


def test_gspo_gradcheck_away_from_kinks() -> None:
    """Ratios of the responses: √(0.9·1.2) = 1.04 and 1.1."""
    old = f64([-1.0, -2.0], [-1.0, -1.0])
    new = (old + f64([0.9, 1.2], [1.1, 7.0]).log()).requires_grad_()
    mask = torch.tensor([[True, True], [True, False]])
    advantages = f64(0.7, -1.3)
    assert torch.autograd.gradcheck(lambda x: gspo_surrogate(x, old, advantages, mask, **CLIP)[mask], new)


# --- Invariances --------------------------------------------------------------------------------------------


@each_objective
@given(groups=ragged_groups(), filler=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_what_stands_at_padding_changes_nothing(
    objective: Callable[[oracle.Padded, Tensor], Tensor], groups: list[Group], filler: float
) -> None:
    plain, padded = oracle.pad(groups), oracle.pad(groups, 2, filler)
    width = plain.logprobs.shape[1]
    torch.testing.assert_close(objective(padded, padded.logprobs), objective(plain, plain.logprobs))
    grad = gradient(objective, padded)
    torch.testing.assert_close(grad[:, :width], gradient(objective, plain), rtol=1e-12, atol=0)
    assert grad[:, width:].eq(0).all()


@given(ragged_groups())
def test_where_nothing_has_moved_all_variants_have_the_gradient_of_the_policy(groups: list[Group]) -> None:
    """π_θ = π_old: GSPO's is Â/(B|o|), as GRPO's; CISPO's is Â/N, as DAPO's."""
    batch = oracle.pad(groups)
    batch.old_logprobs = batch.logprobs
    mask, advantages = batch.response_mask, batch.advantages.unsqueeze(1)
    lengths = mask.sum(dim=1, keepdim=True)
    torch.testing.assert_close(gradient(gspo_objective, batch), advantages / lengths / len(lengths) * mask)
    torch.testing.assert_close(gradient(cispo_objective, batch), advantages / mask.sum() * mask)


# --- Bad input ----------------------------------------------------------------------------------------------

ONES, WIDE, ROWS = torch.ones(2, 3), torch.ones(2, 4), torch.ones(2)
TRUE = torch.ones(2, 3, dtype=torch.bool)


@pytest.mark.parametrize("surrogate", [gspo_surrogate, cispo_surrogate])
def test_shapes_that_do_not_agree_are_refused(surrogate: Surrogate) -> None:
    for arguments, name in (
        ((ONES, WIDE, ROWS, TRUE), "old_logprobs"),
        ((WIDE, WIDE, ROWS, TRUE), "response_mask"),
        ((ONES, ONES, ROWS, ONES), "response_mask must be bool"),
        ((ONES, ONES, torch.ones(3), TRUE), "advantages"),
    ):
        with pytest.raises(ValueError, match=name):
            surrogate(*arguments, **CLIP)
    with pytest.raises(ValueError, match="response_mask"):
        sequence_ratio(WIDE, WIDE, TRUE)
    with pytest.raises(ValueError, match="response_mask"):
        masked_ratio(WIDE, WIDE, TRUE)


# --- Dr. GRPO, leave-one-out, dual clip ---------------------------------------------------------------------

reward_matrices = st.integers(1, 6).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(-2, 2, width=32), min_size=size, max_size=size), min_size=1, max_size=4
    )
)


@given(reward_matrices)
def test_centred_advantages_are_rewards_less_their_groups_mean(rewards: list[list[float]]) -> None:
    found = centred_advantages(torch.tensor(rewards)).tolist()
    for row, group in zip(found, rewards, strict=True):
        assert row == pytest.approx([r - sum(group) / len(group) for r in group], abs=1e-6)


@given(reward_matrices)
def test_leave_one_out_subtracts_the_mean_of_the_others(rewards: list[list[float]]) -> None:
    found = leave_one_out_advantages(torch.tensor(rewards)).tolist()
    for row, group in zip(found, rewards, strict=True):
        others = [[r for j, r in enumerate(group) if j != i] for i in range(len(group))]
        expected = [r - sum(o) / len(o) if o else 0.0 for r, o in zip(group, others, strict=True)]
        assert row == pytest.approx(expected, abs=1e-5)


def test_advantages_by_hand() -> None:
    """One right in four, ±1: the mean is −1/2; the others of the right one have −1, of a wrong one −1/3."""
    rewards = torch.tensor([[1.0, -1.0, -1.0, -1.0]])
    assert centred_advantages(rewards).tolist() == [[1.5, -0.5, -0.5, -0.5]]
    torch.testing.assert_close(
        leave_one_out_advantages(rewards), torch.tensor([[2.0, -2 / 3, -2 / 3, -2 / 3]])
    )


@pytest.mark.parametrize("advantages", [centred_advantages, leave_one_out_advantages])
def test_equal_rewards_and_groups_of_one_have_advantage_zero(advantages: Callable[[Tensor], Tensor]) -> None:
    assert advantages(torch.full((2, 7), 0.1)).eq(0).all()
    assert advantages(torch.tensor([[0.3]])).tolist() == [[0.0]]
    with pytest.raises(ValueError, match="rewards"):
        advantages(torch.ones(3))


def test_a_constant_for_the_length_by_hand() -> None:
    """(1 + 2 + 3) over 2 responses of at most 10 tokens; nan at padding is not seen."""
    x = f64([1.0, math.nan], [2.0, 3.0]).requires_grad_()
    mask = torch.tensor([[True, False], [True, True]])
    loss = constant_length_mean(x, mask, 2, 10)
    loss.backward()
    assert loss.item() == pytest.approx(6 / 20)
    torch.testing.assert_close(x.grad, f64([0.05, 0.0], [0.05, 0.05]))
    for arguments in ((2, 0), (0, 10)):
        with pytest.raises(ValueError, match="must be above 0"):
            constant_length_mean(x, mask, *arguments)


def test_dual_clipped_tokens_are_those_whose_gradient_it_stops() -> None:
    """c = 3: ratios 2, 4 at Â < 0 (one), 4 at Â > 0 (none), 9 at padding (none)."""
    ratio = f64([2.0, 4.0, 9.0], [4.0, 1.0, 9.0])
    mask = torch.tensor([[True, True, False]] * 2)
    assert dual_clipped(ratio, f64(-1.0, 1.0), mask, 3.0).item() == 1
    surrogate = (ratio * f64([-1.0], [1.0])).requires_grad_()
    dual_clip(surrogate, f64(-1.0, 1.0), 3.0)[mask].sum().backward()
    assert ((surrogate.grad == 0) & mask).sum().item() == 1


# --- Truncated importance weights ---------------------------------------------------------------------------


@given(ragged_groups(), st.floats(1.0, 2.0))
def test_truncated_weights_match_their_equation(groups: list[Group], cap: float) -> None:
    """The oracle's `logprobs` stand for π_old, its `old_logprobs` for the sampler; nan at padding."""
    batch = oracle.pad(groups, extra=1, filler=math.nan)
    old = batch.logprobs.clone().requires_grad_()
    found = truncated_importance_weight(old, batch.old_logprobs, batch.response_mask, cap)
    assert not found.requires_grad
    for i, response in enumerate(response for group in groups for response in group):
        expected = [oracle.truncated_weight(response, t, cap) for t in range(len(response.logprobs))]
        assert found[i, : len(expected)].tolist() == pytest.approx(expected, rel=1e-12)
        assert found[i, len(expected) :].eq(1).all()


def test_truncated_weights_by_hand() -> None:
    """π_old / π_sampler of 0.5, 1.5 and 7 with a cap of 2: 0.5, 1.5, 2; nothing below is raised."""
    ratios = f64([0.5, 1.5, 7.0])
    found = truncated_importance_weight(ratios.log(), torch.zeros_like(ratios), TRUE[:1], 2.0)
    torch.testing.assert_close(found, f64([0.5, 1.5, 2.0]))
    with pytest.raises(ValueError, match="cap must be above 0"):
        truncated_importance_weight(ratios, ratios, TRUE[:1], 0.0)
    with pytest.raises(ValueError, match="old_logprobs has shape"):
        truncated_importance_weight(ratios, ratios[:, :2], TRUE[:1], 2.0)
