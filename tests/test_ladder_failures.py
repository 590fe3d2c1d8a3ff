"""The second group of the ladder: the faults do what they are named for, the table says what was expected."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import ladder
import ladder_failures as failures
import ladder_report as report
from ladder_faults import FAULTS, RewardBuffer, own_mean

from dapo_ref.config import Config
from dapo_ref.objective import build_objective
from dapo_ref.policy.batching import MiniBatch
from tests.support import oracle
from tests.support.helpers import random_groups
from tests.test_ladder_report import run
from tests.test_objective import micro_batch, tokens


def test_every_failure_has_a_name_a_hypothesis_and_its_files() -> None:
    assert set(ladder.FAILURES) == set(failures.LABELS) - {failures.NAIVE, failures.DAPO}
    compared = {name for comparison in failures.COMPARISONS for name in comparison.pair}
    assert compared == set(failures.LABELS)
    for condition in ladder.FAILURES.values():
        assert (ladder.ROOT / "configs" / "ladder" / f"{condition.rung}.yaml").exists()
        assert (ladder.ROOT / condition.program[0]).exists()
        assert set(condition.program[1:]) <= FAULTS.keys()


def test_a_fault_is_put_into_the_training_command(tmp_path: Path) -> None:
    runner = ladder.Runner(tmp_path, tmp_path, tmp_path / "config.yaml", [0], keep=False)
    words = runner._training("filter_on_reward", 1, tmp_path / "run")
    assert words[:2] == [str(ladder.ROOT / "benchmarks" / "ladder_faults.py"), "filter_on_reward"]
    assert words[words.index("--rollout_steps") + 1] == "50"


def test_the_wrong_filter_keeps_a_group_that_is_all_wrong_if_its_rewards_differ() -> None:
    groups = random_groups([[2, 2], [2, 2], [2, 2]])
    rewards = torch.tensor([[-1.0, -1.4], [-1.0, -1.0], [1.0, -1.0]])
    for group, pair in zip(groups, rewards.tolist(), strict=True):
        for rollout, reward in zip(group.rollouts, pair, strict=True):
            object.__setattr__(rollout, "reward", reward)
    buffer = RewardBuffer(3)
    correct = torch.tensor([[False, False], [False, False], [True, False]])
    assert buffer.add(groups, correct) == 2
    assert buffer.groups == [groups[0], groups[2]]
    assert buffer.groups_all_wrong == 2


def test_means_per_micro_batch_of_one_response_are_the_sample_level_loss() -> None:
    """1, 2 and 4 tokens: the fault gives each response the weight 1/3, Eq. 12 gives each token 1/7."""
    batch = oracle.pad([[tokens(1.0, 1.1), tokens(-2.0, 0.9, 1.2), tokens(0.5, 1.0, 1.1, 0.9, 1.2)]], extra=1)
    mini = MiniBatch(rows=[0, 1, 2], num_tokens=7, num_responses=3, num_groups=1)
    micros = [micro_batch(batch, slice(i, i + 1)) for i in range(3)]

    def loss(config: Config, fault: bool) -> float:
        objective = build_objective(config)
        shares = [
            objective(batch.logprobs[i : i + 1], micro, own_mean(micro, mini, 3) if fault else mini)
            for i, micro in enumerate(micros)
        ]
        return float(sum(shares))

    sample_level = loss(Config(loss_aggregation="sample_level"), fault=False)
    assert loss(Config(), fault=True) == pytest.approx(sample_level, rel=1e-12)
    assert loss(Config(), fault=False) != pytest.approx(sample_level, rel=1e-3)


@pytest.mark.parametrize(
    ("expected", "numbers", "said"),
    [
        ("<", [-0.3, -0.31, -0.32], "holds"),
        ("<", [0.3, 0.31, 0.32], "reversed"),
        (">", [0.1, -0.1, 0.12], "not seen"),
        ("=", [0.1, -0.1, 0.12], "no difference seen"),
        ("=", [0.3, 0.31, 0.32], "differs"),
        (">", [0.3], "too few seeds"),
    ],
)
def test_verdict(expected: str, numbers: list[float], said: str) -> None:
    assert failures.verdict(expected, numbers) == said


def test_area_up_to_an_end() -> None:
    """0.2, 0.4, 0.8 at steps 0, 20, 40: up to 30 it is (20 · 0.3 + 10 · 0.5) / 30; the run ends at 40."""
    one = run("1_naive_grpo", 1, [0.2, 0.4, 0.8])
    assert report.area(one, end=30) == pytest.approx(11 / 30)
    assert report.area(one, "tokens", 150_000) == pytest.approx(11 / 30)
    assert report.area(one, end=41) is None


def test_report_of_the_failures_takes_the_ladders_runs_of_their_seeds_only(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, seed, last in (("1_naive_grpo", 1, 0.8), ("1_naive_grpo", 2, 0.0), ("fast_naive", 1, 0.3)):
        result = run(name, seed, [0.2, 0.4, 0.8, last, 0.9])  # step 50 is half-way from 40 to 60
        result["heldout"].insert(3, {**result["heldout"][2], "step": 47, "avg": 0.0})  # of an interruption
        keys = [*ladder.KEPT, "way/careful", "way/guess"]
        result["curves"] = {key: [0.1] * 100 for key in keys}
        ladder.result_file(tmp_path, name, seed).write_text(ladder.json.dumps(result))
    failures.report(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "failures.md").read_text()
    assert "| F1 | learning rate 1e-3 less naive GRPO | 1 | < 0 | -0.250 | too few seeds |" in text
    assert (tmp_path / "out" / "failures_fast.png").stat().st_size > 10_000
    assert not (tmp_path / "out" / "failures_dapo.png").exists()
