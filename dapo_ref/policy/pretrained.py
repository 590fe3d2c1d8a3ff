"""Models as people have them: what is read and checked before any weights are.

Tokenizer, model configuration and generation configuration are three files that may disagree. Here they are
brought together: which tokens end a response, and whether every token has an embedding.
"""

import json
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from dapo_ref.config import Config
from dapo_ref.errors import ConfigError, one_line

SIDE_FILES = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.json", "chat_template.jinja", "chat_template.json"),
)
"""Of any model; a tokenizer names those of its kind."""

CPU = torch.device("cpu")

transformers.utils.logging.disable_progress_bar()  # of loading weights


def load_hf_config(model_dir: str) -> Any:
    """The model's configuration.

    Raises:
        ConfigError: `model_dir` is not a model, or not one that transformers knows and that can be trained.
    """
    content = _read_json(model_dir, "config.json")
    if content is None:
        raise ConfigError(f"model: {model_dir!r} {NO_MODEL}")
    kind = content.get("model_type")
    if kind not in CONFIG_MAPPING and content.get("auto_map"):
        raise ConfigError(
            f"model: {model_dir!r} (type {kind!r}) needs Python code that comes with it (auto_map in "
            "config.json), which is never run here: take a model of a type that transformers has itself"
        )
    if kind not in CONFIG_MAPPING:
        raise ConfigError(
            f"model: {model_dir!r}: transformers {transformers.__version__} does not know the type {kind!r} "
            "(model_type in config.json): install a version that does, or take another model"
        )
    try:
        config = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
    except Exception as error:  # of any type's validation
        raise ConfigError(
            f"model: {model_dir!r}: config.json does not describe a model of type {kind!r}: {one_line(error)}"
        ) from error
    if getattr(config, "quantization_config", None):
        raise ConfigError(
            f"model: {model_dir!r} has quantized weights (quantization_config in config.json), which cannot "
            "be trained: take the model in bf16 or fp32"
        )
    return config


NO_MODEL = (
    "is neither a directory with a Hugging Face config.json nor a hub name that can be reached from here"
)


def _read_json(model_dir: str, name: str) -> dict[str, Any] | None:
    """A file of a model; None where it has none of that name.

    Raises:
        ConfigError: it holds something else than a JSON object, or there is no such model.
    """
    try:
        file = cached_file(model_dir, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {model_dir!r} {NO_MODEL}") from error
    if file is None:
        return None
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {file} is not valid JSON, fetch it again: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"model: {file} must hold a JSON object, found {type(content).__name__}")
    return content


def load_tokenizer(model_dir: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, once it is known to fit the model.

    Raises:
        ConfigError: `model_dir` is not a model or has no tokenizer, no token ends a response, or the
            tokenizer has tokens that the model has no embedding for.
    """
    hf_config = load_hf_config(model_dir)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    except Exception as error:  # of any tokenizer's code
        raise ConfigError(
            f"model: {model_dir!r} has no tokenizer that can be loaded, such as a whole tokenizer.json: "
            f"{one_line(error)}"
        ) from error
    if not set(tokenizer("Answer: 42", add_special_tokens=False)["input_ids"]) - {tokenizer.unk_token_id}:
        raise ConfigError(
            f"model: {model_dir!r}: its tokenizer makes nothing of `Answer: 42` ({len(tokenizer)} tokens): "
            "tokenizer.json, or the vocabulary's files, are missing"
        )
    own = load_generation_config(model_dir)
    try:
        end_ids = end_tokens(tokenizer, hf_config, own)
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
        ConfigError: none of them names one; such a model would never stop. Or one is no id.
    """
    ids: set[int] = set()
    for holder in (tokenizer, *configs):
        value = getattr(holder, "eos_token_id", None)
        values = value if isinstance(value, list | tuple) else [value] if value is not None else []
        if any(type(item) is not int or item < 0 for item in values):
            name = "generation_config.json" if isinstance(holder, GenerationConfig) else "config.json"
            raise ConfigError(f"`eos_token_id` of {name} must be an id or a list of ids, got {value!r}")
        ids.update(values)
    if not ids:
        raise ConfigError(
            "no end token: expected `eos_token` in tokenizer_config.json, or `eos_token_id` in config.json "
            "or generation_config.json, found it in none of them"
        )
    return sorted(ids)


def known_tokens(tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int]) -> int:
    """The number of tokens that may be sampled: a padded vocabulary has more, which decode to nothing."""
    return max(*tokenizer.get_vocab().values(), *end_ids) + 1


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


