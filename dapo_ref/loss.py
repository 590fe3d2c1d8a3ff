"""The DAPO objective, term by term: Eq. 5, 8, 9, 10 and 12 of arXiv 2503.14476v1.

    J_DAPO(θ) = E [ 1/Σᵢ|oᵢ| · Σᵢ Σₜ min( rᵢₜ Âᵢₜ , clip(rᵢₜ, 1−ε_low, 1+ε_high) Âᵢₜ ) ]          Eq. 8
    rᵢₜ = π_θ(oᵢₜ | q, oᵢ,<ₜ) / π_old(oᵢₜ | q, oᵢ,<ₜ),   Âᵢₜ = (Rᵢ − mean(R)) / std(R)              Eq. 9

There is no KL term (§2.3). Every function takes tensors and numbers and nothing else, so that each can be
read, tested and reused alone. The order of reading is the order of the file:

    rewards ── group_advantages ──┐
    logprobs ── importance_ratio ─┴─ clipped_surrogate ── token_level_mean ── dapo_loss = −J

Dimension key
    P  prompts (questions, groups)      G  responses a prompt, the group size
    B  responses, B = P·G               T  response tokens, padded to the longest

How a mini-batch larger than memory, spread over W ranks, still has one exact loss
    Each aggregation divides by a *number that is given*, never by one counted from the tensor at hand. The
    caller counts tokens once over every micro-batch and rank of the mini-batch; micro-batch losses then
    simply add up. ZeRO averages gradients over ranks, so the caller multiplies by W (`engine.backward`).

Departures (docs/paper.md lists them with their reasons)
    D1  Token normalisation. Eq. 8 puts 1/Σ|oᵢ| inside the expectation over questions, so that each *group*
        has the same weight; §3.3 argues with the tokens of the batch. `token_level_mean` divides by the
        tokens of the whole mini-batch (as verl does today); `group_token_mean` is Eq. 8 as printed. The
        authors' published runs averaged per micro-batch, which ties the result to memory; not offered.
    D2  std in Eq. 9. The paper does not say which; the authors' code uses the Bessel-corrected one and adds
        1e-6 to the denominator. Both are the default here; `unbiased=False` is the population std.
    D3  Dual clip. The authors' code also bounds the term for negative advantages by c·Â (c = 10). It is a
        function of its own here, `dual_clip`, and off by default.
    D9  Far ratios. verl clamps log rᵢₜ to ±20 since June 2025, after the published runs. Here r is what Eq. 9
        says: where the clip binds the gradient is 0 up to log r = 88, the range of float32, and beyond that
        it is not finite, so that the update is skipped and counted instead of made with a number that is in
        no equation.
"""

import torch
from torch import Tensor


def group_advantages(rewards: Tensor, eps: float = 1e-6, unbiased: bool = True) -> Tensor:
    """Group-normalised advantage, Eq. 9:  Âᵢ = (Rᵢ − mean(R)) / (std(R) + eps).

    Every token of response i shares Âᵢ. The std is Bessel-corrected unless `unbiased` is False (D2). A group
    without spread has advantage exactly 0, and so has a group of one, whose std is taken as 0 (in the
    authors' code its advantage is its reward).

    Args:
        rewards: [P, G] one row a group.
        eps: added to the std, in units of reward, above 0: without spread the quotient would be 0/0.
        unbiased: divide the sum of squares by G − 1 (True) or by G (False).

    Returns:
        [P, G] float32, computed in float64.

    Raises:
        ValueError: `rewards` is not a matrix, or has an empty group, or eps ≤ 0.
    """
    _require_positive("eps", eps)
    centred = centre(rewards)
    group_size = rewards.shape[1]
    degrees_of_freedom = max(group_size - 1, 1) if unbiased else group_size
    std = (centred.square().sum(dim=1, keepdim=True) / degrees_of_freedom).sqrt()
    return (centred / (std + eps)).float()


