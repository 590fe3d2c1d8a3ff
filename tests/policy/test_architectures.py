"""The architectures people train: tiny stand-ins with their chat templates, end tokens, heads and pads.

What is sampled is what is trained, generation in segments is plain generation, and loop, resume and
evaluation work on each. `standins.py` says what each imitates.
"""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import GenerationConfig

import evaluate
from dapo_ref.config import Config
from dapo_ref.data import Problem, encode_prompt, keep_short_prompts, load_problems
from dapo_ref.errors import ConfigError
from dapo_ref.policy.batching import microbatches
from dapo_ref.policy.logprobs import Policy
from dapo_ref.policy.pretrained import known_tokens, load_plain_model, load_tokenizer
from dapo_ref.policy.rollout import end_token_ids, sample_groups
from dapo_ref.run.files import read_metrics
from dapo_ref.scoring import Scorer
from tests.support.architecture_worker import EvenIsRight
from tests.support.helpers import (
    ROOT,
    OneProcess,
    filled_batch,
    greedy,
    launch,
    reference_logprobs,
    sample_with_logprobs,
)
from tests.support.standins import STAND_INS, StandIn, build_tokenizer, write
from tests.test_train import untimed

NAMES = list(STAND_INS)
SAMPLING = dataclasses.replace(Config().sampling, group_size=3, max_response_length=24, rollout_batch_size=5)
QUESTIONS = ["1 + 1?", "What is 17 + 5, please?", "9?"]  # ragged prompts


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    work = tmp_path_factory.mktemp("stand_ins")
    return {name: write(name, work / name) for name in NAMES}


@pytest.fixture(params=NAMES)
def stand_in(request, directories):
    """Name, model, tokenizer and end tokens, loaded as the project loads them."""
    directory = str(directories[request.param])
    tokenizer = load_tokenizer(directory)
    model = load_plain_model(Config(model=directory, precision="fp32"))
    prompts = [
        (problem, encode_prompt(problem, tokenizer))
        for problem in (Problem(({"role": "user", "content": text},), "0", text) for text in QUESTIONS)
    ]
    return SimpleNamespace(
        name=request.param,
        model=model,
        tokenizer=tokenizer,
        prompts=prompts,
        end_ids=end_token_ids(tokenizer, model),
    )


EXPECTED_PROMPTS = {
    "qwen2.5 tied": "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n9?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "qwen3": "<|im_start|>user\n9?<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n9?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "smollm2": "<|im_start|>system\nYou are small.<|im_end|>\n<|im_start|>user\n9?<|im_end|>\n"
    "<|im_start|>assistant\n",
}
EXPECTED_PROMPTS["qwen2.5 untied"] = EXPECTED_PROMPTS["qwen2.5 tied"]


def test_a_prompt_is_the_chat_template_with_one_token_a_special_token(stand_in):
    ids = stand_in.prompts[2][1]
    text = EXPECTED_PROMPTS[stand_in.name]
    assert stand_in.tokenizer.decode(ids) == text
    special = STAND_INS[stand_in.name].special
    shortened = text
    for token in special:
        shortened = shortened.replace(token, "#")
    assert len(ids) == len(shortened)  # none is spelled out, and none (Llama 3's first) stands twice


def test_every_file_is_asked_for_end_tokens(stand_in):
    assert stand_in.end_ids == list(STAND_INS[stand_in.name].ends)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_and_trained_log_probabilities_are_those_of_a_plain_forward(
    monkeypatch, stand_in, temperature
):
    sampling = dataclasses.replace(SAMPLING, temperature=temperature)
    torch.manual_seed(1)
    groups, sampled, segments = sample_with_logprobs(
        monkeypatch, stand_in.model, stand_in.tokenizer, stand_in.prompts, sampling, stand_in.end_ids
    )
    batch = filled_batch(EvenIsRight().score(groups))
    num_tokens = known_tokens(stand_in.tokenizer, stand_in.end_ids)
    plain = [
        reference_logprobs(stand_in.model, prompt, response, temperature, num_tokens)[0].detach()
        for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True)
    ]
    policy = Policy(stand_in.model)
    policy.num_tokens = num_tokens
    for micro in microbatches(batch, range(len(batch)), 400, 1, 0):
        logprobs, _ = policy(micro, temperature)
        for row, found in zip(micro.rows, logprobs.detach(), strict=True):
            trained = found[: len(plain[row])]
            assert torch.allclose(trained, plain[row], rtol=0, atol=1e-5)
            assert torch.allclose(trained, sampled[row], rtol=0, atol=1e-4)
    assert segments > 1
    lengths = [len(response) for response in batch.response_ids]
    assert len(set(lengths)) > 2  # some ended, by one of the end tokens
    assert min(lengths) < SAMPLING.max_response_length


@pytest.mark.parametrize("capacity", [2, 5])
def test_segments_and_refills_give_the_tokens_of_plain_greedy_decoding(stand_in, capacity):
    sampling = dataclasses.replace(SAMPLING, temperature=1e-4, group_size=2, rollout_batch_size=capacity)
    groups = sample_groups(stand_in.model, stand_in.tokenizer, stand_in.prompts, sampling, stand_in.end_ids)
    for group, (_, prompt) in zip(groups, stand_in.prompts, strict=True):
        expected = greedy(stand_in.model, prompt, 24, stand_in.end_ids)
        assert [r.response_ids for r in group.rollouts] == [expected, expected]


