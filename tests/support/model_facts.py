"""Configurations of published models: the facts of their `config.json` on the hub that memory depends on.

Source: the file of that name in each model's repository, under the name that is the key here.
"""

from typing import Any

_QWEN: dict[str, Any] = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "hidden_act": "silu"}

FACTS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-Math-1.5B": {
        **_QWEN,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-Math-7B": {
        **_QWEN,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen2.5-32B": {
        **_QWEN,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "vocab_size": 152064,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
    "models/smollm2-135m-instruct": {
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}
FACTS["Qwen/Qwen2.5-7B"] = FACTS["Qwen/Qwen2.5-Math-7B"] | {"max_position_embeddings": 131072}

PARAMETERS = {
    "Qwen/Qwen2.5-Math-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "models/smollm2-135m-instruct": 134_515_008,
}
"""As the hub counts them."""