def centre(rewards: Tensor) -> Tensor:
    """The numerator of Eq. 9:  Rᵢ − mean(R), exactly 0 in a group without spread.

    Args:
        rewards: [P, G].

    Returns:
        [P, G] float64.

    Raises:
        ValueError: `rewards` is not a matrix, or has an empty group.
    """
    if rewards.dim() != 2 or rewards.shape[1] == 0:
        raise ValueError(f"rewards must have shape [P, G] with G ≥ 1, got {list(rewards.shape)}")
    # Eq. 9 does not see a shift. Seen from the group's first reward, equal rewards are 0 before any sum, and
    # not 1e-17, which eps would not hide.
    shifted = rewards.double() - rewards.double()[:, :1]
    return shifted - shifted.mean(dim=1, keepdim=True)


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Token-level importance ratio, Eq. 9:  r = π_θ / π_old = exp(log π_θ − log π_old).

    Args:
        logprobs: [B, T] log π_θ(oᵢₜ | q, oᵢ,<ₜ) in nats; carries the gradient.
        old_logprobs: [B, T] the same under the policy that sampled; a constant.

    Returns:
        [B, T] positive ratios.

    Raises:
        ValueError: the shapes differ.
    """
    _require_same_shape("old_logprobs", old_logprobs, "logprobs", logprobs)
    return torch.exp(logprobs - old_logprobs.detach())


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_eps_low: float, clip_eps_high: float) -> Tensor:
    """Decoupled clip, the inner term of Eq. 10:  min( r Â , clip(r, 1−ε_low, 1+ε_high) Â ).

    Clip-Higher (§3.1) is ε_high > ε_low: a token with Â > 0 may grow to 1+ε_high before its gradient stops,
    one with Â < 0 may shrink to 1−ε_low. On the other side the min keeps the unclipped term: a token that
    moved the wrong way is always pulled back. ε_low = ε_high is the clip of Eq. 5.

    Args:
        ratio: [B, T] from `importance_ratio`.
        advantages: [B] one Âᵢ a response, the same at each of its tokens.
        clip_eps_low, clip_eps_high: ε_low in [0, 1), ε_high ≥ 0; §4.1 has 0.2 and 0.28.

    Returns:
        [B, T] the surrogate of each token, to be maximised.

    Raises:
        ValueError: `advantages` is not one number a row of `ratio`.
    """
    advantages = _per_token("advantages", advantages, "ratio", ratio)
    clipped_ratio = ratio.clamp(1.0 - clip_eps_low, 1.0 + clip_eps_high)
    return torch.minimum(ratio * advantages, clipped_ratio * advantages)


def dual_clip(surrogate: Tensor, advantages: Tensor, clip_ratio_c: float) -> Tensor:
    """Lower bound for negative advantages, not in the paper (D3):  Â < 0:  max( surrogate , c Â ).

    Without it a token with Â < 0 whose ratio has grown without bound pulls with the same lack of bound.

    Args:
        surrogate: [B, T] from `clipped_surrogate`.
        advantages: [B].
        clip_ratio_c: c > 1; the authors' code has 10.

    Returns:
        [B, T]; rows with Â ≥ 0 are unchanged.

    Raises:
        ValueError: c ≤ 1, or `advantages` is not one number a row.
    """
    if not clip_ratio_c > 1.0:
        raise ValueError(f"clip_ratio_c must be above 1, got {clip_ratio_c}")
    advantages = _per_token("advantages", advantages, "surrogate", surrogate)
    return torch.where(advantages < 0, torch.maximum(surrogate, clip_ratio_c * advantages), surrogate)


def token_level_mean(x: Tensor, response_mask: Tensor, num_tokens: float | Tensor) -> Tensor:
    """Token-level loss, Eq. 12 over the mini-batch (D1):  1/N · Σᵢ Σₜ xᵢₜ,  N = Σᵢ|oᵢ|.

    Every token has the same weight, so long responses weigh as much as they are long (§3.3).

    Args:
        x: [B, T] one value a token.
        response_mask: [B, T] bool, True at the |oᵢ| tokens of response i, its end-of-sequence token included.
        num_tokens: N, over *all* micro-batches and ranks of the mini-batch.

    Returns:
        [] this micro-batch's share of the mean.

    Raises:
        ValueError: shapes differ, the mask is not bool, or num_tokens ≤ 0.
    """
    _require_mask(response_mask, "x", x)
    _require_positive("num_tokens", num_tokens)
    return _masked(x, response_mask).sum() / num_tokens


def group_token_mean(
    x: Tensor, response_mask: Tensor, group_tokens: Tensor, num_groups: float | Tensor
) -> Tensor:
    """Token-level loss, Eq. 12 as printed, inside the expectation (D1):  1/P · Σₚ 1/Nₚ · Σ_{i∈p} Σₜ xᵢₜ.

    Args:
        x: [B, T] one value a token.
        response_mask: [B, T] bool.
        group_tokens: [B] Nₚ = Σ_{j∈p}|oⱼ|, the tokens of the *whole* group that row i belongs to.
        num_groups: P, over all micro-batches and ranks of the mini-batch.

    Returns:
        [] this micro-batch's share of the mean.

    Raises:
        ValueError: shapes differ, the mask is not bool, or num_groups ≤ 0.
    """
    _require_mask(response_mask, "x", x)
    _require_positive("num_groups", num_groups)
    group_tokens = _per_token("group_tokens", group_tokens, "x", x)
    return (_masked(x, response_mask) / group_tokens.clamp(min=1)).sum() / num_groups


def sample_level_mean(x: Tensor, response_mask: Tensor, num_responses: float | Tensor) -> Tensor:
    """Sample-level loss of GRPO, Eq. 5, the baseline of §3.3:  1/B · Σᵢ 1/|oᵢ| · Σₜ xᵢₜ.

    A token of a long response weighs less than one of a short response. A row with no valid token, left by
    overlong filtering, adds 0 and still counts in B, as in TRL; verl counts it only where its global batch
    size is given.

    Args:
        x: [B, T] one value a token.
        response_mask: [B, T] bool.
        num_responses: B, over all micro-batches and ranks of the mini-batch.

    Returns:
        [] this micro-batch's share of the mean.

    Raises:
        ValueError: shapes differ, the mask is not bool, or num_responses ≤ 0.
    """
    _require_mask(response_mask, "x", x)
    _require_positive("num_responses", num_responses)
    return (_masked(x, response_mask).sum(dim=1) / _lengths(response_mask)).sum() / num_responses


def masked_ratio(logprobs: Tensor, old_logprobs: Tensor, response_mask: Tensor) -> Tensor:
    """Eq. 9's ratio with padding made harmless: rᵢₜ at every valid token, 1 anywhere else.

    Both log-probabilities are replaced *before* the exponential: what sits at a masked-out position, inf and
    nan included, would otherwise come back through the gradient as 0 · inf.

    Args:
        logprobs, old_logprobs, response_mask: [B, T].

    Returns:
        [B, T].

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    _require_mask(response_mask, "logprobs", logprobs)
    _require_same_shape("old_logprobs", old_logprobs, "logprobs", logprobs)
    return importance_ratio(_masked(logprobs, response_mask), _masked(old_logprobs, response_mask))


