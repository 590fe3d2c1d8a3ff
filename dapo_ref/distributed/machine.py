"""What the machine must have for a run, checked before a model, data or a process group is there."""

import os

import torch

from dapo_ref.config import Config
from dapo_ref.distributed import native_build
from dapo_ref.distributed.tracking import require_tracker
from dapo_ref.errors import ConfigError
from dapo_ref.launcher import of_mpi

FEW = 4
"""Processes that any machine may be asked for without a GPU, if only to try them."""


def require_machine(config: Config) -> None:
    """To be called before anything expensive, on every process.

    Raises:
        ConfigError: the tracker is not installed, there are more processes than this machine has GPUs (or,
            without any, cores), or an operator has to be compiled and cannot be.
    """
    require_tracker(config)
    require_processors(processes_here(), torch.cuda.device_count(), len(os.sched_getaffinity(0)))
    native_build.require_compiler()


def processes_here() -> int:
    """Processes of this run on this machine, as far as the launcher says."""
    return max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), _local_rank() + 1)


def own_device() -> torch.device:
    """The GPU that the Accelerator will give this process, for use before there is one; the CPU without
    GPUs."""
    return torch.device("cuda", _local_rank()) if torch.cuda.is_available() else torch.device("cpu")


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or of_mpi("LOCAL_RANK") or "0")


def require_processors(processes: int, gpus: int, cores: int) -> None:
    """One process a GPU; without a GPU, a core.

    Args:
        processes: of the run on this machine.
        gpus: that can be seen.
        cores: that may be used.

    Raises:
        ConfigError: there are more processes.
    """
    if gpus and processes > gpus:
        raise ConfigError(
            f"the launcher starts {processes} processes here and {_counted(gpus, 'GPU')} can be seen; one "
            f"process takes one GPU: start it with --num_processes {gpus}"
        )
    if not gpus and processes > max(FEW, cores):
        raise ConfigError(
            f"the launcher starts {processes} processes here; no GPU can be seen, and there are only "
            f"{_counted(cores, 'CPU core')}: start it with --num_processes {max(1, cores // 2)}, or see why "
            "the GPUs cannot be seen (nvidia-smi, CUDA_VISIBLE_DEVICES)"
        )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
