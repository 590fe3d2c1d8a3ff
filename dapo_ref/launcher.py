"""The launcher of a process, torch's or MPI's: what it says, and what it is told. Imports nothing that takes
seconds to load."""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

MPI_NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"),
}


def of_mpi(name: str) -> str:
    """RANK, WORLD_SIZE or LOCAL_RANK of a process that MPI started; empty if it did not."""
    return next((os.environ[other] for other in MPI_NAMES[name] if other in os.environ), "")


def launched_as_main() -> bool:
    """Whether this process speaks for all, as far as the launcher's environment says; for use
    before there is an `Engine`."""
    return (os.environ.get("RANK") or of_mpi("RANK") or "0") == "0"


def refuse(message: str) -> None:
    """Says why the process ends: rank 0 prints, and all tell the launcher, which ends rank 0 as soon as
    another has left."""
    tell_launcher(message)
    if launched_as_main():
        print(message, file=sys.stderr)


def tell_launcher(message: str) -> None:
    """Leaves a message for torch's launcher, which shows it last, after its own traceback.

    The launcher reads it from a file that it names in the environment; without one nothing happens."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        with contextlib.suppress(OSError):
            content = json.dumps({"message": message, "timestamp": int(time.time())})
            Path(file).write_text(content, encoding="utf-8")