def masked_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
) -> Tensor:
    """Eq. 9 into Eq. 10: the surrogate of every valid token, anything elsewhere.

    Args:
        logprobs, old_logprobs, response_mask: [B, T].
        advantages: [B].
        clip_eps_low, clip_eps_high: as for `clipped_surrogate`.

    Returns:
        [B, T].

    Raises:
        ValueError: shapes differ or the mask is not bool.
    """
    ratio = masked_ratio(logprobs, old_logprobs, response_mask)
    return clipped_surrogate(ratio, advantages, clip_eps_low, clip_eps_high)


def dapo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
    num_tokens: float | Tensor,
) -> Tensor:
    """The loss of DAPO, −J of Eq. 8: decoupled clip and token-level mean.

    Args:
        logprobs: [B, T] log π_θ, in nats; carries the gradient.
        old_logprobs: [B, T] log π_old; a constant.
        advantages: [B] from `group_advantages`, flattened.
        response_mask: [B, T] bool.
        clip_eps_low, clip_eps_high: ε_low and ε_high of Eq. 10.
        num_tokens: Σ|oᵢ| over all micro-batches and ranks of the mini-batch.

    Returns:
        [] this micro-batch's share of −J. Its gradient to `logprobs` is −Â·r/N where the clip does not bind,
        0 where it does and at every masked-out position.

    Raises:
        ValueError: shapes that do not agree, a mask that is not bool, num_tokens ≤ 0.
    """
    surrogate = masked_surrogate(
        logprobs,
        old_logprobs,
        advantages,
        response_mask,
        clip_eps_low=clip_eps_low,
        clip_eps_high=clip_eps_high,
    )
    return -token_level_mean(surrogate, response_mask, num_tokens)


