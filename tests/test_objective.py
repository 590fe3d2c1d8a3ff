"""`dapo_ref/objective.py`: the loss that a configuration asks for is the one of its equation."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from dapo_ref.config import Config
from dapo_ref.errors import ConfigError
from dapo_ref.objective import ADVANTAGES, advantages, build_objective
from dapo_ref.policy.batching import MicroBatch, MiniBatch
from tests.support import oracle
from tests.support.oracle import Group, Response, ragged_groups


def micro_batch(batch: oracle.Padded, rows: slice = slice(None), sampler: float | None = None) -> MicroBatch:
    """Some rows; the sampler had their tokens `sampler` nats likelier than π_old."""
    return MicroBatch(
        rows=list(range(len(batch.advantages)))[rows],
        input_ids=torch.zeros(0),
        position_ids=torch.zeros(0),
        packing=None,
        predictors=torch.zeros(0),
        response_ids=torch.zeros(0),
        response_mask=batch.response_mask[rows],
        advantages=batch.advantages[rows],
        group_tokens=batch.group_tokens[rows],
        old_logprobs=batch.old_logprobs[rows],
        sampler_logprobs=None if sampler is None else batch.old_logprobs[rows] + sampler,
    )


def loss_of(
    groups: list[Group], cuts: list[int] | None = None, sampler: float | None = None, **values: Any
) -> Tensor:
    """The sum of the micro-batches' shares; the whole mini-batch in one if no cuts are given."""
    batch = oracle.pad(groups, extra=1)
    num_responses = len(batch.advantages)
    mini = MiniBatch(
        rows=list(range(num_responses)),
        num_tokens=int(batch.response_mask.sum()),
        num_responses=num_responses,
        num_groups=len(groups),
    )
    objective = build_objective(Config(**values))
    total = torch.zeros((), dtype=torch.float64)
    for first, last in pairwise([0, *(cuts or []), num_responses]):
        rows = slice(first, last)
        total += objective(batch.logprobs[rows], micro_batch(batch, rows, sampler), mini)
    return total


def close(actual: Tensor, expected: float) -> None:
    assert actual.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(ragged_groups())
def test_the_papers_configuration_is_equation_12_over_the_mini_batch(groups: list[Group]) -> None:
    close(loss_of(groups), -oracle.eq12_objective(groups, 0.2, 0.28))


@given(ragged_groups())
def test_group_normalization_is_equation_8_as_printed(groups: list[Group]) -> None:
    close(loss_of(groups, token_normalization="group"), -oracle.eq8_objective(groups, 0.2, 0.28))


@given(ragged_groups())
def test_the_baseline_is_equation_5(groups: list[Group]) -> None:
    loss = loss_of(groups, loss_aggregation="sample_level", clip_eps_high=0.2)
    close(loss, -oracle.eq5_objective(groups, 0.2))


@given(ragged_groups())
def test_a_dual_clip_that_never_binds_changes_nothing(groups: list[Group]) -> None:
    """Ratios stay below e^0.7 = 2.01."""
    close(loss_of(groups, dual_clip=10.0), loss_of(groups).item())


@given(ragged_groups())
def test_every_aggregation_adds_up_over_micro_batches(groups: list[Group]) -> None:
    """One response at a time, so that groups are cut too."""
    cuts = list(range(1, sum(len(group) for group in groups)))
    for values in ({}, {"token_normalization": "group"}, {"loss_aggregation": "sample_level"}):
        close(loss_of(groups, cuts, **values), loss_of(groups, **values).item())


def tokens(advantage: float, *ratios: float) -> Response:
    """A response with these ratios at its tokens."""
    return Response(
        [torch.tensor(r).double().log().item() for r in ratios], [0.0] * len(ratios), 0.0, advantage
    )


@pytest.mark.parametrize(
    ("values", "loss"),
    [
        # Group 1: Â = 2 with r = 1.5 | Â = −1 with r = 0.5, 4. Group 2: Â = 1 with r = 1 | Â = −1 with r = 1.
        # Terms 2·1.28 = 2.56 | −0.8, −4 | 1 | −1; 3 + 2 tokens, 2 + 2 responses.
        ({}, 2.24 / 5),  # 2.56 − 4.8 + 1 − 1 = −2.24
        ({"clip_eps_high": 0.4}, 2.0 / 5),  # 2·1.4 = 2.8 in place of 2.56: −2
        ({"clip_eps_low": 0.4}, 2.04 / 5),  # −0.6 in place of −0.8: −2.04
        ({"dual_clip": 3.0}, 1.24 / 5),  # −3 in place of −4: −1.24
        ({"token_normalization": "group"}, 2.24 / 3 / 2),  # −2.24 over 3 tokens, 0 over 2, by 2 groups
        ({"token_normalization": "group", "dual_clip": 3.0}, 1.24 / 3 / 2),
        ({"loss_aggregation": "sample_level"}, -0.16 / 4),  # 2.56 − 4.8/2 + 1 − 1 = 0.16, by 4 responses
        ({"loss_aggregation": "sample_level", "dual_clip": 3.0}, -0.66 / 4),  # 2.56 − 3.8/2 = 0.66
    ],
)
def test_every_setting_reaches_the_loss(values: dict[str, Any], loss: float) -> None:
    """One batch, a value of its own by hand for each setting."""
    groups = [[tokens(2.0, 1.5), tokens(-1.0, 0.5, 4.0)], [tokens(1.0, 1.0), tokens(-1.0, 1.0)]]
    assert loss_of(groups, **values).item() == pytest.approx(loss, rel=1e-12)


