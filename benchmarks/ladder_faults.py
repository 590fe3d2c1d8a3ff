"""`train.py` with a fault put into it, for the ladder: `python benchmarks/ladder_faults.py FAULT --config …`.

    filter_on_reward    dynamic sampling keeps groups whose *rewards* differ (Eq. 11 counts right answers):
                        with Eq. 13 a group that is all wrong passes as soon as its lengths differ
    microbatch_means    the mean over micro-batches of the mean over their tokens, where Eq. 12 is one mean
                        over the mini-batch: a token's weight depends on its neighbours

Each replaces one name of `train.py`.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started from anywhere, without an install

import train
from dapo_ref.dynamic_sampling import GroupBuffer, GroupT
from dapo_ref.policy.batching import MicroBatch, MiniBatch
from dapo_ref.run.command import exit_code, leave
from dapo_ref.scoring import rewards_of


class RewardBuffer(GroupBuffer[GroupT]):
    """The buffer of Algorithm 1 with the wrong filter; the counts of all-right and all-wrong stay true."""

    def add(self, groups: Sequence[GroupT], correct: Tensor) -> int:
        """As `GroupBuffer.add`; keeps the groups with a spread of rewards."""
        rewards = rewards_of(groups).view_as(correct)  # type: ignore[arg-type]
        spread = rewards.amax(dim=1) > rewards.amin(dim=1)
        self._qualifies = lambda _: spread
        return super().add(groups, correct)


def filter_on_reward() -> None:
    """Puts the wrong filter in."""
    train.GroupBuffer = RewardBuffer  # type: ignore[misc]


def own_mean(micro: MicroBatch, mini: MiniBatch, count: int) -> MiniBatch:
    """The mini-batch with the denominator of the fault: own tokens times the number of micro-batches."""
    return dataclasses.replace(mini, num_tokens=max(int(micro.response_mask.sum()), 1) * count)


def microbatch_means() -> None:
    """Puts the wrong mean in."""
    right = train.update

    def update(run: Any, mini: MiniBatch, plan: Sequence[MicroBatch], metrics: Any) -> None:
        objective = run.objective
        wrong = dataclasses.replace(
            objective,
            loss=lambda logprobs, micro, mini: objective.loss(
                logprobs, micro, own_mean(micro, mini, len(plan))
            ),
        )
        run.objective = wrong
        right(run, mini, plan, metrics)
        run.objective = objective

    train.update = update


FAULTS: dict[str, Callable[[], None]] = {
    "filter_on_reward": filter_on_reward,
    "microbatch_means": microbatch_means,
}

if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    leave(exit_code(train.main, sys.argv[2:]))
