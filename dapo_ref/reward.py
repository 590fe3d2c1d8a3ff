"""Rewards of DAPO: rule reward (Eq. 7, §2.4), soft overlong punishment (Eq. 13, §3.4), overlong filtering.

There is no reward model. A response earns ±1 for its answer; if it is too long it loses up to 1 more.

Dimension key: B responses, T response tokens.
"""

import torch
from torch import Tensor


def correctness_reward(correct: Tensor) -> Tensor:
    """Rule reward, Eq. 7:  R = +1 if the answer is equivalent to the reference, else −1.

    Args:
        correct: [...] bool.

    Returns:
        [...] float32, of ±1.

    Raises:
        ValueError: `correct` is not bool (a float score here would be a reward for something else).
    """
    if correct.dtype != torch.bool:
        raise ValueError(f"correct must be bool, got {correct.dtype}")
    return torch.where(correct, 1.0, -1.0)


def soft_overlong_penalty(lengths: Tensor, max_length: int, cache_length: int) -> Tensor:
    """Soft overlong punishment, Eq. 13, to be added to the rule reward.

        0                                     |y| ≤ L_max − L_cache
        ((L_max − L_cache) − |y|) / L_cache   L_max − L_cache < |y| ≤ L_max
        −1                                    L_max < |y|

    Args:
        lengths: [...] |y|, response tokens, the end-of-sequence token included.
        max_length: L_max, the generation cap (20,480 in §4.1).
        cache_length: L_cache, the width of the slope (4,096 in §4.1).

    Returns:
        [...] float32 in [−1, 0].

    Raises:
        ValueError: not 0 < cache_length ≤ max_length.
    """
    if not 0 < cache_length <= max_length:
        raise ValueError(
            f"cache_length must be above 0 and at most max_length, got cache_length {cache_length}, "
            f"max_length {max_length}"
        )
    expected_length = max_length - cache_length
    return ((expected_length - lengths.float()) / cache_length).clamp(-1.0, 0.0)


def overlong_filter(response_mask: Tensor, truncated: Tensor) -> Tensor:
    """Overlong filtering, §3.4: the tokens of truncated responses are left out of the loss.

    Only the mask changes. The truncated response keeps its reward and its place in the group's mean and std
    (Eq. 9); dropping it before them would bias the advantages of the others.

    Args:
        response_mask: [B, T] bool.
        truncated: [B] bool, True where generation ran into the cap.

    Returns:
        [B, T] bool.

    Raises:
        ValueError: shapes that do not agree, or a tensor that is not bool.
    """
    for name, value in (("response_mask", response_mask), ("truncated", truncated)):
        if value.dtype != torch.bool:
            raise ValueError(f"{name} must be bool, got {value.dtype}")
    if response_mask.dim() != 2:
        raise ValueError(f"response_mask must have shape [B, T], got {list(response_mask.shape)}")
    if truncated.shape != response_mask.shape[:1]:
        raise ValueError(
            f"truncated must have shape [B] = {list(response_mask.shape[:1])} to go with response_mask "
            f"{list(response_mask.shape)}, got {list(truncated.shape)}"
        )
    return response_mask & ~truncated.unsqueeze(1)
