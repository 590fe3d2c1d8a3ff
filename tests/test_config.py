"""`dapo_ref/config/`: what is read, what overrides what, and what is refused in which words."""

import dataclasses
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_ref.config import Config, config_text, load_config, read_config
from dapo_ref.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
FILES = [f for f in sorted((ROOT / "configs").rglob("*.yaml")) if f.parent.name != "accelerate"]


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def test_defaults_are_the_papers_values() -> None:
    """§4.1 and Eq. 13, each as in the paper; 512 × 16 responses in mini-batches of 512 are 16 updates."""
    config = Config()
    paper = {
        "prompts_per_step": 512,
        "group_size": 16,
        "responses_per_update": 512,
        "learning_rate": 1e-6,
        "warmup_steps": 20,
        "clip_eps_low": 0.2,
        "clip_eps_high": 0.28,
        "loss_aggregation": "token_level",
        "dynamic_sampling": True,
        "overlong_filtering": False,
        "soft_overlong_punishment": True,
        "max_response_length": 20480,
        "overlong_cache_length": 4096,
        "dual_clip": 0.0,
    }
    assert {name: getattr(config, name) for name in paper} == paper
    assert config.prompts_per_step * config.group_size // config.responses_per_update == 16


def test_later_files_and_then_the_command_line_override(tmp_path: Path) -> None:
    first = write(tmp_path, "first.yaml", "seed: 1\nwarmup_steps: 1\nrollout_steps: 1\n")
    second = write(tmp_path, "second.yaml", "warmup_steps: 2\nrollout_steps: 2\n")
    config = load_config(["--config", first, second, "--rollout_steps", "3", "--dynamic_sampling=false"])
    assert (config.seed, config.warmup_steps, config.rollout_steps) == (1, 2, 3)
    assert config.dynamic_sampling is False
    assert dataclasses.replace(Config(), **{"output_dir": "runs/first"}) == load_config(
        ["--config", write(tmp_path, "first.yaml", "")]
    )


def test_a_value_given_on_the_command_line_counts_even_if_it_is_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "clip_eps_high: 0.2\n")
    assert load_config(["--config", file, "--clip_eps_high", "0.28"]).clip_eps_high == 0.28


def test_output_dir_is_named_after_the_first_file(tmp_path: Path) -> None:
    files = [write(tmp_path, name, "seed: 1\n") for name in ("big.yaml", "small.yaml")]
    assert load_config(["--config", *files]).output_dir == str(Path("runs/big"))
    assert load_config(["--config", *files, "--output_dir", "here"]).output_dir == "here"
    assert load_config([]).output_dir == str(Path("runs/default"))


