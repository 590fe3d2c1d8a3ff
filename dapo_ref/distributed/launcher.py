"""What an MPI launcher says of a process, in the words of torch's; imports nothing."""

import os

MPI_NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"),
}


def of_mpi(name: str) -> str:
    """RANK, WORLD_SIZE or LOCAL_RANK of a process that MPI started; empty if it did not."""
    return next((os.environ[other] for other in MPI_NAMES[name] if other in os.environ), "")
