"""`dapo_ref/tiny/smollm2.py`: what it writes is the model of the package; it writes whole folders or none."""

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM

from dapo_ref.config import load_config
from dapo_ref.data import encode_prompt, load_problems
from dapo_ref.policy.pretrained import load_tokenizer
from dapo_ref.policy.rollout import end_token_ids
from dapo_ref.tiny import smollm2
from tests.support.helpers import ROOT

needs_package = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in (smollm2.PACKAGE, "gguf")),
    reason=f"needs `{smollm2.INSTALL}`",
)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The directory, and the model and tokenizer as transformers reads them from the GGUF file."""
    directory = tmp_path_factory.mktemp("models") / "smollm2"
    loaded = smollm2.load_gguf(smollm2.find_gguf())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smollm2, "load_gguf", lambda file: loaded)  # once: it takes seconds
        assert smollm2.main(["--output", str(directory)]) == 0
    return directory, *loaded


@needs_package
def test_the_converted_model_is_that_of_the_file(converted):
    directory, original, original_tokenizer = converted
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    tokenizer = load_tokenizer(str(directory))
    text = "The sum of 27 and 305 is 332.\nÜber 4 × 5 = 20, <|im_end|> is one token"
    ids = original_tokenizer(text)["input_ids"]
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text
    with torch.no_grad():
        batch = torch.tensor([ids])
        assert torch.equal(model(input_ids=batch).logits, original(input_ids=batch).logits)
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.get_input_embeddings().weight


@needs_package
def test_it_pads_with_its_end_token_and_spells_numbers_in_digits(converted):
    directory = converted[0]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), load_tokenizer(str(directory))
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, model.config.pad_token_id) == (2, 2, 2)
    assert end_token_ids(tokenizer, model) == [2]
    assert len(tokenizer("12345", add_special_tokens=False)["input_ids"]) == 5


@needs_package
@pytest.mark.parametrize(
    ("overlays", "examples"), [([], 1), (["word_problems"], 4), (["word_problems", "mixture"], 6)]
)
def test_the_examples_of_a_configuration_are_turns_of_the_chat(converted, overlays, examples):
    files = [ROOT / "configs/smollm2_135m_cpu.yaml"]
    files += [ROOT / f"configs/smollm2/{overlay}.yaml" for overlay in overlays]
    config = load_config(["--config", *map(str, files)])
    tokenizer = load_tokenizer(str(converted[0]))
    problem = load_problems(config.data, prompt_template=config.prompt_template)[0]
    ids = encode_prompt(problem, tokenizer)
    # System, question and answer of each example, question: turns that end, and one that begins.
    assert [ids.count(token) for token in (1, 2)] == [2 * examples + 3, 2 * examples + 2]
    assert tokenizer.decode(ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert len(ids) <= config.max_prompt_length


def test_a_folder_that_exists_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(smollm2, "find_gguf", lambda: tmp_path / "model.gguf")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    assert smollm2.main(["--output", str(tmp_path / "taken")]) == 2
    assert f"{tmp_path / 'taken'} exists already" in capsys.readouterr().err
    assert (tmp_path / "taken" / "file").read_text() == "mine"


def test_a_conversion_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    def fail(file):
        raise RuntimeError("in the middle")

    monkeypatch.setattr(smollm2, "load_gguf", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        smollm2.convert(tmp_path / "model.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", [smollm2.PACKAGE, "gguf"])
def test_a_missing_package_is_one_line_that_says_how_to_install_it(missing, tmp_path, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == missing else found(name) or object(),
    )
    assert smollm2.main(["--output", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: package {missing} is not installed: `{smollm2.INSTALL}`"
