"""What the engine does to a model before ZeRO-3 takes it."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPTJConfig, OPTConfig

from dapo_ref.distributed.engine import _switch_dropout_off
from dapo_ref.policy.logprobs import Policy

SMALL = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
OPT = {"hidden_size": 16, "ffn_dim": 16, "word_embed_proj_dim": 16, "num_hidden_layers": 2}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2}
HALF = {"attn_pdrop": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}


@pytest.mark.parametrize(
    "config",
    [
        # torch's function in the layer itself, which is in train mode for the sake of checkpointing
        OPTConfig(**SMALL, **OPT, num_attention_heads=2, dropout=0.5, attention_dropout=0.5, layerdrop=0.5),
        GPT2Config(**SMALL, **GPT, **HALF),  # modules
        GPTJConfig(**SMALL, **GPT, **HALF, rotary_dim=4),
    ],
    ids=lambda config: config.model_type,
)
def test_the_trained_model_is_the_sampled_one_under_gradient_checkpointing(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(3, 50, (2, 7))
    sampled = model(ids).logits
    _switch_dropout_off(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    Policy(model, packed=False, own_head=True).train()
    trained = model(ids).logits
    assert trained.requires_grad
    torch.testing.assert_close(trained, sampled, rtol=0, atol=0)
