"""The exported model: the trained weights and buffers, and every other file as the source has it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DeepseekV3Config, GenerationConfig

import train
from dapo_ref.config import Config
from dapo_ref.data import Problem, encode_prompt
from dapo_ref.errors import ConfigError
from dapo_ref.run.folder import RunFolder
from tests.support.helpers import SMALL_MODEL, char_tokenizer, greedy, launch, random_llama, save_model
from tests.support.plain_engine import PlainEngine

TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
SETTINGS = [
    *("--data=one_digit_sums:train:8", "--prompts_per_step=2", "--group_size=2", "--responses_per_update=4"),
    *("--dynamic_sampling=false", "--max_response_length=6", "--soft_overlong_punishment=false"),
    *("--precision=fp32", "--verifier_workers=1", "--max_prompt_length=200", "--rollout_steps=1"),
    *("--checkpoint_every=0", "--prompt_template=Q {question} A", "--prompt_date=2026-12-01"),
]


def add_files(directory: Path) -> dict[str, bytes]:
    """A generation configuration with rules of its own, and tokenizer files as nobody would write them."""
    tokenizer = char_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    GenerationConfig(eos_token_id=[2, 5], do_sample=True, top_k=7, top_p=0.9).save_pretrained(directory)
    file = directory / "tokenizer_config.json"
    file.write_text(file.read_text(encoding="utf-8") + "\n\n", encoding="utf-8")
    names = ("generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja")
    return {name: (directory / name).read_bytes() for name in names}


def exported_by(monkeypatch: pytest.MonkeyPatch, model: Path, run: Path) -> Path:
    monkeypatch.setattr(train, "Engine", PlainEngine)
    train.main([f"--model={model}", f"--output_dir={run}", *SETTINGS])
    return run / "model"


def test_the_files_beside_the_weights_are_those_of_the_source(tmp_path: Path, monkeypatch: Any) -> None:
    source = save_model(tmp_path / "source", random_llama())
    files = add_files(source)
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates/tools.jinja").write_text(TEMPLATE, encoding="utf-8")
    found = exported_by(monkeypatch, source, tmp_path / "run")
    assert {name: (found / name).read_bytes() for name in files} == files
    assert (found / "additional_chat_templates/tools.jinja").read_text(encoding="utf-8") == TEMPLATE
    prompts = json.loads((found / "prompts.json").read_text(encoding="utf-8"))
    assert prompts == {"prompt_template": "Q {question} A", "prompt_date": "2026-12-01"}


def test_a_runs_model_chats_with_plain_transformers_as_the_readme_shows(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer is the likeliest one to the prompt that training would make of the question."""
    run = tmp_path / "run"
    monkeypatch.setattr(train, "Engine", PlainEngine)
    settings = [word for word in SETTINGS if not word.startswith("--prompt_template")]
    train.main([f"--output_dir={run}", *settings, "--prompt_template={question}"])
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from transformers import pipeline\n.*?)```", readme, flags=re.DOTALL)
    assert code.count('"runs/tiny_cpu/model"') == 1
    exec(code.replace("runs/tiny_cpu/model", str(run / "model")), {})
    said = capsys.readouterr().out
    (question,) = re.findall(r'"content": "(.*?)"', code)
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    prompt = encode_prompt(Problem(({"role": "user", "content": question},), "0", "readme"), tokenizer)
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    answer = greedy(model, prompt, 256, [tokenizer.eos_token_id])
    assert said.endswith(tokenizer.decode(answer, skip_special_tokens=True) + "\n")


def test_no_generation_configuration_is_made_up(tmp_path: Path, monkeypatch: Any) -> None:
    source = save_model(tmp_path / "source", random_llama())
    (source / "generation_config.json").unlink()
    found = exported_by(monkeypatch, source, tmp_path / "run")
    assert not (found / "generation_config.json").exists()
    assert AutoTokenizer.from_pretrained(found).get_vocab() == char_tokenizer().get_vocab()


def test_a_former_model_is_exchanged(tmp_path: Path, monkeypatch: Any) -> None:
    source = save_model(tmp_path / "source", random_llama())
    found = exported_by(monkeypatch, source, tmp_path / "run")
    (found / "of_before").touch()
    train.main([f"--model={source}", f"--output_dir={tmp_path / 'run'}", *SETTINGS, "--resume"])
    assert not (found / "of_before").exists()
    assert [p.name for p in (tmp_path / "run").glob("*_model")] == []


def test_a_model_that_is_a_link_is_refused_at_the_start(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").open(Config())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="run/model is not a folder"):
        RunFolder(tmp_path / "run").open(Config(resume=True))


def test_buffers_of_the_state_are_exported_too(tmp_path: Path) -> None:
    """Biases that choose experts: at learning rate 0 the model comes out as it went in, key by key."""
    sizes = SMALL_MODEL | {"num_key_value_heads": 4}
    config = DeepseekV3Config(
        **sizes,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "v_head_dim"), 16),
        **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    biases = [name for name, _ in model.named_buffers() if name.endswith("e_score_correction_bias")]
    for name in biases:
        model.get_buffer(name).copy_(torch.randn(4))
    assert biases
    source = tmp_path / "source"
    model.save_pretrained(source)
    char_tokenizer().save_pretrained(source)
    (tmp_path / "none.yaml").touch()
    paths = [f"--config={tmp_path / 'none.yaml'}", f"--model={source}", f"--output_dir={tmp_path / 'run'}"]
    arguments = [*paths, "--learning_rate=0", *SETTINGS]
    launch(Path("train.py"), *arguments, num_processes=2)
    before = AutoModelForCausalLM.from_pretrained(source).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model").state_dict()
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
