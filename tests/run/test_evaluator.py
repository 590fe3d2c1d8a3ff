"""`dapo_ref/run/evaluator.py` and `evaluate.py`: each option acts, and a stopped evaluation goes on."""

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

from dapo_ref.config import Config, config_text
from dapo_ref.data import Problem
from dapo_ref.distributed import shards
from dapo_ref.errors import ConfigError
from dapo_ref.evaluation import figures
from dapo_ref.run.evaluator import (
    Evaluator,
    chunks,
    data_names,
    equal_shares,
    in_order,
    load_eval_tasks,
    load_tasks,
    metrics_of,
)
from dapo_ref.run.manifest import write_manifest, write_text
from dapo_ref.scoring import Scorer
from dapo_ref.types import Group, Rollout
from dapo_ref.verifier import Status, Verdict
from evaluate import Options, Output, evaluate, evaluation_config, find_model, of_samples, whole_problems
from tests.support.helpers import END, OneProcess, char_tokenizer, ending_llama, random_llama

CONFIG = Config(
    data="d",
    prompt_template="{question}",
    max_prompt_length=30,
    max_response_length=20,
    overlong_cache_length=5,
    rollout_batch_size=8,
    **of_samples(4),
    prompts_per_step=1,
    dynamic_sampling=False,
)
MODEL = ending_llama()


class Process(OneProcess):
    """One of several, each run after the other."""

    def __init__(self, rank=0, world_size=1):
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self.is_main = rank == 0


def write_data(path, count, times=1, start=0):
    lines = [
        json.dumps({"question": f"{start + i} + 1 = ", "answer": str(start + i + 1)}) for i in range(count)
    ]
    path.write_text("\n".join(lines * times) + "\n")
    return str(path)


@pytest.fixture
def tasks(tmp_path):
    files = [write_data(tmp_path / "one.jsonl", 5), write_data(tmp_path / "two.jsonl", 3, start=4)]
    return load_tasks(files, CONFIG, char_tokenizer())[0]


