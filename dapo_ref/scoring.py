"""Groups meet the verifier: Algorithm 1, line 5.

Dimension key: P groups, G responses a group.
"""

import dataclasses
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dapo_ref.config import Config
from dapo_ref.data import Problem
from dapo_ref.reward import correctness_reward, soft_overlong_penalty
from dapo_ref.types import Group, Rollout
from dapo_ref.verifier import VerifierPool, recipe_judge


class Scorer:
    """The verifier that a configuration asks for; a context, since it may hold processes."""

    def __init__(self, config: Config) -> None:
        self._recipe = config.verifier == "recipe"
        self._pool = VerifierPool(
            workers=config.verifier_workers,
            timeout_s=config.verifier_timeout_s,
            memory_mb=config.verifier_memory_mb,
            boxed=config.boxed_answers,
        )

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.close()

    def begin(self, problem: Problem, rollout: Rollout) -> None:
        """Starts to verify a response while others are still sampled; `score` then finds the verdict."""
        if not self._recipe:
            self._pool.submit(rollout.text, problem.reference)

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with a verdict on each response."""
        pairs = [(rollout.text, group.problem.reference) for group in groups for rollout in group.rollouts]
        judged = [recipe_judge(*pair) for pair in pairs] if self._recipe else self._pool.judge_many(pairs)
        verdicts = iter(judged)
        return [
            dataclasses.replace(
                group, rollouts=[dataclasses.replace(r, verdict=next(verdicts)) for r in group.rollouts]
            )
            for group in groups
        ]


def correct_matrix(groups: Sequence[Group]) -> Tensor:
    """[P, G] bool, which responses are right."""
    return torch.tensor([[rollout.correct for rollout in group.rollouts] for group in groups])


def recipe_disagreement(groups: Sequence[Group]) -> float:
    """The share of responses that the authors' rule judges otherwise than the verdicts at hand."""
    pairs = [(rollout, group.problem.reference) for group in groups for rollout in group.rollouts]
    other = [recipe_judge(rollout.text, reference).correct for rollout, reference in pairs]
    return sum(a.correct != b for (a, _), b in zip(pairs, other, strict=True)) / len(pairs)


def rewards_of(groups: Sequence[Group], config: Config) -> Tensor:
    """[P·G] float32, the rule reward of Eq. 7 with the punishment of Eq. 13 added to it."""
    rewards = correctness_reward(correct_matrix(groups).flatten())
    if config.soft_overlong_punishment:
        lengths = torch.tensor([len(rollout.response_ids) for group in groups for rollout in group.rollouts])
        rewards += soft_overlong_penalty(lengths, config.max_response_length, config.overlong_cache_length)
    return rewards


def rollout_rows(groups: Sequence[Group], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """One row a response, in order, for people to read."""
    rows = []
    for group in groups:
        prompt = tokenizer.decode(group.prompt_ids)
        for rollout in group.rollouts:
            assert rollout.verdict is not None
            rows.append(
                {
                    "prompt": prompt,
                    "response": rollout.text,
                    "reference": group.problem.reference,
                    "answer": rollout.verdict.answer,
                    "status": rollout.verdict.status,
                    "correct": rollout.correct,
                    "truncated": rollout.truncated,
                    "length": len(rollout.response_ids),
                    "source": group.problem.source,
                }
            )
    return rows
