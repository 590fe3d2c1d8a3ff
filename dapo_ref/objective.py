"""Which loss a configuration asks for: the one place where variants of the loss are chosen.

    loss_variant   the surrogate of a token                                          from
    dapo           decoupled clip of the token's ratio                               Eq. 10
    gspo           the same of the response's ratio                                  arXiv 2507.18071
    cispo          log-probability, weighted by the clipped ratio                    arXiv 2506.13585

    loss_aggregation  token_normalization   the mean over tokens                              paper
    token_level       minibatch             token_level_mean, by the mini-batch's tokens      Eq. 12 (D1)
    token_level       group                 group_token_mean, by each group's tokens          Eq. 8 as printed
    sample_level      –                     sample_level_mean                                 Eq. 5 (GRPO)
    constant_length   –                     constant_length_mean, by B · L_max                Dr. GRPO

    advantage         of a response                                                    from
    normalized        (R − mean) / std                                                 Eq. 9
    centred           R − mean                                                         Dr. GRPO
    leave_one_out     R − mean of the others                                           RLOO

    importance_correction   each token's surrogate times                               from
    none                    1                                                          Eq. 10
    truncated               min(π_old / π_sampler, importance_cap)                     TIS

With the paper's configuration the objective *is* `loss.dapo_loss`. To train with another loss, add a function
to `loss_variants.py` and a row to `VARIANTS`, and name it in the configuration (`loss_variant: NAME`); see
docs/extending.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dapo_ref.config import Config, choose
from dapo_ref.errors import ConfigError
from dapo_ref.loss import (
    clip_fractions,
    clipped_high,
    dapo_loss,
    dual_clip,
    group_advantages,
    group_token_mean,
    masked_ratio,
    masked_surrogate,
    sample_level_mean,
    token_level_mean,
)
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
from dapo_ref.policy.batching import MicroBatch, MiniBatch

Surrogate = Callable[..., Tensor]
"""(logprobs [b, T], old_logprobs [b, T], advantages [b], response_mask [b, T], *, clip_eps_low,
clip_eps_high) → [b, T], to be maximised."""

Ratio = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logprobs, old_logprobs, response_mask), [b, T] each → [b, T], what the clip compares with its bounds."""

Aggregation = Callable[[Tensor, MicroBatch, MiniBatch, Config], Tensor]
"""(x [b, T], micro-batch, its mini-batch, configuration) → [] share of the mean over the mini-batch."""

Advantage = Callable[[Tensor, Config], Tensor]
"""(rewards [P, G], configuration) → [P, G]."""


class Variant(NamedTuple):
    """A loss: the surrogate of each token, and the ratio that its clip looks at."""

    surrogate: Surrogate
    ratio: Ratio = masked_ratio


VARIANTS: dict[str, Variant] = {
    "dapo": Variant(masked_surrogate),
    "gspo": Variant(gspo_surrogate, sequence_ratio),
    "cispo": Variant(cispo_surrogate),
}


ADVANTAGES: dict[str, Advantage] = {
    "normalized": lambda rewards, config: group_advantages(rewards, unbiased=config.unbiased_std),
    "centred": lambda rewards, config: centred_advantages(rewards),
    "leave_one_out": lambda rewards, config: leave_one_out_advantages(rewards),
}


def advantages(rewards: Tensor, config: Config) -> Tensor:
    """[P, G] the advantages of line 9, as configured: Eq. 9 unless another is asked for."""
    return ADVANTAGES[config.advantage](rewards, config)


class Clipping(NamedTuple):
    """How far a micro-batch is from π_old, and what the clip did there.

    Attributes:
        low, high, dual: trained tokens whose gradient is stopped at each side, and by the dual clip.
        ratio_max: the largest ratio.
        log_ratio_sum: Σ (log π_old − log π_θ) over the trained tokens. Its mean estimates KL(π_old ‖ π_θ),
            since the tokens are sampled from π_old; it can be below 0.
        high_prob_sum, high_prob_max: π_θ of the tokens that the upper clip stops (Fig. 3a).
    """

    low: float
    high: float
    ratio_max: float
    log_ratio_sum: float
    dual: float
    high_prob_sum: float
    high_prob_max: float