def load_generation_config(model_dir: str) -> GenerationConfig | None:
    """A model's generation configuration without its sampling rules; None where it has none.

    `generate` fills whatever a call leaves at None (a list of suppressed tokens, a minimal length) from the
    model's own configuration, so that the sampled policy would not be the trained one. And a published one
    that contradicts itself, which transformers refuses to read or to write, would end a run.

    Raises:
        ConfigError: its file is broken: which tokens end a response would be lost.
    """
    content = _read_json(model_dir, "generation_config.json")
    return special_tokens(**content) if content is not None else None


def special_tokens(
    bos_token_id: Any = None, eos_token_id: Any = None, pad_token_id: Any = None, **_: Any
) -> GenerationConfig:
    """A generation configuration of these alone."""
    return GenerationConfig(bos_token_id=bos_token_id, eos_token_id=eos_token_id, pad_token_id=pad_token_id)


def check_weights(model_dir: str) -> None:
    """Reads no weights, but what their files say about themselves.

    Raises:
        ConfigError: a directory has no weights, or lacks a part of them.
    """
    directory = Path(model_dir)
    if not directory.is_dir():
        return  # a hub name: what is fetched is checked as it comes
    first = next((directory / name for name in WEIGHTS if (directory / name).exists()), None)
    if first is None:
        raise ConfigError(f"model: {model_dir!r} has no weights, expected one of {', '.join(WEIGHTS)}")
    files = {first}
    if first.suffix == ".json":
        index = _read_json(model_dir, first.name) or {}
        files = {directory / name for name in index.get("weight_map", {}).values()}
    for file in sorted(files):
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt"):
                    pass
            elif file.read_bytes()[:2] == b"PK" and not zipfile.is_zipfile(file):
                raise ValueError("cut short")
        except (OSError, SafetensorError, ValueError) as error:
            raise ConfigError(
                f"model: {file} is missing or not whole, fetch it again: {one_line(error)}"
            ) from error


WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""In transformers' order."""


def load_model(config: Config, device: torch.device | None = None) -> PreTrainedModel:
    """The model with its weights, sharded if ZeRO-3 is on, and without sampling rules of its own.

    Args:
        device: where the weights go straight from their files; the CPU, or their shards, where None.

    Raises:
        ConfigError: it cannot be loaded, or its files lack some of its weights.
    """
    hf_config = load_hf_config(config.model_dir)
    own = load_generation_config(config.model_dir) or special_tokens(**vars(hf_config))
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            config.model_dir,
            dtype=torch_dtype(config),
            device_map=device and {"": device},
            generation_config=own,  # transformers reads no file then
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise ConfigError(
            f"model: the weights of {config.model_dir!r} cannot be loaded: {one_line(error)}"
        ) from error
    model, info = loaded
    wrong = sorted(info["missing_keys"]) + sorted(name for name, *_ in info["mismatched_keys"])
    if wrong:
        raise ConfigError(
            f"model: the files of {config.model_dir!r} lack {len(wrong)} of the model's weights, or have "
            f"them in another shape, such as {wrong[0]}; they would begin at random: fetch the model again"
        )
    model.generation_config = own
    return cast(PreTrainedModel, model)


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


def load_plain_model(config: Config, device: torch.device = CPU) -> PreTrainedModel:
    """The whole model in this process, in evaluation mode, for sampling alone; to be called before ZeRO-3 is
    on, which would shard it.

    Args:
        device: where the weights go straight from their files. The processes of a node then share what the
            operating system holds of the files, and none has a copy of its own beside its GPU's.

    Raises:
        ConfigError: as for `load_model`.
    """
    return load_model(config, device).eval()


def check_positions(config: Config, *prompts: Iterable[tuple[object, Sequence[int]]]) -> None:
    """Whether the model has a position for each token of a run.

    Args:
        prompts: (problem, prompt ids) pairs of data sets.

    Raises:
        ConfigError: it has not, and `exceed_positions` is not set, or cannot help: positions that are learned
            end where their table ends.
    """
    text_config = load_hf_config(config.model_dir).get_text_config(decoder=True)
    positions = getattr(text_config, "max_position_embeddings", None)
    longest_prompt = max(len(ids) for pairs in prompts for _, ids in pairs)
    needed = longest_prompt + config.max_response_length
    if not isinstance(positions, int) or positions <= 0 or needed <= positions:
        return
    rotary = getattr(text_config, "rope_parameters", None) is not None
    if rotary and config.exceed_positions:
        return
    raise ConfigError(
        f"model: {config.model!r} has {positions} positions (max_position_embeddings), expected "
        f"{needed}, the longest prompt ({longest_prompt}) and max_response_length "
        f"({config.max_response_length}): lower max_response_length or max_prompt_length"
        + (", or set exceed_positions to true" if rotary else "")
    )


def torch_dtype(config: Config) -> torch.dtype:
    """Of weights and activations."""
    return torch.bfloat16 if config.precision == "bf16" else torch.float32
