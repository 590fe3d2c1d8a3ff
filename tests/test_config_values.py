"""`dapo_ref/config/`: defaults, ranges and combinations, each at its ends; what a resumed run may change."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from dapo_ref.config import Config, config_text, load_config
from dapo_ref.config.changes import Change, differences
from dapo_ref.errors import ConfigError

# Where the default is another one than the paper's or the authors', and where it names a thing.
OTHERWISE = {
    *("model", "data", "eval_data"),
    *("token_normalization", "dual_clip", "on_round_limit", "max_prompts_per_round"),
}
OURS = {
    **{"precision": "bf16", "gradient_checkpointing": False, "rollout_steps": 1000, "seed": 0},
    **{"rollout_batch_size": 128, "rollout_kv_tokens": 0, "rollout_weights": "gathered"},
    **{"sampler": "segments", "dual_clip": 0.0, "on_round_limit": "train", "max_prompts_per_round": 0},
    **{"token_normalization": "minibatch", "reward": "dapo", "verifier": "math", "compare_recipe": False},
    **{"boxed_answers": True, "verifier_workers": 1, "verifier_timeout_s": 5.0, "verifier_memory_mb": 1024},
    "importance_correction": "none",
    **{"reward_function": "", "reward_in_process": False, "importance_cap": 2.0, "packing": True},
    **{"tokens_per_microbatch": 32768, "max_skipped_updates": 5, "process_group_timeout_s": 1800},
    **{"resume": False, "allow_config_change": False, "checkpoint_every": 10, "keep_checkpoints": 2},
    **{"keep_rollouts": 0, "on_checkpoint_error": "stop", "record_tokens": 0, "evaluate_every": 0},
    **{"tracker": "none", "model": "tiny", "data": "tiny:train", "eval_data": "", "exceed_positions": False},
    **dict.fromkeys(("data_weights", "question_column", "answer_column", "answer_pattern"), ""),
    **dict.fromkeys(("prompt_date", "output_dir"), ""),
}


def test_every_default_is_the_papers_or_the_authors_where_its_help_says_so_or_ours() -> None:
    """`[paper: …]` comes before `[recipe: …]`; a key with neither has its row here."""
    others: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        marks = dict(re.findall(r"(paper|recipe): ([^],]+)", field.metadata["help"]))
        marks = {kind: value for kind, value in marks.items() if value != "none"}
        value = marks.get("paper", marks.get("recipe"))
        if value is None or field.name in OTHERWISE:
            others[field.name] = field.default
        else:
            assert str(field.default).lower() == value.lower() or field.default == float(value), field.name
    assert others.pop("prompt_template").startswith("{question}\n\nReason step by step.")
    assert others == OURS


@pytest.mark.parametrize(
    ("names", "bad", "good", "words"),
    [
        (
            "max_prompt_length rollout_steps prompts_per_step group_size max_response_length "
            "rollout_batch_size max_rounds verifier_workers verifier_memory_mb responses_per_update "
            "tokens_per_microbatch max_skipped_updates keep_checkpoints process_group_timeout_s "
            "eval_samples_per_problem",
            (0, -1),
            (),
            "must be at least 1",
        ),
        (
            "max_prompts_per_round warmup_steps weight_decay checkpoint_every learning_rate seed "
            "clip_eps_high dual_clip evaluate_every record_tokens overlong_penalty_factor rollout_kv_tokens "
            "keep_rollouts",
            (-1,),
            (0,),
            "must not be negative",
        ),
        ("temperature verifier_timeout_s max_grad_norm adam_eps", (0, -1), (1e-9,), "must be above 0"),
        ("adam_beta1 adam_beta2 clip_eps_low", (-0.1, 1), (0, 0.999), r"must be in \[0, 1\)"),
        ("top_p eval_top_p", (0, 1.1), (1e-9, 1), r"must be in \(0, 1\]"),
        ("importance_cap", (0.9,), (), "must be at least 1"),
        ("prompt_date", ("2026-1-1", "today", "2026-12-011"), ("2026-12-01",), "must be YYYY-MM-DD"),
        (
            "answer_pattern",
            ("#### .+", "(a)(b)", "("),
            ("#### (.+)",),
            "must be a regular expression with one",
        ),
        ("data_weights", ("1,,2", "1 2", "-1", "a"), ("1", "1.5, 2"), "must be numbers with commas"),
        ("dual_clip", (0.5, 1), (1.01, 0), "must be above 1, or 0"),
    ],
)
def test_each_range_has_its_ends(names: str, bad: Any, good: Any, words: str) -> None:
    for name in names.split():
        for value in bad:
            with pytest.raises(ConfigError, match=f"{name} {words}"):
                Config(**{name: value})
        for value in good:
            assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"min_pass_rate": -0.1}, "both in"),
        ({"max_pass_rate": 1.1}, "both in"),
        ({"min_pass_rate": 0.2, "dynamic_sampling": False}, "need dynamic_sampling true"),
        ({"sampler": "continuous_batching", "rollout_weights": "sharded"}, "needs rollout_weights gathered"),
        ({"rollout_kv_tokens": 9, "sampler": "continuous_batching"}, "needs sampler segments"),
        ({"reward_function": "a.py:f", "verifier": "recipe"}, "takes the place of the verifier"),
        ({"advantage": "leave_one_out", "unbiased_std": False}, "leave_one_out has no std"),
        ({"overlong_cache_length": 20481}, "at most max_response_length"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Config(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"min_pass_rate": 0.1, "max_pass_rate": 0.9},
        {"importance_correction": "truncated", "top_p": 0.9, "importance_cap": 1.0},
        {"importance_correction": "truncated", "sampler": "continuous_batching"},
        {"rollout_weights": "sharded"},
        {"reward_function": "a.py:f", "reward_in_process": True},
        {"evaluate_every": 1, "eval_data": "a"},
        {"eval_data": "a"},
        {"advantage": "centred"},
        {"overlong_penalty_factor": 0.5},
    ],
)
def test_what_goes_together_is_accepted(values: dict[str, Any]) -> None:
    config = Config(**values)
    assert {name: getattr(config, name) for name in values} == values


def test_what_a_resumed_run_may_change() -> None:
    """A new key belongs to the mathematics until someone says that it does not."""
    free = "rollout_steps checkpoint_every keep_checkpoints on_checkpoint_error tracker keep_rollouts "
    free += "process_group_timeout_s max_skipped_updates verifier_workers compare_recipe reward_in_process "
    free += "record_tokens evaluate_every eval_data eval_samples_per_problem eval_top_p exceed_positions"
    inexact = "tokens_per_microbatch packing gradient_checkpointing rollout_batch_size rollout_kv_tokens "
    inexact += "rollout_weights sampler"
    keys = {field.name for field in dataclasses.fields(Config)}
    same = {key for key in keys if not Change(key, 0, 1).changes_mathematics}
    assert same == {*free.split(), *inexact.split()}
    assert {key for key in keys if ";" in str(Change(key, 0, 1))} == set(inexact.split())
    before = Config(output_dir="a", seed=1)
    after = Config(output_dir="b", seed=2, resume=True, allow_config_change=True, group_size=32)
    assert differences(before, after) == [Change("group_size", 16, 32), Change("seed", 1, 2)]


def test_each_path_knows_the_home_and_a_list_may_stand_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = "data: ~/d.jsonl\nmodel: ~/m\noutput_dir: ~/o\neval_data: [~/a.jsonl, tiny:test]\n"
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    config = load_config(["--config", str(file)])
    assert (config.data, config.model, config.output_dir) == (
        *("/home/me/d.jsonl", "/home/me/m"),
        "/home/me/o",
    )
    assert config.eval_sources == ["/home/me/a.jsonl", "tiny:test"]
    lines = config_text(config).splitlines()
    assert lines[0] == "model: /home/me/m"  # in the order of the keys
    assert "é" in config_text(Config(prompt_template="é {question}"))


def test_how_rows_are_read_and_held_out_problems_are_asked_follows_from_the_keys() -> None:
    config = Config(question_column="q", answer_column="a.b", answer_pattern="(.)", group_size=8)
    layout = config.layout(optional=True)
    assert (layout.question, layout.answer, layout.pattern) == ("q", "a.b", "(.)")
    assert (layout.optional, layout.keep_fields) == (True, False)
    other = dataclasses.replace(config, reward_function="a.py:f").layout(optional=False)
    assert (other.optional, other.keep_fields) == (False, True)
    sampling = config.sampling
    assert {f.name: getattr(sampling, f.name) for f in dataclasses.fields(sampling)} == {
        f.name: getattr(config, f.name) for f in dataclasses.fields(sampling)
    }
    asked = dataclasses.asdict(config.eval_sampling)
    held_out = {"group_size": 32, "top_p": 0.7, "temperature": 1.0, "sampler": "segments"}
    assert asked == dataclasses.asdict(sampling) | held_out
