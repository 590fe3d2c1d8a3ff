"""From groups to mini-batches, one optimiser update each, to micro-batches, what one process holds at once.

Where a micro-batch boundary falls changes memory and speed, never the loss: the denominators are counted
here, once, over the whole mini-batch of all processes. Every process plans from the same batch and so
arrives at the same plan, without a collective.

ZeRO-3 gathers each layer on all processes together, so all of them must run the same number of micro-batches
(processes without work run an empty one), and the j-th micro-batches of all processes run at the same time:
they are made of about the same size.

Dimension key: B responses of the batch, b of a micro-batch, L prompt plus response tokens, n packed tokens,
T response tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dapo_ref.policy.packing import Packing, Piece, packing_of, shared_prefix_length
from dapo_ref.reward import overlong_filter
from dapo_ref.types import Batch, Group


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


@dataclass
class MicroBatch:
    """Some responses of a mini-batch; what one forward pass of one process sees.

    The tokens are packed without padding, each prompt once, [1, n] (see `packing.py`), or, for a model whose
    attention cannot be taken apart like that, one response a row, right-padded, [b, L].

    Attributes:
        rows: which responses of the batch, b of them; none in an empty micro-batch.
        input_ids, position_ids: [1, n] or [b, L] prompts and responses.
        packing: who sees whom among the n; None where each response has a row.
        predictors: [b, T] where, in `input_ids` flattened, the token stands whose state predicts a response
            token: the one before it.
        response_ids: [b, T] the responses, right-padded; what stands in the padding is never used.
        response_mask: [b, T] bool, True at the response tokens that are trained: not at padding, and with
            overlong filtering not at those of truncated responses.
        advantages: [b].
        group_tokens: [b] trained tokens of the whole group of each row.
        old_logprobs: [b, T] log π_old, or None where π_θ still is π_old.
        sampler_logprobs: [b, T] float32 log π as the sampler had it, 0 at padding; None if it did not tell.
    """

    rows: list[int]
    input_ids: Tensor
    position_ids: Tensor
    packing: Packing | None
    predictors: Tensor
    response_ids: Tensor
    response_mask: Tensor
    advantages: Tensor
    group_tokens: Tensor
    old_logprobs: Tensor | None = None
    sampler_logprobs: Tensor | None = None

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on another device."""
        moved: dict[str, Any] = {
            k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor | Packing)
        }
        return replace(self, **moved)


