"""Does it fit? Bytes a GPU, disk and time of a run, from its configuration and the model's alone.

    python train.py --plan --config configs/qwen2.5_7b.yaml --gpus 8 --gpu_memory 80

No weights are read and no GPU is needed. Exit code 3 where the run does not fit, after a line that says which
key to turn. The formulas are those of the code beside it; `tests/test_plan.py` holds them to what is measured
on a CPU. What they leave out (the CUDA context, NCCL's buffers, memory in pieces) is `Machine.usable`.

Dimension key: N parameters, W GPUs, L layers, H hidden size, I intermediate size, q = heads · head size,
k = key-value heads · head size, V vocabulary, n tokens of a micro-batch.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dapo_ref.config import Config, load_config
from dapo_ref.errors import ConfigError
from dapo_ref.policy.logprobs import GPU_CHUNK_ELEMENTS
from dapo_ref.policy.paths import text_architecture
from dapo_ref.policy.pretrained import load_hf_config

GB = 10**9
DOES_NOT_FIT = 3
"""The exit code."""

BUCKET_ELEMENTS = 2**25
"""Gradients reduced at once, as `distributed.accelerator` sets it."""
GATHER_ELEMENTS = 2**28
"""Parameters gathered at once for the sampling copy, as in `distributed.engine`, beside the last one."""
LIVE_ELEMENTS = 10**9
"""Parameters that ZeRO-3 keeps gathered, and that it updates at once, at most (DeepSpeed's defaults)."""
TOKEN_OBJECT_BYTES = 44
"""A token of a response as Python holds it: a pointer in a list, an int, and its log-probability."""

# Assumed for times: a GPU of the Hopper generation, what Python and transformers cost a layer and token.
FLOPS = 4e14
BANDWIDTH = 2e12
LINK = 1e11
SECONDS_A_LAYER = 1e-3
MEAN_LENGTH = 0.4  # of the cap
SAMPLED = 2.0  # responses sampled for one that is trained
ASSUMED = (
    f"assumed for times: {FLOPS / 1e12:.0f} TFLOP/s and {BANDWIDTH / 1e12:.0f} TB/s a GPU, "
    f"{LINK / GB:.0f} GB/s between GPUs, {SECONDS_A_LAYER * 1e3:g} ms a layer for each token decoded, "
    f"responses {MEAN_LENGTH:g} of the cap long, {SAMPLED:g} sampled for one that is trained\n"
    "assumed for memory: a dense decoder with a gated feed-forward, packed micro-batches, attention that "
    "stores no matrix of scores, no offloading, every row at the full length at once"
)


@dataclass(frozen=True)
class Shape:
    """What of a model decides its memory; letters as above."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    q: int
    k: int
    vocabulary: int
    positions: int


@dataclass(frozen=True)
class Machine:
    """The GPUs of a run, all alike: their number, and bytes of one."""

    gpus: int
    memory: int

    @property
    def usable(self) -> float:
        """Bytes of a GPU less what is not counted: 5 % and 1.5 GB."""
        return 0.95 * self.memory - 1.5 * GB


@dataclass(frozen=True)
class Phase:
    """Bytes a GPU in one phase of a step; `turn` says what to change where they do not fit."""

    name: str
    turn: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Of all parts."""
        return sum(self.parts.values())


def shape_of(hf_config: Any) -> Shape:
    """Counts the parameters of the architecture, tied ones once, without memory for them.

    Raises:
        ConfigError: it is not a causal language model of text, or not one with attention heads.
    """
    model_class, text = text_architecture(hf_config)
    with torch.device("meta"):
        model = model_class(text)
    heads = getattr(text, "num_attention_heads", None)
    if not heads:
        raise ConfigError(f"model: type {text.model_type!r} has no attention heads: it cannot be planned")
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        q=heads * size,
        k=(getattr(text, "num_key_value_heads", None) or heads) * size,
        vocabulary=text.vocab_size,
        positions=getattr(text, "max_position_embeddings", None) or 0,
    )


# --- Bytes --------------------------------------------------------------------------------------------------


def width(precision: str) -> int:
    """Bytes of a weight or an activation."""
    return 2 if precision == "bf16" else 4


