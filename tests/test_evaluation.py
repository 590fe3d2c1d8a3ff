"""`dapo_ref/evaluation.py` and `evaluate.py`: the figures, by hand and by brute force."""

import itertools
import math

import pytest
import torch

from dapo_ref.errors import ConfigError
from dapo_ref.evaluation import avg_at_k, pass_at_k, summarize, table
from evaluate import Options, evaluation_config
from tests.support.helpers import random_groups


def test_avg_at_k_and_its_standard_error_by_hand():
    # Problem means 1, 1/2, 0: mean 1/2; std = √((1/4 + 0 + 1/4) / 2) = 1/2; error = (1/2) / √3.
    correct = torch.tensor([[True, True], [True, False], [False, False]])
    mean, error = avg_at_k(correct)
    assert mean == pytest.approx(0.5)
    assert error == pytest.approx(0.5 / math.sqrt(3))


def test_one_problem_has_no_standard_error():
    mean, error = avg_at_k(torch.tensor([[True, False, False, False]]))
    assert mean == 0.25
    assert math.isnan(error)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(k):
    torch.manual_seed(0)
    correct = torch.rand(6, 5) < 0.3
    shares = []
    for row in correct.tolist():
        subsets = list(itertools.combinations(row, k))
        shares.append(sum(any(subset) for subset in subsets) / len(subsets))
    assert pass_at_k(correct, k) == pytest.approx(sum(shares) / len(shares))


@pytest.mark.parametrize("k", [0, 6])
def test_pass_at_k_needs_k_within_the_samples(k):
    with pytest.raises(ValueError, match=f"5 samples of a problem, got {k}"):
        pass_at_k(torch.ones(2, 5, dtype=torch.bool), k)


def test_summary_counts_every_response():
    # Two groups of three: right where p + g is even (0,0 0,2 1,1), truncated where (p + g) % 3 == 2 (0,2
    # 1,1).
    results = summarize(random_groups([[4, 6, 8], [3, 5, 10]]))
    assert results["problems"] == 2
    assert results["avg@3"] == pytest.approx(3 / 6)  # (2/3 + 1/3) / 2
    assert results["pass@1"] == pytest.approx(3 / 6)
    assert results["pass@2"] == pytest.approx((1 + 2 / 3) / 2)
    assert results["truncated_frac"] == pytest.approx(2 / 6)
    assert results["length_mean"] == pytest.approx(36 / 6)
    assert results["verdicts"]["correct"] == 3
    assert results["verdicts"]["wrong"] == 3
    assert "avg@3" in table(results)
    assert "correct 3  wrong 3" in table(results)


def test_defaults_are_the_papers():
    config = evaluation_config(Options(model="somewhere", data="file", output="out"))
    assert (config.group_size, config.temperature, config.top_p) == (32, 1.0, 0.7)
    assert config.model == "somewhere"


def test_a_run_folder_brings_its_own_settings(tmp_path):
    settings = "data: d.jsonl\nmax_response_length: 64\noverlong_cache_length: 8\n"
    (tmp_path / "config.yaml").write_text(settings)
    options = Options(model=str(tmp_path), output="out")
    with pytest.raises(ConfigError, match=r"has no .*model yet"):
        evaluation_config(options)
    (tmp_path / "model").mkdir()
    config = evaluation_config(options)
    assert (config.model, config.data, config.max_response_length) == (str(tmp_path / "model"), "d.jsonl", 64)


@pytest.mark.parametrize("options", [Options(model="m"), Options(output="o")])
def test_model_and_output_are_needed(options):
    with pytest.raises(ConfigError, match="--model and --output"):
        evaluation_config(options)
