"""The bytes that tensors hold while a block runs, without a GPU's counters."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Counts the storages made inside the block.

    Attributes:
        now: bytes that are held.
        peak: the most that was held since the block began, or since it was set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)}
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if torch.is_tensor(x) and x.untyped_storage().data_ptr() not in given:
                self._add(x.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or key in self._known:
            return
        self.now += size
        self.peak = max(self.peak, self.now)
        self._known[key] = weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self.now -= size
        del self._known[key]
