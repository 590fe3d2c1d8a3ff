"""The Accelerator: DeepSpeed ZeRO-3 with what the mathematics needs, and the workarounds for DeepSpeed.

What is particular to a machine without a GPU is marked `CPU:`.
"""

import functools
import logging
import os
import socket
import warnings
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs
from deepspeed.utils import numa

from dapo_ref.config import Config
from dapo_ref.distributed import native_build
from dapo_ref.errors import ConfigError
from dapo_ref.launcher import of_mpi

# DeepSpeed calls torch functions by their old names, in every collective.
warnings.filterwarnings(
    "ignore",
    message=".*(reduce_scatter_tensor|all_gather_into_tensor).* is deprecated",
    category=FutureWarning,
)
# CPU: with each bucket that it reduces DeepSpeed counts the devices, and starts `numactl` to do so.
numa.get_numa_cores = functools.cache(numa.get_numa_cores)

log = logging.getLogger(__name__)

REDUCE_BUCKET_ELEMENTS = 2**25
"""Gradients reduced at once."""


# Of a DeepSpeed configuration: what changes memory, speed or messages, and no numbers. All else that is not
# set here is refused.
KEPT = {
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level", "timers"),
    *("comms_logger", "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comet", "aio"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "disable_python_gc"),
    *("activation_checkpointing", "checkpoint", "dataloader_drop_last"),
}
KEPT_OF_ZERO = {
    *("stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "allgather_partitions"),
    *("use_multi_rank_bucket_allreduce", "allgather_bucket_size", "overlap_comm", "sub_group_size"),
    *("offload_param", "offload_optimizer", "memory_efficient_linear", "round_robin_gradients"),
    *("load_from_fp32_weights", "elastic_checkpoint", "legacy_stage1", "ignore_unused_parameters"),
    *("prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold"),
    *("max_live_parameters", "max_reuse_distance", "gather_16bit_weights_on_model_save"),
    *("module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential"),
    *("gather_fp16_weights_on_model_save", "log_trace_cache_warnings", "enable_sanity_checks"),
}
KEPT_OF_OFFLOAD = {
    *("device", "nvme_path", "buffer_count", "buffer_size", "pin_memory", "max_in_cpu", "pipeline"),
    *("pipeline_read", "pipeline_write", "fast_init", "ratio"),
}
SET_HERE = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("gradient_clipping", "bf16", "bfloat16", "fp16", "data_types", "communication_data_type"),
}
"""Micro-batches, accumulation, clipping, precision and reduction are the run's own: what a file says of them
is not used."""
NO_CHANGE = {"gradient_predivide_factor": 1, "gradient_allreduce_op": "mean", "zero_hpz_partition_size": 1}
"""Values that are DeepSpeed's defaults, beside those that are off."""


def make_accelerator(config: Config) -> Accelerator:
    """An Accelerator with DeepSpeed ZeRO-3, whatever launched this process, or nothing did.

    What the launcher's configuration says of memory and speed (offloading, say) holds; what the mathematics
    needs is set here.

    Raises:
        ConfigError: the launcher asks for another ZeRO stage, another way of training, or for something that
            would change numbers; or an operator cannot be compiled.
    """
    on_gpu = torch.cuda.is_available()
    _prepare_environment(on_gpu)
    if on_gpu:
        _prepare_gpu()
    try:
        plugin = DeepSpeedPlugin()
    except (ValueError, OSError, NotImplementedError) as error:
        raise ConfigError(
            f"the launcher's DeepSpeed configuration: {' '.join(str(error).split())}"
        ) from error
    settings = plugin.deepspeed_config
    plugin.gradient_accumulation_steps, plugin.gradient_clipping = 1, config.max_grad_norm
    set_mathematics(settings, config)
    offload = settings["zero_optimization"].get("offload_optimizer") or {}
    native_build.prepare(offload=offload.get("device") == "cpu")
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