@dataclass(frozen=True)
class Objective:
    """The loss of a micro-batch, as configured."""

    loss: Callable[[Tensor, MicroBatch, MiniBatch], Tensor]
    ratio: Ratio
    clip_eps_low: float
    clip_eps_high: float
    clip_ratio_c: float

    def __call__(self, logprobs: Tensor, micro: MicroBatch, mini: MiniBatch) -> Tensor:
        """The micro-batch's share of the loss of its mini-batch; shares add up.

        Args:
            logprobs: [b, T] log π_θ; carries the gradient.
            micro: with `old_logprobs`.
            mini: the mini-batch that it is a part of.

        Returns:
            [].
        """
        return self.loss(logprobs, micro, mini)

    def clipping(self, logprobs: Tensor, micro: MicroBatch) -> Clipping:
        """What the clip does to the micro-batch, for the metrics."""
        mask = micro.response_mask
        ratio = self.ratio(logprobs.detach(), _old(micro), mask)
        low, high = clip_fractions(ratio, micro.advantages, mask, self.clip_eps_low, self.clip_eps_high)
        stopped = clipped_high(ratio, micro.advantages, mask, self.clip_eps_high)
        probs = logprobs.detach()[stopped].exp()
        dual = dual_clipped(ratio, micro.advantages, mask, self.clip_ratio_c) if self.clip_ratio_c else 0
        return Clipping(
            low=float(low),
            high=float(high),
            ratio_max=float(ratio[mask].max()) if mask.any() else 0.0,
            log_ratio_sum=float((_old(micro) - logprobs.detach())[mask].sum()),
            dual=float(dual),
            high_prob_sum=float(probs.sum()),
            high_prob_max=float(probs.max()) if len(probs) else 0.0,
        )


def build_objective(config: Config) -> Objective:
    """The objective: J of Eq. 8 unless a variant is asked for.

    Raises:
        ConfigError: no variant has that name, or it does not go with the other keys.
    """
    choose(ADVANTAGES, "advantage", config.advantage)
    variant = choose(VARIANTS, "loss_variant", config.loss_variant)
    aggregate = _AGGREGATIONS[config.loss_aggregation, config.token_normalization]
    clip = {"clip_eps_low": config.clip_eps_low, "clip_eps_high": config.clip_eps_high}
    if variant is VARIANTS["gspo"] and config.loss_aggregation != "sample_level":
        raise ConfigError("loss_variant gspo has one value a response: set loss_aggregation to sample_level")
    if config.dual_clip and variant is not VARIANTS["dapo"]:
        raise ConfigError(f"dual_clip belongs to loss_variant dapo, not {config.loss_variant}: set it to 0")

    def dapo(logprobs: Tensor, micro: MicroBatch, mini: MiniBatch) -> Tensor:
        return dapo_loss(
            logprobs, _old(micro), micro.advantages, micro.response_mask, num_tokens=mini.num_tokens, **clip
        )

    def other(logprobs: Tensor, micro: MicroBatch, mini: MiniBatch) -> Tensor:
        surrogate = variant.surrogate(logprobs, _old(micro), micro.advantages, micro.response_mask, **clip)
        if config.dual_clip:
            surrogate = dual_clip(surrogate, micro.advantages, config.dual_clip)
        if weighted:
            assert micro.sampler_logprobs is not None
            surrogate = surrogate * truncated_importance_weight(
                _old(micro), micro.sampler_logprobs, micro.response_mask, config.importance_cap
            )
        return -aggregate(surrogate, micro, mini, config)

    weighted = config.importance_correction == "truncated"
    paper = (
        variant is VARIANTS["dapo"] and aggregate is _by_minibatch and not config.dual_clip and not weighted
    )
    return Objective(dapo if paper else other, variant.ratio, **clip, clip_ratio_c=config.dual_clip)


def _old(micro: MicroBatch) -> Tensor:
    assert micro.old_logprobs is not None
    return micro.old_logprobs


def _by_minibatch(x: Tensor, micro: MicroBatch, mini: MiniBatch, config: Config) -> Tensor:
    return token_level_mean(x, micro.response_mask, mini.num_tokens)


def _by_group(x: Tensor, micro: MicroBatch, mini: MiniBatch, config: Config) -> Tensor:
    return group_token_mean(x, micro.response_mask, micro.group_tokens, mini.num_groups)


def _by_response(x: Tensor, micro: MicroBatch, mini: MiniBatch, config: Config) -> Tensor:
    return sample_level_mean(x, micro.response_mask, mini.num_responses)


def _by_cap(x: Tensor, micro: MicroBatch, mini: MiniBatch, config: Config) -> Tensor:
    return constant_length_mean(x, micro.response_mask, mini.num_responses, config.max_response_length)


_AGGREGATIONS: dict[tuple[str, str], Aggregation] = {
    ("token_level", "minibatch"): _by_minibatch,
    ("token_level", "group"): _by_group,
    ("sample_level", "minibatch"): _by_response,
    ("constant_length", "minibatch"): _by_cap,
}
