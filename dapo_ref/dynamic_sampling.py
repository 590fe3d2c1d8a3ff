"""Dynamic Sampling (§3.2, Eq. 11, Alg. 1 lines 6–8): which groups are kept, how many prompts to ask for.

A group whose G responses are all right or all wrong has no spread in Eq. 9 and so no gradient. Eq. 11 keeps a
group only if 0 < number of equivalent answers < G, and Algorithm 1 samples until the batch is full of such
groups.

The filter counts correct *answers*. It never looks at rewards: the overlong punishment makes an all-wrong
group look mixed, and training on it teaches short wrong answers.

Departure D4: the paper leaves the size of a refill open and the authors' code always draws a full round
(three batches of prompts). Here a round asks for what is missing divided by the acceptance rate seen so
far, so that one missing group costs a few prompts. Surplus groups are discarded, first in data order are
kept, as in the authors' code: keeping them for the next step would make them off-policy.

Departure D6: the authors' code lets groups of one pass the filter. By Eq. 11 they never do: 0 < n < 1 has no
solution, and their advantage is 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

GroupT = TypeVar("GroupT")


def has_mixed_outcomes(correct: Tensor) -> Tensor:
    """The constraint of Eq. 11:  0 < |{oᵢ : is_equivalent(a, oᵢ)}| < G.

    Args:
        correct: [..., G] bool, whether each response of a group has the right answer.

    Returns:
        [...] bool. A group of one can never qualify.

    Raises:
        ValueError: `correct` is not bool, or has no group dimension.
    """
    _require_bool_groups(correct)
    num_correct = correct.sum(dim=-1)
    return (num_correct > 0) & (num_correct < correct.shape[-1])


def any_outcome(correct: Tensor) -> Tensor:
    """No constraint: every group qualifies. The baseline without dynamic sampling.

    Args:
        correct: [..., G] bool.

    Returns:
        [...] bool, all True.

    Raises:
        ValueError: as for `has_mixed_outcomes`.
    """
    _require_bool_groups(correct)
    return torch.ones(correct.shape[:-1], dtype=torch.bool, device=correct.device)


def pass_rate_within(low: float, high: float) -> Callable[[Tensor], Tensor]:
    """A constraint by the share of right answers:  low < |{oᵢ right}| / G < high. For 0 and 1 it is Eq. 11.

    Args:
        low, high: 0 ≤ low < high ≤ 1.

    Returns:
        A function [..., G] bool → [...] bool, like `has_mixed_outcomes`.

    Raises:
        ValueError: bounds out of order.
    """
    if not 0 <= low < high <= 1:
        raise ValueError(f"bounds must be 0 ≤ low < high ≤ 1, got {low} and {high}")

    def qualifies(correct: Tensor) -> Tensor:
        _require_bool_groups(correct)
        rate = correct.double().mean(dim=-1)
        return (rate > low) & (rate < high)

    return qualifies


class GroupBuffer(Generic[GroupT]):
    """The dynamic sampling buffer of Algorithm 1: takes whole groups, keeps the first N that qualify.

    Attributes:
        groups: the kept groups in data order, at most `capacity`.
        rounds, groups_generated, groups_qualified, groups_all_correct, groups_all_wrong: counts since
            creation; `groups_qualified` includes the surplus that was discarded.
    """

    def __init__(self, capacity: int, qualifies: Callable[[Tensor], Tensor] = has_mixed_outcomes) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1 group, got {capacity}")
        self.capacity = capacity
        self.groups: list[GroupT] = []
        self.rounds = 0
        self.groups_generated = 0
        self.groups_qualified = 0
        self.groups_all_correct = 0
        self.groups_all_wrong = 0
        self._qualifies = qualifies

    @property
    def missing(self) -> int:
        """How many more groups the batch needs."""
        return self.capacity - len(self.groups)

    @property
    def full(self) -> bool:
        """Whether the batch is complete."""
        return self.missing == 0

    def add(self, groups: Sequence[GroupT], correct: Tensor) -> int:
        """Adds one round of groups.

        Args:
            groups: the P groups of the round, in data order.
            correct: [P, G] bool, row p belongs to groups[p].

        Returns:
            How many of them qualify, the surplus included.

        Raises:
            ValueError: `correct` has not one row a group, or is not bool.
        """
        if correct.dim() != 2 or correct.shape[0] != len(groups):
            raise ValueError(f"correct must have shape [{len(groups)}, G], got {list(correct.shape)}")
        keep = self._qualifies(correct)
        self.rounds += 1
        self.groups_generated += len(groups)
        self.groups_qualified += int(keep.sum())
        self.groups_all_correct += int(correct.all(dim=1).sum())
        self.groups_all_wrong += int((~correct).all(dim=1).sum())
        qualified = [group for group, kept in zip(groups, keep.tolist(), strict=True) if kept]
        self.groups += qualified[: self.missing]
        return len(qualified)


@dataclass
class AcceptanceRate:
    """Running estimate of the share of groups that qualify; part of a checkpoint.

    Counts are halved at the end of each rollout step, so that the estimate follows the policy: as it
    learns, the easy prompts become all-correct and the rate falls. One pseudo-group that qualified makes
    the estimate 1 before anything is known: the first round of a run asks for exactly a batch.
    """

    qualified: float = 0.0
    generated: float = 0.0

    def update(self, qualified: int, generated: int) -> None:
        """Counts one round."""
        self.qualified += qualified
        self.generated += generated

    def end_step(self) -> None:
        """Halves the weight of what was seen so far."""
        self.qualified /= 2
        self.generated /= 2

    @property
    def value(self) -> float:
        """The estimate, in (0, 1]."""
        return (self.qualified + 1) / (self.generated + 1)

    def state_dict(self) -> dict[str, float]:
        """For a checkpoint; `AcceptanceRate(**state)` restores it exactly."""
        return asdict(self)


def next_round_size(missing: int, acceptance_rate: float, max_prompts: int, multiple_of: int = 1) -> int:
    """How many prompts the next round of Algorithm 1 asks for (D4).

    Args:
        missing: groups that the batch still needs, at least 1.
        acceptance_rate: expected share of groups that qualify, in (0, 1].
        max_prompts: upper limit of a round, exceeded only where it is below one prompt a process.
        multiple_of: the number of processes; the result is a multiple of it, so that none idles.

    Returns:
        The number of prompts, the least multiple that is expected to fill the batch, or the largest one
        within the limit.

    Raises:
        ValueError: an argument out of range.
    """
    if missing < 1:
        raise ValueError(f"missing must be at least 1 group, got {missing}")
    if not 0.0 < acceptance_rate <= 1.0:
        raise ValueError(f"acceptance_rate must be in (0, 1], got {acceptance_rate}")
    if max_prompts < 1 or multiple_of < 1:
        raise ValueError(f"max_prompts and multiple_of must be at least 1, got {max_prompts}, {multiple_of}")
    prompts_a_process = math.ceil(missing / acceptance_rate / multiple_of)
    limit_a_process = max(max_prompts // multiple_of, 1)
    return min(prompts_a_process, limit_a_process) * multiple_of


def _require_bool_groups(correct: Tensor) -> None:
    if correct.dtype != torch.bool:
        raise ValueError(f"correct must be bool, got {correct.dtype}: filter on answers, never on rewards")
    if correct.dim() == 0 or correct.shape[-1] == 0:
        raise ValueError(f"correct must have shape [..., G] with G ≥ 1, got {list(correct.shape)}")
