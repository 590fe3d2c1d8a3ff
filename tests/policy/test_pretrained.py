"""`policy/pretrained.py`: what people's model folders may look like, and the line that each kind gets."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import BloomConfig, GenerationConfig, GPT2Config

import evaluate
import train
from dapo_ref.config import Config
from dapo_ref.errors import ConfigError
from dapo_ref.policy import pretrained
from dapo_ref.policy.pretrained import (
    check_positions,
    check_weights,
    end_tokens,
    exported_state,
    load_model,
    load_plain_model,
    load_tokenizer,
)
from tests.support.helpers import END, char_tokenizer, random_llama, save_model

Change = Callable[[Path], object]
WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "good", random_llama())


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def edited(name: str, **values: Any) -> Change:
    """A JSON file with other values; None takes the key out."""

    def change(folder: Path) -> None:
        file = folder / name
        content = json.loads(file.read_text(encoding="utf-8")) | values
        kept = {key: value for key, value in content.items() if value is not None}
        file.write_text(json.dumps(kept), encoding="utf-8")

    return change


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def without(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


CODE = {"AutoConfig": "configuration_new.NewConfig"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shutil.rmtree, "neither a directory with a Hugging Face config.json nor a hub name"),
        (without("config.json"), "neither a directory with a Hugging Face config.json nor a hub name"),
        (text("config.json", '{"a"'), r"config\.json is not valid JSON, fetch it again: .*line 1"),
        (text("config.json", "[1]"), r"config\.json must hold a JSON object, found list"),
        (edited("config.json", model_type="new"), r"transformers 5\..* does not know the type 'new'"),
        (edited("config.json", model_type=None), "does not know the type None"),
        (edited("config.json", model_type="new", auto_map=CODE), "needs Python code .* never run here"),
        (
            edited("config.json", hidden_size="big"),
            "does not describe a model of type 'llama'.*hidden_size",
        ),
        (edited("config.json", quantization_config={"quant_method": "gptq"}), "has quantized weights"),
        (without("tokenizer.json", "tokenizer_config.json"), "has no tokenizer that can be loaded"),
        (text("tokenizer.json", "{"), "has no tokenizer that can be loaded"),
        (text("generation_config.json", "{"), r"generation_config\.json is not valid JSON"),
        (text("generation_config.json", "[]"), r"generation_config\.json must hold a JSON object"),
        (edited("generation_config.json", eos_token_id=[[2]]), r"of generation_config\.json must be an id"),
        (edited("config.json", eos_token_id=-1), r"`eos_token_id` of config\.json must be an id .*got -1"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_its_own_line(
    folder: Path, change: Change, words: str
) -> None:
    change(folder)
    with pytest.raises(ConfigError, match=f"^model: .*{words}") as error:
        load_tokenizer(str(folder))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "roberta"])
def test_a_folder_without_a_vocabulary_is_refused(folder: Path, model_type: str) -> None:
    """For some types transformers makes up a tokenizer that knows no text."""
    without("tokenizer.json", "tokenizer_config.json")(folder)
    edited("config.json", model_type=model_type)(folder)
    with pytest.raises(ConfigError, match="tokenizer"):
        load_tokenizer(str(folder))


def test_code_of_a_known_type_is_not_asked_for(folder: Path) -> None:
    edited("config.json", auto_map=CODE)(folder)
    assert len(load_tokenizer(str(folder))) == 99


@given(value=st.recursive(st.integers(-2, 120) | st.booleans() | st.text(max_size=2), st.lists, max_leaves=4))
def test_end_tokens_are_ids_or_a_list_of_them(value: Any) -> None:
    listed = value if isinstance(value, list) else [value]
    config = GenerationConfig()
    config.eos_token_id = value
    if all(type(item) is int and item >= 0 for item in listed):
        assert end_tokens(char_tokenizer(), None, config) == sorted({END, *listed})
    else:
        with pytest.raises(ConfigError, match=r"of generation_config\.json must be an id or a list of ids"):
            end_tokens(char_tokenizer(), None, config)


def test_settings_of_the_models_file_take_no_part(folder: Path) -> None:
    """Among them some that transformers itself refuses to read."""
    rules = {"num_return_sequences": 3, "do_sample": False, "max_length": 5, "min_length": 9, "top_k": 7}
    edited("generation_config.json", **rules, eos_token_id=[2, 5])(folder)
    load_tokenizer(str(folder))
    own = load_model(Config(model=str(folder), precision="fp32")).generation_config
    assert own.to_diff_dict().keys() <= {
        *("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version")
    }
    assert own.eos_token_id == [2, 5]


def test_without_a_generation_configuration_the_models_own_ids_count(folder: Path) -> None:
    without("generation_config.json")(folder)
    assert load_model(Config(model=str(folder), precision="fp32")).generation_config.eos_token_id == END


def cut(name: str, size: int) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def in_parts(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in two files with an index; returns the second."""
    state = load_file(folder / "model.safetensors")
    second = {name: state.pop(name) for name in list(state) if "layers.1" in name}
    for name, part in (("one", state), ("two", second)):
        save_file(part, folder / f"{name}.safetensors", metadata={"format": "pt"})
    places = dict.fromkeys(state, "one.safetensors") | dict.fromkeys(second, "two.safetensors")
    text("model.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": places}))(folder)
    without("model.safetensors")(folder)
    return second


