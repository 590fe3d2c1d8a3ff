"""`dapo_ref/coming_from.py` and `docs/coming_from.md`: keys of other projects are answered with ours."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dapo_ref.coming_from import FRAMEWORKS, answer, counterpart
from dapo_ref.config import Config, load_config
from dapo_ref.errors import ConfigError
from tests.support.helpers import ROOT

PAGE = (ROOT / "docs/coming_from.md").read_text(encoding="utf-8")
OURS = [field.name for field in dataclasses.fields(Config)]


def table(project: str) -> str:
    """The page's table of a project."""
    lines = ["| key | here | |", "|---|---|---|"]
    for key, (ours, note) in FRAMEWORKS[project].items():
        shown = ", ".join(f"`{name}`" for name in ours.split(", ")) if ours else "none"
        lines.append(f"| `{key}` | {shown} | {note} |")
    return "\n".join(lines)


def message(argv: list[str]) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(argv)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("project", FRAMEWORKS)
def test_the_page_shows_the_table(project: str) -> None:
    shown = PAGE.split(f"\n## Keys of {project}\n\n")[1].split("\n\n")[0].strip()
    assert shown == table(project)


def test_every_counterpart_is_a_key_and_what_has_none_says_why() -> None:
    for rows in FRAMEWORKS.values():
        for key, (ours, note) in rows.items():
            assert set(filter(None, ours.split(", "))) <= set(OURS), key
            assert ours or note, key


def test_no_key_of_ours_is_said_to_be_anothers_except_for_what_it_is_here() -> None:
    for key in OURS:
        found = counterpart(key)
        assert found is None or found[1].ours == key, key


@pytest.mark.parametrize(
    ("key", "project", "ours"),
    [
        ("num_generations", "TRL", "group_size"),
        ("epsilon_high", "TRL", "clip_eps_high"),
        ("max_completion_length", "TRL", "max_response_length"),
        ("per_device_train_batch_size", "TRL", "responses_per_update"),
        ("loss_type", "TRL", "loss_aggregation"),
        ("beta", "TRL", ""),
        ("vllm_gpu_memory_utilization", "TRL", ""),
        ("clip_ratio_high", "verl", "clip_eps_high"),  # the end of a key with dots
        ("actor.clip_ratio_high", "verl", "clip_eps_high"),
        ("actor_rollout_ref.actor.clip_ratio_high", "verl", "clip_eps_high"),
        ("filter_groups.enable", "verl", "dynamic_sampling"),
        ("train_batch_size", "verl", "prompts_per_step"),
        ("ppo_mini_batch_size", "verl", "responses_per_update"),
        ("n", "verl", "group_size"),
        ("custom_reward_function.overlong_buffer.len", "verl", "overlong_cache_length"),
        ("reward.reward_kwargs.overlong_buffer_cfg.len", "verl", "overlong_cache_length"),
        ("actor_rollout_ref.ref.log_prob_use_dynamic_bsz", "verl", ""),
        ("n_samples_per_prompt", "OpenRLHF", "group_size"),
        ("actor.eps_clip_low_high", "OpenRLHF", "clip_eps_low, clip_eps_high"),
    ],
)
def test_a_key_is_answered_with_ours(key: str, project: str, ours: str) -> None:
    found = counterpart(key)
    assert found is not None
    assert (found[0], found[1].ours) == (project, ours)


@pytest.mark.parametrize("key", ["enable", "batch_size", "group_sise", "ratio_high"])
def test_what_could_mean_several_things_or_nothing_is_not_answered(key: str) -> None:
    assert counterpart(key) is None


def test_a_command_that_lacks_our_key_does_not_name_it() -> None:
    assert answer("num_generations", ["model", "data"]) is None
    assert answer("beta", ["model", "data"]) is not None


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--num_generations", "8"], ["unknown key 'num_generations': TRL's, here group_size;"]),
        (["--num-generations=8"], ["'num_generations': TRL's, here group_size"]),
        (["--beta=0"], ["unknown key 'beta': TRL's, none here: no KL term"]),
        (["n=16"], ["command line: unknown key 'n': verl's, here group_size"]),
        (
            ["--seed", "1", "--epsilon", "0.2", "--beta", "0", "--grup_size", "2"],
            ["unknown keys 'epsilon': TRL's, here clip_eps_low", "; 'beta'", "did you mean 'group_size'?"],
        ),
        (
            ["--config", "configs/tiny_cpu.yaml", "+actor_rollout_ref.rollout.n=16"],  # --config takes both
            ["'actor_rollout_ref.rollout.n': verl's, here group_size"],
        ),
        (["group_size=8"], ["'group_size': write it as --group_size VALUE"]),
        (["trainer.device=cpu"], ["'trainer.device': no key here has a dot in it"]),
        (["--zzz", "1"], ["'zzz': no key is spelled like it"]),
    ],
)
def test_the_command_line_answers_all_keys_at_once(argv: list[str], parts: list[str]) -> None:
    shown = message(argv)
    assert [part for part in parts if part not in shown] == []
    assert ("docs/coming_from.md" in shown) == ("'s, " in shown)


def test_a_nested_file_is_answered_by_its_leaves(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(
        "data:\n  train_batch_size: 512\nactor_rollout_ref:\n  rollout: {n: 16}\nseed: 1\n", encoding="utf-8"
    )
    shown = message(["--config", str(file)])
    assert shown.startswith(f"{file}: unknown keys 'data.train_batch_size': verl's, here prompts_per_step; ")
    assert "'actor_rollout_ref.rollout.n': verl's, here group_size; docs/" in shown


def test_of_many_keys_the_first_are_answered_and_the_others_counted(tmp_path: Path) -> None:
    """Ten keys, eight of them in words."""
    file = tmp_path / "a.yaml"
    file.write_text("".join(f"vllm_{number}: 1\n" for number in range(10)), encoding="utf-8")
    shown = message(["--config", str(file)])
    assert shown.count("none here") == 8
    assert "; and 2 more; docs/coming_from.md" in shown


def settings(heading: str) -> list[tuple[str, str, Any]]:
    """Rows `theirs=value` | `ours: value` below a heading of the page."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)=\S+` \| `(\w+): (\S+)` \|$", part, re.MULTILINE)
    return [(theirs, ours, yaml.safe_load(value)) for theirs, ours, value in rows]


def agrees(rows: list[tuple[str, str, Any]], config: Config) -> None:
    for theirs, ours, value in rows:
        found = counterpart(theirs)
        assert found is not None, theirs
        assert found[1].ours == ours, theirs
        assert getattr(config, ours) == value, theirs


def test_the_recipe_of_verl_is_what_the_named_files_set() -> None:
    files = [str(ROOT / "configs" / name) for name in ("qwen2.5_32b.yaml", "recipe.yaml")]
    config = load_config(["--config", *files])
    rows = settings("verl's DAPO recipe")
    assert len(rows) == 22
    agrees(rows, config)
    assert config.prompts_per_round == 1536
    assert config.responses_per_update == 32 * config.group_size


def test_the_settings_of_trl_are_what_the_pages_file_sets(tmp_path: Path) -> None:
    file = tmp_path / "trl.yaml"
    file.write_text(PAGE.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    config = load_config(["--config", str(file)])
    rows = settings("TRL's DAPO settings")
    assert len(rows) == 8
    agrees(rows, config)
    assert (config.dynamic_sampling, config.soft_overlong_punishment) == (False, True)
    assert config.prompts_per_step * config.group_size == config.responses_per_update