def test_a_number_that_yaml_takes_for_a_string_is_a_number(tmp_path: Path) -> None:
    """YAML 1.1 reads `1e-6`, without a dot, as a string."""
    config = load_config(["--config", write(tmp_path, "a.yaml", "learning_rate: 3e-6\ndual_clip: '10'\n")])
    assert (config.learning_rate, config.dual_clip) == (3e-6, 10.0)


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    """Every key set to something else than its default, unicode and line breaks among them."""
    changed: dict[str, Any] = {
        field.name: {bool: lambda v: not v, int: lambda v: 2 * v + 2, float: lambda v: v / 3}.get(
            type(field.default), lambda v: v
        )(field.default)
        for field in dataclasses.fields(Config)
    }
    changed |= {
        "prompt_template": "Löse:\n{question}\n— “Antwort: x”",
        "responses_per_update": changed["group_size"],
        "prompts_per_step": 3,
        "max_prompts_per_round": 7,
        "temperature": 0.1 + 0.2,
        "learning_rate": 1.1e-7,
        "dual_clip": 10.0,
        "precision": "fp32",
        "sampler": "continuous_batching",
        "on_round_limit": "stop",
        "on_checkpoint_error": "continue",
        "verifier": "math",  # what a reward function needs, and the next
        "compare_recipe": False,
        "reward_function": "a.py:b",
        "token_normalization": "group",
        "tracker": "wandb",
        "eval_data": "a.jsonl, b.jsonl",
        "output_dir": "runs/x",
        "prompt_date": "2026-12-01",
        "model": "no",
        "data": "1e-6",
        "reward": "other",
        "data_weights": "1, 2",
        "question_column": "a.b",
        "answer_column": "c",
        "answer_pattern": "#### (.+)",
        "loss_variant": "cispo",
        "dynamic_sampling": True,
        "min_pass_rate": 0.1,
        "soft_overlong_punishment": True,  # what a factor of its own needs
        "rollout_weights": "gathered",  # what continuous batching needs
        "importance_correction": "none",  # what it needs with a nucleus
        "importance_cap": 2.0,
        "rollout_kv_tokens": 0,  # what it needs
    }
    config = Config(**changed)
    (tmp_path / "config.yaml").write_text(config_text(config), encoding="utf-8")
    assert read_config(tmp_path / "config.yaml") == config
    same = [f.name for f in dataclasses.fields(Config) if getattr(config, f.name) == f.default]
    needed = ["rollout_kv_tokens", "rollout_weights", "dynamic_sampling", "soft_overlong_punishment"]
    needed += ["verifier", "compare_recipe"]
    weights = ["importance_correction", "importance_cap"]
    assert same == [*needed, "loss_aggregation", "advantage", *weights]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learning_rat: 1e-6\n", ["a.yaml", "'learning_rat'", "did you mean 'learning_rate'"]),
        ("clip_ratio_high: 0.28\n", ["a.yaml", "'clip_ratio_high'", "here clip_eps_high"]),
        ("group_size: many\n", ["a.yaml", "group_size", "int", "many"]),
        ("group_size: 1.5\n", ["a.yaml", "group_size", "int", "1.5"]),
        ("temperature: yes\n", ["a.yaml", "temperature", "float", "yes"]),
        ("dynamic_sampling: maybe\n", ["a.yaml", "dynamic_sampling", "maybe"]),
        ("loss_aggregation: mean\n", ["a.yaml", "loss_aggregation", "mean", "token_level", "sample_level"]),
        ("group_size: [16]\n", ["a.yaml", "group_size", "single value", "['16']"]),
        ("group_size:\n", ["a.yaml", "group_size", "single value", "None"]),
        ("- group_size\n", ["a.yaml", "key: value", "list"]),
        ("a: b: c\n", ["a.yaml", "not valid YAML", "line 1"]),
    ],
)
def test_a_bad_file_is_refused_by_file_and_key(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(["--config", write(tmp_path, "a.yaml", text)])
    assert [word for word in words if word not in str(error.value)] == []
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^nowhere\.yaml: cannot be read"):
        load_config(["--config", "nowhere.yaml"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--group_sise", "8"], ["command line", "'group_sise'", "did you mean 'group_size'"]),
        (["--group", "8"], ["command line", "'group'"]),  # no guessing from a beginning
        (["--no_dynamic_sampling"], ["'no_dynamic_sampling'", "did you mean 'dynamic_sampling'"]),
        (["--group_size", "many"], ["group_size", "int", "many"]),
        (["--group_size"], ["group_size", "expected one argument"]),
        (["--precision", "fp16"], ["precision", "fp16", "bf16", "fp32"]),
    ],
)
def test_a_bad_command_line_is_refused_by_key(argv: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(argv)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"prompts_per_step": 6, "group_size": 4, "responses_per_update": 16},
            # Mini-batches of whole groups: 4, 8, 12 or all 24.
            ["responses_per_update (16)", "prompts_per_step × group_size (6 × 4 = 24)", "to 12 or 24"],
        ),
        (
            {"prompts_per_step": 6, "group_size": 4, "responses_per_update": 6},
            ["responses_per_update (6)", "mini-batches of whole groups: set it to 4 or 8"],
        ),
        ({"group_size": 1}, ["group_size 1", "dynamic_sampling"]),
        (
            {"max_response_length": 100},
            ["overlong_cache_length (4096)", "max_response_length (100)", "soft_overlong_punishment"],
        ),
        ({"overlong_cache_length": 0}, ["overlong_cache_length (0)", "max_response_length (20480)"]),
        (
            {"loss_aggregation": "sample_level", "token_normalization": "group"},
            ["token_normalization group", "loss_aggregation token_level"],
        ),
        ({"max_prompts_per_round": 511}, ["max_prompts_per_round (511)", "prompts_per_step (512)"]),
    ],
)
def test_an_impossible_combination_names_its_keys(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        Config(**values)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(
    "values",
    [
        {"prompts_per_step": 6, "group_size": 4, "responses_per_update": 12},
        {"group_size": 1, "dynamic_sampling": False},
        {"max_response_length": 100, "soft_overlong_punishment": False},
        {"max_response_length": 4096, "overlong_cache_length": 4096},
        {"loss_aggregation": "sample_level"},
        {"token_normalization": "group"},
        {"max_prompts_per_round": 512},
        {"clip_eps_low": 0.0, "clip_eps_high": 0.0},
        {"top_p": 1.0, "dual_clip": 1.5, "learning_rate": 0.0},
    ],
)
def test_a_possible_neighbour_of_it_is_accepted_unchanged(values: dict[str, Any]) -> None:
    config = Config(**values)
    assert {name: getattr(config, name) for name in values} == values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group_size", 0),
        ("rollout_steps", 0),
        ("tokens_per_microbatch", 0),
        ("warmup_steps", -1),
        ("learning_rate", -1e-6),
        ("learning_rate", float("nan")),
        ("clip_eps_high", -0.1),
        ("clip_eps_low", 1.0),
        ("clip_eps_low", -0.1),
        ("adam_beta2", 1.0),
        ("temperature", 0.0),
        ("max_grad_norm", 0.0),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("dual_clip", 1.0),
        ("dual_clip", -10.0),
        ("prompt_template", "no place for it"),
    ],
)
def test_a_value_out_of_range_is_refused_by_key_and_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        Config(**{name: value})
    assert name in str(error.value)
    assert isinstance(value, str) or str(value) in str(error.value)


