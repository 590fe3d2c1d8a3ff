"""Tokens of a few groups a step, with probability and clip, for the report (`record_tokens`).

Of the kept groups of a step so many are taken, evenly spread over its mini-batches: in the first one π_θ
still is π_old, and no clip binds there. Each response is in one update; the clip is that of this update.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dapo_ref.config import Config
from dapo_ref.policy.batching import MicroBatch

LOW, HIGH, FREE = "l", "h", "."


class TokenRecorder:
    """Collects this process's share of a step."""

    def __init__(self, config: Config, decode: Callable[[list[int]], str]) -> None:
        """Args:
        config: `record_tokens`, and the bounds of Eq. 10.
        decode: a list of tokens as text.
        """
        count, groups = config.record_tokens, config.prompts_per_step
        self._groups = {i * groups // count for i in range(count)} if count else set()
        self._size = config.group_size
        self._bounds = 1.0 - config.clip_eps_low, 1.0 + config.clip_eps_high
        self._decode = decode
        self._rows: list[dict[str, Any]] = []

    def add(self, micro: MicroBatch, ratio: Tensor) -> None:
        """Takes what belongs to the chosen groups out of a micro-batch.

        Args:
            micro: with `old_logprobs`.
            ratio: [b, T] what the clip compares with its bounds.
        """
        for i, row in enumerate(micro.rows):
            group, sample = divmod(row, self._size)
            if group not in self._groups:
                continue
            assert micro.old_logprobs is not None
            mask = micro.response_mask[i]
            up = float(micro.advantages[i])
            probs = micro.old_logprobs[i][mask].exp().tolist()
            marks = (self._mark(r, up) for r in ratio[i][mask].tolist())
            self._rows.append(
                {
                    "group": group,
                    "sample": sample,
                    "tokens": [self._decode([token]) for token in micro.response_ids[i][mask].tolist()],
                    "probs": [round(prob, 4) for prob in probs],
                    "clipped": "".join(marks),
                }
            )

    def _mark(self, ratio: float, advantage: float) -> str:
        low, high = self._bounds
        return LOW if advantage < 0 and ratio < low else HIGH if advantage > 0 and ratio > high else FREE

    def take(self) -> list[dict[str, Any]]:
        """The rows since the last call."""
        rows, self._rows = self._rows, []
        return rows
