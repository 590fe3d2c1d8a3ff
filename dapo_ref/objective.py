"""Which loss a configuration asks for: the one place where the variants of `loss.py` are chosen.

    loss_aggregation  token_normalization   aggregation                                       paper
    token_level       minibatch             token_level_mean, by the mini-batch's tokens      Eq. 12 (D1)
    token_level       group                 group_token_mean, by each group's tokens          Eq. 8 as printed
    sample_level      –                     sample_level_mean                                 Eq. 5 (GRPO)

With the paper's configuration the objective *is* `loss.dapo_loss`.
"""

from collections.abc import Callable

from torch import Tensor

from dapo_ref.config import Config
from dapo_ref.loss import (
    dapo_loss,
    dual_clip,
    group_token_mean,
    masked_surrogate,
    sample_level_mean,
    token_level_mean,
)
from dapo_ref.policy.batching import MicroBatch, MiniBatch

Objective = Callable[[Tensor, Tensor, MicroBatch, MiniBatch], Tensor]
"""(logprobs [b, T], old_logprobs [b, T], micro-batch, its mini-batch) → [] share of the mini-batch's loss."""

Aggregation = Callable[[Tensor, MicroBatch, MiniBatch], Tensor]


def build_objective(config: Config) -> Objective:
    """The loss of a micro-batch, as configured: −J of Eq. 8 unless a variant is asked for."""
    clip = {"clip_eps_low": config.clip_eps_low, "clip_eps_high": config.clip_eps_high}

    def dapo(logprobs: Tensor, old_logprobs: Tensor, micro: MicroBatch, mini: MiniBatch) -> Tensor:
        return dapo_loss(
            logprobs, old_logprobs, micro.advantages, micro.loss_mask, num_tokens=mini.num_tokens, **clip
        )

    def variant(logprobs: Tensor, old_logprobs: Tensor, micro: MicroBatch, mini: MiniBatch) -> Tensor:
        surrogate = masked_surrogate(logprobs, old_logprobs, micro.advantages, micro.loss_mask, **clip)
        if config.dual_clip:
            surrogate = dual_clip(surrogate, micro.advantages, config.dual_clip)
        return -aggregate(surrogate, micro, mini)

    aggregate = _AGGREGATIONS[config.loss_aggregation, config.token_normalization]
    return dapo if aggregate is _by_minibatch and not config.dual_clip else variant


def _by_minibatch(x: Tensor, micro: MicroBatch, mini: MiniBatch) -> Tensor:
    return token_level_mean(x, micro.loss_mask, mini.num_tokens)


def _by_group(x: Tensor, micro: MicroBatch, mini: MiniBatch) -> Tensor:
    return group_token_mean(x, micro.loss_mask, micro.group_tokens, mini.num_groups)


def _by_response(x: Tensor, micro: MicroBatch, mini: MiniBatch) -> Tensor:
    return sample_level_mean(x, micro.loss_mask, mini.num_responses)


_AGGREGATIONS: dict[tuple[str, str], Aggregation] = {
    ("token_level", "minibatch"): _by_minibatch,
    ("token_level", "group"): _by_group,
    ("sample_level", "minibatch"): _by_response,
}