def test_a_model_brings_its_end_tokens_to_generation_and_no_sampling_rules(directories):
    # Its generation_config.json has temperature, top-k, top-p, and a minimal length; what `generate` is not
    # told it takes from there.
    own = load_plain_model(Config(model=str(directories["qwen3"]), precision="fp32")).generation_config
    assert own.to_diff_dict() == GenerationConfig(eos_token_id=own.eos_token_id).to_diff_dict()
    assert sorted(own.eos_token_id) == list(STAND_INS["qwen3"].ends)


# --- Loop, resume, evaluation -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory, directories):
    """Two steps on each stand-in, and the same run resumed after its first step: one launch for all."""
    work = tmp_path_factory.mktemp("architectures")
    (work / "sums.jsonl").write_text(
        "".join(json.dumps({"question": f"{n} + {n}?", "answer": str(2 * n)}) + "\n" for n in range(20))
    )
    base = {
        "data": str(work / "sums.jsonl"),
        "prompt_template": "{question}",
        "precision": "fp32",
        "rollout_steps": 2,
        "prompts_per_step": 4,
        "group_size": 4,
        "responses_per_update": 8,
        "max_response_length": 16,
        "overlong_cache_length": 4,
        "rollout_batch_size": 16,
        "tokens_per_microbatch": 700,
        "learning_rate": 1e-3,
        "warmup_steps": 1,
        "checkpoint_every": 1,
    }
    settings = {name: base | {"model": str(directory)} for name, directory in directories.items()}
    (work / "runs.json").write_text(json.dumps(settings))
    launch(ROOT / "tests/support/architecture_worker.py", str(work), num_processes=1)
    return work


@pytest.mark.parametrize("name", NAMES)
def test_the_loop_trains_and_a_resumed_run_is_the_run_that_was_not_stopped(runs, directories, name):
    whole, resumed = runs / name / "whole", runs / name / "resumed"
    expected, found = (read_metrics(folder / "metrics.jsonl") for folder in (whole, resumed))
    assert [record["updates"] for record in expected] == [2, 4]
    assert all(record["grad_norm"] > 0 and record["updates/skipped"] == 0 for record in expected)
    assert untimed(found) == untimed(expected)
    weights, other = (load_file(folder / "model/model.safetensors") for folder in (whole, resumed))
    start = load_file(directories[name] / "model.safetensors")
    assert weights.keys() == start.keys()  # a tied head is not written twice
    assert all(torch.equal(weights[key], other[key]) for key in weights)
    assert all(0 < float((weights[key] - start[key]).abs().max()) < 5e-3 for key in weights)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_reads_the_exported_model_and_ends_where_training_did(runs, directories, name):
    options = evaluate.Options(model=str(runs / name / "whole"), output="unused", samples_per_problem=16)
    config = evaluate.evaluation_config(options)
    tokenizer = load_tokenizer(config.model_dir)
    model = load_plain_model(config)
    assert end_token_ids(tokenizer, model) == list(STAND_INS[name].ends)
    assert tokenizer.chat_template == STAND_INS[name].template
    problems = load_problems(config.data, prompt_template=config.prompt_template)
    prompts = keep_short_prompts(problems[:3], tokenizer, config.max_prompt_length)
    OneProcess().seed(0)
    with Scorer(config) as scorer:
        ends = end_token_ids(tokenizer, model)
        groups = scorer.score(sample_groups(model, tokenizer, prompts, config.sampling, ends))
    assert [len(group.rollouts) for group in groups] == [16, 16, 16]
    ended = [r for group in groups for r in group.rollouts if not r.truncated]
    assert ended
    assert all(r.response_ids[-1] in STAND_INS[name].ends for r in ended)
    assert all("<|" not in r.text for group in groups for r in group.rollouts)
    assert not any(r.correct for group in groups for r in group.rollouts)


# --- What does not fit together -----------------------------------------------------------------------------


def changed(tmp_path, name="smollm2", **changes):
    """A directory with configurations and tokenizer but no weights, which are not needed to refuse it."""
    stand_in = STAND_INS[name]._replace(**changes)
    stand_in.config.save_pretrained(tmp_path)
    if stand_in.generation is not None:
        GenerationConfig(**stand_in.generation).save_pretrained(tmp_path)
    build_tokenizer(stand_in).save_pretrained(tmp_path)
    return str(tmp_path)


def config_with(stand_in: StandIn, **values):
    return type(stand_in.config)(**{**stand_in.config.to_dict(), **values})


def test_a_model_without_an_end_token_is_refused(tmp_path):
    config = config_with(STAND_INS["smollm2"], eos_token_id=None)
    directory = changed(tmp_path, config=config, roles={"pad_token": "<|im_end|>"})
    with pytest.raises(ConfigError, match=r"no end token: expected .* found it in none"):
        load_tokenizer(directory)


def test_an_end_token_in_one_file_is_enough(tmp_path):
    config = config_with(STAND_INS["smollm2"], eos_token_id=None)
    directory = changed(tmp_path, config=config, roles={}, generation={"eos_token_id": 0})
    assert load_tokenizer(directory).eos_token_id is None


def test_a_vocabulary_beyond_the_embedding_is_refused(tmp_path):
    config = config_with(STAND_INS["smollm2"], vocab_size=257)
    found = r"ids up to 258 \(.*\), expected ids below 257"
    with pytest.raises(ConfigError, match=found):
        load_tokenizer(changed(tmp_path, config=config))


def test_an_end_token_beyond_the_embedding_is_refused(tmp_path):
    directory = changed(tmp_path, generation={"eos_token_id": [2, 1000]})
    with pytest.raises(ConfigError, match="end token 1000 has no embedding, expected an id below 259"):
        load_tokenizer(directory)