@given(ragged_groups())
def test_gspo_and_cispo_are_those_of_their_papers(groups: list[Group]) -> None:
    gspo = loss_of(groups, loss_variant="gspo", loss_aggregation="sample_level")
    close(gspo, -oracle.gspo_objective(groups, 0.2, 0.28))
    close(loss_of(groups, loss_variant="cispo"), -oracle.cispo_objective(groups, 0.2, 0.28))


@pytest.mark.parametrize(
    ("sampler", "cap"), [(0.3, 2.0), (-0.5, 2.0), (-0.5, 1.2)], ids=["likelier", "less likely", "at the cap"]
)
@given(groups=ragged_groups())
def test_truncated_weights_multiply_the_surrogate(groups: list[Group], sampler: float, cap: float) -> None:
    """e^−0.3 = 0.74; e^0.5 = 1.65, above a cap of 1.2. After the dual clip, which is unbounded otherwise."""
    chosen = {"importance_correction": "truncated", "importance_cap": cap}
    loss = loss_of(groups, sampler=sampler, **chosen)
    close(loss, -oracle.truncated_objective(groups, sampler, cap, 0.2, 0.28))
    weight = min(math.exp(-sampler), cap)
    dual_clipped = loss_of(groups, sampler=sampler, dual_clip=1.1, **chosen)
    close(dual_clipped, weight * loss_of(groups, dual_clip=1.1).item())
    close(loss_of(groups, sampler=sampler), -oracle.eq12_objective(groups, 0.2, 0.28))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss_variant": "gsop"}, r"loss_variant: unknown name 'gsop'; did you mean 'gspo'\?"),
        ({"advantage": "centered"}, r"advantage: unknown name 'centered'; did you mean 'centred'\?"),
        ({"loss_variant": "gspo"}, "set loss_aggregation to sample_level"),
        ({"loss_variant": "cispo", "dual_clip": 10.0}, "dual_clip belongs to loss_variant dapo"),
    ],
)
def test_a_variant_that_does_not_exist_or_fit_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_objective(Config(**values))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Ratios 1.5, 1.1 at Â > 0 | 0.5, 3 at Â < 0; clipped high: 1.5; clipped low: 0.5.
        ({}, (1, 1, 3.0)),
        ({"clip_eps_high": 0.05}, (1, 2, 3.0)),
        ({"clip_eps_low": 0.6}, (0, 1, 3.0)),
        # Geometric means √1.65 = 1.284 and √1.5 = 1.225: the two tokens of the first response.
        ({"loss_variant": "gspo", "loss_aggregation": "sample_level"}, (0, 2, 1.65**0.5)),
    ],
)
def test_the_clip_is_counted_by_the_ratio_that_it_looks_at(values: dict[str, Any], expected: Any) -> None:
    batch = oracle.pad([[tokens(2.0, 1.5, 1.1), tokens(-1.0, 0.5, 3.0)]], extra=1, filler=7.0)
    found = build_objective(Config(**values)).clipping(batch.logprobs, micro_batch(batch))
    assert found[:3] == pytest.approx(expected)
    # log π_old − log π_θ of ratios 1.5, 1.1, 0.5, 3, whatever the clip looks at; no dual clip.
    assert found.log_ratio_sum == pytest.approx(-math.log(1.5 * 1.1 * 0.5 * 3))
    assert found.dual == 0


def test_probability_of_the_tokens_that_the_upper_clip_stops() -> None:
    """Ratios 1.5, 1.1, 2 at Â > 0, 3 at Â < 0: stopped are 1.5 and 2, by π_θ, not by π_old."""
    batch = oracle.pad([[tokens(2.0, 1.5, 1.1, 2.0), tokens(-1.0, 3.0)]], extra=1, filler=7.0)
    found = build_objective(Config()).clipping(batch.logprobs, micro_batch(batch))
    first, _, third, *_ = batch.logprobs[0].exp().tolist()
    assert found.high_prob_sum == pytest.approx(first + third)
    assert found.high_prob_max == pytest.approx(max(first, third))
    at_rest = build_objective(Config(clip_eps_high=1.5)).clipping(batch.logprobs, micro_batch(batch))
    assert (at_rest.high_prob_sum, at_rest.high_prob_max) == (0, 0)


def test_the_dual_clip_is_counted_where_it_is_on() -> None:
    batch = oracle.pad([[tokens(2.0, 5.0, 1.1), tokens(-1.0, 0.5, 3.0, 2.5)]], extra=1, filler=7.0)
    for c, count in ((2.0, 2), (2.7, 1), (10.0, 0)):
        found = build_objective(Config(dual_clip=c)).clipping(batch.logprobs, micro_batch(batch))
        assert found.dual == count


@given(ragged_groups())
def test_a_constant_length_divides_by_the_cap(groups: list[Group]) -> None:
    total = -oracle.eq12_objective(groups, 0.2, 0.28) * sum(len(r.logprobs) for g in groups for r in g)
    loss = loss_of(groups, loss_aggregation="constant_length", max_response_length=5000)
    close(loss, total / 5000 / sum(len(group) for group in groups))


def test_advantages_are_chosen_by_name() -> None:
    rewards = torch.tensor([[1.0, -1.0, -1.0, -1.0]])
    found = {name: advantages(rewards, Config(advantage=name))[0, 0].item() for name in ADVANTAGES}
    assert found == pytest.approx({"normalized": 1.5, "centred": 1.5, "leave_one_out": 2.0}, rel=1e-5)
    population = advantages(rewards, Config(unbiased_std=False))[0, 0].item()
    assert population == pytest.approx(1.5 / 0.75**0.5, rel=1e-5)
