"""One process's part of the weights and of Adam's state under ZeRO-3, in files that any number of processes
can read.

ZeRO-3 flattens a parameter, pads it to a multiple of W and gives each process one partition. A file holds
the partitions of one process by parameter name. Those of all files, in the order of the ranks and without
the padding, are the parameter, and can be cut anew for another W. DeepSpeed's own files hold all parameters
in one flat tensor and load with the same W only.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state
from torch import Tensor, nn

PARTITIONS = "pieces"
"""Key in the file."""
WEIGHT = "weight"
"""Name of the fp32 master weights beside the names of Adam's states."""


def bytes_of_shard(zero: Any) -> int:
    """What `save_shard` will write, but for a header: master weights and two moments, whatever exists yet."""
    return sum(3 * flat.numel() * flat.element_size() for flat in zero.fp32_partitioned_groups_flat)


def save_shard(zero: Any, module: nn.Module, file: IO[bytes]) -> None:
    """Writes this process's partitions.

    Args:
        zero: DeepSpeed's ZeRO-3 optimiser.
        module: whose parameters it holds.
        file: open for writing.

    Raises:
        OSError, RuntimeError: it cannot be written.
    """
    moments, others = _state_names(zero)
    content = {
        "numel": {name: parameter.ds_numel for name, parameter in _parameters(module)},
        PARTITIONS: {
            name: {
                WEIGHT: safe_get_local_fp32_param(parameter),
                **{key: safe_get_local_optimizer_state(parameter, key) for key in moments},
            }
            for name, parameter in _parameters(module)
        },
        "others": others,
    }
    torch.save(content, file)


def load_shard(
    zero: Any, module: nn.Module, files: Sequence[Path], rank: int, alive: Callable[[], None]
) -> None:
    """Restores what all processes wrote with `save_shard`.

    Args:
        zero, module: as for `save_shard`; may be spread over another number of processes.
        files: of all ranks that wrote, in their order.
        rank: this process.
        alive: called with every parameter.
    """
    own = len(files) == zero.dp_process_group.size()
    contents = [_read(file) for file in ([files[rank]] if own else files)]
    _create_state(zero, contents[0])
    zero.checkpoint_event_prologue()
    for name, parameter in _parameters(module):
        alive()
        partitions = [content[PARTITIONS][name] for content in contents]
        for key in partitions[0]:
            partition = partitions[0][key] if own else _cut(partitions, key, parameter, rank)
            zero.set_local_hp_param(partition, parameter, None if key == WEIGHT else key)
    for group in range(len(zero.fp32_partitioned_groups_flat)):
        zero._reassign_or_swap_out_partitioned_parameters(group)  # fp32 to the precision that computes
    zero.checkpoint_event_epilogue()


def load_plain(module: nn.Module, files: Sequence[Path]) -> None:
    """Fills a plain model, one without ZeRO-3, with the weights that all processes wrote with `save_shard`.

    Args:
        module: the HF model, of the architecture that was trained; tied weights are tied again.
        files: of all ranks, in their order.

    Raises:
        ValueError: its parameters are not those in the files.
    """
    contents = [_read(file) for file in files]
    names = dict(module.named_parameters())  # the trained module is a `Policy`, which holds it as `model`
    missing = {f"model.{name}" for name in names} ^ set(contents[0]["numel"])
    if missing:
        raise ValueError(f"parameters differ: {', '.join(sorted(missing)[:5])}")
    for name, parameter in names.items():
        partitions = [content[PARTITIONS][f"model.{name}"][WEIGHT].flatten() for content in contents]
        whole = torch.cat(partitions)[: parameter.numel()]
        parameter.data.copy_(whole.view_as(parameter))


def _cut(partitions: Sequence[dict[str, Tensor]], key: str, parameter: Any, rank: int) -> Tensor:
    """This process's partition of a parameter that was cut for another number of processes. The files are
    mapped into memory: only what the partition takes of them is read."""
    size = parameter.ds_tensor.numel()
    start, end = rank * size, min((rank + 1) * size, parameter.ds_numel)
    mine = torch.zeros(size, dtype=partitions[0][key].dtype)
    first = 0
    for partition in partitions:
        values = partition[key].flatten()
        low, high = max(start, first), min(end, first + len(values))
        if low < high:
            mine[low - start : high - start] = values[low - first : high - first]
        first += len(values)
    return mine


def _parameters(module: nn.Module) -> Iterator[tuple[str, Any]]:
    return (item for item in module.named_parameters() if item[1].requires_grad)


def _state_names(zero: Any) -> tuple[list[str], dict[str, Any]]:
    """Adam's states that are a number a weight, and the others (its step counter); none before the first
    update."""
    moments, others = [], {}
    flat = zero.fp32_partitioned_groups_flat[0]
    for key, value in zero.optimizer.state.get(flat, {}).items():
        if torch.is_tensor(value) and value.numel() == flat.numel() and value.dim() > 0:
            moments.append(key)
        else:
            others[key] = value
    return moments, others


def _create_state(zero: Any, content: dict[str, Any]) -> None:
    """Adam creates its states in its first update; here before it."""
    moments = [key for key in next(iter(content[PARTITIONS].values())) if key != WEIGHT]
    for flat in zero.fp32_partitioned_groups_flat:
        state = zero.optimizer.state[flat]
        for key in moments:
            state[key] = torch.zeros_like(flat, requires_grad=False)
        for key, value in content["others"].items():
            state[key] = value.clone() if torch.is_tensor(value) else value


def _read(file: Path) -> dict[str, Any]:
    return torch.load(file, map_location="cpu", mmap=True, weights_only=True)
