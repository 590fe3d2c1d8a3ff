"""Verdicts and rewards of sampled groups: Algorithm 1, line 5.

A verdict says whether a response is right; Eq. 11 counts verdicts and nothing else. A reward is a number that
a row of `REWARDS` makes of verified groups; Eq. 9 sees rewards and nothing else. To train with another
reward, add a function and a row, and name it in the configuration (`reward: NAME`); see docs/extending.md.

Dimension key: P groups, G responses a group.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dapo_ref.config import Config, choose
from dapo_ref.data import Problem
from dapo_ref.errors import TrainingError
from dapo_ref.own_reward import Outcome, OwnReward
from dapo_ref.own_reward import Ticket as OwnTicket
from dapo_ref.reward import correctness_reward, soft_overlong_penalty
from dapo_ref.types import Group, Rollout
from dapo_ref.verifier import Status, Ticket, Verdict, VerifierPool, recipe_judge

RewardFunction = Callable[[Sequence[Group], Config], Tensor]
"""(verified groups, configuration) → [P·G] float32 rewards, group after group."""


def base_rewards(groups: Sequence[Group]) -> Tensor:
    """[P·G] float32: Eq. 7, or what the configured `reward_function` gave."""
    own = [rollout.own for group in groups for rollout in group.rollouts]
    if any(outcome is None for outcome in own):
        return correctness_reward(correct_matrix(groups).flatten())
    return torch.tensor([outcome.reward for outcome in own if outcome])


def dapo_reward(groups: Sequence[Group], config: Config) -> Tensor:
    """The rule reward of Eq. 7 with the punishment of Eq. 13 added to it."""
    rewards = base_rewards(groups)
    if config.soft_overlong_punishment:
        lengths = torch.tensor([len(rollout.response_ids) for group in groups for rollout in group.rollouts])
        penalty = soft_overlong_penalty(lengths, config.max_response_length, config.overlong_cache_length)
        rewards += config.overlong_penalty_factor * penalty
    return rewards


REWARDS: dict[str, RewardFunction] = {"dapo": dapo_reward}


class Scorer:
    """The verifier and the reward that a configuration asks for; a context, since it may hold processes."""

    def __init__(self, config: Config) -> None:
        """Raises:
        ConfigError: no reward has the name that `reward` gives, or `reward_function` cannot be had.
        """
        self._config = config
        self._reward = choose(REWARDS, "reward", config.reward)
        self._recipe = config.verifier == "recipe"
        self._begun: dict[int, tuple[Rollout, Ticket]] = {}
        self._asked: dict[int, tuple[Rollout, OwnTicket]] = {}
        limits: dict[str, Any] = {
            "workers": config.verifier_workers,
            "timeout_s": config.verifier_timeout_s,
            "memory_mb": config.verifier_memory_mb,
        }
        self._pool = VerifierPool(**limits, boxed=config.boxed_answers)
        self._own: OwnReward | None = None
        if config.reward_function:
            self._own = OwnReward(config.reward_function, in_process=config.reward_in_process, **limits)

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.close()
        if self._own:
            self._own.close()

    def begin(self, problem: Problem, rollout: Rollout) -> None:
        """Starts to verify a response while others are still sampled."""
        if self._own:
            prompt = "\n\n".join(message["content"] for message in problem.messages)
            ticket = self._own.submit(prompt, rollout.text, problem.reference, problem.fields)
            self._asked[id(rollout)] = rollout, ticket
        elif not self._recipe:
            self._begun[id(rollout)] = rollout, self._pool.submit(rollout.text, problem.reference)

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with a verdict and a reward for each response.

        Raises:
            TrainingError: the reward function does not give one finite number a response.
        """
        if self._own:
            outcomes = self._outcomes(self._own, groups)
            groups = _with(_with(groups, "own", outcomes), "verdict", map(_verdict_of, outcomes))
        else:
            groups = _with(groups, "verdict", self.verdicts(groups))
        rewards = self._reward(groups, self._config)
        count = sum(len(group.rollouts) for group in groups)
        if rewards.shape != (count,) or not rewards.isfinite().all():
            raise TrainingError(
                f"reward {self._config.reward!r} must give a finite number for each of {count} responses, "
                f"gave shape {list(rewards.shape)}, {int((~rewards.isfinite()).sum())} of them not finite"
            )
        return _with(groups, "reward", rewards.tolist())

    def verdicts(self, groups: Sequence[Group]) -> list[Verdict]:
        """One verdict a response, group after group; those that `begin` started are only waited for."""
        pairs = [(group.problem, rollout) for group in groups for rollout in group.rollouts]
        if self._recipe:
            return [recipe_judge(rollout.text, problem.reference) for problem, rollout in pairs]
        for problem, rollout in pairs:
            if id(rollout) not in self._begun:
                self.begin(problem, rollout)
        return [self._pool.result(self._begun.pop(id(rollout))[1]) for _, rollout in pairs]

    def _outcomes(self, own: OwnReward, groups: Sequence[Group]) -> list[Outcome]:
        """What the reward function says of each response; those that `begin` started are only waited for."""
        pairs = [(group.problem, rollout) for group in groups for rollout in group.rollouts]
        for problem, rollout in pairs:
            if id(rollout) not in self._asked:
                self.begin(problem, rollout)
        return [own.result(self._asked.pop(id(rollout))[1]) for _, rollout in pairs]

    def answer_classes(self, group: Group) -> list[int | None]:
        """Which responses of a verified group give equivalent answers, for maj@k.

        All right answers are class 0. A wrong one joins the first class whose first answer the verifier finds
        equivalent to it, or opens a new one; under `verifier: recipe` that is equality of the text. Answers
        cut short in the verdict are compared as cut.

        Returns:
            A number a response; None where there is no answer.
        """
        firsts: list[str] = []  # of the classes 1, 2, …
        known: dict[str, int] = {}
        classes: list[int | None] = []
        for rollout in group.rollouts:
            answer = rollout.verdict.answer if rollout.verdict else None
            if rollout.correct or answer is None:
                classes.append(0 if rollout.correct else None)
                continue
            if answer not in known:
                known[answer] = 1 + self._class_of(answer, firsts)
                if known[answer] > len(firsts):
                    firsts.append(answer)
            classes.append(known[answer])
        return classes

    def _class_of(self, answer: str, firsts: Sequence[str]) -> int:
        """The index of the first answer that is equivalent to this one; their number if there is none."""
        if self._recipe:
            return len(firsts)
        tickets = [self._pool.submit(f"Answer: {answer}", first) for first in firsts]
        same = [self._pool.result(ticket).correct for ticket in tickets]
        return same.index(True) if True in same else len(firsts)


def _verdict_of(outcome: Outcome) -> Verdict:
    """The verdict of a reward function; there is no extracted answer."""
    wrong = Status.TIMEOUT if outcome.timed_out else Status.WRONG
    return Verdict.of(Status.CORRECT if outcome.right else wrong, None)


def _with(groups: Sequence[Group], name: str, values: Iterable[Any]) -> list[Group]:
    """The groups with a field of each rollout set."""
    value = iter(values)
    return [
        dataclasses.replace(
            group, rollouts=[dataclasses.replace(r, **{name: next(value)}) for r in group.rollouts]
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


def rewards_of(groups: Sequence[Group]) -> Tensor:
    """[P·G] float32, the rewards of scored groups."""
    return torch.tensor([rollout.reward for group in groups for rollout in group.rollouts])


def rollout_rows(groups: Sequence[Group], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """One row a response, in order, for people to read."""
    rows = []
    for group in groups:
        prompt = tokenizer.decode(group.prompt_ids)
        for rollout in group.rollouts:
            assert rollout.verdict is not None
            failure = {"failure": rollout.own.failure} if rollout.own and rollout.own.failure else {}
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
                    "reward": round(rollout.reward, 6),
                    **failure,
                }
            )
    return rows