def part_cut(folder: Path) -> None:
    in_parts(folder)
    cut("two.safetensors", 900)(folder)


def part_missing(folder: Path) -> None:
    in_parts(folder)
    without("two.safetensors")(folder)


def pickled_and_cut(folder: Path) -> None:
    torch.save(random_llama().state_dict(), folder / "pytorch_model.bin")
    without("model.safetensors")(folder)
    check_weights(str(folder))
    cut("pytorch_model.bin", 9000)(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("model.safetensors"), r"has no weights, expected one of model\.safetensors"),
        (cut("model.safetensors", 0), r"model\.safetensors is missing or not whole"),
        (cut("model.safetensors", 50), r"model\.safetensors is missing or not whole"),
        (cut("model.safetensors", 20000), r"model\.safetensors is missing or not whole"),
        (part_cut, r"two\.safetensors is missing or not whole"),
        (part_missing, r"two\.safetensors is missing or not whole"),
        (pickled_and_cut, r"pytorch_model\.bin is missing or not whole"),
    ],
)
def test_weights_that_are_not_whole_are_refused_before_they_are_loaded(
    folder: Path, change: Change, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained.AutoModelForCausalLM, "from_pretrained", None)
    check_weights(str(folder))
    change(folder)
    with pytest.raises(ConfigError, match=words):
        check_weights(str(folder))


def test_weights_in_parts_are_whole(folder: Path) -> None:
    in_parts(folder)
    check_weights(str(folder))
    check_weights("a hub name")


@pytest.mark.parametrize("replaced", [None, torch.zeros(3, 3)])
def test_no_weight_begins_at_random_without_a_word(folder: Path, replaced: torch.Tensor | None) -> None:
    state = load_file(folder / "model.safetensors")
    del state[WEIGHT]
    if replaced is not None:
        state[WEIGHT] = replaced
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=rf"lack 1 of the model's weights, .* such as {WEIGHT}"):
        load_model(Config(model=str(folder), precision="fp32"))


def test_weights_that_cannot_be_loaded_are_a_line(folder: Path) -> None:
    cut("model.safetensors", 50)(folder)
    with pytest.raises(ConfigError, match="cannot be loaded: SafetensorError"):
        load_model(Config(model=str(folder), precision="fp32"))


def test_an_export_holds_parameters_and_buffers_of_the_state() -> None:
    module: Any = torch.nn.BatchNorm1d(2)  # has buffers in its state
    module.register_buffer("passing", torch.ones(1), persistent=False)
    state = exported_state(module, module.named_parameters())
    assert state.keys() == module.state_dict().keys()
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert state["weight"].data_ptr() != module.weight.data_ptr()
    seen = iter(module.named_parameters())
    assert exported_state(module, seen, keep=False) == {}
    assert list(seen) == []


def test_each_token_has_a_position(folder: Path) -> None:
    config = Config(model=str(folder), max_response_length=500, soft_overlong_punishment=False)
    prompts = [(None, [5] * 12), (None, [5] * 13)]
    check_positions(config, prompts[:1])  # 512 positions
    with pytest.raises(ConfigError, match=r"has 512 positions .* expected 513.*exceed_positions to true"):
        check_positions(config, prompts)
    beyond = dataclasses.replace(config, exceed_positions=True)
    check_positions(beyond, prompts[:1], prompts)
    GPT2Config(n_positions=512).save_pretrained(folder)  # learned
    check_positions(config, prompts[:1])
    with pytest.raises(
        ConfigError, match=r"has 512 positions .* lower max_response_length or max_prompt_length$"
    ):
        check_positions(beyond, prompts[:1], prompts)
    BloomConfig().save_pretrained(folder)  # a slope instead of positions
    check_positions(dataclasses.replace(config, max_response_length=10**6), prompts)


def test_commands_look_at_weights_and_positions_before_they_load(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(train, "Engine", None)
    monkeypatch.setattr(evaluate, "load_model", None)
    output = folder.parent / "output"
    given = [f"--model={folder}", "--data=tiny:train:4", "--prompt_template={question}", "--precision=fp32"]
    run = [*given, f"--output_dir={output}", "--soft_overlong_punishment=false"]
    asked = [*given, f"--output={output}"]
    for main, words in ((train.main, run), (evaluate.main, asked)):
        with pytest.raises(ConfigError, match="has 512 positions"):
            main([*words, "--max_response_length=510"])
    held_out = ["--eval_data=tiny:test:4", "--evaluate_every=1", "--data=one_digit_sums:train:4"]
    with pytest.raises(ConfigError, match="has 512 positions"):
        train.main([*run, *held_out, "--max_prompt_length=80", "--max_response_length=505"])
    cut("model.safetensors", 20000)(folder)
    for main, words in ((train.main, run), (evaluate.main, asked)):
        with pytest.raises(ConfigError, match="is missing or not whole"):
            main([*words, "--max_response_length=20"])
    assert not output.exists()


def test_weights_go_straight_to_a_device(good: Path) -> None:
    config = Config(model=str(good), precision="fp32")
    plain, loaded = load_plain_model(config), load_model(config)
    assert not plain.training
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in loaded.state_dict().items())
    elsewhere = load_plain_model(config, torch.device("meta"))
    assert {p.device.type for p in elsewhere.parameters()} == {"meta"}
