"""`distributed/accelerator.py`: what of a launcher's DeepSpeed configuration is kept, set, or refused."""

import copy
import re

import pytest
import torch
from deepspeed.runtime import constants
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from dapo_ref.config import Config
from dapo_ref.distributed import accelerator
from dapo_ref.distributed.accelerator import KEPT, KEPT_OF_ZERO, OTHER_WAYS, SET_HERE, set_mathematics
from dapo_ref.errors import ConfigError
from dapo_ref.launcher import launched_as_main

CONFIG = Config(precision="fp32", max_grad_norm=0.5)


def settings(**keys):
    return copy.deepcopy({"zero_optimization": {"stage": 3}, **keys})


def test_numbers_of_a_file_are_replaced_by_the_runs():
    found = settings(
        train_batch_size=64,
        train_micro_batch_size_per_gpu=4,
        gradient_accumulation_steps=16,
        gradient_clipping=7.0,
        fp16={"enabled": True, "loss_scale": 128},
        bf16={"enabled": True},
        data_types={"grad_accum_dtype": "bf16", "param_dtype": "bf16"},
        communication_data_type="bf16",
    )
    set_mathematics(found, CONFIG)
    del found["zero_optimization"]
    assert found == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": False},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    }


def test_each_key_of_deepspeed_is_kept_set_or_refused():
    # The string constants of DeepSpeed's module are names of keys and a few values; a name that is neither
    # kept nor set must be refused whatever it is.
    names = {
        value
        for key, value in vars(constants).items()
        if isinstance(value, str) and re.fullmatch("[a-z0-9_]+", value)
    }
    assert {"prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op", "optimizer"} <= names
    for name in names - KEPT - SET_HERE - {"zero_optimization"}:
        with pytest.raises(ConfigError, match=f"sets {name}, which may change"):
            set_mathematics(settings(**{name: {"enabled": True, "x": 2}}), CONFIG)


def test_each_key_of_zero_is_kept_or_refused():
    for name, field in DeepSpeedZeroConfig.model_fields.items():
        key = field.alias or name
        found = settings()
        found["zero_optimization"][key] = 3 if name == "stage" else "something"
        if name.removeprefix("stage3_") in KEPT_OF_ZERO:
            set_mathematics(found, CONFIG)
            assert key in found["zero_optimization"]
        else:
            with pytest.raises(ConfigError, match=rf"sets zero_optimization\.{key}"):
                set_mathematics(found, CONFIG)
    assert not KEPT_OF_ZERO & {"zero_quantized_gradients", "compute_grad_norm", "zenflow", "leaf_module"}


@pytest.mark.parametrize(
    "keys",
    [
        {"prescale_gradients": False},
        {"gradient_predivide_factor": 1.0},
        {"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}},
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}},
        {"torch_autocast": {"enabled": False, "dtype": "bfloat16"}},
    ],
    ids=str,
)
def test_what_is_off_or_left_to_others_is_dropped(keys):
    found = settings(**keys)
    set_mathematics(found, CONFIG)
    assert not keys.keys() & found.keys()


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}, "optimizer"),
        ({"gradient_predivide_factor": 8.0}, "gradient_predivide_factor"),
        ({"gradient_allreduce_op": "sum"}, "gradient_allreduce_op"),
        ({"compile": {"deepcompile": True}}, "compile"),
    ],
)
def test_what_changes_numbers_is_refused(keys, name):
    with pytest.raises(ConfigError, match=f"sets {name}, which"):
        set_mathematics(settings(**keys), CONFIG)


def test_offloading_is_kept_but_for_what_is_not_known():
    found = settings()
    found["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    set_mathematics(found, CONFIG)
    assert found["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    found["zero_optimization"]["offload_optimizer"]["super_offload"] = True
    with pytest.raises(ConfigError, match=r"offload_optimizer\.super_offload"):
        set_mathematics(found, CONFIG)


def test_another_stage_is_refused():
    with pytest.raises(ConfigError, match="asks for ZeRO stage 2; zero_stage must be 3"):
        set_mathematics({"zero_optimization": {"stage": 2}}, CONFIG)


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_another_way_to_train_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "true" if "USE" in name else "INDUCTOR")
    with pytest.raises(ConfigError, match=f"{name}.*train.py runs DeepSpeed ZeRO-3"):
        accelerator._prepare_environment(on_gpu=False)


def test_every_launchers_environment_becomes_the_same(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "9")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "NO")
    monkeypatch.delenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", raising=False)
    accelerator._prepare_environment(on_gpu=False)
    environ = accelerator.os.environ
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"]) == (
        "0",
        "1",
        "3",
    )
    assert "ACCELERATE_USE_CPU" not in environ
    assert "ACCELERATE_GRADIENT_CLIPPING" not in environ
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(ConfigError, match="beside a GPU"):
        accelerator._prepare_environment(on_gpu=True)


def test_processes_of_mpi_know_their_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")  # restored after the test
        monkeypatch.delenv(name)
    for name, value in (("RANK", "1"), ("SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert not launched_as_main()
    accelerator._prepare_environment(on_gpu=False)
    environ = accelerator.os.environ
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["LOCAL_RANK"]) == ("1", "2", "1")


@pytest.mark.parametrize("name", ["", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_segments_of_gpu_memory_grow_where_nothing_else_is_set(monkeypatch, name):
    told = []
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", told.append)
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(variable, raising=False)
    if name:
        monkeypatch.setenv(name, "max_split_size_mb:512")
    accelerator._prepare_gpu()
    assert told == ([] if name else ["expandable_segments:True"])


def test_no_kernel_is_planned_for_each_length(monkeypatch):
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", lambda settings: None)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        accelerator._prepare_gpu()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
