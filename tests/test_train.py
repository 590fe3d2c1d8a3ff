"""`train.py` and `evaluate.py` for real: the embedded model under ZeRO-3, what a run leaves, and resuming it.

Small batches of the embedded run, launched as the README does it, with one and with two processes.
"""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dapo_ref.config import Config, load_config, read_config
from dapo_ref.dynamic_sampling import GroupBuffer
from dapo_ref.errors import ConfigError, DataError, TrainingError
from dapo_ref.run.files import read_metrics
from dapo_ref.run.session import require_groups
from dapo_ref.verifier import Status
from tests.run.test_metrics import LISTED
from tests.support import oracle, reference
from tests.support.helpers import ROOT, char_tokenizer, launch, random_llama
from train import learning_rate, main

CONFIG = str(ROOT / "configs/tiny_cpu.yaml")
SMALL = [
    *("--config", CONFIG, "--prompts_per_step", "6", "--responses_per_update", "24"),
    *("--tokens_per_microbatch", "700", "--checkpoint_every", "1"),
    # Not the defaults, and such that clips, punishment and filter are at work: the replay sees each of them.
    *("--temperature", "0.9", "--adam_beta1", "0.8", "--adam_beta2", "0.99", "--weight_decay", "0.05"),
    *(
        "--clip_eps_low",
        "0.05",
        "--clip_eps_high",
        "0.08",
        "--max_grad_norm",
        "0.4",
        "--learning_rate",
        "1e-3",
    ),
    *("--overlong_filtering", "true", "--overlong_cache_length", "30", "--max_response_length", "40"),
]

HELD_OUT = [
    *("--evaluate_every", "2", "--eval_data", "tiny:test:3, tiny:test:4"),
    *("--eval_samples_per_problem", "2", "--eval_top_p", "1.0", "--record_tokens", "3"),
]


def untimed(records):
    return [
        {key: value for key, value in record.items() if not key.startswith(("time/", "memory/", "eval/"))}
        for record in records
        if record["step"]
    ]


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def runs(request, tmp_path_factory):
    """A run of three steps, and one of two steps that was resumed to three and evaluates on the way."""
    work = tmp_path_factory.mktemp("runs")
    for folder, extra in (
        ("whole", ["--rollout_steps", "3"]),
        ("resumed", ["--rollout_steps", "2", *HELD_OUT]),
        ("resumed", ["--rollout_steps", "3", "--resume", *HELD_OUT]),
    ):
        launch(
            ROOT / "train.py", *SMALL, "--output_dir", str(work / folder), *extra, num_processes=request.param
        )
    return work / "whole", work / "resumed"


def test_a_resumed_run_is_the_run_that_was_not_stopped(runs):
    whole, resumed = runs
    expected, found = (read_metrics(folder / "metrics.jsonl") for folder in runs)
    assert [record["step"] for record in found] == [0, 1, 2, 3]
    assert untimed(found) == untimed(expected)  # bit for bit
    weights, other = (load_file(folder / "model/model.safetensors") for folder in runs)
    assert all(torch.equal(weights[name], other[name]) for name in weights)
    names = [sorted(path.name for path in (folder / "rollouts").iterdir()) for folder in (whole, resumed)]
    assert names[0] == names[1] == [f"step_00000{step}.jsonl" for step in (1, 2, 3)]


def test_held_out_problems_are_evaluated_before_every_so_many_steps_and_last(runs):
    records = read_metrics(runs[1] / "metrics.jsonl")
    assert [record["step"] for record in records if "eval/tiny:test:3/avg@2" in record] == [0, 2, 3]
    for record in records[::2]:
        # The smaller set is a part of the other, and a problem keeps its responses: 3 of the 4 problems.
        three, four = (record[f"eval/tiny:test:{n}/avg@2"] for n in (3, 4))
        assert 0 <= 8 * four - 6 * three <= 2
        assert record["eval/all/avg@2"] == pytest.approx((6 * three + 8 * four) / 14)


