"""`policy/paths.py`: each kind of model beside its own forward, and what becomes of those that differ.

The configurations are transformers' defaults with one thing changed; weights are random.
"""

import copy

import pytest
import torch
from transformers import (
    BertConfig,
    BloomConfig,
    Gemma2Config,
    Gemma3Config,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    T5Config,
)

from dapo_ref.errors import ConfigError
from dapo_ref.policy import small_model
from dapo_ref.policy.paths import Path, choose_path
from dapo_ref.policy.small_model import shrunken

LLAMA = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}


def longrope(original: int) -> LlamaConfig:
    factors = {"short_factor": [1.0] * 32, "long_factor": [1.0 + i / 4 for i in range(32)]}
    return LlamaConfig(
        **LLAMA,
        max_position_embeddings=4 * original,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": original,
            **factors,
        },
    )


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (LlamaConfig(**LLAMA), Path(packed=True, own_head=False)),
        (OPTConfig(layerdrop=0.5), Path(packed=True, own_head=False)),  # layers are left out in train mode
        (MixtralConfig(**LLAMA, router_jitter_noise=0.3), Path(packed=True, own_head=False)),
        (BloomConfig(), Path(packed=False, own_head=False)),  # positions are in the attention mask
        (GptOssConfig(), Path(packed=False, own_head=False)),  # sinks in the softmax
        (GraniteConfig(**LLAMA, logits_scaling=8.0), Path(packed=True, own_head=True)),
        (BertConfig(is_decoder=True), Path(packed=True, own_head=True)),  # a dense layer before its head
        (Gemma2Config(), Path(packed=False, own_head=True)),  # caps scores and logits
        (longrope(4096), Path(packed=True, own_head=False)),
    ],
    ids=lambda value: value.model_type if hasattr(value, "model_type") else str(value),
)
def test_the_fastest_path_that_gives_the_models_own_numbers(config, path):
    before = torch.get_rng_state()
    assert choose_path(config, torch.bfloat16, packing=True, num_positions=4096) == path
    assert torch.equal(torch.get_rng_state(), before)


def test_packing_is_not_chosen_where_it_is_not_wanted():
    config = LlamaConfig(**LLAMA)
    assert choose_path(config, torch.float32, False, 64) == Path(packed=False, own_head=False)


def test_a_model_that_sees_what_comes_after_is_refused():
    with pytest.raises(ConfigError, match=r"'bert' is not causal: .* changes by \d"):
        choose_path(BertConfig(), torch.float32, True, 64)


def test_rotary_factors_that_change_within_the_run_are_refused_with_their_limit():
    with pytest.raises(ConfigError, match=r"off by .*beyond 4096 positions: keep max_prompt_length \+ "):
        choose_path(longrope(4096), torch.float32, True, 4097)


def test_a_shrunken_model_keeps_a_layer_of_each_kind_and_the_size_of_a_head():
    kinds = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 4
    config = Gemma2Config(num_hidden_layers=8, layer_types=kinds)
    before = copy.deepcopy(config)
    small = shrunken(config, narrow=True, num_positions=64)
    assert small.layer_types == kinds[:4]
    assert small.num_hidden_layers == 4
    assert (small.head_dim, small.hidden_size) == (config.head_dim, 2304 // 4)  # gcd of 8 and 4 heads
    assert config.to_dict() == before.to_dict()


def test_a_model_of_several_kinds_of_input_is_refused():
    with pytest.raises(ConfigError, match=r"'gemma3' takes more than text \(vision_config\)"):
        choose_path(Gemma3Config(), torch.float32, True, 64)


def test_what_is_no_causal_language_model_is_refused():
    with pytest.raises(ConfigError, match=r"type 't5' cannot be built: ValueError"):
        choose_path(T5Config(), torch.float32, True, 64)


def test_a_copy_that_stays_large_is_refused_before_it_takes_memory(monkeypatch):
    monkeypatch.setattr(small_model, "MOST_PARAMETERS", 1000)
    with pytest.raises(ConfigError, match=r"no small model of type 'llama': .* billion parameters"):
        choose_path(LlamaConfig(**LLAMA), torch.float32, True, 64)