def collate(groups: Sequence[Group], overlong_filtering: bool) -> Batch:
    """Lays the responses of all groups out as one batch, group after group.

    Args:
        groups: P groups of the same size, with rewards.
        overlong_filtering: leave the tokens of truncated responses out of the loss (§3.4).

    Returns:
        The batch, advantages still to be filled in.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    truncated = torch.tensor([rollout.truncated for rollout in rollouts])
    lengths = torch.tensor([len(rollout.response_ids) for rollout in rollouts])
    return Batch(
        prompt_ids=[group.prompt_ids for group in groups for _ in group.rollouts],
        response_ids=[rollout.response_ids for rollout in rollouts],
        sampler_logprobs=[rollout.logprobs for rollout in rollouts],
        lengths=lengths,
        filtered=truncated if overlong_filtering else torch.zeros_like(truncated),
        group_index=torch.arange(len(groups)).repeat_interleave(len(groups[0].rollouts)),
        rewards=torch.tensor([rollout.reward for rollout in rollouts]),
    )


def minibatches(batch: Batch, responses_per_update: int) -> list[MiniBatch]:
    """Cuts a batch into mini-batches of whole groups (D10), in data order, one optimiser update each.

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
    parts = torch.arange(num_groups).tensor_split(-(-num_groups // groups_per_update))
    return [_minibatch(batch, torch.isin(batch.group_index, part)) for part in parts]


def _minibatch(batch: Batch, member: Tensor) -> MiniBatch:
    return MiniBatch(
        rows=member.nonzero().flatten().tolist(),
        num_tokens=int(batch.lengths[member & ~batch.filtered].sum()),
        num_responses=int(member.sum()),
        num_groups=len(batch.group_index[member].unique()),
    )


def microbatches(
    batch: Batch,
    rows: Sequence[int],
    tokens_per_microbatch: int,
    num_processes: int,
    process_index: int,
    packed: bool = True,
) -> list[MicroBatch]:
    """This process's share of some rows, cut into micro-batches by a budget of tokens computed.

    Args:
        batch: the whole batch.
        rows: the responses of one mini-batch, group after group.
        tokens_per_microbatch: budget n, or b·L where each response has a padded row; a single response longer
            than that stands alone.
        num_processes, process_index: W and this process's rank.
        packed: without padding, each prompt once for the responses of its group that stand together, and
            what all prompts begin with once.

    Returns:
        Micro-batches, the same number on every process; an empty one has no rows and a mask without a True.
    """
    order = list(rows) if packed else sorted(rows, key=lambda row: (-_row_size(batch, row), row))
    shared = shared_prefix_length([batch.prompt_ids[row] for row in order]) if packed else 0
    cost = _packed_cost(batch, order, shared) if packed else _padded_cost(batch, order)
    planned = _plan(len(order), cost, tokens_per_microbatch, num_processes)
    # Neighbours in the plan are about the same work and run at the same time on different processes.
    mine = planned[process_index::num_processes]
    return [_micro_batch(batch, [order[i] for i in run], packed, shared) for run in mine]


Cost = Callable[[int, int], int]
"""(start, end) → tokens computed for the rows of an order from start to before end."""


def _packed_cost(batch: Batch, order: Sequence[int], shared: int) -> Cost:
    """A row that follows one of its own group finds the prompt there already, any but the first what all
    prompts begin with."""
    groups = batch.group_index[list(order)].tolist()
    follows = [i > 0 and groups[i] == groups[i - 1] for i in range(len(order))]
    added = [
        len(batch.response_ids[row]) if joins else _row_size(batch, row) - shared
        for row, joins in zip(order, follows, strict=True)
    ]
    sums = list(accumulate(added, initial=0))
    return lambda start, end: sums[end] - sums[start + 1] + _row_size(batch, order[start])


def _padded_cost(batch: Batch, order: Sequence[int]) -> Cost:
    """All rows as long as the first."""
    return lambda start, end: (end - start) * _row_size(batch, order[start])


def _row_size(batch: Batch, row: int) -> int:
    return len(batch.response_ids[row]) + len(batch.prompt_ids[row])


def _plan(count: int, cost: Cost, budget: int, multiple_of: int) -> list[range]:
    """Cuts `count` rows into runs within the budget, a multiple of some number; the last may be empty.

    Among the plans with the least number of rounds (runs of all processes at the same time) this takes the
    one whose largest run is smallest: it spreads the work evenly instead of leaving a rest."""
    rounds = -(-len(_cut(count, cost, budget)) // multiple_of)
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        if len(_cut(count, cost, middle)) <= rounds * multiple_of:
            high = middle
        else:
            low = middle + 1
    runs = _cut(count, cost, low)
    return runs + [range(0)] * (-len(runs) % multiple_of)


def _cut(count: int, cost: Cost, budget: int) -> list[range]:
    runs, start = [], 0
    for end in range(1, count + 1):
        if end == count or cost(start, end + 1) > budget:
            runs.append(range(start, end))
            start = end
    return runs


def _micro_batch(batch: Batch, rows: list[int], packed: bool, shared: int) -> MicroBatch:
    if not rows:
        return _empty_micro_batch(packed)
    response_mask = torch.arange(int(batch.lengths[rows].max())) < batch.lengths[rows, None]
    trained_lengths = batch.lengths * ~batch.filtered
    group_tokens = torch.zeros(int(batch.group_index[-1]) + 1, dtype=torch.long)
    group_tokens.index_add_(0, batch.group_index, trained_lengths)
    return MicroBatch(
        rows=rows,
        **(_pack(batch, rows, shared) if packed else _pad(batch, rows)),
        response_ids=_padded([batch.response_ids[row] for row in rows]),
        response_mask=overlong_filter(response_mask, batch.filtered[rows]),
        advantages=batch.advantages[rows],
        group_tokens=group_tokens[batch.group_index[rows]],
        sampler_logprobs=_sampler_logprobs(batch, rows),
    )


def _pack(batch: Batch, rows: Sequence[int], shared: int) -> dict[str, Any]:
    """`input_ids`, `position_ids`, `packing` and `predictors` of a micro-batch without padding, whose prompts
    have the first `shared` tokens in common."""
    ids: list[int] = []
    pieces: list[Piece] = []

    def append(tokens: list[int], *before: range) -> range:
        pieces.append(Piece(range(len(ids), len(ids) + len(tokens)), before))
        ids.extend(tokens)
        return pieces[-1].own

    predictors = []
    beginning = [append(batch.prompt_ids[rows[0]][:shared])] if shared else []
    groups = batch.group_index[list(rows)].tolist()
    for i, row in enumerate(rows):
        if i == 0 or groups[i] != groups[i - 1]:
            prompt = append(batch.prompt_ids[row][shared:], *beginning)
        response = append(batch.response_ids[row], *beginning, prompt)
        # The prompt's last token predicts the first of the response, and each token the next one.
        predictors.append([prompt[-1], *response[:-1]])
    positions = [piece.num_before + i for piece in pieces for i in range(len(piece.own))]
    return {
        "input_ids": torch.tensor([ids]),
        "position_ids": torch.tensor([positions]),
        "packing": packing_of(pieces),
        "predictors": _padded(predictors),
    }


def _pad(batch: Batch, rows: Sequence[int]) -> dict[str, Any]:
    """The same with one right-padded row a response. That needs no attention mask: a causal model sees only
    what stands to the left."""
    input_ids = _padded([batch.prompt_ids[row] + batch.response_ids[row] for row in rows])
    width = input_ids.shape[1]
    first = [i * width + len(batch.prompt_ids[row]) - 1 for i, row in enumerate(rows)]
    sizes = [len(batch.response_ids[row]) for row in rows]
    return {
        "input_ids": input_ids,
        "position_ids": torch.arange(width).expand_as(input_ids),
        "packing": None,
        "predictors": _padded([range(at, at + size) for at, size in zip(first, sizes, strict=True)]),
    }


def _empty_micro_batch(packed: bool) -> MicroBatch:
    """One prompt token, one response token, nothing to train: this process makes the same collectives as the
    others."""
    nothing = torch.zeros(1, 1, dtype=torch.bool)
    prompt, response = range(1), range(1, 2)
    return MicroBatch(
        rows=[],
        input_ids=torch.zeros(1, 2, dtype=torch.long),
        position_ids=torch.arange(2)[None],
        packing=packing_of([Piece(prompt), Piece(response, (prompt,))]) if packed else None,
        predictors=torch.zeros(1, 1, dtype=torch.long),
        response_ids=torch.zeros(1, 1, dtype=torch.long),
        response_mask=nothing,
        advantages=torch.zeros(1),
        group_tokens=torch.ones(1, dtype=torch.long),
        sampler_logprobs=torch.zeros(1, 1),
    )


def _sampler_logprobs(batch: Batch, rows: Sequence[int]) -> Tensor | None:
    """[b, T], or None unless the sampler told of every token."""
    known = [batch.sampler_logprobs[row] for row in rows]
    if any(len(batch.response_ids[row]) != len(values) for row, values in zip(rows, known, strict=True)):
        return None
    return _padded(known, torch.float32)


def _padded(rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.long) -> Tensor:
    """[b, longest] right-padded with 0, a token and an index that always exists; nothing reads it."""
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row)
    return padded
