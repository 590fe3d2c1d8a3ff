"""Rows that wait to be generated, and when they may join: by the number of rows, and by cache tokens.

Rows stand right-aligned to the longest, so that the cache holds rows × columns, whatever their own lengths.
That product is the budget. Rows join while it leaves an eighth for what they are yet to generate. Where the
rows have outgrown it, the shortest are put back: their tokens stay, and go through the model once more later.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from dapo_ref.policy.kv_cache import Rows, select

FREE_SHARE = 0.8
"""Of the free memory of a GPU that is taken for the cache; the rest is for logits and copies."""


@dataclass
class Waiting:
    """Rows of one prompt that are to be prefilled together.

    Attributes:
        tokens: the prompt, and what was generated before the row was put back.
        index: which response each row is.
        generated: how many of the tokens are of the response.
    """

    tokens: list[int]
    index: list[int]
    generated: int = 0


class Queue:
    """The rows of some prompts, in order; those that were put back come first."""

    def __init__(
        self, prompts: Sequence[list[int]], group_size: int, capacity: int, budget: int | None
    ) -> None:
        """Args:
        prompts: row g of prompt i is response i·G + g.
        group_size: G.
        capacity: rows at once.
        budget: rows × columns at once; None for no limit. A row alone may exceed it.
        """
        self._items = deque(
            Waiting(
                tokens,
                list(range(i * group_size + first, i * group_size + min(first + capacity, group_size))),
            )
            for i, tokens in enumerate(prompts)
            for first in range(0, group_size, capacity)
        )
        self._capacity = capacity
        self._budget = budget

    def __bool__(self) -> bool:
        return bool(self._items)

    def admit(self, num_rows: int, width: int) -> list[Waiting]:
        """Takes out what may join `num_rows` rows of `width` columns; at least a row where there are none."""
        admitted: list[Waiting] = []
        while self._items and num_rows + len(self._items[0].index) <= self._capacity:
            item = self._items[0]
            width = max(width, len(item.tokens))
            room = max(self._most_rows(width) - num_rows, 0 if num_rows else 1)
            if room < len(item.index):  # a part of the group, the rest later
                if room > 0:
                    admitted.append(replace(item, index=item.index[:room]))
                    self._items[0] = replace(item, index=item.index[room:])
                break
            admitted.append(self._items.popleft())
            num_rows += len(item.index)
        return admitted

    def last_column(self, num_rows: int) -> float:
        """Columns at which so many rows have used up the budget."""
        return float("inf") if self._budget is None or num_rows == 1 else self._budget // num_rows

    def put_back(self, rows: Rows) -> Rows:
        """Takes the shortest rows back where there is no room for another column; returns the others."""
        if rows.ids.shape[1] < self.last_column(len(rows.index)):
            return rows
        most = max(1, self._most_rows(rows.ids.shape[1]))
        order = rows.mask.sum(dim=1).argsort(descending=True, stable=True)
        for i in order[most:].tolist():
            tokens = rows.ids[i][rows.mask[i].bool()].tolist()
            generated = rows.ids.shape[1] - int(rows.starts[i])
            self._items.appendleft(Waiting(tokens, [rows.index[i]], generated))
        return select(rows, order[:most].sort().values)

    def _most_rows(self, width: int) -> int:
        """How many rows of so many columns may go on, with an eighth more columns to come."""
        return self._capacity if self._budget is None else self._budget // (width + width // 8 + 1)


def token_budget(model: PreTrainedModel, wanted: int) -> int | None:
    """Cache tokens that fit.

    Args:
        model: whose cache it is.
        wanted: the configured number; 0 for what the free memory of a GPU holds.

    Returns:
        None for no limit, on a CPU.
    """
    if wanted or model.device.type != "cuda":
        return wanted or None
    free, _ = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    return max(1, int(FREE_SHARE * free) // bytes_per_token(model))


def bytes_per_token(model: PreTrainedModel) -> int:
    """Keys and values of a token: 2 · layers · KV heads · size of a head · bytes of a number."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * model.dtype.itemsize
