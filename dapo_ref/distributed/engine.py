"""The policy π_θ under ZeRO stage 3. This folder is all that knows accelerate, DeepSpeed and
torch.distributed.

The rest of the project sees a policy whose log-probabilities can be computed, a gradient that can be
accumulated and applied, and a plain HF model to sample from. Two scalings live here and nowhere else:

    ZeRO averages gradients over the W processes, so `backward` multiplies by W.
    DeepSpeed divides a loss by its configured accumulation steps; they are 1, and the boundary is set by
    hand.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import deepspeed
import torch
import transformers
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from dapo_ref.config import Config
from dapo_ref.distributed import tracking
from dapo_ref.distributed.accelerator import make_accelerator
from dapo_ref.distributed.processes import Processes
from dapo_ref.distributed.shards import bytes_of_shard, load_shard, save_shard
from dapo_ref.policy.batching import MicroBatch, MiniBatch, microbatches
from dapo_ref.policy.logprobs import Policy
from dapo_ref.policy.paths import choose_path
from dapo_ref.policy.pretrained import exported_state, load_hf_config, load_model, torch_dtype
from dapo_ref.types import Batch

transformers.utils.logging.disable_progress_bar()

GATHER_ELEMENTS = 2**28
"""Parameters gathered at once when a full copy is made."""


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
        dtype = torch_dtype(config)
        hf_config = load_hf_config(config.model_dir)
        num_positions = config.max_prompt_length + config.max_response_length
        path = choose_path(hf_config, dtype, config.packing, num_positions)
        self._rollout_model = _empty_model(hf_config, dtype)  # before ZeRO-3 is on: this one is never sharded
        super().__init__(make_accelerator(config), config.seed, config.process_group_timeout_s)
        model = load_model(config)
        _switch_dropout_off(model)
        self._rollout_model.generation_config = model.generation_config
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.policy = Policy(model, path.packed, path.own_head)
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
        self._losses_finite = True  # of the mini-batch in progress

    # --- The policy -------------------------------------------------------------------------------------

    def microbatches(self, batch: Batch, mini: MiniBatch) -> list[MicroBatch]:
        """This process's micro-batches of a mini-batch, on its device."""
        micros = microbatches(
            batch,
            mini.rows,
            self.config.tokens_per_microbatch,
            self.world_size,
            self.rank,
            packed=self.policy.packed,
        )
        return [micro.to(self.device) for micro in micros]

    def logprobs(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """log π_θ and entropy [b, T] at the response tokens; see `Policy.forward`."""
        self.watch.enter()
        return self._zero(micro, self.config.temperature)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Adds the gradient of one micro-batch, a share of the loss of the whole mini-batch.

        ZeRO averages over the processes; times W makes that the sum, which the shares call for. A loss that
        is not finite on any process makes the gradient not finite on all: all skip the update together.

        Args:
            loss: [] this process's share.
            last: whether the micro-batch is the last one of its mini-batch.
        """
        self.watch.enter()
        self._losses_finite &= math.isfinite(float(loss.detach()))
        if last:
            loss = loss if self._losses_finite else loss * math.nan
            self._losses_finite = True
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

    def state_dtypes(self) -> dict[str, torch.dtype]:
        """What the master weights are held in, and what gradients are summed in over the processes."""
        return {
            "master weights": self._zero.optimizer.fp32_partitioned_groups_flat[0].dtype,
            "summed gradients": self._zero.communication_data_type,
        }

    # --- Full weights -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def rollout_model(self) -> Iterator[PreTrainedModel]:
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
                _set_parameter(self._rollout_model, name, value.to(self.device, copy=True))
            self._rollout_model.tie_weights()
            for name, buffer in self.policy.model.named_buffers():
                _owner(self._rollout_model, name)._buffers[name.rpartition(".")[2]] = buffer
            with _plain_linear():
                yield self._rollout_model
        finally:
            for name, parameter in self._rollout_model.named_parameters():
                _set_parameter(self._rollout_model, name, torch.empty_like(parameter, device="meta"))
            if self.device.type == "cuda":  # what the copy and the cache were in, in one piece for the update
                torch.cuda.empty_cache()

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

    def export(self, directory: Path) -> None:
        """Writes weights and configuration as a plain HF directory; a collective. Only the main process
        writes."""
        state = exported_state(self.policy.model, self.full_parameters(), keep=self.is_main)
        if self.is_main:
            self._rollout_model.save_pretrained(directory, state_dict=state)
        self.barrier()

    # --- Checkpoints ------------------------------------------------------------------------------------

    def bytes_of_state(self) -> int:
        """What `save_state` will write, over all processes; a collective."""
        return int(self.sum([bytes_of_shard(self._zero.optimizer)])[0])

    def save_state(self, file: IO[bytes]) -> None:
        """Writes this process's shard of weights and optimiser.

        Raises:
            OSError, RuntimeError: it cannot be written.
        """
        save_shard(self._zero.optimizer, self.policy, file)

    def load_state(self, files: Sequence[Path]) -> None:
        """Restores what processes wrote with `save_state`, in the order of their ranks; a collective."""
        load_shard(self._zero.optimizer, self.policy, files, self.rank, self.watch.alive)

    # --- The rest ---------------------------------------------------------------------------------------

    def start_tracker(self, steps_done: int) -> None:
        """Starts the tracker if one is configured; see `tracking.py`."""
        if self.config.tracker != "none":
            tracking.start_tracker(self.accelerator, self.config, steps_done)

    def track(self, record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Hands a step's metrics and responses to the tracker; on the main process."""
        if self.is_main:
            tracking.track(self.accelerator, record, rows)

    def close(self) -> None:
        """Lets go of DeepSpeed first, then of the process groups."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self._zero.destroy()
        del self._zero, self.policy, self._rollout_model
        super().close()


def _empty_model(hf_config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The architecture without memory for its parameters, in evaluation mode."""
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(hf_config, dtype=dtype)
    return model.eval()


def _switch_dropout_off(model: PreTrainedModel) -> None:
    """Sampled and trained policy are the same function only without dropout, also in the layers that are in
    train mode for the sake of gradient checkpointing (`Policy.train`)."""
    for key, value in vars(model.config).items():
        if "drop" in key and isinstance(value, float):
            setattr(model.config, key, 0.0)
    for module in model.modules():
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