def test_recorded_tokens_are_those_of_the_trained_responses(runs):
    resumed = runs[1]
    assert not (runs[0] / "tokens").exists()  # off by default
    for step in (1, 2, 3):
        lines = (resumed / f"rollouts/step_{step:06d}.jsonl").read_text().splitlines()
        kept = [row for row in map(json.loads, lines) if row["kept"]]
        lines = (resumed / f"tokens/step_{step:06d}.jsonl").read_text().splitlines()
        found = {(row["group"], row["sample"]): row for row in map(json.loads, lines)}
        assert sorted(found) == [(group, sample) for group in (0, 2, 4) for sample in range(8)]
        for (group, sample), row in found.items():
            response = kept[8 * group + sample]
            trained = 0 if response["truncated"] else response["length"]  # overlong filtering is on
            assert len(row["tokens"]) == len(row["probs"]) == len(row["clipped"]) == trained
            assert response["truncated"] or "".join(row["tokens"]).startswith(response["response"])


def test_metrics_hold_every_key_and_show_dynamic_sampling(runs):
    for record in read_metrics(runs[0] / "metrics.jsonl"):
        assert set(LISTED) <= set(record)
        assert record["sampling/groups_kept"] == 6  # prompts_per_step, at every step
        assert record["updates"] == 2 * record["step"]  # 6 groups of 8, 24 responses an update
        assert record["tokens/trained"] > 0
        # The schedule counts rollout steps: not generation rounds, not updates, not processes.
        assert record["lr"] == pytest.approx(1e-3 * min(1, record["step"] / 5))


