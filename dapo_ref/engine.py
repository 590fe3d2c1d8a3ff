"""Everything that knows accelerate, DeepSpeed and torch.distributed: one process a GPU, ZeRO stage 3.

The rest of the project sees a policy whose log-probabilities can be computed, a gradient that can be
accumulated
and applied, and a plain HF model to sample from. Two scalings live here and nowhere else:

    ZeRO averages gradients over the W processes, so `backward` multiplies by W.
    DeepSpeed divides a loss by its configured accumulation steps; they are 1, and the boundary is set by
    hand.

What is particular to a machine without a GPU is marked `CPU:`.
"""

import contextlib
import errno
import functools
import gc
import logging
import math
import os
import resource
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import deepspeed
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator, init_empty_weights
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs, gather_object
from deepspeed.utils import numa
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dapo_ref import native_build
from dapo_ref.config import Config, ConfigError
from dapo_ref.data import DataError
from dapo_ref.logprobs import Policy, require_plain_head
from dapo_ref.manifest import Entry
from dapo_ref.preemption import StoppedError, exit_code_of
from dapo_ref.pretrained import load_hf_config, special_tokens_only
from dapo_ref.shards import bytes_of_shard, load_shard, save_shard
from dapo_ref.types import MicroBatch
from dapo_ref.watch import CONSEQUENCES, Watch

# DeepSpeed calls torch functions by their old names, in every collective.
warnings.filterwarnings(
    "ignore",
    message=".*(reduce_scatter_tensor|all_gather_into_tensor).* is deprecated",
    category=FutureWarning,
)
transformers.utils.logging.disable_progress_bar()
# CPU: with each bucket that it reduces DeepSpeed counts the devices, and starts `numactl` to do so.
numa.get_numa_cores = functools.cache(numa.get_numa_cores)

log = logging.getLogger(__name__)

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG}
"""What needs no traceback."""

T = TypeVar("T")
GATHER_ELEMENTS = 2**28
"""Parameters gathered at once when a full copy is made."""
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


