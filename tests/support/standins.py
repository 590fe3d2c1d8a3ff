"""Small models with the architectures, tokenizers and quirks of published ones; random weights.

Each writes a Hugging Face directory as a user would have it. What they imitate is where published models
differ from the plain case: chat templates, heads tied to the embedding or not, embeddings padded beyond the
tokenizer, and which of three files names which end token.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

_SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "max_position_embeddings": 512,
}
_CHATML = (
    "{%% for message in messages %%}%s<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
_DEFAULT_SYSTEM = (
    "{%% if loop.first and message['role'] != 'system' %%}<|im_start|>system\n%s<|im_end|>\n{%% endif %%}"
)
_LLAMA3 = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|start_header_id|>"
    "{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


class StandIn(NamedTuple):
    """One of them.

    Attributes:
        config: of the architecture; `eos_token_id` included.
        special: the tokenizer's special tokens, after its bytes or, with `special_first`, before.
        roles: `eos_token` and the like, for the tokenizer.
        template: of its chats.
        generation: its generation_config.json, None where there is none.
        ends: the ids that end a response, over all three files.
        likely_end: the one that the random model is made to sample often.
    """

    config: PretrainedConfig
    special: Sequence[str]
    roles: dict[str, str]
    template: str
    generation: dict[str, Any] | None
    ends: Sequence[int]
    likely_end: int
    special_first: bool = False


_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_N = len(_BYTES)  # the first id after the bytes


def _qwen2_5(tied: bool) -> StandIn:
    """A base model: its tokenizer says <|im_end|>, its configurations say <|endoftext|>."""
    config = Qwen2Config(
        **_SIZE, vocab_size=_N + 16, tie_word_embeddings=tied, eos_token_id=_N, bos_token_id=_N
    )
    return StandIn(
        config,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        _CHATML % (_DEFAULT_SYSTEM % "You help."),
        {"eos_token_id": _N, "bos_token_id": _N, "max_new_tokens": 2048, "do_sample": False},
        ends=[_N, _N + 2],
        likely_end=_N,
    )


def _qwen3() -> StandIn:
    """Norms on queries and keys, heads wider than hidden size / heads; sampling rules of its own."""
    config = Qwen3Config(
        **_SIZE, head_dim=16, vocab_size=_N + 16, tie_word_embeddings=False, eos_token_id=_N + 2
    )
    rules = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_new_tokens": 6}
    return StandIn(
        config,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        _CHATML % "",
        {"eos_token_id": [_N + 2, _N], **rules},
        ends=[_N, _N + 2],
        likely_end=_N + 2,
    )


def _llama3() -> StandIn:
    """Begins with a token that template and tokenizer would both add, ends with one of three, has no pad."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    ends = [_N + 1, _N + 4, _N + 5]
    config = LlamaConfig(
        **_SIZE,
        vocab_size=_N + 6,
        rope_parameters=rope,
        tie_word_embeddings=False,
        bos_token_id=_N,
        eos_token_id=ends,
    )
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
    return StandIn(
        config,
        [*special, "<|eom_id|>", "<|eot_id|>"],
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        _LLAMA3,
        {"bos_token_id": _N, "eos_token_id": ends, "do_sample": True, "temperature": 0.6, "top_p": 0.9},
        ends=ends,
        likely_end=_N + 4,
    )


def _smollm2() -> StandIn:
    """Pads with its end token, id 2, and has a tied head."""
    config = LlamaConfig(
        **_SIZE,
        vocab_size=_N + 3,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return StandIn(
        config,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"},
        _CHATML % (_DEFAULT_SYSTEM % "You are small."),
        None,
        ends=[2],
        likely_end=2,
        special_first=True,
    )


STAND_INS = {
    "qwen2.5 tied": _qwen2_5(tied=True),
    "qwen2.5 untied": _qwen2_5(tied=False),
    "qwen3": _qwen3(),
    "llama3": _llama3(),
    "smollm2": _smollm2(),
}


def build_tokenizer(stand_in: StandIn) -> PreTrainedTokenizerFast:
    """Byte-level BPE without merges, one token a byte, and the special tokens of the stand-in."""
    special = list(stand_in.special)
    order = [*special, *_BYTES] if stand_in.special_first else [*_BYTES, *special]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(order)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if "bos_token" in stand_in.roles and not stand_in.special_first:
        bos = stand_in.roles["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, order.index(bos))]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **stand_in.roles)
    fast.chat_template = stand_in.template
    return fast


def write(name: str, directory: Path) -> Path:
    """The stand-in of that name as a Hugging Face directory."""
    stand_in = STAND_INS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(stand_in.config)
    # Ends its responses often, at very different lengths (a model that pads with its end token begins with
    # zeros in that row).
    row = model.get_output_embeddings().weight.data[stand_in.likely_end]
    row.normal_(std=4 * _SIZE["initializer_range"])
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if stand_in.generation is not None:
        GenerationConfig(**stand_in.generation).save_pretrained(directory)
    build_tokenizer(stand_in).save_pretrained(directory)
    return directory
