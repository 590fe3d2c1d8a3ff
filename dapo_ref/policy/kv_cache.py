"""Rows in the middle of generation, and their cache: rows leave it, others join, and it has room to grow.

`select` and `merge` change the cache in place: the rows that they were given must not be used again.

Dimension key: b rows in the batch, W columns (left-padded prompts and what was generated so far).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


@dataclass
class Rows:
    """Rows in the middle of generation.

    Attributes:
        index: which response each row is.
        ids, mask: [b, W] tokens so far and where they are not padding.
        starts: [b] the column at which the response begins.
        cache: keys and values of the first W − 1 columns; None where W is 1.
    """

    index: list[int]
    ids: Tensor
    mask: Tensor
    starts: Tensor
    cache: DynamicCache | None


def select(rows: Rows, keep: Tensor) -> Rows:
    """Some of the rows, without the columns that are padding in all of them."""
    first = int(rows.mask[keep].argmax(dim=1).min())
    if rows.cache is not None:
        for layer in _layers(rows.cache):
            layer.take(keep, first)
    return Rows(
        [rows.index[i] for i in keep.tolist()],
        rows.ids[keep, first:],
        rows.mask[keep, first:],
        rows.starts[keep] - first,
        rows.cache,
    )


def merge(old: Rows, new: Rows) -> Rows:
    """Both sets of rows, the narrower padded on the left; the old ones have a cache."""
    assert old.cache is not None
    width = max(old.ids.shape[1], new.ids.shape[1])
    shift_old, shift_new = width - old.ids.shape[1], width - new.ids.shape[1]
    fresh = [None] * len(old.cache.layers) if new.cache is None else _layers(new.cache)
    for layer, joining in zip(_layers(old.cache), fresh, strict=True):
        layer.join(joining, len(new.index), width - 1)
    return Rows(
        old.index + new.index,
        torch.cat([F.pad(old.ids, (shift_old, 0)), F.pad(new.ids, (shift_new, 0))]),
        torch.cat([F.pad(old.mask, (shift_old, 0)), F.pad(new.mask, (shift_new, 0))]),
        torch.cat([old.starts + shift_old, new.starts + shift_new]),
        old.cache,
    )


class RoomyLayer(DynamicLayer):
    """A layer of the cache with room for columns to come: a token is written into it, where the layer it
    derives from copies all that is there to append one.

    What changes the rows lets go of the room, so that no layer holds its rows twice."""

    SPARE = 32
    _room: list[Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Appends columns [b, heads, columns, d] and returns all."""
        keys, values = self.keys, self.values
        if not self.is_initialized or keys is None or values is None or keys.numel() == 0:
            return super().update(key_states, value_states, *args, **kwargs)
        old, new = keys.shape[-2], keys.shape[-2] + key_states.shape[-2]
        room = self._room
        if room is None or room[0].shape[-2] < new:
            spare = max(self.SPARE, new // 8)  # an eighth: few copies on the way to a long response
            room = [F.pad(x, (0, 0, 0, new - old + spare)) for x in (keys, values)]
            self._room = room
        for whole, added in zip(room, (key_states, value_states), strict=True):
            whole[..., old:new, :] = added
        self.keys, self.values = (whole[..., :new, :] for whole in room)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Rows [n] of the layer, each as often as it is named."""
        self.take(indices, 0)

    def take(self, keep: Tensor, first: int) -> None:
        """Rows `keep` [n], without the columns before `first`."""
        self._room = None
        if self.keys is not None and self.values is not None:
            self.keys = self.keys[..., first:, :].index_select(0, keep)
            self.values = self.values[..., first:, :].index_select(0, keep)

    def join(self, other: "RoomyLayer | None", num_rows: int, width: int) -> None:
        """Rows of another layer after one's own, all padded with 0 on the left to `width` columns.

        Args:
            other: is empty afterwards; None for rows that have no columns yet.
            num_rows: of the other.
            width: at least that of both.
        """
        self._room = None
        for name in ("keys", "values"):
            own = getattr(self, name)
            whole = own.new_zeros(len(own) + num_rows, own.shape[1], width, own.shape[3])
            whole[: len(own), :, width - own.shape[2] :] = own
            if other is not None:
                added = getattr(other, name)
                whole[len(own) :, :, width - added.shape[2] :] = added
                setattr(other, name, None)
            setattr(self, name, whole)


def roomy_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache, of `RoomyLayer`s where the model can do with them."""
    cache = DynamicCache(config=model.config)
    if can_be_repacked(model):
        cache.layers = [RoomyLayer() for _ in cache.layers]
    return cache


def can_be_repacked(model: PreTrainedModel) -> bool:
    """Whether each layer of the model's cache holds all columns [b, heads, columns, d], so that rows and
    columns can be taken out and added; a sliding window's, say, does not."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def _layers(cache: DynamicCache) -> list[Any]:
    """The layers of a cache of which `can_be_repacked` said that they have keys and values."""
    return cache.layers
