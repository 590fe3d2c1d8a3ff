"""The processes of a run, one a GPU: how they find each other, what they tell each other, how they end.

What is particular to a machine without a GPU is marked `CPU:`.
"""

import contextlib
import errno
import functools
import gc
import logging
import os
import resource
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs, gather_object
from deepspeed.utils import numa

from dapo_ref import native_build
from dapo_ref.config import Config, ConfigError
from dapo_ref.data import DataError
from dapo_ref.preemption import StoppedError, exit_code_of
from dapo_ref.watch import CONSEQUENCES, Watch

# DeepSpeed calls torch functions by their old names, in every collective.
warnings.filterwarnings(
    "ignore",
    message=".*(reduce_scatter_tensor|all_gather_into_tensor).* is deprecated",
    category=FutureWarning,
)
# CPU: with each bucket that it reduces DeepSpeed counts the devices, and starts `numactl` to do so.
numa.get_numa_cores = functools.cache(numa.get_numa_cores)

log = logging.getLogger(__name__)

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG}
"""What needs no traceback."""

T = TypeVar("T")
REDUCE_BUCKET_ELEMENTS = 2**25
"""Gradients reduced at once."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message is one line that says why."""


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
        """A process that dies or hangs inside ends the run with an error that names it; see `watch.py`."""
        self.watch.start()
        try:
            with self.watch.last_words():
                yield
        except RuntimeError as error:
            if self.world_size > 1 and type(error).__name__ in CONSEQUENCES:
                log.error("a collective failed on rank %d: %s", self.rank, self.watch.missing())
            raise
        finally:
            self.watch.close()

    def gather(self, items: list[T]) -> list[T]:
        """The items of all processes, in the order of their ranks, on every process."""
        self.watch.enter()
        return gather_object(items)

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


def make_accelerator(config: Config) -> Accelerator:
    """An Accelerator with DeepSpeed ZeRO-3, also without a launcher.

    What the launcher's configuration says (offloading, say) holds; what the mathematics needs is set here.

    Raises:
        ConfigError: the launcher asks for another ZeRO stage.
    """
    native_build.prepare()
    on_gpu = torch.cuda.is_available()
    for name, value in (
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", str(_free_port()))
    os.environ.setdefault("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    plugin = DeepSpeedPlugin(gradient_accumulation_steps=1)
    settings = plugin.deepspeed_config
    if settings["zero_optimization"]["stage"] != 3:
        stage = settings["zero_optimization"]["stage"]
        raise ConfigError(f"the launcher's configuration asks for ZeRO stage {stage}; zero_stage must be 3")
    settings["train_micro_batch_size_per_gpu"] = 1  # DeepSpeed wants a number; micro-batches vary
    settings["gradient_clipping"] = config.max_grad_norm
    settings.setdefault("data_types", {})["grad_accum_dtype"] = "fp32"
    settings["bf16"] = {"enabled": config.precision == "bf16"}
    # Left to accelerate the bucket has hidden_size² elements, and nearly every gradient is reduced alone.
    settings["zero_optimization"].setdefault("reduce_bucket_size", REDUCE_BUCKET_ELEMENTS)
    for key in ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"):
        settings["zero_optimization"].setdefault(key, "auto")
    # CPU: without the backend accelerate takes every rank for the only one.
    process_group = InitProcessGroupKwargs(
        # The watch comes first: it can name a process, and the end of a collective cannot.
        backend="nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=config.process_group_timeout_s + 60),
    )
    if not on_gpu:  # CPU: the launcher leaves one thread to each process
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local))
    return Accelerator(
        deepspeed_plugin=plugin,
        mixed_precision="bf16" if config.precision == "bf16" else "no",
        kwargs_handlers=[process_group],
        log_with=None if config.tracker == "none" else config.tracker,
        project_dir=config.output_dir,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def leave(code: int) -> NoReturn:
    """Ends the process without finalizing the interpreter, once everything is flushed.

    CPU: a gloo worker thread may drop the last reference to a finished collective while the interpreter
    finalizes; it asks for the GIL, is made to exit inside a destructor, and C++ calls terminate: exit code
    −6 after all the work is done, now and then, more often on a busy machine.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(run: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Runs a command and turns its end into an exit code.

    Returns:
        0; 2 after one line on what the user can mend; 130 or 143 after a signal; 1 after anything else.
    """
    logging.basicConfig(format="%(message)s", level=logging.INFO if launched_as_main() else logging.ERROR)
    try:
        run(argv)
    except (ConfigError, DataError, TrainingError) as error:
        if launched_as_main():
            print(f"error: {error}", file=sys.stderr)
        return 2
    except StoppedError as stopped:
        return exit_code_of(stopped.signal)
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            traceback.print_exc()
        print(f"error: {error}; the run can be resumed once that is mended", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def launched_as_main() -> bool:
    """Whether this process speaks for all, as far as the launcher's environment says; for use before
    `Engine`."""
    return os.environ.get("RANK", "0") == "0"
