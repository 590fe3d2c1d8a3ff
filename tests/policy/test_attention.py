"""`dapo_ref/policy/attention.py`: one call for all pieces gives what blocks give, or is not used.

torch's `varlen_attn` runs on GPUs alone; a plain loop over its sequences, by its documentation, stands in.
"""

import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dapo_ref.policy import attention
from dapo_ref.policy.attention import by_blocks, by_sequences, flash_takes, packed_attention, varlen_agrees
from dapo_ref.policy.packing import Packing, Piece, packing_of

CPU = torch.device("cpu")


def plain_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """Query i of T stands at key L − T + i and sees `left` keys before it; −1 is all."""
    left, right = window_size
    assert right == 0
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert int(cu_seq_q[-1]) == len(query)
    assert int(cu_seq_k[-1]) == len(key) == len(value)
    assert (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max())) == (max_q, max_k)
    rows = []
    for piece in range(len(cu_seq_q) - 1):
        q = query[cu_seq_q[piece] : cu_seq_q[piece + 1]]
        k, v = (x[cu_seq_k[piece] : cu_seq_k[piece + 1]] for x in (key, value))
        for i in range(len(q)):
            last = len(k) - len(q) + i
            first = 0 if left < 0 else max(0, last - left)
            heads = []
            for h in range(q.shape[1]):
                of = h * k.shape[1] // q.shape[1]
                scores = k[first : last + 1, of] @ q[i, h] * (scale or 1 / math.sqrt(q.shape[2]))
                heads.append(scores.softmax(dim=0) @ v[first : last + 1, of])
            rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(attention, "varlen_attn", plain_varlen)
    varlen_agrees.cache_clear()
    yield
    varlen_agrees.cache_clear()


def some_packing(seed: int) -> Packing:
    """A beginning that all share, rests of prompts, responses after both, in a row of about 40 tokens."""
    pick = random.Random(seed)
    pieces: list[Piece] = []

    def append(*before: range) -> range:
        start = pieces[-1].own.stop if pieces else 0
        pieces.append(Piece(range(start, start + pick.randint(1, 7)), before))
        return pieces[-1].own

    shared = [append()] if pick.random() < 0.5 else []
    for _ in range(pick.randint(1, 3)):
        prompt = append(*shared)
        for _ in range(pick.randint(0, 4)):
            append(*shared, prompt)
    pick.shuffle(pieces)
    return packing_of(pieces)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)])
def test_one_call_gives_the_values_and_gradients_of_blocks(
    seed: int, window: int | None, heads: tuple[int, int]
) -> None:
    packing = some_packing(seed)
    n = len(packing.home)
    torch.manual_seed(seed)
    shapes = [(1, heads[0], n, 8), (1, heads[1], n, 8), (1, heads[1], n, 8)]
    inputs = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    weights = torch.randn(n, heads[0], 8, dtype=torch.float64)
    scaling = None if seed % 2 else 0.3
    results = []
    for attend in (by_blocks, by_sequences):
        out = attend(*inputs, packing, scaling, window)
        results.append([out, *torch.autograd.grad(out, inputs, weights)])
    for blocks, sequences in zip(*results, strict=True):
        torch.testing.assert_close(blocks, sequences, rtol=1e-9, atol=1e-9)


def changed(**change: object) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: plain_varlen(*args, **{**kwargs, **change})


def top_left(
    query: Tensor, key: Tensor, value: Tensor, cu_q: Tensor, cu_k: Tensor, *args, **kwargs
) -> Tensor:
    """Queries at a row's first keys: aligned to the other corner."""
    sizes = cu_q.diff()
    index = torch.cat([torch.arange(int(s), int(s + n)) for s, n in zip(cu_k[:-1], sizes, strict=True)])
    return plain_varlen(query, key[index], value[index], cu_q, cu_q, args[0], args[0], **kwargs)


def other_heads(query: Tensor, *args, **kwargs) -> Tensor:
    """Key heads dealt out in turn and not in runs."""
    order = torch.tensor([0, 2, 1, 3])
    return plain_varlen(query[:, order], *args, **kwargs)[:, order]


def without_gradient(query: Tensor, key: Tensor, *args, **kwargs) -> Tensor:
    return plain_varlen(query, key.detach() + 0 * key, *args, **kwargs)


