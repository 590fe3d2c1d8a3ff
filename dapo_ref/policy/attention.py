"""Attention of packed tokens, in the form that transformers' models call.

transformers calls a function registered under a name for the attention of its models, and passes keyword
arguments of the model's forward on to it. Nothing else of a model is changed.

There are two ways to compute it. Blocks, rows of like length, run everywhere. On a GPU in half precision one
call of torch's `varlen_attn` takes all pieces at once, with no filling up, if it gives the numbers that
blocks give: that is tried out once, before the first use.

Dimension key: n packed tokens, h heads, d head size; of a block: b rows, T queries, L ≥ T keys.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from dapo_ref.errors import one_line
from dapo_ref.policy.packing import Packing, Piece, packing_of

log = logging.getLogger(__name__)

ATTENTION = "dapo_packed"
"""The name under which transformers knows `packed_attention`."""

NO_MATTER = {
    *("dropout", "position_ids", "use_cache", "is_causal", "cache_position", "return_dict"),
    *("output_attentions", "output_hidden_states", "output_router_logits"),
}
"""What layers pass along that changes nothing in a plain softmax over the tokens before."""

FLASH_HEAD_SIZE = 256
"""The largest that flash attention takes."""


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
    fused = query.is_cuda and flash_takes(query, key, value)
    if fused and varlen_agrees(query.device, query.dtype, query.shape[3]):
        out = by_sequences(query, key, value, packing, scaling, sliding_window)
    else:
        out = by_blocks(query, key, value, packing, scaling, sliding_window)
    return out[None], None


def flash_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether flash attention computes in this precision and these head sizes; it takes fewer key heads than
    query heads."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    return half and query.shape[3] <= FLASH_HEAD_SIZE and query.shape[3] == key.shape[3] == value.shape[3]


def by_blocks(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None, window: int | None
) -> Tensor:
    """[n, h, d], block by block; arguments as for `packed_attention`."""
    sizes = [(block.num_rows, block.num_queries) for block in packing.blocks]
    of_queries = _rows(query, packing.queries, sizes)
    sizes = [(block.num_rows, block.num_keys) for block in packing.blocks]
    of_keys, of_values = _rows(key, packing.keys, sizes), _rows(value, packing.keys, sizes)
    results = []
    for block, q, k, v in zip(packing.blocks, of_queries, of_keys, of_values, strict=True):
        visible = _visible(block.num_queries, block.num_keys, window, q.device)
        grouped = k.shape[1] != q.shape[1]
        if grouped and q.is_cuda and not (flash_takes(q, k, v) and type(visible) is not Tensor):
            # Of the kernels that never hold all scores flash alone takes fewer key heads than query heads.
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
            grouped = False
        out = F.scaled_dot_product_attention(q, k, v, visible, scale=scaling, enable_gqa=grouped)
        results.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(results)[packing.home]


def by_sequences(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None, window: int | None
) -> Tensor:
    """[n, h, d], all pieces in one call; arguments as for `packed_attention`."""
    pieces = packing.sequences
    return varlen_attn(  # type: ignore[return-value]
        query[0].transpose(0, 1),
        _lookup(key, pieces.keys),
        _lookup(value, pieces.keys),
        pieces.query_starts,
        pieces.key_starts,
        pieces.most_queries,
        pieces.most_keys,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),  # ours counts the query itself
        enable_gqa=query.shape[1] != key.shape[1],
    )


@functools.cache
def varlen_agrees(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether `by_sequences` gives the values and gradients of `by_blocks` in float32, but for rounding: on
    pieces of several lengths, with fewer key heads than query heads, with and without a window. What differs,
    or fails, is said once and not used."""
    try:
        far = max(_difference(device, dtype, head_size, window) for window in (None, 5))
    except Exception as error:  # of a kernel: whatever it is, blocks do without
        log.warning("varlen_attn fails on %s: attention goes block by block: %s", device, one_line(error))
        return False
    if not far <= 0.05:  # bf16 has 8 bits; a key too many or too few is of the order of 1
        log.warning("varlen_attn is off by %.2g on %s: attention goes block by block", far, device)
        return False
    return True


def _difference(device: torch.device, dtype: torch.dtype, head_size: int, window: int | None) -> float:
    """The largest difference of values and gradients, over the largest of their sizes."""
    prompt, own = range(6), (range(6, 15), range(15, 16), range(16, 29))
    pieces = [Piece(prompt), *(Piece(response, (prompt,)) for response in own[:2]), Piece(own[2])]
    packing = packing_of(pieces).to(device)
    pick = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, heads, 29, head_size, generator=pick).to(device, dtype) for heads in (4, 2, 2)]
    weights = torch.randn(29, 4, head_size, generator=pick).to(device, dtype)

    def with_gradients(attend: Callable[..., Tensor], precision: torch.dtype) -> list[Tensor]:
        leaves = [x.to(precision).requires_grad_() for x in inputs]
        with torch.enable_grad():
            out = attend(*leaves, packing, None, window)
            gradients = torch.autograd.grad(out, leaves, weights.to(precision))
        return [x.detach().float() for x in (out, *gradients)]

    truth, found = with_gradients(by_blocks, torch.float32), with_gradients(by_sequences, dtype)
    return max(float((f - t).abs().max() / t.abs().max()) for f, t in zip(found, truth, strict=True))


def _lookup(heads: Tensor, index: Tensor) -> Tensor:
    """[1, h, n, d] → [m, h, d] at m tokens. One lookup for all that a call needs, since the backward pass of
    each is as large as the n tokens; and a lookup because that of an index adds up in no fixed order on a
    GPU."""
    return F.embedding(index, heads[0].transpose(0, 1).flatten(1)).unflatten(1, (-1, heads.shape[3]))


def _rows(heads: Tensor, index: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """[1, h, n, d] to [b, h, L, d] for each (b, L)."""
    blocks = _lookup(heads, index).split([b * length for b, length in sizes])
    return [block.unflatten(0, size).transpose(1, 2) for block, size in zip(blocks, sizes, strict=True)]


def _visible(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """[T, L] which keys a query sees; without a window in the form that fused kernels take."""
    if window is None or num_keys <= window:
        return causal_lower_right(num_queries, num_keys)
    column = torch.arange(num_keys, device=device)
    distance = column[num_keys - num_queries :, None] - column
    return (distance >= 0) & (distance < window)


AttentionInterface.register(ATTENTION, packed_attention)
