"""The processes of a run, one a GPU: who each is, what they tell each other, how they share work."""

import contextlib
import gc
import logging
import resource
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object
from tqdm import tqdm

from dapo_ref.distributed.watch import CONSEQUENCES, Watch

log = logging.getLogger(__name__)

T = TypeVar("T")

WATCHED_LIMIT = timedelta(days=30)
"""Of a collective while the watch runs."""


class Processes:
    """The processes of a run: who this one is, and what they tell each other."""

    def __init__(self, accelerator: Accelerator, seed: int, timeout_s: float = 1800) -> None:
        self.accelerator = accelerator
        self._seed = seed
        self._timeout_s = timeout_s
        self._watch: Watch | None = None

    @property
    def rank(self) -> int:
        """This process, from 0."""
        return self.accelerator.process_index

    @property
    def world_size(self) -> int:
        """W, the number of processes."""
        return self.accelerator.num_processes

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.accelerator.is_main_process

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self.accelerator.device

    @property
    def watch(self) -> Watch:
        """Tells the other processes what this one does; started by `watched`."""
        if self._watch is None:
            store = dist.distributed_c10d._get_default_store()
            self._watch = Watch(store, self.rank, self.world_size, self._timeout_s)
        return self._watch

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A process that dies or hangs inside ends the run with an error that names it; see `watch.py`.

        Inside, the process group's own limit is off: it would end a collective in which a process waits for
        one that still samples, and can name nobody."""
        self.watch.start()
        dist.distributed_c10d._set_pg_timeout(WATCHED_LIMIT)
        try:
            with self.watch.last_words():
                yield
        except RuntimeError as error:
            if self.world_size > 1 and type(error).__name__ in CONSEQUENCES:
                log.error("a collective failed on rank %d: %s", self.rank, self.watch.missing())
            raise
        finally:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self._timeout_s + 60))
            self.watch.close()

    def gather(self, items: list[T]) -> list[T]:
        """The items of all processes, in the order of their ranks, on every process."""
        self.watch.enter()
        return gather_object(items)

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of the work: every W-th item."""
        return items[self.rank :: self.world_size]

    def gather_in_order(self, mine: Sequence[T]) -> list[T]:
        """What all processes made of their `share`, on every process, in the order of the items; a
        collective."""
        numbered = [(self.rank + i * self.world_size, item) for i, item in enumerate(mine)]
        return [item for _, item in sorted(self.gather(numbered), key=lambda pair: pair[0])]

    def progress(self, total: int, what: str, leave: bool = False) -> Any:
        """A progress bar on the main process, where there is a terminal to show it."""
        return tqdm(total=total, desc=what, leave=leave, disable=None if self.is_main else True)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over the processes."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Sequence[float], op: Any) -> list[float]:
        self.watch.enter()
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=op)
        return tensor.tolist()

    def barrier(self) -> None:
        """Waits for all processes."""
        self.watch.enter()
        self.accelerator.wait_for_everyone()

    def peak_memory_mb(self) -> float:
        """Largest over the processes: memory allocated on the GPU, or resident. CPU: since the start."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated() / 2**20
            torch.cuda.reset_peak_memory_stats()
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        return self.max([peak])[0]

    def seed(self, *key: int) -> None:
        """Seeds this process's sampling from the run's seed, a key and its rank.

        Sampling depends on nothing else, so that a resumed run samples what the uninterrupted one would
        have."""
        state = self._seed
        for part in (*key, self.rank):
            state = (state * 6364136223846793005 + part * 1442695040888963407 + 1) % 2**63
        torch.manual_seed(state)

    def close(self) -> None:
        """Destroys the process groups, and so joins their threads, while the interpreter is still whole."""
        self.accelerator.free_memory()
        gc.collect()
        dist.destroy_process_group()