def broken(*args, **kwargs) -> Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(
    ("kernel", "word"),
    [
        (top_left, "off by"),
        (other_heads, "off by"),
        (without_gradient, "off by"),
        (changed(scale=0.5), "off by"),
        (changed(window_size=(-1, 0)), "off by"),
        (changed(window_size=(5, 0)), "off by"),
        (lambda *args, **kwargs: plain_varlen(*args, **kwargs) * math.nan, "off by nan"),
        (broken, "fails on cpu: .*: RuntimeError: no kernel image"),
    ],
)
def test_a_kernel_that_gives_other_numbers_is_not_used(monkeypatch, caplog, kernel, word: str) -> None:
    monkeypatch.setattr(attention, "varlen_attn", kernel)
    assert not varlen_agrees(CPU, torch.float32, 8)
    assert not varlen_agrees(CPU, torch.float32, 8)  # said once
    (record,) = caplog.records

    assert re.search(word, record.getMessage())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_that_rounds_is_used(dtype: torch.dtype, caplog) -> None:
    with torch.no_grad():  # as where the old policy is computed
        assert varlen_agrees(CPU, dtype, 16)
    assert not caplog.records


def test_flash_takes_half_precision_and_one_head_size_up_to_256() -> None:
    def takes(dtype: torch.dtype, d: int, of_values: int = 0) -> bool:
        x = torch.empty(1, 1, 1, d, dtype=dtype, device="meta")
        return flash_takes(x, x, torch.empty(1, 1, 1, of_values or d, dtype=dtype, device="meta"))

    assert takes(torch.bfloat16, 256)
    assert takes(torch.float16, 64)
    assert not takes(torch.float32, 64)
    assert not takes(torch.bfloat16, 264)
    assert not takes(torch.bfloat16, 64, 32)


class OnGpu(Tensor):
    """Says that it is on a GPU, as do its results; computes on the CPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]


@pytest.mark.parametrize("heads", [(4, 2), (2, 2)])
@pytest.mark.parametrize(
    ("dtype", "window", "way"),
    [
        (torch.bfloat16, None, "one call"),
        (torch.bfloat16, 3, "one call"),
        (torch.float32, None, "blocks of whole heads"),
        (torch.float32, 3, "blocks of whole heads"),
    ],
)
@pytest.mark.parametrize("agrees", [True, False])
def test_on_a_gpu_no_kernel_is_asked_for_that_holds_all_scores(
    monkeypatch, heads, dtype, window: int | None, way: str, agrees: bool
) -> None:
    calls = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Any, **kwargs) -> Tensor:
        calls.append((kwargs.pop("enable_gqa"), type(mask) is Tensor, q.shape[1] == k.shape[1]))
        parts = [x.as_subclass(Tensor) for x in (q, k, v)]
        mask = mask if type(mask) is Tensor else mask._materialize(CPU)
        return plain(*parts, mask, enable_gqa=q.shape[1] != k.shape[1], **kwargs)

    def one_call(query: Tensor, *args: object) -> Tensor:
        calls.append("one call")
        return query[0].transpose(0, 1)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", sdpa)
    monkeypatch.setattr(attention, "by_sequences", one_call)
    monkeypatch.setattr(attention, "varlen_agrees", lambda *key: agrees)
    packing = some_packing(3)
    n = len(packing.home)
    tensors = [torch.randn(1, h, n, 8).to(dtype).as_subclass(OnGpu) for h in (heads[0], heads[1], heads[1])]
    out, _ = packed_attention(torch.nn.Linear(1, 1), *tensors, None, packing, sliding_window=window)
    assert out.shape == (1, n, heads[0], 8)
    if way == "one call" and agrees:
        assert calls == ["one call"]
        return
    grouped = heads[0] != heads[1]
    for gqa, masked, same_heads in calls:
        flash = dtype == torch.bfloat16 and not masked
        assert gqa == (grouped and flash)
        assert same_heads or flash
    on_cpu = by_blocks(*(x.as_subclass(Tensor) for x in tensors), packing, None, window)
    torch.testing.assert_close(out[0].as_subclass(Tensor), on_cpu, rtol=1e-2, atol=1e-2)


def test_on_a_cpu_heads_stay_grouped_in_blocks(monkeypatch) -> None:
    monkeypatch.setattr(attention, "by_sequences", broken)
    monkeypatch.setattr(attention, "varlen_agrees", lambda *key: True)
    packing = some_packing(3)
    x = torch.randn(1, 2, len(packing.home), 8).bfloat16()
    packed_attention(torch.nn.Linear(1, 1), x, x, x, None, packing)
