"""What happens at each column that `generate` draws: log-probabilities are kept, rows end, all stop.

Dimension key: b rows in the batch, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

ENDED_SHARE = 1 / 3
"""Share of ended rows at which a segment stops: less repacks too often, more carries ended rows along."""


class LogprobRecorder(LogitsProcessor):
    """Keeps log π of each token that is drawn, π = softmax(z / temperature) before any cut: what is compared
    with π_old.

    Attributes:
        columns: a tensor [b] for each column drawn so far.
    """

    def __init__(self, temperature: float) -> None:
        self.columns: list[Tensor] = []
        self._temperature = temperature
        self._logprobs: Tensor | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Takes note of the logits [b, V]; `generate` asks before temperature and nucleus."""
        scaled = scores if self._temperature == 1.0 else scores / self._temperature
        self._logprobs = scaled.log_softmax(dim=-1)
        return scores

    def drawn(self, tokens: Tensor) -> None:
        """Takes note of the tokens [b] that were drawn from them."""
        assert self._logprobs is not None
        self.columns.append(self._logprobs.gather(1, tokens[:, None]).squeeze(1))
        self._logprobs = None


class EachToken(StoppingCriteria):
    """Tells of each column after it is drawn; never stops."""

    def __init__(self, recorder: LogprobRecorder, on_token: Callable[[], None]) -> None:
        self.recorder = recorder
        self.on_token = on_token

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.recorder.drawn(input_ids[:, -1])
        self.on_token()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class EnoughEnded(StoppingCriteria):
    """Stops all rows once a share of them has ended, by an end token or at their own cap, or the cache is
    full."""

    def __init__(self, ends: Tensor, last_columns: Tensor, full_at: float = math.inf) -> None:
        """Args:
        ends: tokens that end a response.
        last_columns: [b] at how many columns each row has reached its cap.
        full_at: columns at which all stop.
        """
        self.ends = ends
        self.last_columns = last_columns
        self.ended = torch.zeros(len(last_columns), dtype=torch.bool, device=ends.device)
        self.full_at = full_at
        self.enough = math.ceil(ENDED_SHARE * len(last_columns))

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.ended |= torch.isin(input_ids[:, -1], self.ends) | (input_ids.shape[1] >= self.last_columns)
        if input_ids.shape[1] >= self.full_at or self.ended.sum() >= self.enough:
            return torch.ones_like(self.ended)
        return self.ended
