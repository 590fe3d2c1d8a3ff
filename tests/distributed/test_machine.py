"""`dapo_ref/distributed/machine.py`: a machine that cannot carry a run is refused before a
model is loaded."""

import pytest

import train
from dapo_ref.config import Config
from dapo_ref.distributed import machine, native_build
from dapo_ref.errors import ConfigError


@pytest.mark.parametrize(
    ("processes", "gpus", "cores", "message"),
    [
        (8, 8, 2, None),
        (1, 8, 64, None),
        (8, 2, 64, r"8 processes here and 2 GPUs can be seen; .*--num_processes 2$"),
        (2, 1, 64, r"2 processes here and 1 GPU can be seen; .*--num_processes 1$"),
        (4, 0, 1, None),
        (
            5,
            0,
            4,
            r"5 processes here; no GPU can be seen, and there are only 4 CPU cores: .*--num_processes 2,",
        ),
        (8, 0, 1, r"only 1 CPU core: .*--num_processes 1, or see why the GPUs cannot be seen"),
        (16, 0, 16, None),
    ],
)
def test_one_process_takes_one_gpu_or_where_there_is_none_one_core(processes, gpus, cores, message):
    if message is None:
        machine.require_processors(processes, gpus, cores)
        return
    with pytest.raises(ConfigError, match=message):
        machine.require_processors(processes, gpus, cores)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "2"}, 8),
        ({"LOCAL_RANK": "3"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 2),
    ],
    ids=str,
)
def test_how_many_processes_a_machine_has_is_what_its_launcher_says(monkeypatch, environment, expected):
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert machine.processes_here() == expected


@pytest.mark.parametrize(("gpus", "expected"), [(True, "cuda:3"), (False, "cpu")])
def test_a_process_computes_on_the_gpu_of_its_local_rank(monkeypatch, gpus, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert str(machine.own_device()) == expected


def test_training_asks_the_machine_before_it_reads_anything(monkeypatch):
    """A model, data and an objective that do not exist: what the machine lacks is said first."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    with pytest.raises(ConfigError, match="the launcher starts 1000 processes here"):
        train.main(["--model", "nowhere", "--data", "nothing.jsonl", "--loss_variant", "none"])


def test_a_compiler_is_asked_for(monkeypatch):
    def missing():
        raise ConfigError("no compiler")

    monkeypatch.setattr(native_build, "require_compiler", missing)
    with pytest.raises(ConfigError, match="no compiler"):
        machine.require_machine(Config())
