"""`evaluate.main` in this process: each option reaches what it is for; a stopped evaluation goes on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import evaluate
from dapo_ref.config import Config, config_text
from dapo_ref.errors import ConfigError
from dapo_ref.run.evaluator import Evaluator
from tests.data.test_prompt_dates import DATED
from tests.support.helpers import OneProcess, char_tokenizer, ending_llama, save_model

SHORT = ["--max_response_length=12", "--max_prompt_length=40", "--prompt_template={question}"]


class Alone(OneProcess):
    """The only process; closed once, at the end."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`evaluate.main` without a process group; gives results and rows of an output folder."""
    monkeypatch.setattr(evaluate, "make_accelerator", lambda config: None)
    monkeypatch.setattr(evaluate, "Processes", lambda accelerator, seed: Alone(seed))

    def run(output: Path, *options: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        closed = Alone.closed
        evaluate.main([*SHORT, "--precision=fp32", f"--output={output}", *options])
        assert Alone.closed == closed + 1
        lines = (output / "responses.jsonl").read_text(encoding="utf-8").splitlines()
        return json.loads((output / "results.json").read_text(encoding="utf-8")), [*map(json.loads, lines)]

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", ending_llama())


def data_file(path: Path, questions: Sequence[str], times: int = 1) -> str:
    lines = [json.dumps({"question": question, "answer": "1"}) + "\n" for question in questions]
    path.write_text("".join(lines * times), encoding="utf-8")
    return str(path)


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return [row["response"] for row in rows]


def test_limit_seed_samples_and_data_are_those_of_the_command(
    main: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = data_file(tmp_path / "one.jsonl", ["1+0=", "2-1=", "3-2="])
    two = data_file(tmp_path / "two.jsonl", ["4-3=", "5-4=", "6-5="])
    given = [f"--model={model}", "--data", one, two, "--limit=2", "--samples_per_problem=3"]
    results, rows = main(tmp_path / "a", *given, "--seed=4", "--temperature=0.9", "--top_p=0.8")
    assert [(row["data"], row["problem"], row["sample"]) for row in rows] == [
        (name, problem, sample) for name in ("one", "two") for problem in range(2) for sample in range(3)
    ]
    assert list(results["data_sets"]) == ["one", "two", "all"]
    assert results["problems"] == 4  # over all data sets
    settings = {"model": str(model), "data": [one, two], "limit": 2, "seed": 4, "group_size": 3}
    settings |= {"temperature": 0.9, "top_p": 0.8, "max_prompt_length": 40, "max_response_length": 12}
    settings |= {"precision": "fp32", "prompt_template": "{question}", "verifier": "math"}
    settings |= {"boxed_answers": True, "reward_function": ""}
    assert results | settings == results
    written = json.loads((tmp_path / "a/settings.json").read_text(encoding="utf-8"))
    assert written == settings
    assert f"{results['avg@3']:.4f}" in capsys.readouterr().out
    same = main(tmp_path / "b", *given, "--seed=4", "--temperature=0.9", "--top_p=0.8")[1]
    assert same == rows
    for other in (["--seed=5", "--temperature=0.9", "--top_p=0.8"], ["--seed=4", "--top_p=0.8"]):
        assert texts(main(tmp_path / str(other), *given, *other)[1]) != texts(rows)


def test_a_file_that_repeats_its_problems_says_how_many_samples(
    main: Any, model: Path, tmp_path: Path
) -> None:
    often = data_file(tmp_path / "often.jsonl", ["1+0=", "2-1="], times=5)
    twice = data_file(tmp_path / "twice.jsonl", ["3-2="], times=2)
    given = [f"--model={model}", "--data", often, twice]
    results, rows = main(tmp_path / "a", *given)
    assert (results["samples_per_problem"], results["problems"], len(rows)) == (5, 3, 15)
    assert main(tmp_path / "b", *given, "--samples_per_problem=1")[0]["samples_per_problem"] == 1


def test_a_run_is_evaluated_on_its_own_data_where_none_are_named(
    main: Any, model: Path, tmp_path: Path
) -> None:
    one, two = (data_file(tmp_path / f"{name}.jsonl", [f"{name}="]) for name in ("1", "2"))
    run = tmp_path / "run"
    run.mkdir()
    config = Config(model="gone", data=f"{one}, {two}", tracker="tensorboard")
    (run / "config.yaml").write_text(config_text(config), encoding="utf-8")
    model.rename(run / "model")
    found = evaluate.evaluation_config(evaluate.Options(model=str(run), output="o"))
    assert found.tracker == "none"
    results, rows = main(tmp_path / "a", f"--model={run}", "--samples_per_problem=2")
    assert results["data"] == [one, two]
    assert [row["data"] for row in rows] == ["1", "1", "2", "2"]


def test_what_was_stopped_goes_on_and_is_not_asked_again(
    main: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = data_file(tmp_path / "d.jsonl", ["1+0=", "2-1=", "3-2="])
    given = [f"--model={model}", f"--data={file}", "--samples_per_problem=2", "--rollout_batch_size=2"]
    whole, expected = main(tmp_path / "whole", *given)
    sample, asked = Evaluator.rows, []

    def rows(self: Any, model: Any, tasks: Any, *hooks: Any) -> Any:
        asked.extend(task.problem for task in tasks)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return sample(self, model, tasks, *hooks)

    monkeypatch.setattr(Evaluator, "rows", rows)
    with pytest.raises(KeyboardInterrupt):
        main(tmp_path / "a", *given)
    assert not (tmp_path / "a/results.json").exists()
    with pytest.raises(ConfigError, match="with seed 0, not 1"):
        main(tmp_path / "a", *given, "--seed=1")
    results, found = main(tmp_path / "a", *given)
    assert asked == [0, 1, 2, 2]
    assert found == expected
    assert results == whole
    assert not (tmp_path / "a/partial").exists()
    with pytest.raises(ConfigError, match="already holds results"):
        main(tmp_path / "a", *given)


def test_only_prompts_that_are_asked_need_positions(main: Any, model: Path, tmp_path: Path) -> None:
    """512 positions: a prompt of 600 tokens is not asked; 4 + 512 tokens do not fit."""
    file = data_file(tmp_path / "d.jsonl", ["1+0=", "9" * 600, "2-1="])
    given = [f"--model={model}", f"--data={file}", "--samples_per_problem=1"]
    results, rows = main(tmp_path / "a", *given)
    assert (results["problems"], results["too_long"], len(rows)) == (3, 1, 3)
    expected = {"response": "", "answer": None, "reference": "1", "source": f"{file}:2", "reward": 0.0}
    expected |= {"status": "no_answer", "correct": False, "truncated": False, "length": 0, "data": "d"}
    expected |= {"problem": 1, "sample": 0, "answer_class": None, "mean_prob": None, "too_long": True}
    assert rows[1] == expected | {"prompt": rows[1]["prompt"]}
    with pytest.raises(ConfigError, match="has 512 positions"):
        main(tmp_path / "b", *given, "--max_response_length=512")
    assert not (tmp_path / "b").exists()


def test_the_date_of_the_prompts_is_the_given_one_or_that_of_the_first_start(
    main: Any, model: Path, tmp_path: Path
) -> None:
    tokenizer = char_tokenizer()
    tokenizer.chat_template = DATED
    tokenizer.save_pretrained(model)
    file = data_file(tmp_path / "d.jsonl", ["1+0=", "7" * 90])
    given = [f"--model={model}", f"--data={file}", "--samples_per_problem=1"]
    results, rows = main(tmp_path / "a", *given, "--prompt_date=2024-07-06")
    assert results["prompt_date"] == "2024-07-06"
    assert [row["prompt"][:13] for row in rows] == ["06 Jul 2024: "] * 2  # also where it is too long
    (tmp_path / "b").mkdir()
    settings = {key: results[key] for key in json.loads((tmp_path / "a/settings.json").read_text())}
    (tmp_path / "b/settings.json").write_text(json.dumps(settings), encoding="utf-8")
    assert main(tmp_path / "b", *given)[1] == rows


def test_all_processes_take_the_date_of_the_first(
    main: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rank 1 sees it, started after midnight."""
    tokenizer = char_tokenizer()
    tokenizer.chat_template = DATED
    tokenizer.save_pretrained(model)
    file = data_file(tmp_path / "d.jsonl", ["1+0="])
    monkeypatch.setattr(
        Alone, "gather", lambda self, items: ["2024-07-06"] * (items == ["2024-07-07"]) + items
    )
    given = [f"--model={model}", f"--data={file}", "--samples_per_problem=1"]
    (row,) = main(tmp_path / "a", *given, "--prompt_date=2024-07-07")[1]
    assert row["prompt"].startswith("06 Jul 2024: ")