def test_limit_of_a_round() -> None:
    """0 stands for three batches, 3 × 512 = 1,536 as in the authors' code."""
    assert Config().prompts_per_round == 1536
    assert Config(max_prompts_per_round=600).prompts_per_round == 600


def test_the_samplers_part_holds_the_same_values() -> None:
    sampling = Config(temperature=0.7, rollout_batch_size=3).sampling
    assert (sampling.group_size, sampling.max_response_length, sampling.top_p) == (16, 20480, 1.0)
    assert (sampling.temperature, sampling.rollout_batch_size) == (0.7, 3)


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(ROOT)) for f in FILES])
def test_every_shipped_file_is_a_configuration_that_says_what_it_sets(file: Path) -> None:
    """Alone, as an overlay over the paper's values; every line of it arrives, and no key stands twice."""
    config = load_config(["--config", str(file)])
    content = yaml.safe_load(file.read_text())
    arrived = {key: getattr(config, key) for key in content}
    assert arrived == {key: type(arrived[key])(value) for key, value in content.items()}
    keys = [line.split(":")[0] for line in file.read_text().splitlines() if re.match(r"\w+:", line)]
    assert keys == list(content)


SWITCHES = (
    "clip_eps_low",
    "clip_eps_high",
    "overlong_filtering",
    "soft_overlong_punishment",
    "loss_aggregation",
    "dynamic_sampling",
)


def test_the_ladder_is_table_1() -> None:
    """Rung by rung, what differs from the one before; the last is the paper's objective, Config's default."""
    rungs = [read_config(f) for f in sorted((ROOT / "configs" / "ladder").glob("*.yaml"))]
    first = dict.fromkeys(SWITCHES, False)
    first |= {"clip_eps_low": 0.2, "clip_eps_high": 0.2, "loss_aggregation": "sample_level"}
    assert {name: getattr(rungs[0], name) for name in SWITCHES} == first
    changes = [
        {n: getattr(b, n) for n in SWITCHES if getattr(a, n) != getattr(b, n)} for a, b in pairwise(rungs)
    ]
    assert changes == [
        {"overlong_filtering": True},
        {"clip_eps_high": 0.28},
        {"overlong_filtering": False, "soft_overlong_punishment": True},
        {"loss_aggregation": "token_level"},
        {"dynamic_sampling": True},
    ]
    assert rungs[-1] == Config()


def test_each_rung_is_complete_by_itself() -> None:
    """It sets all six switches, so that it means the same over any other file."""
    for file in sorted((ROOT / "configs" / "ladder").glob("*.yaml")):
        text = file.read_text()
        assert [name for name in SWITCHES if f"\n{name}: " not in f"\n{text}"] == [], file


def test_the_recipe_differs_from_the_paper_where_it_says_so() -> None:
    """Five keys differ from the paper's values; the others are the authors' where the paper leaves it open,
    and `Config`'s defaults too."""
    recipe = load_config(["--config", str(ROOT / "configs" / "recipe.yaml"), "--output_dir", ""])
    differs = {
        f.name: getattr(recipe, f.name)
        for f in dataclasses.fields(Config)
        if getattr(recipe, f.name) != f.default and f.name != "output_dir"
    }
    assert differs == {
        "warmup_steps": 10,
        "on_round_limit": "stop",
        "verifier": "recipe",
        "boxed_answers": False,
        "dual_clip": 10.0,
    }
    assert (recipe.max_rounds, recipe.prompts_per_round) == (10, 1536)