def test_rollout_files_hold_every_response_and_say_which_were_trained(runs):
    records = read_metrics(runs[0] / "metrics.jsonl")
    for record in records:
        lines = (runs[0] / f"rollouts/step_{record['step']:06d}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert len(rows) == 8 * record["sampling/groups_generated"]
        assert sum(row["correct"] for row in rows) / len(rows) == pytest.approx(record["reward/accuracy"])
        kept = [row for row in rows if row["kept"]]
        assert len(kept) == 6 * 8
        for start in range(0, len(kept), 8):
            group = kept[start : start + 8]
            assert len({row["prompt"] for row in group}) == 1  # whole groups, aligned with their prompt
            assert 0 < sum(row["correct"] for row in group) < 8  # Eq. 11


def step_of(run, number):
    """The rows of a step's responses, eight a group."""
    lines = (run / f"rollouts/step_{number:06d}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [rows[start : start + 8] for start in range(0, len(rows), 8)]


def test_rollout_metrics_follow_from_the_rollout_files(runs):
    """Each recomputed from the rows, the verdicts and rewards included: the answers are integers here."""
    for record in read_metrics(runs[0] / "metrics.jsonl"):
        groups = step_of(runs[0], record["step"])
        rows = [row for group in groups for row in group]
        for row in rows:
            assert row["correct"] == (row["answer"] is not None and row["answer"] == row["reference"])
            reward = oracle.eq7_reward(row["correct"]) + oracle.eq13_penalty(row["length"], 40, 30)
            assert row["reward"] == pytest.approx(reward, abs=1e-6)
        right = [sum(row["correct"] for row in group) for group in groups]
        mixed = [0 < count < 8 for count in right]
        kept = [all(row["kept"] for row in group) for group in groups]
        assert kept == [is_mixed and sum(mixed[:i]) < 6 for i, is_mixed in enumerate(mixed)]
        count = len(rows)
        lengths = [row["length"] for row in rows]
        expected = {
            "reward/mean": sum(row["reward"] for row in rows) / count,
            "reward/accuracy": sum(right) / count,
            "response/length_mean": sum(lengths) / count,
            "response/length_max": max(lengths),
            "response/truncated_frac": sum(row["truncated"] for row in rows) / count,
            "sampling/groups_generated": len(groups),
            "sampling/groups_kept": sum(kept),
            "sampling/groups_qualified": sum(mixed),
            "sampling/all_correct_frac": right.count(8) / len(groups),
            "sampling/all_wrong_frac": right.count(0) / len(groups),
            "tokens/generated": sum(lengths),
            "tokens/trained": sum(row["length"] for row in rows if row["kept"] and not row["truncated"]),
            **{
                f"verdict/{status}_frac": [row["status"] for row in rows].count(status) / count
                for status in Status
            },
        }
        for key, value in expected.items():
            assert record[key] == pytest.approx(value, rel=1e-6, abs=1e-9), key


def test_training_is_replayed_from_the_rollout_files_in_plain_pytorch(runs):
    """From the first weights and the kept responses: losses, norms, ratios, clips and the final weights."""
    config = read_config(runs[0] / "config.yaml")
    model = AutoModelForCausalLM.from_pretrained(config.model_dir).float()
    tokenizer = AutoTokenizer.from_pretrained(config.model_dir)
    optimizer = reference.adamw(model, config)

    def sample(row):
        prompt, response = (
            tokenizer(row[key], add_special_tokens=False)["input_ids"] for key in ("prompt", "response")
        )
        response += [] if row["truncated"] else [tokenizer.eos_token_id]
        assert len(response) == row["length"]
        return reference.Sample(prompt, response, row["reward"], row["truncated"])

    clipped = 0
    for record in read_metrics(runs[0] / "metrics.jsonl"):
        groups = [
            [sample(row) for row in group] for group in step_of(runs[0], record["step"]) if group[0]["kept"]
        ]
        step = reference.train_step(model, optimizer, groups, config, record["step"] - 1)
        for key, value in step.record().items():
            assert record[key] == pytest.approx(value, rel=1e-3, abs=1e-6), key
        clipped += min(step.clipped_low, step.clipped_high)
    assert clipped > 0
    exported = load_file(runs[0] / "model/model.safetensors")
    for name, value in model.named_parameters():
        if name in exported:
            # Adam divides by the size of the gradient, and so makes its rounding as large as a step.
            difference = (exported[name] - value).abs()
            assert difference.mean() < 1e-6, name
            assert difference.max() < 3e-4, name


def test_the_exported_model_is_a_plain_one_and_has_moved(runs):
    model = AutoModelForCausalLM.from_pretrained(runs[0] / "model")
    start = AutoModelForCausalLM.from_pretrained(load_config(["--config", CONFIG]).model_dir)
    for (name, new), (_, old) in zip(model.named_parameters(), start.named_parameters(), strict=True):
        # Three steps of two updates by Adam at 6e-4 or less: moved, and by no more than that.
        assert 0 < (new - old).abs().max() < 6 * 7e-4, name
    assert AutoTokenizer.from_pretrained(runs[0] / "model").chat_template


def test_a_second_run_in_the_same_folder_is_refused(runs):
    before = (runs[0] / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="already holds a run"):
        main([*SMALL, "--output_dir", str(runs[0])])
    assert (runs[0] / "metrics.jsonl").read_bytes() == before


def test_config_file_is_the_resolved_configuration(runs):
    config = read_config(runs[0] / "config.yaml")
    assert (config.prompts_per_step, config.group_size, config.rollout_steps) == (6, 8, 3)


def results_of(folder):
    return [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]


def test_evaluation_reads_the_run_and_spreads_over_processes(runs, tmp_path):
    options = ["--data", "tiny:test:10", "tiny:train:3", "--samples_per_problem", "4"]
    model = ["--model", str(runs[0])]
    output = launch(ROOT / "evaluate.py", *model, *options, "--output", str(tmp_path / "a"), num_processes=2)
    results = json.loads((tmp_path / "a/results.json").read_text())
    rows = results_of(tmp_path / "a")
    assert (results["problems"], results["samples_per_problem"], len(rows)) == (13, 4, 52)
    assert results["avg@4"] == pytest.approx(sum(row["correct"] for row in rows) / 52)
    sources = [row["source"] for row in rows]
    assert sources == [source for source in dict.fromkeys(sources) for _ in range(4)]
    assert f"{results['avg@4']:.4f}" in output
    # One process, the last checkpoint in place of the exported model: the same weights, the same responses.
    model = ["--model", str(runs[0] / "checkpoints/step_000003")]
    launch(ROOT / "evaluate.py", *model, *options, "--output", str(tmp_path / "b"), num_processes=1)
    again = [json.loads(line) for line in (tmp_path / "b/responses.jsonl").read_text().splitlines()]
    for row, other in zip(rows, again, strict=True):
        # Sums over another batch differ in their last bits.
        assert other.pop("mean_prob") == pytest.approx(row.pop("mean_prob"), rel=1e-4)
        assert other == row


BAD = {
    "missing data": (["--data", "nothing.jsonl"], DataError, r"nothing\.jsonl"),
    "unknown key": (["--clip_eps_hihg", "0.3"], ConfigError, "did you mean 'clip_eps_high'"),
    "no model": (["--model", "tests"], ConfigError, r"model: 'tests' is neither a directory"),
    "indivisible": (
        ["--responses_per_update", "50"],
        ConfigError,
        r"responses_per_update \(50\) must divide",
    ),
    "drops the data": (["--max_prompt_length", "5"], DataError, "20000 of 20000 prompts are longer"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_the_model_is_loaded(name, tmp_path, monkeypatch):
    arguments, error, message = BAD[name]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("train.Engine", None)
    with pytest.raises(error, match=message):
        main(["--config", CONFIG, "--output_dir", str(tmp_path / "run"), *arguments])
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused_before_data_and_model_are_looked_at(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1")
    with pytest.raises(ConfigError, match="already holds a run"):
        main(["--output_dir", str(tmp_path), "--model", "nowhere", "--data", "nothing.jsonl"])


def error_line(folder, *arguments):
    """The one line with which `train.py` refuses; exit code 2, no traceback, no run folder."""
    command = [
        sys.executable,
        "train.py",
        "--config",
        CONFIG,
        "--output_dir",
        str(folder / "run"),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (folder / "run").exists()
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    return line


def test_bad_data_is_one_line_with_its_place_and_exit_code_2(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"question": "1 + 1 = ?", "answer": "2"}\n{"question": "1 +\n')
    assert f"{tmp_path / 'bad.jsonl'}:2" in error_line(tmp_path, "--data", str(tmp_path / "bad.jsonl"))


def test_a_model_that_never_ends_is_one_line_and_exit_code_2(tmp_path):
    random_llama(eos_token_id=None).config.save_pretrained(tmp_path / "model")  # no weights: none are read
    tokenizer = char_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "model")
    assert "no end token" in error_line(tmp_path, "--model", str(tmp_path / "model"))


def held(groups, qualifying):
    """A buffer for 3 groups after one round of `groups`, of which the first `qualifying` are mixed."""
    buffer = GroupBuffer(3)
    correct = torch.zeros(groups, 2, dtype=torch.bool)
    correct[:qualifying, 0] = True
    buffer.add(list(range(groups)), correct)
    return buffer


@pytest.mark.parametrize(
    ("qualifying", "choice", "stops"),
    [(3, "stop", False), (2, "train", False), (2, "stop", True), (0, "train", True), (0, "stop", True)],
)
def test_the_choice_when_the_rounds_run_out(qualifying, choice, stops):
    figures = (
        f"{qualifying} of 3 groups are held; of 4 groups sampled 0 were all correct and {4 - qualifying}"
    )
    if stops:
        with pytest.raises(TrainingError, match=figures):
            require_groups(held(4, qualifying), choice)
    else:
        assert (figures in require_groups(held(4, qualifying), choice)) == (qualifying < 3)


def test_warm_up_is_linear_over_rollout_steps_and_trains_from_the_first():
    rates = [learning_rate(Config(learning_rate=1e-6, warmup_steps=4), step) for step in range(6)]
    assert rates == pytest.approx([0.25e-6, 0.5e-6, 0.75e-6, 1e-6, 1e-6, 1e-6])
    assert learning_rate(Config(learning_rate=1e-6, warmup_steps=0), 0) == 1e-6
