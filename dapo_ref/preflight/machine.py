"""What is checked before there is a policy."""

import fcntl
import importlib.metadata
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

from dapo_ref.config import Config
from dapo_ref.data import keep_short_prompts, load_data
from dapo_ref.distributed.processes import Processes
from dapo_ref.plan import disk_bytes
from dapo_ref.policy.pretrained import load_tokenizer
from dapo_ref.preflight.checks import FailedError, NotHereError
from dapo_ref.run.evaluator import load_eval_tasks

HELD = "held"
REDUCED_ELEMENTS = 2**24
"""Of the timed all-reduce: 64 MB."""


def versions() -> str:
    """The packages as they were tested together."""
    names = ("torch", "transformers", "accelerate", "deepspeed", "sympy")
    found = {name: importlib.metadata.version(name) for name in names}
    file = Path(__file__).resolve().parents[2] / "requirements.txt"
    pins = re.findall(r"^([\w-]+)==(\S+)$", file.read_text(encoding="utf-8") if file.exists() else "", re.M)
    # A build for a device has its name after a plus: 2.13.0+cpu.
    wrong = [f"{n} {found[n]}, not {pin}" for n, pin in pins if found.get(n, pin).split("+")[0] != pin]
    if wrong:
        raise FailedError(f"{'; '.join(wrong)}: pip install -r requirements.txt")
    return ", ".join(f"{name} {version}" for name, version in found.items())


def data(config: Config) -> str:
    """All that a run reads before it loads the model."""
    tokenizer = load_tokenizer(config.model_dir)
    prompts = keep_short_prompts(load_data(config), tokenizer, config.max_prompt_length, config.prompt_date)
    held_out = load_eval_tasks(config, tokenizer)
    return f"{len(prompts)} prompts" + (f", {len(held_out)} held-out problems" if held_out else "")


def shared_folder(processes: Processes, folder: Path) -> str:
    """What rank 0 writes beside the run folder, all read."""
    word = str(time.time_ns())
    if processes.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "word").write_text(word, encoding="utf-8")
    word = processes.gather([word])[0]  # which waits until it is written
    if not (folder / "word").exists() or (folder / "word").read_text(encoding="utf-8") != word:
        raise FailedError(
            f"{folder.parent} is not the one that rank 0 sees: set output_dir to one that all machines share"
        )
    return str(folder.parent)


def lock(processes: Processes, folder: Path) -> str:
    """A lock that rank 0 holds is seen by the last process."""
    with (folder / "lock").open("a", encoding="utf-8") as file:
        first = processes.gather([_take(file) if processes.is_main else ""])[0]
        tries = processes.rank == processes.world_size - 1 > 0
        last = processes.gather([_take(file) if tries else HELD])[-1]
    if first:
        raise FailedError(f"no locks ({first}): see to it that one run at a time writes to output_dir")
    if last != HELD:
        raise FailedError(
            "the last rank does not see rank 0's lock: let one run at a time write to output_dir"
        )
    return "held by rank 0, seen by the last rank" if processes.world_size > 1 else "held"


def _take(file: IO[str]) -> str:
    """Locks a file; what was in the way, if anything was."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return HELD
    except OSError as error:
        return error.strerror or str(error)
    return ""


def disk(config: Config, folder: Path, parameters: int) -> str:
    """Room for what the plan writes: checkpoints, the model, responses of a step."""
    needed, free = sum(disk_bytes(parameters, config).values()), shutil.disk_usage(folder).free
    text = f"{needed / 1e9:.1f} GB for checkpoints, model and responses, {free / 1e9:.1f} GB free"
    if needed > free:
        raise FailedError(f"{text}: make room, lower keep_checkpoints, or move output_dir")
    return text


def collectives(processes: Processes) -> str:
    """Sums in float64, objects in order, and how fast gradients are reduced."""
    world = processes.world_size
    (total,) = processes.sum([2.0**-40 + processes.rank])  # float32 would lose the small part
    if total != world * 2.0**-40 + world * (world - 1) / 2:
        raise FailedError(
            f"a sum of float64 over the processes gives {total!r}: look at the backend's version"
        )
    if processes.gather([{"rank": processes.rank}]) != [{"rank": rank} for rank in range(world)]:
        raise FailedError("objects do not arrive in the order of the ranks: look at the launcher's ranks")
    if world == 1:
        raise NotHereError("one process")
    tensor = torch.ones(REDUCED_ELEMENTS, device=processes.device)
    dist.all_reduce(tensor)
    each = seconds(lambda: dist.all_reduce(tensor), processes.device)
    return f"{4 * REDUCED_ELEMENTS / each / 1e9:.2f} GB/s all-reduced among {world}"


def seconds(work: Callable[[], object], device: torch.device, times: int = 3) -> float:
    """Of one of several repetitions."""
    settle(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    settle(device)
    return (time.perf_counter() - start) / times


def settle(device: torch.device) -> None:
    """Waits for what the device has been told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize()
