"""Each key of the configuration is seen to act: a short run with another value gives other numbers.

The runs are whole ones of `train.main`, in this process, with `PlainEngine` in the place of the engine. Keys
that act elsewhere name the test that sees them; a new key without a row fails.
"""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import train
from dapo_ref.config import Config
from tests.support.helpers import ROOT, random_llama, save_model
from tests.support.plain_engine import PlainEngine
from tests.test_docs import names_in

BASE: dict[str, Any] = {
    "data": "tiny:train:60",
    "prompt_template": "{question}",
    "precision": "fp32",
    "rollout_steps": 2,
    "prompts_per_step": 2,
    "group_size": 4,
    "responses_per_update": 4,  # two updates a step
    "max_response_length": 26,
    "overlong_cache_length": 8,
    "learning_rate": 3e-3,  # far enough for the clip to bind in the second update
    "warmup_steps": 1,
    "checkpoint_every": 0,
}
FREE = {"dynamic_sampling": False, "warmup_steps": 2}
"""Without the filter a step costs no more than its batch."""

# The other value, and what the base is changed by where the key does nothing in it.
ACTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "model": ("MODEL", FREE),
    "data": ("tiny:train:61", FREE),
    "prompt_template": ("{question} ", FREE),
    "max_prompt_length": (10, FREE),
    "rollout_steps": (1, FREE),
    "prompts_per_step": (3, FREE),
    "group_size": (2, FREE),
    "max_response_length": (24, FREE),
    "temperature": (0.8, FREE),
    "top_p": (0.6, FREE),
    "rollout_batch_size": (4, FREE),
    "rollout_kv_tokens": (100, FREE),
    "dynamic_sampling": (False, {}),
    "min_pass_rate": (0.3, {}),
    "max_pass_rate": (0.6, {}),
    "max_rounds": (1, {"prompts_per_step": 4}),
    "max_prompts_per_round": (2, {}),
    "soft_overlong_punishment": (False, FREE),
    "overlong_cache_length": (3, FREE),
    "overlong_penalty_factor": (2.0, FREE),
    "overlong_filtering": (True, FREE | {"max_response_length": 22}),
    "compare_recipe": (True, FREE),
    "clip_eps_low": (0.001, FREE),
    "clip_eps_high": (0.001, FREE),
    "loss_variant": ("cispo", FREE),
    "loss_aggregation": ("sample_level", FREE),
    "token_normalization": ("group", FREE | {"responses_per_update": 8}),
    "advantage": ("leave_one_out", FREE),
    "unbiased_std": (False, FREE),
    "importance_correction": ("truncated", FREE),
    "importance_cap": (1.0, FREE | {"importance_correction": "truncated"}),
    "dual_clip": (1.0001, FREE | {"learning_rate": 1e-2}),
    "responses_per_update": (8, FREE),
    "learning_rate": (1e-3, FREE),
    "warmup_steps": (4, FREE),
    "seed": (1, FREE),
}
LAYOUTS = "tests/data/test_layouts.py"
FOLDER = "tests/run/test_folder.py"
DISTRIBUTED = "tests/distributed/test_distributed.py"
UPDATE = DISTRIBUTED + ":test_a_step_of_several_updates_equals_plain_pytorch"
HELD_OUT = "tests/test_train.py:test_held_out_problems_are_evaluated_before_every_so_many_steps_and_last"
ELSEWHERE = {
    "precision": DISTRIBUTED + ":test_an_update_that_is_not_finite_is_skipped_on_all_processes",
    "gradient_checkpointing": DISTRIBUTED + ":test_what_must_change_nothing_changes_nothing",
    "rollout_weights": DISTRIBUTED + ":test_what_must_change_nothing_changes_nothing",
    **dict.fromkeys(("weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "max_grad_norm"), UPDATE),
    "tokens_per_microbatch": DISTRIBUTED + ":test_the_number_of_micro_batches_changes_nothing",
    "exceed_positions": "tests/policy/test_pretrained.py:test_each_token_has_a_position",
    "packing": "tests/policy/test_paths.py:test_packing_is_not_chosen_where_it_is_not_wanted",
    "prompt_date": "tests/data/test_prompt_dates.py:test_a_run_keeps_its_date",
    "sampler": "tests/policy/test_rollout.py:test_continuous_batching_samples_the_trained_distribution",
    "on_round_limit": "tests/test_train.py:test_the_choice_when_the_rounds_run_out",
    "reward": "tests/test_extending.py:test_the_reward_of_the_page_is_given_by_its_name",
    "verifier": "tests/test_scoring.py:test_the_authors_rule_can_be_chosen_and_compared_with",
    "boxed_answers": "tests/test_scoring.py:test_boxed_answers_can_be_switched_off",
    "verifier_workers": "tests/test_scoring.py:test_the_pool_is_made_as_configured",
    "verifier_timeout_s": "tests/test_scoring.py:test_the_pool_is_made_as_configured",
    "verifier_memory_mb": "tests/test_scoring.py:test_the_pool_is_made_as_configured",
    "data_weights": LAYOUTS + ":test_weights_are_shares_of_an_epoch",
    **dict.fromkeys(
        ("question_column", "answer_column"), LAYOUTS + ":test_sources_follow_one_another_without_repeats"
    ),
    "answer_pattern": LAYOUTS + ":test_a_run_picks_its_answers_by_the_pattern",
    "reward_function": "tests/test_own_reward.py:test_a_run_is_trained_by_the_function",
    "reward_in_process": "tests/test_own_reward.py:test_in_process_nothing_is_started",
    "max_skipped_updates": "tests/test_wiring.py:test_too_many_skipped_updates_in_a_row_end_the_run",
    "output_dir": FOLDER + ":test_a_new_folder_holds_the_resolved_configuration",
    "process_group_timeout_s": "tests/run/test_faults.py:test_a_rank_that_hangs_or_fails_is_named",
    "resume": "tests/test_train.py:test_a_resumed_run_is_the_run_that_was_not_stopped",
    "allow_config_change": FOLDER + ":test_a_change_of_the_mathematics_is_refused_unless_it_is_wanted",
    "record_tokens": HELD_OUT,
    **dict.fromkeys(("evaluate_every", "eval_data", "eval_samples_per_problem", "eval_top_p"), HELD_OUT),
    "checkpoint_every": "tests/test_wiring.py:test_checkpoints_come_when_they_are_due",
    "keep_checkpoints": "tests/run/test_checkpoint.py:test_only_the_newest_stay",
    "on_checkpoint_error": "tests/run/test_checkpoint.py:test_an_error_leaves_the_former_ones_intact",
    "tracker": "tests/test_wiring.py:test_checkpoints_come_when_they_are_due",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs with some settings; gives metrics, responses and weights, made once for each."""
    work = tmp_path_factory.mktemp("keys")
    model = str(save_model(work / "model", random_llama()))
    known: dict[str, Any] = {}
    numbers = itertools.count()

    def outcome(settings: dict[str, Any]) -> Any:
        settings = {key: model if value == "MODEL" else value for key, value in settings.items()}
        name = json.dumps(settings, sort_keys=True)
        if name not in known:
            folder = work / str(next(numbers))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(train, "Engine", PlainEngine)
                argv = [f"--{key}={value}" for key, value in (BASE | settings).items()]
                train.main([*argv, f"--output_dir={folder}"])
            known[name] = read(folder)
        return known[name]

    return outcome


def read(folder: Path) -> Any:
    """Metrics but for what is of the clock and the machine; responses; weights."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "memory/"))}
        for line in lines
    ]
    rollouts = [file.read_text(encoding="utf-8") for file in sorted((folder / "rollouts").iterdir())]
    return metrics, rollouts, load_file(folder / "model/model.safetensors")


def same(one: Any, other: Any) -> bool:
    weights = zip(one[2].values(), other[2].values(), strict=True)
    return one[:2] == other[:2] and all(torch.equal(a, b) for a, b in weights)


def test_every_key_has_a_row() -> None:
    keys = [field.name for field in dataclasses.fields(Config)]
    assert sorted([*ACTS, *ELSEWHERE]) == sorted(keys)
    assert ACTS.keys().isdisjoint(ELSEWHERE)


@pytest.mark.parametrize("key", ACTS)
def test_another_value_gives_other_numbers(run: Any, key: str) -> None:
    value, base = ACTS[key]
    assert value != (BASE | base).get(key, getattr(Config(), key))
    assert not same(run(base | {key: value}), run(base))


def test_the_same_values_give_the_same_numbers(run: Any) -> None:
    """Or the comparison above would prove nothing."""
    assert same(run(FREE | {"keep_checkpoints": 3}), run(FREE))


@pytest.mark.parametrize("key", ELSEWHERE)
def test_the_test_that_sees_a_key_elsewhere_exists(key: str) -> None:
    file, name = ELSEWHERE[key].split(":")
    assert name in names_in(ROOT / file)
