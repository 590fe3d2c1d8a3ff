"""Attention over tokens packed without padding, each prompt once for all responses to it.

The G responses of a group share their prompt, and prompts often share their beginning: instructions, worked
examples. A causal model computes the same states for them again and again, and where prompts are long beside
the responses that is most of the work. Here a micro-batch is one row of tokens,

    common beginning | rest of prompt q₁ | o₁ | o₂ | … | rest of prompt q₂ | …

where positions count on from what a piece follows. All that a transformer does token by token (projections,
norms, rotary positions, experts, the output head) needs no more than that. Attention alone looks at other
tokens: it is taken apart into blocks, rows of queries that see the keys of their own piece and of those
before it in their text, and nothing else. The sums are the same ones; nothing is approximated.

Here is who sees whom; `attention.py` computes with it.

Dimension key: n packed tokens; of a block: b rows, T queries, L ≥ T keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor


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
class Sequences:
    """The pieces one after the other, none filled up, for a kernel that takes rows of all lengths at once.

    The queries are the packed tokens as they stand. A piece's queries are the last of its keys, as in a
    block.

    Attributes:
        keys: [Σ L] which packed token each key is, piece after piece: what stands before it, then its own.
        query_starts, key_starts: [pieces + 1] int32, where each piece's queries and keys begin; their number.
        most_queries, most_keys: of a piece.
    """

    keys: Tensor
    query_starts: Tensor
    key_starts: Tensor
    most_queries: int
    most_keys: int

    def to(self, device: torch.device) -> "Sequences":
        """The same on another device."""
        starts = self.query_starts.to(device), self.key_starts.to(device)
        return Sequences(self.keys.to(device), *starts, self.most_queries, self.most_keys)


@dataclass(frozen=True)
class Packing:
    """Which of the packed tokens see which.

    Attributes:
        blocks: every token is a query of one of them.
        queries: [Σ b·T] which packed token each query is, block after block, row after row.
        keys: [Σ b·L] likewise.
        home: [n] where each token's result stands among the queries.
        sequences: the same without blocks.
    """

    blocks: Sequence[Block]
    queries: Tensor
    keys: Tensor
    home: Tensor
    sequences: Sequences

    def to(self, device: torch.device) -> "Packing":
        """The same on another device."""
        return Packing(
            self.blocks,
            self.queries.to(device),
            self.keys.to(device),
            self.home.to(device),
            self.sequences.to(device),
        )


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
    return Packing([block for block, *_ in laid_out], queries, keys, home, sequences_of(pieces))


def sequences_of(pieces: Sequence[Piece]) -> Sequences:
    """Lays out the pieces of a packed row one after the other.

    Args:
        pieces: all of the row.
    """
    pieces = sorted(pieces, key=lambda piece: piece.own.start)
    keys = [list(chain(*piece.before, piece.own)) for piece in pieces]
    return Sequences(
        keys=torch.tensor(list(chain(*keys))),
        query_starts=torch.tensor([0, *(piece.own.stop for piece in pieces)], dtype=torch.int32),
        key_starts=torch.tensor(list(accumulate(map(len, keys), initial=0)), dtype=torch.int32),
        most_queries=max(len(piece.own) for piece in pieces),
        most_keys=max(map(len, keys)),
    )


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