def clip_fractions(
    ratio: Tensor, advantages: Tensor, response_mask: Tensor, clip_eps_low: float, clip_eps_high: float
) -> tuple[Tensor, Tensor]:
    """How many tokens have no gradient because the clip binds, by side (§3.1).

    Low: Â < 0 and r < 1−ε_low. High: Â > 0 and r > 1+ε_high. Counts rather than shares, so that they add up
    over micro-batches and ranks.

    Args:
        ratio, response_mask: [B, T]; advantages: [B].
        clip_eps_low, clip_eps_high: ε_low and ε_high.

    Returns:
        ([], []) the number of valid tokens clipped low and high.

    Raises:
        ValueError: shapes that do not agree or a mask that is not bool.
    """
    high = clipped_high(ratio, advantages, response_mask, clip_eps_high)
    advantages = _per_token("advantages", advantages, "ratio", ratio)
    low = (advantages < 0) & (ratio < 1.0 - clip_eps_low) & response_mask
    return low.sum(), high.sum()


def clipped_high(ratio: Tensor, advantages: Tensor, response_mask: Tensor, clip_eps_high: float) -> Tensor:
    """Which tokens have no gradient because the upper clip binds:  Â > 0 and r > 1+ε_high (§3.1, Fig. 3a).

    Args:
        ratio, response_mask: [B, T]; advantages: [B].
        clip_eps_high: ε_high.

    Returns:
        [B, T] bool, valid tokens only.

    Raises:
        ValueError: shapes that do not agree or a mask that is not bool.
    """
    _require_mask(response_mask, "ratio", ratio)
    advantages = _per_token("advantages", advantages, "ratio", ratio)
    return (advantages > 0) & (ratio > 1.0 + clip_eps_high) & response_mask


def _masked(x: Tensor, response_mask: Tensor) -> Tensor:
    """x with zeros at masked-out positions; by selection, since nan · 0 is nan."""
    return x.masked_fill(~response_mask, 0.0)


def _lengths(response_mask: Tensor) -> Tensor:
    """[B] valid tokens of each row, at least 1: what is divided by it is 0 in a row without any."""
    return response_mask.sum(dim=1).clamp(min=1)


def _per_token(name: str, per_response: Tensor, x_name: str, x: Tensor) -> Tensor:
    """[B] as [B, 1], to be broadcast over the tokens of x [B, T]."""
    if x.dim() != 2:
        raise ValueError(f"{x_name} must have shape [B, T], got {list(x.shape)}")
    if per_response.shape != x.shape[:1]:
        raise ValueError(
            f"{name} must have shape [B] = {list(x.shape[:1])} to go with {x_name} {list(x.shape)}, "
            f"got {list(per_response.shape)}"
        )
    return per_response.unsqueeze(1)


def _require_same_shape(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.shape != other.shape:
        raise ValueError(f"{name} has shape {list(x.shape)} but {other_name} has {list(other.shape)}")


def _require_mask(response_mask: Tensor, name: str, x: Tensor) -> None:
    if response_mask.dtype != torch.bool:
        raise ValueError(f"response_mask must be bool, got {response_mask.dtype}")
    _require_same_shape("response_mask", response_mask, name, x)


def _require_positive(name: str, value: float | Tensor) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, got {float(value)}")
