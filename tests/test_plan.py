"""`dapo_ref/plan.py`: the bytes it says are those that are measured here, and every configuration fits."""

import dataclasses
import json
import subprocess
import sys
import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MambaConfig, Qwen2Config, Qwen2ForCausalLM

from dapo_ref import plan
from dapo_ref.config import Config, load_config
from dapo_ref.data import Problem
from dapo_ref.distributed import accelerator, engine
from dapo_ref.errors import ConfigError
from dapo_ref.policy import attention, logprobs
from dapo_ref.policy.batching import MicroBatch, collate, microbatches
from dapo_ref.policy.kv_cache import RoomyLayer
from dapo_ref.policy.logprobs import Policy, token_logprobs
from dapo_ref.run.command import exit_code
from dapo_ref.types import Group, Rollout
from tests.support.helpers import ROOT
from tests.support.live_memory import LiveMemory
from tests.support.model_facts import FACTS, PARAMETERS

GB = 10**9
MARK = "# train.py --plan: "
SIZES = [(64, 240, 4, 2, 512), (96, 480, 6, 2, 512), (128, 384, 8, 4, 1024)]
"""Hidden, intermediate, heads, key-value heads, vocabulary."""


def shape(layers: int, size: tuple[int, ...]) -> tuple[Any, plan.Shape]:
    hidden, intermediate, heads, kv_heads, vocabulary = size
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=False,
    )
    return config, plan.shape_of(config)


@pytest.fixture
def model_dir(tmp_path: Path) -> Any:
    """Writes the config.json of a published model."""

    def write(name: str) -> str:
        folder = tmp_path / name.replace("/", "_")
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(FACTS[name]), encoding="utf-8")
        return str(folder)

    return write


# --- Configurations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FACTS)
def test_parameters_are_counted_as_the_hub_counts_them(model_dir: Any, name: str) -> None:
    found = plan.shape_of(plan.load_hf_config(model_dir(name)))
    assert found.parameters == PARAMETERS[name]


