"""Attention over tokens packed without padding, each prompt once for all responses to it.

The G responses of a group share their prompt, and prompts often share their beginning: instructions, worked
examples. A causal model computes the same states for them again and again, and where prompts are long beside
the responses that is most of the work. Here a micro-batch is one row of tokens,

    common beginning | rest of prompt q₁ | o₁ | o₂ | … | rest of prompt q₂ | …

where positions count on from what a piece follows. All that a transformer does token by token (projections,
norms, rotary positions, experts, the output head) needs no more than that. Attention alone looks at other
tokens: it is taken apart into blocks, rows of queries that see the keys of their own piece and of those
before it in their text, and nothing else. The sums are the same ones; nothing is approximated.

transformers calls a function registered under a name for the attention of its models, and passes keyword
arguments of the model's forward on to it. Nothing else of a model is changed.

Dimension key: n packed tokens, h heads, d head size; of a block: b rows, T queries, L ≥ T keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

ATTENTION = "dapo_packed"
"""The name under which transformers knows `packed_attention`."""

NO_MATTER = {
    *("dropout", "position_ids", "use_cache", "is_causal", "cache_position", "return_dict"),
    *("output_attentions", "output_hidden_states", "output_router_logits"),
}
"""What layers pass along that changes nothing in a plain softmax over the tokens before."""


@dataclass(frozen=True)
class Block:
    """b rows of like length that attention takes together.

    The T queries are the last of a row's L keys, each sees the keys up to itself. Rows are filled up on the
    right with any token: as a key it stands behind all real queries, and its result as a query is not used.
    """

    num_rows: int
    num_queries: int
    num_keys: int


@dataclass(frozen=True)
class Packing:
    """Which of the packed tokens see which.

    Attributes:
        blocks: every token is a query of one of them.
        queries: [Σ b·T] which packed token each query is, block after block, row after row.
        keys: [Σ b·L] likewise.
        home: [n] where each token's result stands among the queries.
    """

    blocks: Sequence[Block]
    queries: Tensor
    keys: Tensor
    home: Tensor

    def to(self, device: torch.device) -> "Packing":
        """The same on another device."""
        return Packing(self.blocks, *(x.to(device) for x in (self.queries, self.keys, self.home)))


@dataclass(frozen=True)
class Piece:
    """Neighbours among the packed tokens, and what stands before them in their text: the beginning of a
    prompt, the rest of one after it, a response after both.

    Attributes:
        own: the packed tokens, at least one.
        before: the packed tokens of the pieces that it follows, in order; they come earlier in the row.
    """

    own: range
    before: tuple[range, ...] = ()

    @property
    def num_before(self) -> int:
        """Tokens before it, and so the position of its first one."""
        return sum(map(len, self.before))


def packing_of(pieces: Sequence[Piece]) -> Packing:
    """Lays out the blocks of a packed row.

    Args:
        pieces: all of the row.

    Returns:
        Blocks of pieces with the same number of tokens before them, so that the last query is every row's
        last key.
    """
    sizes = sorted({piece.num_before for piece in pieces})
    alike = [[piece for piece in pieces if piece.num_before == size] for size in sizes]
    laid_out = [_block(bucket) for same in alike for bucket in _of_like_length(same)]
    queries, keys, real = (torch.cat(parts) for parts in list(zip(*laid_out, strict=True))[1:])
    home = torch.empty(int(real.sum()), dtype=torch.long)
    home[queries[real]] = real.nonzero()[:, 0]
    return Packing([block for block, *_ in laid_out], queries, keys, home)


def _of_like_length(pieces: list[Piece]) -> list[list[Piece]]:
    """Longest first, a new bucket where a piece is less than half of the bucket's longest."""
    buckets: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: -len(piece.own)):
        if not buckets or 2 * len(piece.own) < len(buckets[-1][0].own):
            buckets.append([])
        buckets[-1].append(piece)
    return buckets