def set_mathematics(settings: dict[str, Any], config: Config) -> None:
    """Sets what changes numbers in a DeepSpeed configuration, in place.

    Args:
        settings: as the launcher's configuration has them.
        config: precision and clipping of the run.

    Raises:
        ConfigError: a key that is not of memory, speed or messages, and is not set here.
    """
    zero = settings["zero_optimization"]
    stage = zero.get("stage")
    if stage != 3:
        raise ConfigError(f"the launcher's configuration asks for ZeRO stage {stage}; zero_stage must be 3")
    _refuse_others(settings, KEPT | SET_HERE | {"zero_optimization"}, "")
    _refuse_others(zero, KEPT_OF_ZERO | {f"stage3_{key}" for key in KEPT_OF_ZERO}, "zero_optimization.")
    for name in ("offload_param", "offload_optimizer"):
        if isinstance(zero.get(name), dict):
            _refuse_others(zero[name], KEPT_OF_OFFLOAD, f"zero_optimization.{name}.")
    for key in SET_HERE:
        settings.pop(key, None)
    settings["train_batch_size"] = "auto"
    settings["train_micro_batch_size_per_gpu"] = 1  # DeepSpeed wants a number; micro-batches vary
    settings["gradient_accumulation_steps"] = 1
    settings["gradient_clipping"] = config.max_grad_norm
    settings["data_types"] = {"grad_accum_dtype": "fp32"}
    settings["communication_data_type"] = "fp32"  # else bf16 gradients are summed over the processes in bf16
    settings["bf16"] = {"enabled": config.precision == "bf16"}
    # Left to accelerate the bucket has hidden_size² elements, and nearly every gradient is reduced alone.
    zero.setdefault("reduce_bucket_size", REDUCE_BUCKET_ELEMENTS)
    for key in ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"):
        zero.setdefault(key, "auto")


def _refuse_others(settings: dict[str, Any], known: set[str], where: str) -> None:
    """Removes keys that are off, and refuses those that are on and not known to leave the numbers alone."""
    for key in [key for key in settings if key not in known]:
        value = settings.pop(key)
        if not _is_off(value) and value != NO_CHANGE.get(key, value is None):
            raise ConfigError(
                f"the launcher's DeepSpeed configuration sets {where}{key}, which may change numbers: "
                "train.py sets optimiser, schedule, precision and accumulation; remove the key"
            )


def _is_off(value: Any) -> bool:
    """Whether a value is false, left to others (`auto`), or a section in which nothing else stands."""
    if isinstance(value, dict):
        if "enabled" in value:
            return _is_off(value["enabled"])
        return all(_is_off(inner) for key, inner in value.items() if key != "type")
    return value is None or value is False or value == "auto"


# What `accelerate launch` hands on of other ways to train, and the values that ask for none of them.
OTHER_WAYS = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism configuration",
    "ACCELERATE_USE_SAGEMAKER": "SageMaker",
    "ACCELERATE_DYNAMO_BACKEND": "torch.compile",
}


def _prepare_environment(on_gpu: bool) -> None:
    """Makes all launchers, and none, the same: ZeRO-3 over the processes that there are.

    Raises:
        ConfigError: the launcher asks for another way to train.
    """
    for name, what in OTHER_WAYS.items():
        if os.environ.get(name, "no").lower() not in ("", "no", "false", "0"):
            raise ConfigError(
                f"the launcher asks for {what} ({name}); train.py runs DeepSpeed ZeRO-3: use "
                "--config_file configs/accelerate/zero3.yaml"
            )
    if os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower() == "fp8":
        raise ConfigError("the launcher asks for fp8; set --precision bf16 or fp32 and no mixed_precision")
    asks_for_cpu = os.environ.pop("ACCELERATE_USE_CPU", "false").lower() in ("true", "1", "yes")
    if asks_for_cpu and on_gpu:
        raise ConfigError(
            "the launcher asks for the CPU (--cpu) beside a GPU: hide it (CUDA_VISIBLE_DEVICES=)"
        )
    for name in (
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        "ACCELERATE_GRADIENT_CLIPPING",
        "ACCELERATE_DOWNCAST_BF16",
    ):
        os.environ.pop(name, None)  # what they say is set by the run
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        if name not in os.environ and (found := of_mpi(name)):
            os.environ[name] = found
    if asks_for_cpu and "RANK" not in os.environ:
        log.warning(
            "`accelerate launch --cpu` starts one process, whatever --num_processes says; for several use "
            "--config_file configs/accelerate/zero3.yaml"
        )
    for name, value in (
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", str(_free_port()))
    os.environ.setdefault("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")


def _prepare_gpu() -> None:
    """What is set for GPUs alone, before memory of theirs is taken."""
    if not any(os.environ.get(f"PYTORCH_{kind}ALLOC_CONF") for kind in ("", "CUDA_", "HIP_")):
        # Caches and micro-batches of all lengths come and go; segments of fixed size leave gaps between them.
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    # On Hopper and later cuDNN comes first and plans a kernel for each new shape: a rollout has one a column.
    torch.backends.cuda.enable_cudnn_sdp(False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