def state_bytes(shape: Shape, gpus: int, precision: str) -> float:
    """Of one GPU under ZeRO-3: weights, fp32 master weights, two moments and fp32 gradients, and the bucket
    that gradients are reduced in."""
    each = width(precision) + 4 + 8 + 4
    return each * shape.parameters / gpus + 4 * BUCKET_ELEMENTS


def cache_bytes(shape: Shape, precision: str) -> int:
    """Of a token: keys and values of all layers."""
    return 2 * width(precision) * shape.layers * shape.k


def head_bytes(shape: Shape, precision: str, chunk: int, temperature: float = 1.0) -> float:
    """The most that `logprobs.token_logprobs` holds, forward or backward, beside [n, H]: gradients of the
    weight, and two chunks of logits in both precisions."""
    low = precision == "bf16"
    logits = {(True, True): 14, (True, False): 12, (False, True): 12, (False, False): 8}
    return (6 if low else 4) * shape.vocabulary * shape.hidden + logits[low, temperature != 1.0] * chunk


def saved_bytes(shape: Shape, precision: str) -> int:
    """What one layer keeps of a token for its backward pass: norms, attention, gated feed-forward."""
    norms = 6 if precision == "bf16" else 4  # they compute in fp32
    elements = norms * shape.hidden + 5 * shape.q + 4 * shape.k + 4 * shape.intermediate
    return width(precision) * elements


def activation_bytes(shape: Shape, config: Config, tokens: int, chunk: int) -> tuple[float, float]:
    """Of a micro-batch: (kept of all layers between forward and backward, the most beside it: one layer in
    its backward pass, or the head with the last norm, the states that predict and their gradients)."""
    size, low = width(config.precision), config.precision == "bf16"
    saved = saved_bytes(shape, config.precision)
    kept = size * shape.hidden * shape.layers if config.gradient_checkpointing else saved * (shape.layers - 1)
    layer = tokens * (saved + size * 2 * (shape.hidden + shape.intermediate))
    last = tokens * (
        size * shape.hidden * (5 if low else 4) + (0 if config.gradient_checkpointing else saved)
    )
    return tokens * kept, max(layer, last + head_bytes(shape, config.precision, chunk, config.temperature))


def longest_row(config: Config) -> int:
    """Tokens of a prompt and its response at most; the width of the cache."""
    return config.max_prompt_length + config.max_response_length


def row_bytes(shape: Shape, config: Config) -> float:
    """Of one row while sampling: its cache at the full length with an eighth of room, its logits, and its
    share of the prompt's activations when its group joins."""
    size = width(config.precision)
    cache = longest_row(config) * cache_bytes(shape, config.precision) * 9 / 8
    prompt = config.max_prompt_length / config.group_size
    prefill = size * prompt * (2 * shape.hidden + shape.q + 2 * shape.k + 3 * shape.intermediate)
    return cache + shape.vocabulary * (size + 20) + prefill


def microbatch_tokens(config: Config) -> int:
    """A response longer than the budget stands alone."""
    return max(config.tokens_per_microbatch, longest_row(config))