def run(tasks, output, finished=(), process=None, seed=0, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    with Scorer(config) as scorer:
        evaluator = Evaluator(char_tokenizer(), [END], config.sampling, seed, scorer)
        return evaluate(process or Process(), evaluator, MODEL, tasks, output, finished)


def said(rows):
    return [(row["data"], row["problem"], row["sample"], row["response"]) for row in rows]


def test_processes_batch_sizes_and_stops_change_no_response(tasks, tmp_path):
    expected = said(run(tasks, Output(tmp_path / "a")))
    assert [row[:3] for row in expected] == [
        (name, i, g) for name, n in (("one", 5), ("two", 3)) for i in range(n) for g in range(4)
    ]
    for size in (1, 6, 64):
        assert said(run(tasks, Output(tmp_path / f"b{size}"), rollout_batch_size=size)) == expected
    halves = [run(tasks, Output(tmp_path / "c"), process=Process(rank, 2)) for rank in (0, 1)]
    assert all(halves)
    assert sum(map(len, halves)) == len(expected)  # nothing twice
    assert sum(map(len, halves)) == len(expected)
    assert said(in_order(halves[1] + halves[0] + halves[1], tasks)) == expected
    # Stopped after the first two parts, the second of them half written.
    output = Output(tmp_path / "d")
    output.open({})
    first = run(tasks[:4], output)
    part = tmp_path / "d/partial/rank_00000.jsonl"
    part.write_text(part.read_text()[: -len(json.dumps(first[-1])) // 2])
    kept = whole_problems(output.open({}), 4)
    assert {(row["data"], row["problem"]) for row in kept} == {("one", 0), ("one", 1), ("one", 2)}
    assert said(run(tasks, output, kept)) == expected
    assert said(run(tasks, Output(tmp_path / "e"), seed=1)) != expected


def test_what_is_finished_is_not_sampled_again(tasks, tmp_path, monkeypatch):
    rows = run(tasks, Output(tmp_path / "a"))
    monkeypatch.setattr(Evaluator, "rows", None)
    assert said(run(tasks, Output(tmp_path / "b"), rows)) == said(rows)


def test_a_problem_keeps_its_responses_in_another_place(tasks, tmp_path):
    rows = run(tasks, Output(tmp_path / "a"))
    # 4 + 1 is problem 4 of the first file and problem 0 of the second.
    texts = [
        [row["response"] for row in rows if (row["data"], row["problem"]) == key]
        for key in (("one", 4), ("two", 0))
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1  # its samples differ
    evaluator = Evaluator(char_tokenizer(), [END], CONFIG.sampling, 0, None)
    assert len({key for task in tasks for key in evaluator._keys(task)}) == (8 - 1) * 4


def test_rows_hold_what_the_figures_are_made_of(tasks, tmp_path):
    rows = run(tasks, Output(tmp_path / "a"))
    assert all(0 < row["mean_prob"] < 1 for row in rows)
    assert set(figures(rows)) == {"one", "two", "all"}
    json.dumps(rows, allow_nan=False)


def test_limit_and_repeats_and_the_same_source_twice(tmp_path):
    aime = write_data(tmp_path / "aime-2024.jsonl", 3, times=32)
    tokenizer = char_tokenizer()
    tasks, repeats = load_tasks([aime], CONFIG, tokenizer)
    assert (len(tasks), repeats) == (3, 32)
    assert len(load_tasks([aime, "tiny:test:7"], CONFIG, tokenizer, limit=2)[0]) == 4
    uneven = tmp_path / "uneven.jsonl"
    uneven.write_text((tmp_path / "aime-2024.jsonl").read_text() + '{"question": "1", "answer": "1"}\n')
    assert load_tasks([str(uneven)], CONFIG, tokenizer)[1] == 1
    with pytest.raises(ConfigError, match="different data sets"):
        load_tasks([aime, aime], CONFIG, tokenizer)


def test_the_file_that_repeats_most_decides_and_a_source_may_lack_the_named_columns(tmp_path, caplog):
    often, seldom = (write_data(tmp_path / f"{n}.jsonl", 2, times=n) for n in (8, 2))
    template = dataclasses.replace(
        CONFIG, prompt_template="Q {question}", question_column="q", answer_column="a"
    )
    tasks, repeats = load_tasks([often, seldom], template, char_tokenizer())
    assert repeats == 8
    assert tasks[0].prompt[0].messages == ({"role": "user", "content": "Q 0 + 1 ="},)
    short = dataclasses.replace(CONFIG, max_prompt_length=8)
    long = tmp_path / "long.jsonl"
    long.write_text('{"question": "1", "answer": "1"}\n{"question": "1 + 1 + 1", "answer": "3"}\n')
    caplog.clear()
    load_tasks([str(long)], short, char_tokenizer())
    assert "those 1 problems count as wrong" in caplog.text


def test_responses_are_verified_while_others_are_sampled_and_a_stop_is_heard(tasks):
    """The scorer is told of each response as it ends, and each token asks whether to go on."""
    heard, begun = [], []
    with Scorer(CONFIG) as scorer:
        begin = scorer.begin
        scorer.begin = lambda problem, rollout: begun.append(rollout) or begin(problem, rollout)
        evaluator = Evaluator(char_tokenizer(), [END], CONFIG.sampling, 0, scorer)
        scorer.score = lambda groups: heard.append("sampled") or Scorer.score(scorer, groups)
        rows = evaluator.rows(MODEL, tasks[:2], lambda: heard.append(len(begun)))
    assert len(rows) == len(begun) == 8
    assert heard.index("sampled") == len(heard) - 1 > 0
    assert any(0 < count < 8 for count in heard[:-1])


def test_a_probability_that_is_not_finite_is_none(tasks, monkeypatch):
    monkeypatch.setattr(Rollout, "mean_prob", math.nan)
    with Scorer(CONFIG) as scorer:
        rows = Evaluator(char_tokenizer(), [END], CONFIG.sampling, 0, scorer).rows(MODEL, tasks[:1])
    assert [row["mean_prob"] for row in rows] == [None] * 4
    assert {row["answer_class"] for row in rows} == {None}  # no answer among them


def test_names_of_data_sets_are_short_and_different():
    assert data_names(["a/x.jsonl", "tiny:test", "b/y.parquet"]) == ["x", "tiny:test", "y"]
    assert data_names(["a/x.jsonl", "b/x.jsonl", "all.jsonl"]) == ["a/x.jsonl", "b/x.jsonl", "all.jsonl"]


def test_chunks_hold_whole_problems_and_shares_come_out_even(tasks):
    sampling = CONFIG.sampling
    assert [len(part) for part in chunks(tasks, sampling)] == [2, 2, 2, 2]
    small = dataclasses.replace(sampling, rollout_batch_size=2)
    assert [len(part) for part in chunks(tasks, small)] == [1] * 8
    assert equal_shares([tasks[:1], tasks[1:2], tasks[2:3]], 2) == [
        tasks[:1],
        tasks[1:2],
        tasks[2:3],
        tasks[2:3],
    ]


def group(*answers, reference="1/2"):
    verdicts = [
        Verdict(answer == "right", Status.CORRECT if answer == "right" else Status.WRONG, answer)
        for answer in answers
    ]
    return Group(Problem((), reference, "t"), [1], [Rollout([3], "", False, verdict) for verdict in verdicts])


def test_classes_are_those_of_the_verifier():
    answers = group("3/4", "right", "0.75", None, "2", "right", r"\frac{3}{4}", "2.0")
    with Scorer(CONFIG) as scorer:
        assert scorer.answer_classes(answers) == [1, 0, 1, None, 2, 0, 1, 2]
    with Scorer(dataclasses.replace(CONFIG, verifier="recipe")) as scorer:
        assert scorer.answer_classes(answers) == [1, 0, 2, None, 3, 0, 4, 5]
        assert scorer.answer_classes(group("2", "3", "2", "right", "3")) == [1, 2, 1, 0, 2]


def test_output_is_written_whole_and_not_over_other_results(tasks, tmp_path):
    output = Output(tmp_path / "out")
    assert output.open({"seed": 0, "data": ["d"]}) == []
    rows = run(tasks, output)
    with pytest.raises(ConfigError, match="with seed 0, not 1"):
        output.open({"seed": 1, "data": ["d"]})
    found = figures(rows)
    output.finish({"data_sets": found}, rows)
    assert sorted(path.name for path in output.path.iterdir()) == [
        *("responses.jsonl", "results.json", "results.svg", "settings.json")
    ]
    assert len((output.path / "responses.jsonl").read_text().splitlines()) == 32
    with pytest.raises(ConfigError, match="already holds results"):
        output.open({"seed": 0, "data": ["d"]})
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Output(tmp_path / "file" / "out").open({})


# --- Options and models -------------------------------------------------------------------------------------


def test_an_output_that_is_a_file_or_inside_a_model_is_refused(tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"output: .*config\.json is a file; name a folder"):
        Output(tmp_path / "config.json").open({})
    with pytest.raises(ConfigError, match=rf"lies inside the model {tmp_path}: choose a folder elsewhere"):
        Output(tmp_path / "evaluation").open({})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "tokenizer.json"]


def test_defaults_are_the_papers():
    config = evaluation_config(Options(model="somewhere", data=["file"], output="out"))
    assert (config.group_size, config.temperature, config.top_p) == (32, 1.0, 0.7)
    assert config.model == "somewhere"


def test_options_override_the_runs_settings(tmp_path):
    run_folder(tmp_path)
    (tmp_path / "model").mkdir()
    given = {"temperature": 0.5, "top_p": 0.9, "prompt_template": "Q {question}", "max_prompt_length": 9}
    given |= {"max_response_length": 7, "rollout_batch_size": 3, "precision": "bf16", "seed": 4}
    config = evaluation_config(Options(model=str(tmp_path), output="o", samples_per_problem=5, **given))
    assert {key: getattr(config, key) for key in given} == given
    assert config.group_size == 5
    assert (config.sampler, config.rollout_weights) == ("segments", "gathered")


def run_folder(path):
    text = config_text(dataclasses.replace(CONFIG, model="base", data="d.jsonl"))
    (path / "config.yaml").write_text(text)
    return path


def test_a_run_folder_brings_its_own_settings(tmp_path):
    run_folder(tmp_path)
    options = Options(model=str(tmp_path), output="out")
    with pytest.raises(ConfigError, match=r"has no .*model yet"):
        evaluation_config(options)
    (tmp_path / "model").mkdir()
    config = evaluation_config(options)
    assert (config.model, config.data, config.max_response_length) == (str(tmp_path / "model"), "d.jsonl", 20)


@pytest.mark.parametrize("given", [{"model": "m"}, {"output": "o"}])
def test_model_and_output_are_needed(given):
    with pytest.raises(ConfigError, match="--model and --output"):
        Options(**given)


def checkpoint_of(model, folder, world_size=2):
    """Partitions as ZeRO-3 of some processes leaves them: flat, padded to a multiple, cut."""
    folder.mkdir(parents=True)
    contents = [{"numel": {}, shards.PARTITIONS: {}, "others": {}} for _ in range(world_size)]
    for name, parameter in model.named_parameters():
        size = -(-parameter.numel() // world_size)
        flat = nn.functional.pad(parameter.data.flatten(), (0, size * world_size - parameter.numel()))
        for content, part in zip(contents, flat.split(size), strict=True):
            content["numel"][f"model.{name}"] = parameter.numel()
            content[shards.PARTITIONS][f"model.{name}"] = {shards.WEIGHT: part.clone()}
    for rank, content in enumerate(contents):
        torch.save(content, folder / f"rank_{rank:05d}.pt")
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_is_loaded_into_the_plain_model(tmp_path, tied):
    trained, plain = (random_llama(tied=tied, seed=seed, intermediate_size=63) for seed in (1, 2))
    folder = checkpoint_of(trained, tmp_path / "run/checkpoints/step_000010")
    shards.load_plain(plain, sorted(folder.glob("rank_*.pt")))
    state = plain.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in trained.state_dict().items())
    ids = torch.tensor([[1, 5, 9]])
    assert torch.equal(plain(ids).logits, trained(ids).logits)
    with pytest.raises(ValueError, match="parameters differ"):
        shards.load_plain(random_llama(num_hidden_layers=1), sorted(folder.glob("rank_*.pt")))


def test_a_checkpoint_brings_its_runs_model_and_must_be_whole(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoints/step_000010"
    folder.mkdir(parents=True)
    run_folder(tmp_path)
    write_manifest(folder, {"loop.json": write_text(folder / "loop.json", '{"prompt_date": "2026-12-01"}')})
    assert find_model(folder)[0] == folder
    found = evaluation_config(Options(model=str(folder), output="o"))
    assert (found.model, found.prompt_date) == ("base", "2026-12-01")  # and the date of its prompts
    elsewhere = tmp_path / "step_000010"  # a name alone makes no checkpoint
    elsewhere.mkdir()
    assert find_model(elsewhere) == (elsewhere, None)
    with pytest.raises(ConfigError, match=r"newest checkpoint is .*step_000010"):
        find_model(tmp_path)
    (folder / "loop.json").write_text("{ }")
    with pytest.raises(ConfigError, match="not a whole checkpoint"):
        find_model(folder)
    monkeypatch.setenv("RANK", "1")
    assert find_model(folder)[0] == folder  # one process reads it all, and ends the others


# --- Within a run -------------------------------------------------------------------------------------------


def test_eval_data_is_checked_and_split():
    with pytest.raises(ConfigError, match="needs eval_data"):
        Config(evaluate_every=5, eval_data=" , ")
    config = Config(
        evaluate_every=5, eval_data="a.jsonl, b.jsonl", eval_samples_per_problem=4, eval_top_p=0.6
    )
    assert config.eval_sources == ["a.jsonl", "b.jsonl"]
    sampling = dataclasses.replace(config, temperature=0.5, sampler="continuous_batching").eval_sampling
    assert (sampling.group_size, sampling.top_p, sampling.temperature) == (4, 0.6, 1.0)
    assert sampling.sampler == "segments"
    assert load_eval_tasks(Config(), char_tokenizer()) == []


def test_figures_become_metrics(tasks, tmp_path):
    metrics = metrics_of(run(tasks, Output(tmp_path / "a")))
    assert {"eval/one/avg@4", "eval/two/maj@4", "eval/all/pass@2", "eval/all/length_mean"} <= set(metrics)
    assert not [key for key in metrics if "verdicts" in key or "problems" in key]


@pytest.mark.parametrize(("zero", "words"), [("temperature", "give --top_p 1e-9"), ("top_p", "must be in")])
def test_zero_is_a_value_and_refused_where_it_is_none(zero, words):
    with pytest.raises(ConfigError, match=words):
        evaluation_config(Options(model="m", output="o", **{zero: 0.0}))


def test_seed_zero_is_given_and_a_negative_limit_is_refused(tmp_path):
    text = config_text(Config(seed=5))
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "model").mkdir()
    assert evaluation_config(Options(model=str(tmp_path), output="o")).seed == 5
    assert evaluation_config(Options(model=str(tmp_path), output="o", seed=0)).seed == 0
    with pytest.raises(ConfigError, match="max_prompt_length must be at least 1, got 0"):
        evaluation_config(Options(model=str(tmp_path), output="o", max_prompt_length=0))
    with pytest.raises(ConfigError, match="group_size must be at least 1, got 0"):
        evaluation_config(Options(model=str(tmp_path), output="o", samples_per_problem=0))
    with pytest.raises(ConfigError, match="limit must be 0"):
        evaluation_config(Options(model="m", output="o", limit=-1))


def test_the_exported_model_is_asked_as_its_run_and_as_it_was_trained(tmp_path):
    template, model = "Q {question} A", tmp_path / "run/model"
    model.mkdir(parents=True)
    text = config_text(Config(prompt_template=template, max_response_length=9000))
    (tmp_path / "run/config.yaml").write_text(text, encoding="utf-8")
    of_run = evaluation_config(Options(model=str(tmp_path / "run"), output="o"))
    assert evaluation_config(Options(model=str(model), output="o")) == of_run
    assert (of_run.prompt_template, of_run.prompt_date) == (template, "")
    prompts = {"prompt_template": template, "prompt_date": "2026-12-01"}
    (model / "prompts.json").write_text(json.dumps(prompts), encoding="utf-8")
    elsewhere = model.rename(tmp_path / "elsewhere")
    found = evaluation_config(Options(model=str(elsewhere), output="o"))
    assert (found.prompt_template, found.prompt_date) == (template, "2026-12-01")
    given = evaluation_config(Options(model=str(elsewhere), output="o", prompt_template="{question}"))
    assert given.prompt_template == "{question}"
    (elsewhere / "prompts.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prompts\.json cannot be read"):
        evaluation_config(Options(model=str(elsewhere), output="o"))


def test_a_stopped_evaluation_goes_on_with_its_date(tmp_path):
    assert Output(tmp_path).prompt_date == ""
    Output(tmp_path).open({"prompt_date": "2026-12-01"})
    assert Output(tmp_path).prompt_date == "2026-12-01"


def test_problems_that_are_too_long_are_not_asked_and_count_as_wrong(tmp_path):
    lines = [{"question": question, "answer": "1"} for question in ("1", "1" * 99, "2", "2" * 99)]
    file = tmp_path / "one.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    config = dataclasses.replace(CONFIG, max_prompt_length=50, prompt_template="{question}")
    tasks, _ = load_tasks([str(file)], config, char_tokenizer())
    assert [(task.problem, task.too_long) for task in tasks] == [(0, False), (1, True), (2, False), (3, True)]
    rows = run(tasks, Output(tmp_path / "a"))
    assert [(row["problem"], row["sample"]) for row in rows] == [(i, g) for i in range(4) for g in range(4)]
    assert [row["length"] > 0 for row in rows] == [True] * 4 + [False] * 4 + [True] * 4 + [False] * 4
    assert [task.problem for part in chunks(tasks, config.sampling) for task in part] == [0, 2]
    assert rows[4]["prompt"] == "<|bos|>" + "1" * 99 + "\n"
    for row in rows[:4] + rows[8:12]:
        row["correct"] = True
    (found,) = figures(rows).values()
    asked = rows[:4] + rows[8:12]
    assert (found["problems"], found["too_long"], found["avg@4"]) == (4, 2, 0.5)
    assert found["length_mean"] == sum(row["length"] for row in asked) / 8
    assert found["truncated_frac"] == sum(row["truncated"] for row in asked) / 8
    assert sum(found["verdicts"].values()) == 8
