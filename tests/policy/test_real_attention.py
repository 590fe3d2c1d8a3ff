"""Sampling from transformers' own models whose attention is not plain: tiny ones, with random weights.

A cache whose rows and columns cannot be taken out and added must not be repacked: the tokens tell.
"""

import dataclasses
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dapo_ref.config import Config
from dapo_ref.data import Problem
from dapo_ref.policy.kv_cache import can_be_repacked
from dapo_ref.policy.rollout import sample_groups
from tests.support.helpers import END, SMALL_MODEL, char_tokenizer, greedy

WINDOW = 6
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
LINEAR = {f"linear_{part}": size for part, size in (("num_key_heads", 2), ("num_value_heads", 2))}
LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "plain": ("llama", {}, True),
    "sliding window": ("mistral", {"sliding_window": WINDOW}, False),
    "windows in turn": ("gemma2", {"sliding_window": WINDOW}, False),
    "sinks and windows": (
        "gpt_oss",
        {
            "sliding_window": WINDOW,
            "num_local_experts": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        False,
    ),
    "linear attention": (
        "qwen3_next",
        {"num_experts": 4, "layer_types": ["linear_attention", "full_attention"], **LINEAR},
        False,
    ),
}


def tiny(kind: str, **settings: Any) -> PreTrainedModel:
    """A model that ends its responses often and at different lengths."""
    torch.manual_seed(0)
    sizes = SMALL_MODEL | {"head_dim": 8, "max_position_embeddings": 512} | EXPERTS
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes | settings)).eval()
    model.get_output_embeddings().weight.data[END] *= 1.5
    return model


@pytest.mark.parametrize("name", MODELS)
def test_only_a_cache_that_holds_all_columns_is_repacked(name: str) -> None:
    kind, settings, repacked = MODELS[name]
    assert can_be_repacked(tiny(kind, **settings)) == repacked


@pytest.mark.parametrize("name", MODELS)
def test_sampled_tokens_are_those_of_one_forward_pass_a_token(name: str) -> None:
    """Responses longer than the window, with fewer places than rows, so that rows leave and join."""
    kind, settings, _ = MODELS[name]
    model = tiny(kind, **settings)
    sampling = dataclasses.replace(
        Config().sampling, group_size=2, max_response_length=18, rollout_batch_size=4, temperature=1e-5
    )
    prompts = [(Problem((), "0", f"test#{i}"), [1, *range(10, 10 + 3 * i % 11)]) for i in range(5)]
    groups = sample_groups(model, char_tokenizer(), prompts, sampling, [END])
    lengths = set()
    for group, (_, prompt) in zip(groups, prompts, strict=True):
        expected = greedy(model, prompt, 18, [END])
        assert [rollout.response_ids for rollout in group.rollouts] == [expected, expected]
        lengths.add(len(expected))
    assert max(lengths) > WINDOW
