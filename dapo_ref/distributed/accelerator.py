"""The Accelerator: DeepSpeed ZeRO-3 with what the mathematics needs, and the workarounds for DeepSpeed.

What is particular to a machine without a GPU is marked `CPU:`.
"""

import functools
import os
import socket
import warnings
from datetime import timedelta

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs
from deepspeed.utils import numa

from dapo_ref.config import Config
from dapo_ref.distributed import native_build
from dapo_ref.errors import ConfigError

# DeepSpeed calls torch functions by their old names, in every collective.
warnings.filterwarnings(
    "ignore",
    message=".*(reduce_scatter_tensor|all_gather_into_tensor).* is deprecated",
    category=FutureWarning,
)
# CPU: with each bucket that it reduces DeepSpeed counts the devices, and starts `numactl` to do so.
numa.get_numa_cores = functools.cache(numa.get_numa_cores)

REDUCE_BUCKET_ELEMENTS = 2**25
"""Gradients reduced at once."""


def make_accelerator(config: Config) -> Accelerator:
    """An Accelerator with DeepSpeed ZeRO-3, also without a launcher.

    What the launcher's configuration says (offloading, say) holds; what the mathematics needs is set here.

    Raises:
        ConfigError: the launcher asks for another ZeRO stage, or an operator cannot be compiled.
    """
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
    offload = settings["zero_optimization"].get("offload_optimizer", {})
    native_build.prepare(offload=offload.get("device") == "cpu")
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