def test_an_unknown_key_of_a_file_is_not_said_to_be_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("learning_rat: 1e-6\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_config(["--config", str(tmp_path / "a.yaml")])
    assert "command line" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"overlong_penalty_factor": 2.0, "soft_overlong_punishment": False},
            "overlong_penalty_factor needs",
        ),
        ({"overlong_penalty_factor": -1.0}, "overlong_penalty_factor must not be negative"),
        ({"rollout_kv_tokens": -1}, "rollout_kv_tokens must not be negative"),
        ({"rollout_kv_tokens": 9, "rollout_weights": "sharded"}, "rollout_kv_tokens needs sampler segments"),
        ({"importance_cap": 3.0}, "importance_cap needs importance_correction truncated"),
        ({"importance_correction": "truncated", "importance_cap": 0.9}, "importance_cap must be at least 1"),
        (
            {"importance_correction": "truncated", "sampler": "continuous_batching", "top_p": 0.9},
            "importance_correction truncated with sampler continuous_batching needs top_p 1",
        ),
        ({"min_pass_rate": 0.5, "max_pass_rate": 0.5}, "must be below max_pass_rate"),
        ({"max_pass_rate": 0.9, "dynamic_sampling": False}, "need dynamic_sampling true"),
        ({"advantage": "centred", "unbiased_std": False}, "unbiased_std false needs advantage normalized"),
        (
            {"loss_aggregation": "constant_length", "token_normalization": "group"},
            "constant_length divides by",
        ),
    ],
)
def test_switches_that_would_do_nothing_are_refused(values: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Config(**values)


def test_a_run_folder_stands_for_the_model_that_it_exported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert Config(model=str(run)).model_dir == str(run)
    (run / "config.yaml").touch()
    with pytest.raises(ConfigError, match=r"run is a run that has no .*run/model yet"):
        _ = Config(model=str(run)).model_dir
    (run / "model").mkdir()
    assert Config(model=str(run)).model_dir == str(run / "model")
    (run / "config.json").touch()  # a model beside some configuration of its owner's
    assert Config(model=str(run)).model_dir == str(run)
    assert Config(model="org/name").model_dir == "org/name"


def test_files_add_up_however_often_the_option_stands_there(tmp_path: Path) -> None:
    first = write(tmp_path, "first.yaml", "seed: 1\nwarmup_steps: 1\n")
    second = write(tmp_path, "second.yaml", "warmup_steps: 2\n")
    config = load_config(["--config", first, "--config", second])
    assert (config.seed, config.warmup_steps) == (1, 2)


@settings(max_examples=60, deadline=None)
@given(number=st.integers(-(10**9), 10**9), zeros=st.integers(0, 3), others=st.permutations(range(6)))
def test_integers_are_decimal_and_files_are_laid_over_each_other_in_order(
    tmp_path_factory: pytest.TempPathFactory, number: int, zeros: int, others: list[int]
) -> None:
    """Leading zeros mean nothing, whatever digits follow; of several files, the last one that has a key wins,
    wherever `--config` stands between them."""
    folder = tmp_path_factory.mktemp("files")
    text = f"{'-' if number < 0 else ''}{'0' * zeros}{abs(number)}"
    files = [write(folder, f"{i}.yaml", f"record_tokens: {i}\n") for i in others]
    files.append(write(folder, "last.yaml", f"warmup_steps: {text}\n"))
    cut = others[0]
    words = ["--config", *files[:cut], "--config", *files[cut:]] if cut else ["--config", *files]
    if number < 0:
        with pytest.raises(ConfigError, match=f"warmup_steps must not be negative, got {number}$"):
            load_config(words)
        return
    config = load_config(words)
    assert (config.warmup_steps, config.record_tokens) == (number, others[-1])


def test_a_file_means_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the key 'seed' stands there twice"):
        load_config(["--config", write(tmp_path, "a.yaml", "seed: 1\nseed: 2\n")])
    assert load_config(["--config", write(tmp_path, "a.yaml", "seed: 010\n")]).seed == 10
    with pytest.raises(ConfigError, match="1:30"):  # 90 to YAML
        load_config(["--config", write(tmp_path, "a.yaml", "seed: 1:30\n")])
    assert load_config(["--config", write(tmp_path, "a.yaml", "output_dir: no\n")]).output_dir == "no"
    assert not load_config(["--config", write(tmp_path, "a.yaml", "packing: no\n")]).packing
    file = write(tmp_path, "a.yaml", "prompt_date: 2026-12-01\n")
    assert load_config(["--config", file]).prompt_date == "2026-12-01"
    monkeypatch.setenv("HOME", "/home/me")
    file = write(tmp_path, "a.yaml", "output_dir: ~/run\neval_data: '~/a.jsonl, b.jsonl'\n")
    config = load_config(["--config", file, "--model=~/m"])
    assert (config.output_dir, config.model) == ("/home/me/run", "/home/me/m")
    assert config.eval_sources == ["/home/me/a.jsonl", "b.jsonl"]
    file = write(tmp_path, "a.yaml", "data: a,b~.jsonl\neval_data: a,b~.jsonl\n")
    config = load_config(["--config", file])
    assert (config.data, config.eval_data) == ("a,b~.jsonl", "a,b~.jsonl")
