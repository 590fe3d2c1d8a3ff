"""DeepSpeed's operators are compiled the first time they are needed: here, before anything else, by one
process, which says what it compiles.

torch guards a build by a lock file that does not name its owner. A build that was killed leaves the file, and
torch then waits for ever and prints nothing. So a process takes a lock of our own first, which the kernel
releases when the process ends, and then removes torch's lock if no living process builds there.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch.utils import cpp_extension

from dapo_ref.errors import ConfigError

log = logging.getLogger(__name__)


def prepare(offload: bool = False) -> None:
    """Compiles and loads the operators that a run needs; a folder of ours holds them if none is named.

    Args:
        offload: whether the optimiser is kept in CPU memory.

    Raises:
        ConfigError: as for `load`.
    """
    for builder, folder in needed(offload):
        load(builder, folder)


def require_compiler() -> None:
    """To be called before anything is loaded, and cheap.

    Raises:
        ConfigError: as for `can_compile`.
    """
    offload = os.environ.get("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE") == "cpu"
    for builder, folder in needed(offload):
        can_compile(builder, folder)


def needed(offload: bool) -> list[tuple[Any, Path]]:
    """DeepSpeed's builder of each operator that a run needs, and the folder that torch will use for it."""
    # ninja is installed beside this interpreter, which need not be on PATH.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(default_folder()))
    names = ["ShareMemCommBuilder"] * (not torch.cuda.is_available()) + ["CPUAdamBuilder"] * offload
    builders = [get_accelerator().create_op_builder(name) for name in names]
    known = [b for b in builders if b is not None and deepspeed.ops.__compatible_ops__.get(b.NAME, False)]
    return [(builder, Path(os.environ["TORCH_EXTENSIONS_DIR"]) / builder.name) for builder in known]


def default_folder() -> Path:
    """In the user's cache, for these versions: no other program builds there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    versions = f"torch{torch.__version__}-deepspeed{deepspeed.__version__}"
    return cache / "dapo_ref" / f"{sys.implementation.cache_tag}-{versions}"


def can_compile(builder: Any, folder: Path) -> bool:
    """Whether an operator has to be compiled, which is possible then.

    Raises:
        ConfigError: it has to be, and compiler or headers are missing, or the folder cannot be written.
    """
    if (folder / f"{builder.name}.so").exists():
        return False
    once = f"DeepSpeed's operator {builder.name} has to be compiled once and there"
    compiler = cpp_extension.get_cxx_compiler()
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"{once} is no C++ compiler {compiler!r}: install g++, or name another one in the environment "
            "variable CXX"
        )
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.exists():
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        raise ConfigError(
            f"{once} are no headers of Python ({headers}): install them (on Debian {version}-dev)"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{once} is no place for it: {folder}: {error.strerror}; name a folder that can be written in "
            "the environment variable TORCH_EXTENSIONS_DIR"
        ) from error
    return True


def load(builder: Any, folder: Path) -> None:
    """Loads an operator, which compiles it the first time.

    Args:
        builder: DeepSpeed's for the operator.
        folder: the one that torch will use for it.

    Raises:
        ConfigError: as for `can_compile`, or it does not compile.
    """
    missing = can_compile(builder, folder)
    if missing:
        log.info("compiling DeepSpeed's operator %s, once, in %s", builder.name, folder)
        log.info("this takes about a minute on two free cores, longer on busy ones")
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        wait_for(folder / "lock")
        try:
            builder.load(verbose=False)
        except RuntimeError as error:
            what = f"DeepSpeed's operator {builder.name} does not compile: {_first_error(str(error))}"
            raise ConfigError(f"{what}; `ninja -C {folder}` shows all of it") from error
    if missing:
        log.info("%s compiled: %.0f s", builder.name, time.monotonic() - began)


def _first_error(output: str) -> str:
    """The line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), (lines or [""])[0])


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process of ours at a time; the lock goes with its process, however that ends."""
    with (folder / "owner").open("w", encoding="utf-8") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wait_for(lock: Path, poll_s: float = 0.5) -> None:
    """Returns when torch's lock is gone: released by the process that builds, or removed because none does.

    A lock has no owner if two checks in a row find no process with it: the first may come between the
    making of the file and the moment its process can be seen."""
    said, looks = False, 0
    while lock.exists():
        pids = who_builds(lock)
        looks = 0 if pids else looks + 1
        if looks == 2:
            log.warning("%s: left by a build that was killed; removed", lock)
            lock.unlink(missing_ok=True)
            return
        if pids and not said:
            said = True
            log.info("%s: waiting for process %s, which compiles there", lock, ", ".join(map(str, pids)))
        time.sleep(poll_s)


def who_builds(lock: Path) -> list[int]:
    """Processes that hold torch's lock open, as their owner does, or work in its folder, as ninja and the
    compilers do, also when who started them was killed."""
    targets = {str(lock.resolve()), str(lock.parent.resolve())}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        links = [process / "cwd"]
        with contextlib.suppress(OSError):  # has ended, or is not ours to look into
            links += (process / "fd").iterdir()
        if any(_target(link) in targets for link in links):
            found.append(int(process.name))
    return sorted(found)


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


if __name__ == "__main__":  # `python -m dapo_ref.distributed.native_build`: so that no run has to wait
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    prepare()
