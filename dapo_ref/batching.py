"""From groups to mini-batches, one optimiser update each, to micro-batches, what one process holds at once.

Where a micro-batch boundary falls changes memory and speed, never the loss: the denominators are counted
here, once, over the whole mini-batch of all processes. Every process plans from the same batch and so
arrives at the same plan, without a collective.

ZeRO-3 gathers each layer on all processes together, so all of them must run the same number of micro-batches
(processes without work run an empty one), and the j-th micro-batches of all processes run at the same time:
they are made of about the same size.

Dimension key: B responses of the batch, b of a micro-batch, L prompt plus response tokens, T response tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dapo_ref.reward import overlong_filter
from dapo_ref.types import Batch, Group, MicroBatch


@dataclass(frozen=True)
class MiniBatch:
    """The rows of one optimiser update and what its loss is divided by.

    Attributes:
        rows: indices into the batch.
        num_tokens: Σ|oᵢ| of Eq. 12 over all micro-batches and processes; trained tokens only.
        num_responses: of the baseline, Eq. 5.
        num_groups: of Eq. 8 with its expectation over questions.
    """

    rows: list[int]
    num_tokens: int
    num_responses: int
    num_groups: int


def collate(groups: Sequence[Group], overlong_filtering: bool) -> Batch:
    """Lays the responses of all groups out as one batch, group after group.

    Args:
        groups: P groups of the same size.
        overlong_filtering: leave the tokens of truncated responses out of the loss (§3.4).

    Returns:
        The batch, rewards and advantages still to be filled in.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    truncated = torch.tensor([rollout.truncated for rollout in rollouts])
    lengths = torch.tensor([len(rollout.response_ids) for rollout in rollouts])
    return Batch(
        prompt_ids=[group.prompt_ids for group in groups for _ in group.rollouts],
        response_ids=[rollout.response_ids for rollout in rollouts],
        correct=torch.tensor([rollout.correct for rollout in rollouts]),
        truncated=truncated,
        lengths=lengths,
        filtered=truncated if overlong_filtering else torch.zeros_like(truncated),
        group_index=torch.arange(len(groups)).repeat_interleave(len(groups[0].rollouts)),
    )


def minibatches(batch: Batch, responses_per_update: int) -> list[MiniBatch]:
    """Cuts a batch into mini-batches of whole groups, in data order, one optimiser update each.

    A batch that dynamic sampling could not fill is cut into as many mini-batches as it needs, as equal as
    whole groups allow.

    Args:
        batch: P·G responses.
        responses_per_update: responses of a mini-batch, a multiple of the group size.

    Returns:
        ceil(P·G / responses_per_update) mini-batches.
    """
    num_groups = int(batch.group_index[-1]) + 1
    groups_per_update = responses_per_update // (len(batch) // num_groups)
    pieces = torch.arange(num_groups).tensor_split(-(-num_groups // groups_per_update))
    return [_minibatch(batch, torch.isin(batch.group_index, piece)) for piece in pieces]


def _minibatch(batch: Batch, member: Tensor) -> MiniBatch:
    return MiniBatch(
        rows=member.nonzero().flatten().tolist(),
        num_tokens=int(batch.lengths[member & ~batch.filtered].sum()),
        num_responses=int(member.sum()),
        num_groups=len(batch.group_index[member].unique()),
    )


def microbatches(
    batch: Batch, rows: Sequence[int], tokens_per_microbatch: int, num_processes: int, process_index: int
) -> list[MicroBatch]:
    """This process's share of some rows, cut into micro-batches by a budget of padded tokens.

    Args:
        batch: the whole batch.
        rows: the responses of one mini-batch.
        tokens_per_microbatch: budget b·L; a single response longer than that stands alone.
        num_processes, process_index: W and this process's rank.

    Returns:
        Micro-batches, the same number on every process; an empty one has no rows and a mask without a True.
    """
    sizes = {row: len(batch.prompt_ids[row]) + len(batch.response_ids[row]) for row in rows}
    longest_first = sorted(rows, key=lambda row: (-sizes[row], row))
    pieces = _pack([sizes[row] for row in longest_first], tokens_per_microbatch, num_processes)
    planned = [[longest_first[i] for i in piece] for piece in pieces]
    planned += [[] for _ in range(-len(planned) % num_processes)]
    # Neighbours in the plan have about the same size and run at the same time on different processes.
    mine = planned[process_index::num_processes]
    return [_micro_batch(batch, piece) for piece in mine]


def _pack(sizes: Sequence[int], budget: int, multiple_of: int) -> list[range]:
    """Cuts sizes, longest first, into runs of padded size (count × longest) within the budget.

    Among the plans with the least number of rounds (runs of all processes at the same time) this takes the
    one whose largest run is smallest: it spreads the work evenly instead of leaving a rest."""
    rounds = -(-len(_cut(sizes, budget)) // multiple_of)
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        if len(_cut(sizes, middle)) <= rounds * multiple_of:
            high = middle
        else:
            low = middle + 1
    return _cut(sizes, low)


def _cut(sizes: Sequence[int], budget: int) -> list[range]:
    runs, start = [], 0
    for end in range(1, len(sizes) + 1):
        if end == len(sizes) or (end + 1 - start) * sizes[start] > budget:
            runs.append(range(start, end))
            start = end
    return runs


def _micro_batch(batch: Batch, rows: list[int]) -> MicroBatch:
    if not rows:
        return _empty_micro_batch()
    prompts = [batch.prompt_ids[row] for row in rows]
    responses = [batch.response_ids[row] for row in rows]
    input_ids = _pad([p + r for p, r in zip(prompts, responses, strict=True)])
    lengths = batch.lengths[rows]
    response_mask = torch.arange(int(lengths.max())) < lengths[:, None]
    trained_lengths = batch.lengths * ~batch.filtered
    group_tokens = torch.zeros(int(batch.group_index[-1]) + 1, dtype=torch.long)
    group_tokens.index_add_(0, batch.group_index, trained_lengths)
    return MicroBatch(
        rows=rows,
        input_ids=input_ids,
        prompt_lengths=torch.tensor([len(p) for p in prompts]),
        response_mask=response_mask,
        loss_mask=overlong_filter(response_mask, batch.filtered[rows]),
        advantages=batch.advantages[rows],
        group_tokens=group_tokens[batch.group_index[rows]],
    )


def _empty_micro_batch() -> MicroBatch:
    """One prompt token, one response token, nothing to train: keeps the collectives of ZeRO-3 in step."""
    nothing = torch.zeros(1, 1, dtype=torch.bool)
    return MicroBatch(
        rows=[],
        input_ids=torch.zeros(1, 2, dtype=torch.long),
        prompt_lengths=torch.ones(1, dtype=torch.long),
        response_mask=nothing,
        loss_mask=nothing,
        advantages=torch.zeros(1),
        group_tokens=torch.ones(1, dtype=torch.long),
    )


def _pad(rows: Sequence[list[int]]) -> Tensor:
    """[b, L] right-padded with 0, a token id that every vocabulary has; nothing reads it."""
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row)
    return padded