class Engine(Processes):
    """The policy π_θ under ZeRO-3, its optimiser, and the processes that share them."""

    def __init__(self, config: Config) -> None:
        """Loads the model and shards it over the processes.

        Args:
            config: of the run; model, precision and optimiser are read here.

        Raises:
            ConfigError: the model cannot be loaded, or the launcher asks for something other than ZeRO-3.
        """
        self.config = config
        dtype = _dtype(config)
        hf_config = load_hf_config(config.model_dir)
        self._sampler = _empty_model(hf_config, dtype)  # before ZeRO-3 is on: this one is never sharded
        super().__init__(make_accelerator(config), config.seed, config.process_group_timeout_s)
        model = AutoModelForCausalLM.from_pretrained(config.model_dir, dtype=dtype)
        _switch_dropout_off(model)
        model.generation_config = special_tokens_only(model.generation_config)
        self._sampler.generation_config = model.generation_config
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.policy = Policy(model, config.packing)
        self.policy.train()  # only because gradient checkpointing asks for it
        optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            fused=True,  # one pass over the shard, without temporaries of its size
        )
        self._zero, _ = self.accelerator.prepare(self.policy, optimizer)

    # --- The policy -------------------------------------------------------------------------------------

    def logprobs(self, micro: MicroBatch, mask: Tensor) -> tuple[Tensor, Tensor]:
        """log π_θ and entropy [b, T] at the response tokens of `mask`; see `Policy.forward`."""
        self.watch.enter()
        return self._zero(micro, mask, self.config.temperature)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Adds the gradient of one micro-batch, a share of the loss of the whole mini-batch.

        ZeRO averages over the processes; times W makes that the sum, which the shares call for.

        Args:
            loss: [] this process's share.
            last: whether the micro-batch is the last one of its mini-batch.
        """
        self.watch.enter()
        self._zero.set_gradient_accumulation_boundary(last)
        self._zero.backward(loss * self.world_size)

    def step(self, learning_rate: float) -> float:
        """Clips the gradient and updates the parameters; skips the update if the gradient is not finite.

        Returns:
            The norm of the gradient before clipping, over all parameters; inf or nan if it was skipped.
        """
        self.watch.enter()
        for group in self._zero.optimizer.param_groups:
            group["lr"] = learning_rate
        self._zero.step()
        norm = self._zero.get_global_grad_norm()
        return float(norm) if norm is not None else math.nan

    # --- Full weights -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def sampler(self) -> Iterator[PreTrainedModel]:
        """The model to generate with, in evaluation mode, for as long as the context lasts.

        `rollout_weights: gathered` gives a second, plain model that holds a full copy of the weights; the
        sharded one is never touched, so whatever happens inside leaves it as it was. `sharded` gives the
        training model itself, whose layers are gathered one by one in each forward pass: `generate` needs
        `synced_gpus` then.
        """
        if self.config.rollout_weights == "sharded":
            with self.policy.generating() as model:
                yield model
            return
        try:
            for name, value in self.full_parameters():
                _set_parameter(self._sampler, name, value.to(self.device, copy=True))
            self._sampler.tie_weights()
            for name, buffer in self.policy.model.named_buffers():
                _owner(self._sampler, name)._buffers[name.rpartition(".")[2]] = buffer
            with _plain_linear():
                yield self._sampler
        finally:
            for name, parameter in self._sampler.named_parameters():
                _set_parameter(self._sampler, name, torch.empty_like(parameter, device="meta"))

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, full tensor) of the HF model's parameters, tied ones once; a collective, in the same order
        on every process. The tensor is valid until the next one is asked for."""
        chunk: list[tuple[str, nn.Parameter]] = []
        for name, parameter in self.policy.model.named_parameters():
            chunk.append((name, parameter))
            if sum(getattr(p, "ds_numel", p.numel()) for _, p in chunk) >= GATHER_ELEMENTS:
                yield from _gathered(chunk)
                chunk = []
        yield from _gathered(chunk)

    def export(self, directory: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Writes the policy as a plain HF directory; a collective. Only the main process writes."""
        state = {}
        for name, value in self.full_parameters():
            if self.is_main:
                state[name] = value.to("cpu", copy=True)
        if self.is_main:
            self._sampler.save_pretrained(directory, state_dict=state)
            tokenizer.save_pretrained(directory)
        self.barrier()

    # --- Checkpoints ------------------------------------------------------------------------------------

    def bytes_of_state(self) -> int:
        """What `save_state` will write, over all processes; a collective."""
        return int(self.sum([bytes_of_shard(self._zero.optimizer)])[0])

    def save_state(self, directory: Path) -> Entry:
        """Writes this process's shard of weights and optimiser into `directory`.

        Returns:
            Its entry in the manifest, under `shard_file(rank)`.

        Raises:
            OSError: it cannot be written.
        """
        return save_shard(self._zero.optimizer, self.policy, directory, self.rank)

    def load_state(self, directory: Path, written_by: int) -> None:
        """Restores what `written_by` processes wrote with `save_state`; a collective."""
        load_shard(self._zero.optimizer, self.policy, directory, self.rank, written_by)

    # --- The rest ---------------------------------------------------------------------------------------

    def start_tracker(self) -> None:
        """Starts accelerate's tracker if one is configured; `accelerator.log` is silent without."""
        if self.config.tracker != "none":
            self.accelerator.init_trackers("dapo_ref", config=vars(self.config))

    def close(self) -> None:
        """Lets go of DeepSpeed first, then of the process groups."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self._zero.destroy()
        del self._zero, self.policy, self._sampler
        super().close()


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
    plugin = DeepSpeedPlugin(gradient_accumulation_steps=1, gradient_clipping=config.max_grad_norm)
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


def _empty_model(hf_config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The architecture without memory for its parameters, in evaluation mode.

    Raises:
        ConfigError: it is not a causal language model, or its logits are more than a linear head's output.
    """
    try:
        with init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(hf_config, dtype=dtype)
        require_plain_head(model)
    except ValueError as error:
        raise ConfigError(f"model: {' '.join(str(error).split())[:300]}") from error
    return model.eval()


def _switch_dropout_off(model: PreTrainedModel) -> None:
    """Sampled and trained policy are the same function only without dropout, in train mode too."""
    for key, value in vars(model.config).items():
        if "drop" in key and isinstance(value, float):
            setattr(model.config, key, 0.0)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for key, value in vars(module).items():
            if "dropout" in key and isinstance(value, float):
                setattr(module, key, 0.0)


def _gathered(chunk: Sequence[tuple[str, nn.Parameter]]) -> Iterator[tuple[str, Tensor]]:
    with deepspeed.zero.GatheredParameters([parameter for _, parameter in chunk]):
        for name, parameter in chunk:
            yield name, parameter.detach()


@contextlib.contextmanager
def _plain_linear() -> Iterator[None]:
    """torch's own linear for as long as the context lasts.

    ZeRO-3 replaces `torch.nn.functional.linear` for the whole process by an autograd function that keeps no
    gathered weight alive. A model with weights of its own gains nothing from it, and pays for it in Python at
    every layer of every token: a quarter of the time of a small model.
    """
    replaced = torch.nn.functional.linear
    torch.nn.functional.linear = torch._C._nn.linear
    try:
        yield
    finally:
        torch.nn.functional.linear = replaced


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _set_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    _owner(model, name)._parameters[name.rpartition(".")[2]] = nn.Parameter(value, requires_grad=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def load_plain_model(config: Config) -> PreTrainedModel:
    """The whole model in this process, in evaluation mode, for sampling alone; to be called before ZeRO-3 is
    on, which would shard it.

    Raises:
        ConfigError: it cannot be loaded.
    """
    load_hf_config(config.model_dir)
    model = AutoModelForCausalLM.from_pretrained(config.model_dir, dtype=_dtype(config))
    model.generation_config = special_tokens_only(model.generation_config)
    return model.eval()


def _dtype(config: Config) -> torch.dtype:
    return torch.bfloat16 if config.precision == "bf16" else torch.float32