def phases(shape: Shape, config: Config, machine: Machine) -> list[Phase]:
    """What a GPU holds in each phase of a step."""
    size = width(config.precision)
    states = {"states": state_bytes(shape, machine.gpus, config.precision)}
    live = {"gathered layers": size * min(shape.parameters, LIVE_ELEMENTS)}
    one_matrix = (size + 4) * shape.hidden * shape.intermediate
    copy, found = live, []
    if config.rollout_weights == "gathered":
        copy = {"sampling copy": size * shape.parameters}
        gathering = size * min(shape.parameters, GATHER_ELEMENTS + shape.vocabulary * shape.hidden)
        turn = "rollout_weights: sharded"
        found.append(Phase("copying", turn, states | copy | {"gathered at once": gathering}))
    together = config.rollout_batch_size
    if config.rollout_kv_tokens:  # rows beyond it wait
        together = min(together, max(1, config.rollout_kv_tokens // longest_row(config)))
    rows = together * row_bytes(shape, config)
    growing = {"a layer of them copied": rows / shape.layers}  # when its room ends, or rows join or leave
    found.append(Phase("rollout", "rollout_batch_size", states | copy | {"rows": rows} | growing))
    kept, most = activation_bytes(shape, config, microbatch_tokens(config), GPU_CHUNK_ELEMENTS)
    work = {"activations": kept, "one layer, or the head": most, "gradients reduced": one_matrix}
    turn = "tokens_per_microbatch" if config.gradient_checkpointing else "gradient_checkpointing: true"
    found.append(Phase("update", turn, states | live | work))
    gradients = {"gradients flattened": 4 * min(shape.parameters / machine.gpus, LIVE_ELEMENTS)}
    turn = "more GPUs, or offloading (configs/accelerate/zero3_offload.yaml, not planned here)"
    found.append(Phase("optimiser", turn, states | gradients))
    return found


def largest_phase(shape: Shape, config: Config, machine: Machine) -> Phase:
    """The one that holds the most."""
    return max(phases(shape, config, machine), key=lambda phase: phase.total)


def most_that_fit(shape: Shape, config: Config, machine: Machine, key: str) -> int:
    """The largest value of `rollout_batch_size` or `tokens_per_microbatch` at which its phase fits, 0 where
    none does."""
    name = "rollout" if key == "rollout_batch_size" else "update"

    def fits(value: int) -> bool:
        changed: dict[str, Any] = {"rollout_kv_tokens": 0, key: value}
        return _phase(shape, dataclasses.replace(config, **changed), machine, name).total <= machine.usable

    most = 0
    for step in (2**i for i in reversed(range(31))):
        if fits(most + step):
            most += step
    return most


def _phase(shape: Shape, config: Config, machine: Machine, name: str) -> Phase:
    return next(phase for phase in phases(shape, config, machine) if phase.name == name)


def what_does_not_fit(shape: Shape, config: Config, machine: Machine) -> list[str]:
    """One line for each phase that does not fit, with the key to turn; empty if all do."""
    lines = []
    least = dataclasses.replace(
        config, rollout_batch_size=1, tokens_per_microbatch=longest_row(config), gradient_checkpointing=True
    )
    for phase in phases(shape, config, machine):
        if phase.total <= machine.usable:
            continue
        hint = phase.turn
        if hint in ("rollout_batch_size", "tokens_per_microbatch"):
            most = most_that_fit(shape, config, machine, hint)
            hint = f"{hint}: at most {most}" if most else f"no {hint} fits"
        if _phase(shape, least, machine, phase.name).total > machine.usable:
            hint += f"; at the least it takes {hardware(shape, least, machine, phase.name)}"
        lines.append(f"{phase.name}: {_gb(phase.total)} of {_gb(machine.usable)} GB; {hint}")
    if longest_row(config) > shape.positions > 0 and not config.exceed_positions:
        lines.append(
            f"max_prompt_length + max_response_length is {longest_row(config)}, the model has "
            f"{shape.positions} positions: lower them, take another model, or set exceed_positions"
        )
    return lines


def hardware(shape: Shape, least: Config, machine: Machine, name: str) -> str:
    """What would hold the least of a phase: larger GPUs, or a few times more of these where that helps."""
    needed = _phase(shape, least, machine, name).total
    found = f"GPUs of {math.ceil((needed / GB + 1.5) / 0.95)} GB"
    for gpus in (machine.gpus * 2**i for i in range(1, 4)):
        if _phase(shape, least, Machine(gpus, machine.memory), name).total <= machine.usable:
            return f"{found}, or {gpus} of these"
    return found


# --- Time, disk, host ---------------------------------------------------------------------------------------


def times(shape: Shape, config: Config, machine: Machine) -> dict[str, float]:
    """Seconds of a step by phase, under the assumptions that the plan prints."""
    size, cap = width(config.precision), config.max_response_length
    responses, rows = config.prompts_per_step * config.group_size, config.rollout_batch_size
    tokens = responses * (config.max_prompt_length / config.group_size + MEAN_LENGTH * cap)
    weights = size * shape.parameters
    rows = min(rows, math.ceil(SAMPLED * responses / machine.gpus))
    columns = SAMPLED * responses * MEAN_LENGTH * cap / (machine.gpus * rows) + (1 - MEAN_LENGTH) * cap
    cache = rows * cache_bytes(shape, config.precision) * MEAN_LENGTH * longest_row(config)
    column = max(SECONDS_A_LAYER * shape.layers, (weights + cache) / BANDWIDTH)
    if config.rollout_weights == "sharded":
        column += weights / LINK
    forward = 2 * shape.parameters + 2 * shape.layers * shape.q * MEAN_LENGTH * longest_row(config)
    microbatches = math.ceil(tokens / machine.gpus / config.tokens_per_microbatch)
    gathering = microbatches * weights / LINK
    passes = 4 if config.gradient_checkpointing else 3
    compute = tokens * forward / machine.gpus / FLOPS
    return {
        "rollout": columns * column,
        "log-probabilities": compute + gathering,
        "update": passes * compute + 3 * gathering,
    }


def disk_bytes(parameters: int, config: Config) -> dict[str, float]:
    """Checkpoints with the one being written, the exported model, and responses of a step at most: about
    four characters a token."""
    count = config.keep_checkpoints + 1 if config.checkpoint_every else 0
    responses = SAMPLED * config.prompts_per_step * config.group_size
    return {
        "checkpoints": count * 12 * parameters,
        "model": width(config.precision) * parameters,
        "responses of a step": responses * 4 * config.max_response_length,
    }


# --- What is printed ----------------------------------------------------------------------------------------


def host_bytes(shape: Shape, config: Config) -> dict[str, float]:
    """Memory beside the GPUs: of the main process while it loads or exports, and of each process, which holds
    all responses of a step."""
    responses = SAMPLED * config.prompts_per_step * config.group_size
    return {
        "main process": width(config.precision) * shape.parameters,
        "each process": 4 * GB + responses * MEAN_LENGTH * config.max_response_length * TOKEN_OBJECT_BYTES,
        "its verifiers": config.verifier_workers * config.verifier_memory_mb * 2**20,
    }


def report(shape: Shape, config: Config, machine: Machine) -> str:
    """The plan as text."""
    responses = config.prompts_per_step * config.group_size
    seconds = times(shape, config, machine)
    cache = cache_bytes(shape, config.precision)
    most = [
        f"{k} {most_that_fit(shape, config, machine, k)}"
        for k in ("rollout_batch_size", "tokens_per_microbatch")
    ]
    return "\n".join(
        [
            f"{config.model}: {shape.parameters / GB:.2f} billion parameters, {shape.layers} layers, "
            f"{cache} bytes of cache a token",
            f"{machine.gpus} x {machine.memory / GB:g} GB, {_gb(machine.usable)} of each usable; GB a GPU:",
            *(
                f"  {phase.name:<10}{_gb(phase.total):>6} = {_parts(phase.parts, ' + ')}"
                for phase in phases(shape, config, machine)
            ),
            f"largest that fit: {', '.join(most)}",
            f"host memory, GB: {_parts(host_bytes(shape, config))}",
            f"disk, GB: {_parts(disk_bytes(shape.parameters, config))}",
            f"a step: {responses} responses, at most {responses * config.max_response_length} tokens, "
            f"{responses // config.responses_per_update} updates",
            f"a step, minutes: {', '.join(f'{k} {v / 60:.1f}' for k, v in seconds.items())}; "
            f"{config.rollout_steps} steps: {config.rollout_steps * sum(seconds.values()) / 86400:.1f} days",
            ASSUMED,
        ]
    )


def _gb(count: float) -> str:
    return f"{count / GB:.1f}"


def _parts(parts: dict[str, float], between: str = ", ") -> str:
    return between.join(f"{name} {_gb(value)}" for name, value in parts.items())


def main(argv: Sequence[str]) -> int:
    """Prints the plan of `--plan --gpus N --gpu_memory GB` and the keys of a configuration.

    Returns:
        0, or 3 where it does not fit.

    Raises:
        ConfigError: an argument is wrong, or the model's configuration cannot be read.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--gpu_memory", type=float, default=80.0)
    try:
        given, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(f"--plan: {error}") from error
    if given.gpus < 1 or given.gpu_memory <= 0:
        raise ConfigError("--plan: --gpus must be at least 1 and --gpu_memory, in GB, above 0")
    config = load_config(rest)
    shape = shape_of(load_hf_config(config.model_dir))
    machine = Machine(given.gpus, round(given.gpu_memory * GB))
    print(report(shape, config, machine))
    wrong = what_does_not_fit(shape, config, machine)
    print("\n".join(f"does not fit: {line}" for line in wrong) or "it fits")
    return DOES_NOT_FIT if wrong else 0
