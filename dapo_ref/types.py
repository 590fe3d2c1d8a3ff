"""What flows through the loop: sampled responses, their groups, and the padded batch that is trained on.

Dimension key: B responses of a batch in group order, b of a micro-batch, G of a group; T response tokens
(padded), L prompt plus response tokens (padded), n packed tokens.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dapo_ref.data import Problem
from dapo_ref.packing import Packing
from dapo_ref.verifier import Verdict


@dataclass(frozen=True)
class Rollout:
    """One sampled response oᵢ.

    Attributes:
        response_ids: its tokens, the end-of-sequence token included where one was sampled.
        text: the tokens decoded without special tokens; what the verifier reads.
        truncated: generation ran into the cap, so that there is no end-of-sequence token.
        verdict: what the verifier said; None until it is asked.
    """

    response_ids: list[int]
    text: str
    truncated: bool
    verdict: Verdict | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer is equivalent to the reference (Eq. 7)."""
        return self.verdict is not None and self.verdict.correct


@dataclass(frozen=True)
class Group:
    """The G responses {oᵢ} to one question q."""

    problem: Problem
    prompt_ids: list[int]
    rollouts: list[Rollout]


@dataclass
class Batch:
    """The kept groups of a rollout step as tensors on the CPU, the same on every process.

    Attributes:
        prompt_ids, response_ids: B lists of tokens.
        correct, truncated: [B] bool.
        lengths: [B] |oᵢ|.
        filtered: [B] bool, left out of the loss by overlong filtering (§3.4); all False without it.
        group_index: [B] which group a response belongs to, from 0 up.
        rewards: [B] Eq. 7 plus Eq. 13, filled in by the loop.
        advantages: [B] Eq. 9, filled in by the loop.
    """

    prompt_ids: list[list[int]]
    response_ids: list[list[int]]
    correct: Tensor
    truncated: Tensor
    lengths: Tensor
    filtered: Tensor
    group_index: Tensor
    rewards: Tensor = field(init=False)
    advantages: Tensor = field(init=False)

    def __len__(self) -> int:
        return len(self.response_ids)


@dataclass
class MicroBatch:
    """Some responses of a mini-batch; what one forward pass of one process sees.

    The tokens are packed without padding, each prompt once, [1, n] (see `packing.py`), or, for a model whose
    attention cannot be taken apart like that, one response a row, right-padded, [b, L].

    Attributes:
        rows: which responses of the batch, b of them; none in an empty micro-batch.
        input_ids, position_ids: [1, n] or [b, L] prompts and responses.
        packing: who sees whom among the n; None where each response has a row.
        states: [b, T] where, in `input_ids` flattened, the state stands that predicts a response token.
        response_ids: [b, T] the responses, right-padded; what stands in the padding is never used.
        response_mask: [b, T] True at response tokens.
        loss_mask: [b, T] the part of it that is trained (all, or less with overlong filtering).
        advantages: [b].
        group_tokens: [b] trained tokens of the whole group of each row.
        old_logprobs: [b, T] log π_old, or None where π_θ still is π_old.
    """

    rows: list[int]
    input_ids: Tensor
    position_ids: Tensor
    packing: Packing | None
    states: Tensor
    response_ids: Tensor
    response_mask: Tensor
    loss_mask: Tensor
    advantages: Tensor
    group_tokens: Tensor
    old_logprobs: Tensor | None = None

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on another device."""
        moved: dict[str, Any] = {
            k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor | Packing)
        }
        return replace(self, **moved)
