"""Losses of other papers, and switches that their users look for; none of them is DAPO's.

    GSPO                    arXiv 2507.18071    the ratio of a whole response
    CISPO                   arXiv 2506.13585    the clip bounds a weight, not the gradient
    Dr. GRPO                arXiv 2503.20783    no std in Eq. 9, a constant for the length in Eq. 5
    leave-one-out           arXiv 2402.14740    the baseline of a response is the mean of the others (RLOO)
    truncated weights       Yao et al. 2025     a token weighs π_old over π as the sampler had it (TIS;
                            https://fengyao.notion.site/off-policy-rl)

`objective.py` chooses among them. The dimension key is that of `loss.py`.
"""

from torch import Tensor

from dapo_ref.loss import (
    _lengths,
    _masked,
    _per_token,
    _require_mask,
    _require_positive,
    _require_same_shape,
    centre,
    clipped_surrogate,
    masked_ratio,
)


def centred_advantages(rewards: Tensor) -> Tensor:
    """Advantage without the std (Dr. GRPO):  Âᵢ = Rᵢ − mean(R).

    Args:
        rewards: [P, G] one row a group.

    Returns:
        [P, G] float32.

    Raises:
        ValueError: `rewards` is not a matrix, or has an empty group.
    """
    return centre(rewards).float()


def leave_one_out_advantages(rewards: Tensor) -> Tensor:
    """Leave-one-out baseline:  Âᵢ = Rᵢ − mean of the other Rⱼ = G/(G−1) · (Rᵢ − mean(R)).

    Args:
        rewards: [P, G] one row a group; a group of one has advantage 0.

    Returns:
        [P, G] float32.

    Raises:
        ValueError: `rewards` is not a matrix, or has an empty group.
    """
    centred = centre(rewards)
    group_size = rewards.shape[1]
    return (centred * group_size / max(group_size - 1, 1)).float()


def constant_length_mean(
    x: Tensor, response_mask: Tensor, num_responses: float | Tensor, max_length: int
) -> Tensor:
    """A constant for the length (Dr. GRPO):  1/(B · L_max) · Σᵢ Σₜ xᵢₜ.

    Every token has the same weight, whatever the other responses of the mini-batch.

    Args:
        x: [B, T] one value a token.
        response_mask: [B, T] bool.
        num_responses: B, over all micro-batches and ranks of the mini-batch.
        max_length: L_max, the generation cap in tokens.

    Returns:
        [] this micro-batch's share of the mean.

    Raises:
        ValueError: shapes differ, the mask is not bool, or a denominator ≤ 0.
    """
    _require_mask(response_mask, "x", x)
    _require_positive("num_responses", num_responses)
    _require_positive("max_length", max_length)
    return _masked(x, response_mask).sum() / (num_responses * max_length)


def sequence_ratio(logprobs: Tensor, old_logprobs: Tensor, response_mask: Tensor) -> Tensor:
    """Ratio of a whole response (GSPO, arXiv 2507.18071):  sᵢ = exp( 1/|oᵢ| · Σₜ (log π_θ − log π_old) ).

    The geometric mean of its tokens' ratios.

    Args:
        logprobs, old_logprobs, response_mask: [B, T].

    Returns:
        [B, T] sᵢ at each position of row i; 1 in a row without a valid token.

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    _require_mask(response_mask, "logprobs", logprobs)
    _require_same_shape("old_logprobs", old_logprobs, "logprobs", logprobs)
    log_ratio = _masked(logprobs, response_mask) - _masked(old_logprobs, response_mask).detach()
    return (log_ratio.sum(dim=1) / _lengths(response_mask)).exp().unsqueeze(1).expand_as(logprobs)


def gspo_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
) -> Tensor:
    """GSPO (arXiv 2507.18071):  min( sᵢ Âᵢ , clip(sᵢ, 1−ε_low, 1+ε_high) Âᵢ ), the same at each token of oᵢ.

    A response is clipped as a whole. The paper's objective is the mean over responses, `sample_level_mean`,
    and its bounds are those of a ratio close to 1: 3e-4 and 4e-4.

    Args:
        logprobs, old_logprobs, response_mask: [B, T]; a row holds the whole response.
        advantages: [B].
        clip_eps_low, clip_eps_high: as for `clipped_surrogate`.

    Returns:
        [B, T].

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    ratio = sequence_ratio(logprobs, old_logprobs, response_mask)
    return clipped_surrogate(ratio, advantages, clip_eps_low, clip_eps_high)


def cispo_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
) -> Tensor:
    """CISPO (MiniMax-M1, arXiv 2506.13585):  sg[ clip(rᵢₜ, 1−ε_low, 1+ε_high) ] · Âᵢ · log π_θ(oᵢₜ).

    sg[·] has no gradient: the clip bounds the weight of a token, and no token loses its gradient. The mean is
    over the tokens, `token_level_mean`.

    Args:
        logprobs, old_logprobs, response_mask: [B, T].
        advantages: [B].
        clip_eps_low, clip_eps_high: as for `clipped_surrogate`.

    Returns:
        [B, T].

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    ratio = masked_ratio(logprobs, old_logprobs, response_mask).detach()
    weight = ratio.clamp(min=1.0 - clip_eps_low, max=1.0 + clip_eps_high)
    advantages = _per_token("advantages", advantages, "logprobs", logprobs)
    return weight * advantages * logprobs


def truncated_importance_weight(
    old_logprobs: Tensor, sampler_logprobs: Tensor, response_mask: Tensor, cap: float
) -> Tensor:
    """Truncated importance weight (TIS):  wᵢₜ = sg[ min( π_old / π_sampler , C ) ].

    Sampler and trainer compute the same policy with other kernels, so that tokens come from π_sampler and not
    quite from π_old. The weight corrects for that, and the cap bounds its variance.

    Args:
        old_logprobs: [B, T] log π_old, as the trainer has it.
        sampler_logprobs: [B, T] the same, as the sampler had it.
        response_mask: [B, T].
        cap: C, above 0.

    Returns:
        [B, T] a constant for the gradient; min(1, C) at masked-out positions.

    Raises:
        ValueError: shapes differ, the mask is not bool, or the cap ≤ 0.
    """
    _require_positive("cap", cap)
    return masked_ratio(old_logprobs, sampler_logprobs, response_mask).detach().clamp(max=cap)


def dual_clipped(ratio: Tensor, advantages: Tensor, response_mask: Tensor, clip_ratio_c: float) -> Tensor:
    """How many tokens have no gradient because the dual clip binds: Â < 0 and r > c (`loss.dual_clip`).

    Args:
        ratio, response_mask: [B, T]; advantages: [B].
        clip_ratio_c: c.

    Returns:
        [] a number of valid tokens.

    Raises:
        ValueError: shapes that do not agree or a mask that is not bool.
    """
    _require_mask(response_mask, "ratio", ratio)
    advantages = _per_token("advantages", advantages, "ratio", ratio)
    return ((advantages < 0) & (ratio > clip_ratio_c) & response_mask).sum()
