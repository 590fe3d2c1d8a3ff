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
        rows.cache.batch_select_indices(keep)
        for layer in _layers(rows.cache):
            layer.keys, layer.values = layer.keys[..., first:, :], layer.values[..., first:, :]
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
    for i, layer in enumerate(_layers(old.cache)):
        for name in ("keys", "values"):
            columns = getattr(layer, name)
            if new.cache is None:  # prompts of one token
                added = columns.new_zeros(len(new.index), columns.shape[1], 0, columns.shape[3])
            else:
                added = getattr(_layers(new.cache)[i], name)
            padded = [F.pad(x, (0, 0, width - 1 - x.shape[2], 0)) for x in (columns, added)]
            setattr(layer, name, torch.cat(padded))
    return Rows(
        old.index + new.index,
        torch.cat([F.pad(old.ids, (shift_old, 0)), F.pad(new.ids, (shift_new, 0))]),
        torch.cat([F.pad(old.mask, (shift_old, 0)), F.pad(new.mask, (shift_new, 0))]),
        torch.cat([old.starts + shift_old, new.starts + shift_new]),
        old.cache,
    )


class RoomyLayer(DynamicLayer):
    """A layer of the cache with room for columns to come: a token is written into it, where the layer it
    derives from copies all that is there to append one."""

    SPARE = 32
    _room: list[Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Appends columns [b, heads, columns, d] and returns all."""
        keys, values = self.keys, self.values
        if not self.is_initialized or keys is None or values is None or keys.numel() == 0:
            return super().update(key_states, value_states, *args, **kwargs)
        old, new = keys.shape[-2], keys.shape[-2] + key_states.shape[-2]
        room = self._room
        # Where rows or columns were taken out or added, keys and values are no longer views of the room.
        if room is None or room[0].data_ptr() != keys.data_ptr() or room[0].shape[-2] < new:
            room = [F.pad(x, (0, 0, 0, new - old + self.SPARE)) for x in (keys, values)]
            self._room = room
        for whole, added in zip(room, (key_states, value_states), strict=True):
            whole[..., old:new, :] = added
        self.keys, self.values = (whole[..., :new, :] for whole in room)
        return self.keys, self.values


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
