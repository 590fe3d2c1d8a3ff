"""What flows through the loop: sampled responses, their groups, and the padded batch that is trained on.

Dimension key: B responses of a batch in group order, G of a group.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dapo_ref.data import Problem
from dapo_ref.own_reward import Outcome
from dapo_ref.verifier import Verdict


@dataclass(frozen=True)
class Rollout:
    """One sampled response oᵢ.

    Attributes:
        response_ids: its tokens, the end-of-sequence token included where one was sampled.
        text: the tokens decoded without special tokens; what the verifier reads.
        truncated: generation ran into the cap, so that there is no end-of-sequence token.
        verdict: what the verifier said; None until it is asked.
        reward: Rᵢ, the rule reward of Eq. 7 with what is added to it; nan until it is computed.
        own: what the configured reward function said; None without one.
        logprobs: log π of each token as the sampler had it, at the temperature of sampling and before a
            nucleus is cut; empty where the sampler does not tell. `==` does not see them.
    """

    response_ids: list[int]
    text: str
    truncated: bool
    verdict: Verdict | None = None
    reward: float = math.nan
    own: Outcome | None = None
    logprobs: Sequence[float] = field(default_factory=lambda: array("f"), compare=False, repr=False)

    @property
    def correct(self) -> bool:
        """Whether the answer is equivalent to the reference (Eq. 7)."""
        return self.verdict is not None and self.verdict.correct

    @property
    def mean_prob(self) -> float:
        """Mean probability of the tokens; nan where the sampler does not tell."""
        probs = torch.tensor(list(self.logprobs)).exp().tolist()
        return sum(probs) / len(probs) if probs else math.nan

    def __getstate__(self) -> dict[str, Any]:
        """Processes hand each other tokens as int32, four bytes each and copied at once."""
        return vars(self) | {"response_ids": array("i", self.response_ids)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, response_ids=state["response_ids"].tolist())


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
        sampler_logprobs: B lists, log π of the response's tokens as the sampler had them; may be empty.
        lengths: [B] |oᵢ|.
        filtered: [B] bool, left out of the loss by overlong filtering (§3.4); all False without it.
        group_index: [B] which group a response belongs to, from 0 up.
        rewards: [B] float32 Rᵢ, Eq. 7 plus Eq. 13.
        advantages: [B] float32 Âᵢ of Eq. 9, filled in by the loop.
    """

    prompt_ids: list[list[int]]
    response_ids: list[list[int]]
    sampler_logprobs: list[Sequence[float]]
    lengths: Tensor
    filtered: Tensor
    group_index: Tensor
    rewards: Tensor
    advantages: Tensor = field(init=False)

    def __len__(self) -> int:
        return len(self.response_ids)
