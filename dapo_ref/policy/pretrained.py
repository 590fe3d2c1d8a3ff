"""Models as people have them: what is read and checked before any weights are.

Tokenizer, model configuration and generation configuration are three files that may disagree. Here they are
brought together: which tokens end a response, and whether every token has an embedding.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from dapo_ref.config import Config
from dapo_ref.errors import ConfigError

SIDE_FILES = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.json", "chat_template.jinja", "chat_template.json"),
)
"""Of any model; a tokenizer names those of its kind."""

transformers.utils.logging.disable_progress_bar()  # of loading weights


def load_hf_config(model_dir: str) -> Any:
    """The model's configuration.

    Raises:
        ConfigError: `model_dir` is not a model.
    """
    try:
        return AutoConfig.from_pretrained(model_dir)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model: {model_dir!r} is neither a directory with a Hugging Face config.json nor a hub name "
            "that can be reached from here"
        ) from error


def load_tokenizer(model_dir: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, once it is known to fit the model.

    Raises:
        ConfigError: `model_dir` is not a model or has no tokenizer, no token ends a response, or the
            tokenizer has tokens that the model has no embedding for.
    """
    hf_config = load_hf_config(model_dir)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {model_dir!r} has no tokenizer that can be loaded") from error
    try:
        generation = GenerationConfig.from_pretrained(model_dir)
    except OSError:  # base models often have none
        generation = None
    try:
        end_ids = end_tokens(tokenizer, hf_config, generation)
        _require_embeddings(tokenizer, end_ids, hf_config.get_text_config().vocab_size)
    except ConfigError as error:
        raise ConfigError(f"model: {model_dir!r}: {error}") from error
    return tokenizer


def end_tokens(tokenizer: PreTrainedTokenizerBase, *configs: Any) -> list[int]:
    """Every token that ends a response: the tokenizer's, and those of the model's configurations.

    Args:
        tokenizer: of the model.
        configs: its configuration and its generation configuration; one that is None names none.

    Returns:
        Ids, sorted, at least one.

    Raises:
        ConfigError: none of them names one; such a model would never stop.
    """
    ids: set[int] = set()
    for holder in (tokenizer, *configs):
        value = getattr(holder, "eos_token_id", None)
        ids.update(value if isinstance(value, Iterable) else [value] if value is not None else [])
    if not ids:
        raise ConfigError(
            "no end token: expected `eos_token` in tokenizer_config.json, or `eos_token_id` in config.json "
            "or generation_config.json, found it in none of them"
        )
    return sorted(ids)


def _require_embeddings(
    tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int], num_embeddings: int
) -> None:
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest >= num_embeddings:
        raise ConfigError(
            f"the tokenizer has ids up to {largest} ({token!r}), expected ids below {num_embeddings}, the "
            "number of the model's embeddings: give it its own tokenizer, or resize its embeddings"
        )
    if max(end_ids) >= num_embeddings:
        raise ConfigError(
            f"end token {max(end_ids)} has no embedding, expected an id below {num_embeddings}: mend "
            "`eos_token_id` in config.json or generation_config.json"
        )


def special_tokens_only(own: GenerationConfig | None) -> GenerationConfig:
    """A model's generation configuration without its sampling rules.

    `generate` fills whatever a call leaves at None (a list of suppressed tokens, a minimal length) from the
    model's own configuration, so that the sampled policy would not be the trained one. And a published one
    that contradicts itself, which transformers reads but refuses to write, would end a run at its export.
    """
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return GenerationConfig(**{name: getattr(own, name, None) for name in names})


def copy_side_files(model_dir: str, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Puts a model's generation configuration, chat template and tokenizer files beside new weights, byte by
    byte: what transformers would write from memory may not be what it read.

    Args:
        model_dir: directory or hub name that the tokenizer was loaded from.
    """
    (directory / "generation_config.json").unlink(missing_ok=True)  # of the model in memory
    names = {*SIDE_FILES, *tokenizer.vocab_files_names.values()}
    for name in sorted(names):
        found = cached_file(
            model_dir, name, _raise_exceptions_for_missing_entries=False, local_files_only=True
        )
        if found is not None:
            shutil.copyfile(found, directory / name)
    templates = Path(model_dir) / "additional_chat_templates"
    if templates.is_dir():
        shutil.copytree(templates, directory / templates.name)


def exported_state(
    model: PreTrainedModel, parameters: Iterable[tuple[str, Tensor]], keep: bool = True
) -> dict[str, Tensor]:
    """What an export holds: the parameters, and the buffers that belong to the state, such as biases that
    choose experts.

    Args:
        parameters: (name, whole tensor), each valid until the next.
        keep: False goes through the parameters, a collective, and keeps nothing.
    """
    state = {}
    for name, value in parameters:
        if keep:
            state[name] = value.detach().to("cpu", copy=True)
    saved = model.state_dict().keys() if keep else ()
    return state | {name: buffer.cpu() for name, buffer in model.named_buffers() if name in saved}


def load_plain_model(config: Config) -> PreTrainedModel:
    """The whole model in this process, in evaluation mode, for sampling alone; to be called before ZeRO-3 is
    on, which would shard it.

    Raises:
        ConfigError: it cannot be loaded.
    """
    load_hf_config(config.model_dir)
    model = AutoModelForCausalLM.from_pretrained(config.model_dir, dtype=torch_dtype(config))
    model.generation_config = special_tokens_only(model.generation_config)
    return model.eval()


def torch_dtype(config: Config) -> torch.dtype:
    """Of weights and activations."""
    return torch.bfloat16 if config.precision == "bf16" else torch.float32