def _block(pieces: list[Piece]) -> tuple[Block, Tensor, Tensor, Tensor]:
    """Pieces with the same number of tokens before them as rows: the block, its queries and keys, which
    queries are real."""
    width = len(pieces[0].own)
    first = torch.tensor([piece.own.start for piece in pieces])[:, None]
    real = torch.arange(width) < torch.tensor([len(piece.own) for piece in pieces])[:, None]
    queries = torch.where(real, first + torch.arange(width), first)
    before = torch.tensor([list(chain(*piece.before)) for piece in pieces], dtype=torch.long)
    keys = torch.cat([before, queries], dim=1)
    return Block(len(pieces), width, keys.shape[1]), queries.flatten(), keys.flatten(), real.flatten()


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    packing: Packing,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of packed tokens, in the form that transformers' models call.

    Args:
        module: the attention layer.
        query: [1, h, n, d].
        key, value: [1, h or fewer, n, d].
        attention_mask: none; `packing` says who sees whom.
        packing: of these tokens.
        scaling: of the scores; d^−½ where None.
        sliding_window: keys that a query sees, itself included; all where None.
        kwargs: what else a layer passes.

    Returns:
        ([1, n, h, d], None): no attention weights.

    Raises:
        ValueError: the layer asks for more than this does.
    """
    for name in sorted(kwargs.keys() - NO_MATTER):
        if kwargs[name] is not None:
            raise ValueError(f"{type(module).__name__} passes {name} to its attention; set packing: false")
    sizes = [(block.num_rows, block.num_queries) for block in packing.blocks]
    of_queries = _rows(query, packing.queries, sizes)
    sizes = [(block.num_rows, block.num_keys) for block in packing.blocks]
    of_keys, of_values = _rows(key, packing.keys, sizes), _rows(value, packing.keys, sizes)
    results = []
    for block, q, k, v in zip(packing.blocks, of_queries, of_keys, of_values, strict=True):
        visible = _visible(block.num_queries, block.num_keys, sliding_window, q.device)
        out = F.scaled_dot_product_attention(
            q, k, v, visible, scale=scaling, enable_gqa=k.shape[1] != q.shape[1]
        )
        results.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(results)[packing.home][None], None


def _rows(heads: Tensor, index: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """[1, h, n, d] to [b, h, L, d] for each (b, L). One lookup for all, since the backward pass of each is as
    large as the n tokens; and a lookup because that of an index adds up in no fixed order on a GPU."""
    rows = F.embedding(index, heads[0].transpose(0, 1).flatten(1)).unflatten(1, (-1, heads.shape[3]))
    blocks = rows.split([b * length for b, length in sizes])
    return [block.unflatten(0, size).transpose(1, 2) for block, size in zip(blocks, sizes, strict=True)]


def _visible(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """[T, L] which keys a query sees; without a window in the form that fused kernels take."""
    if window is None or num_keys <= window:
        return causal_lower_right(num_queries, num_keys)
    column = torch.arange(num_keys, device=device)
    distance = column[num_keys - num_queries :, None] - column
    return (distance >= 0) & (distance < window)


SHORTEST_SHARED_PREFIX = 16
"""Tokens; a shorter common beginning costs more to set apart than to compute again."""


def shared_prefix_length(prompts: Sequence[list[int]]) -> int:
    """How many tokens all prompts begin with: a system prompt, instructions, worked examples.

    Returns:
        Their number, less than the shortest prompt has, so that each prompt keeps a token of its own; 0 where
        there is one prompt only, or less than `SHORTEST_SHARED_PREFIX` in common.
    """
    first, last = min(prompts), max(prompts)  # what these two share, all that lie between them share
    if first == last:
        return 0
    length, longest = 0, min(map(len, prompts)) - 1
    while length < longest and first[length] == last[length]:
        length += 1
    return length if length >= SHORTEST_SHARED_PREFIX else 0


AttentionInterface.register(ATTENTION, packed_attention)
