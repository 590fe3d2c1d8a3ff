"""The loop in this process: an engine of plain PyTorch, and processes that are threads.

`train.main` with `PlainEngine` in the place of `Engine` is a whole run without DeepSpeed, in seconds. What
the real engine does is tested by launched processes; here it is the wiring around it.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch import Tensor

from dapo_ref.config import Config
from dapo_ref.policy.batching import MicroBatch, MiniBatch, microbatches
from dapo_ref.policy.logprobs import Policy
from dapo_ref.policy.pretrained import load_plain_model
from dapo_ref.types import Batch
from tests.support.helpers import OneProcess

T = TypeVar("T")


class PlainEngine(OneProcess):
    """`Engine` for one process, without sharding: the same methods, plain tensors."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.seed)
        self.config = config
        self.policy = Policy(load_plain_model(config), config.packing)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )
        self.seeds: list[tuple[int, ...]] = []
        self._lasts: list[bool] = []  # of the update in progress

    def start_tracker(self, steps_done: int) -> None:
        pass

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        yield

    def seed(self, *key: int) -> None:
        self.seeds.append(key)
        super().seed(*key)

    @contextlib.contextmanager
    def rollout_model(self) -> Iterator[Any]:
        with self.policy.generating() as model:
            yield model

    def microbatches(self, batch: Batch, mini: MiniBatch) -> list[MicroBatch]:
        budget = self.config.tokens_per_microbatch
        return microbatches(batch, mini.rows, budget, 1, 0, packed=self.policy.packed)

    def logprobs(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        return self.policy(micro, self.config.temperature)

    def backward(self, loss: Tensor, last: bool) -> None:
        self._lasts.append(last)
        loss.backward()

    def step(self, learning_rate: float) -> float:
        assert self._lasts == [False] * (len(self._lasts) - 1) + [True]  # the real one reduces at the last
        self._lasts = []
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        if norm.isfinite():
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def track(self, record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        pass

    def bytes_of_state(self) -> int:
        return 0

    def save_state(self, file: IO[bytes]) -> None:
        torch.save([self.policy.state_dict(), self.optimizer.state_dict()], file)

    def load_state(self, files: Sequence[Path]) -> None:
        policy, optimizer = torch.load(files[0], weights_only=True)
        self.policy.load_state_dict(policy)
        self.optimizer.load_state_dict(optimizer)

    def export(self, directory: Path) -> None:
        self.policy.model.save_pretrained(directory)

    def close(self) -> None:
        pass


class ThreadProcesses(OneProcess):
    """One of several processes that are threads of this one; collectives wait for all of them."""

    def __init__(self, rank: int, everyone: "Everyone") -> None:
        super().__init__()
        self.rank, self.world_size, self.is_main = rank, everyone.world_size, rank == 0
        self._everyone = everyone
        self.seeds: list[tuple[int, ...]] = []

    def gather(self, items: list[T]) -> list[T]:
        return [item for part in self._everyone.exchange(self.rank, items) for item in part]

    def sum(self, values: Sequence[float]) -> list[float]:
        return [sum(column) for column in zip(*self._everyone.exchange(self.rank, values), strict=True)]

    def max(self, values: Sequence[float]) -> list[float]:
        return [max(column) for column in zip(*self._everyone.exchange(self.rank, values), strict=True)]

    def barrier(self) -> None:
        self._everyone.exchange(self.rank, None)

    def seed(self, *key: int) -> None:
        self.seeds.append(key)  # the generator is the same for all threads


class Everyone:
    """Where the threads meet."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._slots: list[Any] = [None] * world_size
        self._barrier = threading.Barrier(world_size, timeout=60)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Everyone's value, on every thread."""
        self._slots[rank] = value
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        return found


def in_threads(world_size: int, work: Callable[[ThreadProcesses], T]) -> list[T]:
    """What each of so many processes makes of it, in the order of their ranks."""
    everyone = Everyone(world_size)
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(lambda rank: work(ThreadProcesses(rank, everyone)), range(world_size)))
