"""A small model of the same architecture as a large one: few layers, small widths, random weights.

For trying things out before any weights are loaded.
"""

import copy
import math
import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dapo_ref.errors import ConfigError, one_line

VOCABULARY = 96
MOST_LAYERS = 12
MOST_PARAMETERS = 10**9
SHORT_POSITIONS = 24
"""Where a shrunken model's long rotary factors begin: some of the rows are longer, some are not."""

# Only how small the copy gets hangs on these names: one that is not known makes it larger, not wrong.
WINDOWS = re.compile(r"sliding_window|attention_chunk_size|window_size|attention_window_size")
EXPERTS = re.compile(r"num_(local_)?experts|n_routed_experts|moe_num_experts")
WIDTHS = re.compile(
    r"heads$|n_head$|hidden_size|intermediate|n_inner|ffn_dim|n_embd|embed_dim|d_model|lru_width|d_ff$"
)


def small_model(model_class: Any, hf_config: Any, num_positions: int = 0) -> PreTrainedModel:
    """A model of the same architecture, with few layers and small widths if its configuration allows it, and
    random weights large enough that caps, multipliers and biases show.

    Raises:
        ConfigError: there is no model of that configuration.
    """
    problem: Exception | None = None
    for narrow in (True, False):  # some widths depend on each other: then only layers and vocabulary shrink
        try:
            config = shrunken(hf_config, narrow, num_positions)
            _require_small(model_class, config)
            model: PreTrainedModel = model_class._from_config(config, dtype=torch.float32).eval()
            fill(model)
            with torch.no_grad():
                model(input_ids=torch.full((1, 40), 9), use_cache=False)
            return model
        except Exception as error:
            problem = error
    raise ConfigError(
        f"model: no small model of type {hf_config.model_type!r}: {one_line(problem)}"
    ) from problem


def _require_small(model_class: Any, config: Any) -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in model_class._from_config(config, dtype=torch.float32).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e9:.1f} billion parameters with few layers")


def shrunken(hf_config: Any, narrow: bool, num_positions: int) -> Any:
    """The configuration with few layers, a small vocabulary, and, if `narrow`, fewer heads of that size."""
    config = first_layers(hf_config)
    for part in _parts(config):
        _shrink_sizes(part, _factor(part) if narrow else 1)
        _shrink_positions(part, num_positions)
    return config


def first_layers(hf_config: Any) -> Any:
    """The configuration with its first layers alone, two or as many as it takes for each kind to occur."""
    config = copy.deepcopy(hf_config)
    for part in _parts(config):
        _shrink_layers(part)
    return config


def _parts(config: Any) -> list[Any]:
    """The configuration and that of its text model, each once."""
    return list({id(c): c for c in (config, config.get_text_config(decoder=True))}.values())


def _shrink_layers(config: Any) -> None:
    """The first layers, as many as it takes for each kind that the configuration names to occur."""
    names = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "num_decoder_layers")
    have = next((getattr(config, n) for n in names if isinstance(getattr(config, n, None), int)), None)
    if not have:
        return
    keep = 2
    for value in vars(config).values():
        if isinstance(value, list | tuple) and len(value) == have:
            kinds = {str(item): -i for i, item in reversed(list(enumerate(value)))}
            keep = max(keep, 1 - min(kinds.values()))
    for key, value in vars(config).items():
        interleaved = re.search(r"interval|period|pattern|_step$|first_k_dense|every", key)
        if interleaved and isinstance(value, int) and not isinstance(value, bool):
            keep = max(keep, value + 1)
    keep = min(keep, have, MOST_LAYERS)
    for key, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == have:
            setattr(config, key, value[:keep])
    for name in names:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, keep)


def _factor(config: Any) -> int:
    """What heads and widths can be divided by together, which leaves the size of a head as it is."""
    heads = getattr(config, "num_attention_heads", None)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "hidden_size", None)
    if not (isinstance(heads, int) and isinstance(kv_heads, int) and isinstance(width, int)):
        return 1
    factor = math.gcd(heads, kv_heads) if kv_heads > 1 else heads
    possible = range(1, factor + 1)
    factors = [f for f in possible if factor % f == 0 and width % f == 0 and width // f >= 128]
    return max(factors, default=1)


def _shrink_sizes(config: Any, factor: int) -> None:
    """Divides heads and widths, and makes vocabulary, windows and experts few."""
    old_width, old_vocabulary = getattr(config, "hidden_size", None), getattr(config, "vocab_size", None)
    per_token = getattr(config, "num_experts_per_tok", None)
    for key, value in list(vars(config).items()):
        if key.endswith("_token_id") and value is not None:
            setattr(config, key, 1)
        elif isinstance(value, bool) or not isinstance(value, int):
            continue
        elif "vocab_size" in key and value == old_vocabulary:
            setattr(config, key, VOCABULARY)
        elif WINDOWS.fullmatch(key):
            setattr(config, key, min(value, 8))
        elif EXPERTS.fullmatch(key) and per_token:
            setattr(config, key, min(value, max(8, 2 * per_token)))
        elif (WIDTHS.search(key) or value == old_width) and value % factor == 0:
            setattr(config, key, value // factor)


def _shrink_positions(config: Any, num_positions: int) -> None:
    """Rotary factors that change with the longest position of a call: the rows reach that change if the run's
    do, and do not if they do not."""
    rope = _changing_rope(config)
    if rope is None:
        return
    original = original_positions(config)
    small = SHORT_POSITIONS if num_positions > original else 4096
    for holder in (rope, vars(config)):
        if holder.get("original_max_position_embeddings"):
            holder["original_max_position_embeddings"] = small
    if rope.get("rope_type") == "dynamic":
        config.max_position_embeddings = small


def _changing_rope(config: Any) -> dict[str, Any] | None:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    changes = isinstance(rope, dict) and rope.get("rope_type") in ("longrope", "dynamic")
    return rope if changes else None


def original_positions(config: Any) -> int:
    """Beyond which rotary factors change; the model's own where they do not."""
    rope = _changing_rope(config) or {}
    own = rope.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    return int(own or config.max_position_embeddings)


def positions_change(config: Any) -> bool:
    """Whether rotary factors change with the longest position of a call."""
    return _changing_rope(config.get_text_config(decoder=True)) is not None


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Random weights of a size that keeps states near 1 and spreads the logits over a few nats."""
    pick = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=pick)
        if parameter.dim() < 2:
            parameter.add_(0.1 * noise)
        else:
            parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is not None and isinstance(getattr(head, "weight", None), Tensor):
        head.weight.mul_(4.0)