def planned() -> list[tuple[str, str]]:
    """(configuration, machine) pairs: what a file says of its GPUs, one of 16 GB for those for a CPU."""
    pairs = []
    for file in sorted((ROOT / "configs").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        machines = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
        if "model:" in text:
            pairs += [(file.name, machine) for machine in machines or ["--gpus 1 --gpu_memory 16"]]
    return pairs


@pytest.mark.parametrize(("name", "machine"), planned())
def test_every_configuration_fits(model_dir: Any, capsys: Any, name: str, machine: str) -> None:
    file = str(ROOT / "configs" / name)
    model = load_config(["--config", file]).model
    words = ["--config", file, *(["--model", model_dir(model)] if model in FACTS else [])]
    assert plan.main(["--plan", *machine.split(), *words]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nit fits\n")
    assert ("qwen" in name) == (MARK in Path(file).read_text(encoding="utf-8"))


def test_a_configuration_that_does_not_fit_names_the_key_and_what_it_takes(
    model_dir: Any, capsys: Any
) -> None:
    """32 billion parameters: 65.5 GB of weights and a row of 22,528 · 262,144 · 9/8 = 6.6 GB beside it."""
    words = ["--config", str(ROOT / "configs/qwen2.5_32b.yaml"), "--model", model_dir("Qwen/Qwen2.5-32B")]
    assert plan.main(["--plan", "--gpus", "128", *words]) == plan.DOES_NOT_FIT == 3
    out = capsys.readouterr().out
    assert "does not fit: rollout: 124.5 of 74.5 GB; no rollout_batch_size fits; at the least it takes" in out
    assert "takes GPUs of 83 GB, or 512 of these\n" in out
    larger = ["--plan", "--gpus", "128", "--gpu_memory", "141", *words, "--rollout_batch_size"]
    assert plan.main([*larger, "10"]) == 3
    assert "rollout_batch_size: at most 9\n" in capsys.readouterr().out
    assert plan.main([*larger, "8"]) == 0
    assert plan.main([*larger, "64", "--rollout_kv_tokens", str(9 * 22528)]) == 0
    assert plan.main([*larger, "64", "--rollout_kv_tokens", str(10 * 22528)]) == 3
    assert plan.main([*larger, "8", "--tokens_per_microbatch", "200000"]) == 3
    assert "tokens_per_microbatch: at most " in capsys.readouterr().out
    assert plan.main(["--plan", *words, "--rollout_weights", "sharded", "--rollout_batch_size", "1"]) == 3
    assert "optimiser: " in (out := capsys.readouterr().out)
    assert "zero3_offload.yaml" in out


def test_the_largest_that_fit_do_and_one_more_does_not(model_dir: Any) -> None:
    found = plan.shape_of(plan.load_hf_config(model_dir("Qwen/Qwen2.5-7B")))
    config = load_config(["--config", str(ROOT / "configs/qwen2.5_7b_long.yaml")])
    machine = plan.Machine(8, 80 * GB)
    for key, phase in (
        ("rollout_batch_size", 1),
        ("tokens_per_microbatch", 2),
    ):
        most = plan.most_that_fit(found, config, machine, key)
        for more in (0, 1):
            changed = dataclasses.replace(config, **{key: most + more})
            total = plan.phases(found, changed, machine)[phase].total
            assert (total <= machine.usable) == (more == 0)


def test_a_response_longer_than_a_micro_batch_is_counted_whole() -> None:
    config = load_config(["--config", str(ROOT / "configs/qwen2.5_32b.yaml"), "--tokens_per_microbatch", "1"])
    assert plan.microbatch_tokens(config) == 2048 + 20480


def test_positions_that_the_model_does_not_have_are_said(model_dir: Any, capsys: Any) -> None:
    words = ["--config", str(ROOT / "configs/qwen2.5_7b.yaml"), "--max_response_length", "3073"]
    words += ["--gpus", "8", "--model", model_dir("Qwen/Qwen2.5-Math-7B")]
    assert plan.main(["--plan", *words]) == 3
    assert "max_prompt_length + max_response_length is 4097, the model has 4096" in capsys.readouterr().out
    assert plan.main(["--plan", *words, "--exceed_positions", "true"]) == 0


@pytest.mark.parametrize(
    "words", [["--gpus", "two"], ["--gpus", "0"], ["--gpu_memory", "-1"], ["--grop_size", "2"]]
)
def test_a_wrong_argument_is_exit_code_2(words: list[str], capsys: Any) -> None:
    assert exit_code(plan.main, ["--plan", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_model_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither a directory"):
        plan.main(["--plan", "--model", "/nowhere"])


# --- Against what is measured -------------------------------------------------------------------------------


def test_a_model_without_attention_heads_is_not_planned() -> None:
    with pytest.raises(ConfigError, match="type 'mamba' has no attention heads: it cannot be planned"):
        plan.shape_of(MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=40))


def test_the_largest_phase_is_the_one_that_holds_most() -> None:
    """With long rows it is the rollout; with one short row and no checkpoints, the update."""
    machine = plan.Machine(8, 80 * GB)
    _, found = shape(2, SIZES[0])
    long = Config(max_response_length=20480, rollout_batch_size=4096, gradient_checkpointing=True)
    short = dataclasses.replace(long, rollout_batch_size=1, gradient_checkpointing=False)
    for config, name in ((long, "rollout"), (short, "update")):
        largest = plan.largest_phase(found, config, machine)
        assert largest.name == name
        assert largest.total == max(phase.total for phase in plan.phases(found, config, machine))


def test_constants_are_those_of_the_engine() -> None:
    assert plan.BUCKET_ELEMENTS == accelerator.REDUCE_BUCKET_ELEMENTS
    assert plan.GATHER_ELEMENTS == engine.GATHER_ELEMENTS


def test_states_are_18_or_20_bytes_a_parameter_over_the_gpus() -> None:
    """bf16: 2 of the weight, 4 of the master weight, 8 of Adam's moments, 4 of the gradient; fp32: 4 + 4 + 8
    + 4; and a bucket of 2²⁵ fp32 numbers. `tests/distributed/test_distributed.py` measures them."""
    _, found = shape(2, SIZES[0])
    assert plan.state_bytes(found, 4, "bf16") == 18 * found.parameters / 4 + 4 * 2**25
    assert plan.state_bytes(found, 1, "fp32") == 20 * found.parameters + 4 * 2**25


def test_a_token_in_python_is_as_large_as_planned() -> None:
    tracemalloc.start()
    ids, logprobs = torch.arange(1000, 101_000).tolist(), array("f", bytes(400_000))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(logprobs) == len(ids)
    assert size / len(ids) == pytest.approx(plan.TOKEN_OBJECT_BYTES, rel=0.1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_row_of_the_cache_is_as_large_as_planned(size: tuple[int, ...], precision: str) -> None:
    """With room of an eighth, as the plan has it, where the last token made the cache grow."""
    hf_config, found = shape(3, size)
    kv_heads, head_size = size[3], size[0] // size[2]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layers = [RoomyLayer() for _ in range(hf_config.num_hidden_layers)]
    with LiveMemory() as memory:
        for layer in layers:
            for columns in (511, 1):
                layer.update(*(torch.zeros(5, kv_heads, columns, head_size, dtype=dtype) for _ in range(2)))
    expected = 5 * 512 * plan.cache_bytes(found, precision) * 9 / 8
    assert memory.now == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_head_holds_what_is_planned(monkeypatch: Any, size: Any, temperature: float, dtype: Any) -> None:
    """Within 10 %, forward and backward, at three sizes."""
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 2**18)
    _, found = shape(1, size)
    count = 4 * 2**18 // found.vocabulary
    hidden = torch.randn(count, found.hidden, dtype=dtype, requires_grad=True)
    weight = torch.randn(found.vocabulary, found.hidden, dtype=dtype, requires_grad=True)
    with LiveMemory() as memory:
        values, _ = token_logprobs(hidden, weight, None, torch.zeros(count, dtype=torch.long), temperature)
        values.sum().backward()
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    expected = plan.head_bytes(found, precision, 2**18, temperature) + hidden.nbytes  # its gradient
    assert memory.peak == pytest.approx(expected, rel=0.1)


def micro() -> MicroBatch:
    """One group of four responses of 60 tokens to a prompt of 16."""
    rollouts = [Rollout([7] * 60, "", truncated=False, reward=0.0) for _ in range(4)]
    batch = collate([Group(Problem((), "0", ""), [5] * 16, rollouts)], overlong_filtering=False)
    batch.advantages = torch.zeros(4)
    (found,) = microbatches(batch, range(4), 10**9, num_processes=1, process_index=0)
    return found


def measured(hf_config: Any, dtype: Any, checkpointing: bool) -> tuple[int, int, int]:
    """Tokens, bytes kept after the forward pass, and the most until the end of the backward pass."""
    model = Qwen2ForCausalLM(hf_config).to(dtype)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(model, packed=True, own_head=False).train()
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    given = micro()
    with LiveMemory() as memory:
        values, _ = policy(given, 1.0)
        kept = memory.now
        values.sum().backward()
    return given.input_ids.numel(), kept, memory.peak


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_activations_are_as_planned(monkeypatch: Any, size: Any, dtype: Any) -> None:
    """Within 25 % at three sizes, where a layer holds the most and where the head does. What is kept, by the
    difference between six layers and two, which leaves out what does not depend on the layers."""
    chunk = 100 * size[4]  # of the responses' 240 tokens
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(  # a plain tensor: the memory is counted by a mode that takes no other kind
        attention, "_visible", lambda t, length, *_: torch.ones(t, length, dtype=torch.bool).tril(length - t)
    )
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    for checkpointing in (True, False):
        found = {n: measured(shape(n, size)[0], dtype, checkpointing) for n in (2, 6)}
        tokens = found[2][0]
        config = Config(precision=precision, gradient_checkpointing=checkpointing)  # type: ignore[arg-type]
        planned = {n: plan.activation_bytes(shape(n, size)[1], config, tokens, chunk) for n in (2, 6)}
        assert found[6][1] - found[2][1] == pytest.approx(planned[6][0] - planned[2][0], rel=0.25)
        for n in (2, 6):
            assert found[n][2] == pytest.approx(sum(planned[n]), rel=0.25)


def test_planning_needs_no_deepspeed_and_no_weights(model_dir: Any) -> None:
    code = (
        "import runpy, sys; sys.modules['deepspeed'] = None; runpy.run_path('train.py', run_name='__main__')"
    )
    words = ["--plan", "--config", "configs/qwen2.5_7b.yaml", "--model", model_dir("Qwen/Qwen2.5-Math-7B")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--gpus", "1"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == plan.DOES_NOT_FIT, done.stderr
    assert "optimiser: 141.2 of 74.5 GB; more GPUs, or offloading" in done.stdout
