"""`dapo_ref/evaluation.py` and `dapo_ref/compare.py`: the figures, by hand and by brute force."""

import itertools
import json
import math

import pytest
import torch

from dapo_ref.compare import compare, main, paired_interval, t_quantile
from dapo_ref.evaluation import avg_at_k, figures, majority, pass_at_k, powers_up_to, summarize, table
from dapo_ref.report.bars import bars


def row(problem, correct, **changes):
    found = {"data": "d", "problem": problem, "correct": correct, "truncated": False, "length": 4}
    found |= {"status": "correct" if correct else "wrong", "mean_prob": 0.5}
    return found | {"answer_class": 0 if correct else 1, "prompt": f"p{problem}", "reference": "1"} | changes


ROWS = [
    # Problem 0: two right of three. Problem 1: one right, one wrong, one that ran into the cap.
    *(row(0, True), row(0, False, length=10), row(0, True, mean_prob=0.8)),
    *(row(1, True), row(1, False, mean_prob=0.2)),
    row(1, False, truncated=True, status="no_answer", answer_class=None, length=10, mean_prob=None),
]


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
    assert summarize(ROWS[:3])["standard_error"] is None


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(k):
    torch.manual_seed(0)
    correct = torch.rand(6, 5) < 0.3
    shares = []
    for samples in correct.tolist():
        subsets = list(itertools.combinations(samples, k))
        shares.append(sum(any(subset) for subset in subsets) / len(subsets))
    assert pass_at_k(correct, k) == pytest.approx(sum(shares) / len(shares))


@pytest.mark.parametrize("k", [0, 6])
def test_pass_at_k_needs_k_samples(k):
    with pytest.raises(ValueError, match="between 1 and the 5 samples"):
        pass_at_k(torch.ones(2, 5, dtype=torch.bool), k)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([0, 0, 1], (1.0, False)),
        ([0, 1, 1], (0.0, False)),
        ([0, 0, 1, 1, 2], (0.5, True)),  # a fair draw between two picks the right one every other time
        ([1, 2, 0], (pytest.approx(1 / 3), True)),
        ([1, 2, None, None, None], (0.0, True)),  # no answer, no vote
        ([None, None, 0], (1.0, False)),
        ([None, None], (0.0, False)),
    ],
)
def test_the_majority_counts_votes_by_class(classes, expected):
    assert majority(classes) == expected


def test_summary_by_hand():
    results = summarize(ROWS)
    assert (results["problems"], results["samples_per_problem"]) == (2, 3)
    assert results["avg@3"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    # Problem means 2/3 and 1/3: std = √(2 · (1/6)²) = √2/6; error = √2/6 / √2 = 1/6.
    assert results["standard_error"] == pytest.approx(1 / 6)
    assert results["maj@3"] == pytest.approx((1 + 1 / 2) / 2)
    assert results["maj_ties_frac"] == pytest.approx(1 / 2)
    assert results["pass@1"] == pytest.approx(1 / 2)
    assert results["pass@2"] == pytest.approx((1 + 2 / 3) / 2)
    assert results["pass@3"] == 1
    assert results["truncated_frac"] == pytest.approx(1 / 6)
    assert results["no_answer_frac"] == pytest.approx(1 / 6)
    assert results["length_mean"] == pytest.approx(36 / 6)
    assert results["mean_prob"] == pytest.approx((0.5 + 0.5 + 0.8 + 0.5 + 0.2) / 5)
    assert results["verdicts"] | {"correct": 3, "wrong": 2, "no_answer": 1} == results["verdicts"]


def test_problems_that_were_not_asked_count_as_wrong_and_in_no_figure_of_responses():
    """Two of three problems were asked: six responses, one of them cut and one without an answer."""
    unasked = {"too_long": True, "status": "no_answer", "answer_class": None, "length": 0, "mean_prob": None}
    results = summarize([*ROWS, *[row(2, False, **unasked)] * 3])
    assert (results["problems"], results["too_long"]) == (3, 1)
    assert results["avg@3"] == pytest.approx((2 / 3 + 1 / 3 + 0) / 3)
    assert results["maj@3"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert results["maj_ties_frac"] == pytest.approx(1 / 3)
    assert results["truncated_frac"] == results["no_answer_frac"] == pytest.approx(1 / 6)
    assert results["length_mean"] == pytest.approx(36 / 6)
    assert results["verdicts"]["no_answer"] == 1


def test_the_table_has_a_line_a_figure_and_names_the_verdicts_that_there_are():
    text = table(figures([{**r, "mean_prob": None} for r in ROWS]))
    lines = [line.split() for line in text.splitlines()]
    assert ["avg@3", "0.5000", "±", "0.1667"] in lines
    assert ["maj@3", "0.7500"] in lines
    assert ["mean_prob", "–"] in lines
    assert lines[-1] == ["verdicts", "d", "correct", "3", "wrong", "2", "no_answer", "1"]
    assert "standard_error" not in text


def test_powers_end_with_k_itself():
    assert [powers_up_to(k) for k in (1, 3, 8, 12)] == [[1], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 12]]


def test_several_data_sets_have_figures_of_their_own_and_over_all_problems():
    other = [row(0, True, data="e") for _ in range(3)]
    found = figures([*ROWS, *other])
    assert list(found) == ["d", "e", "all"]
    assert found["all"]["avg@3"] == pytest.approx((2 / 3 + 1 / 3 + 1) / 3)  # problems weigh alike
    assert list(figures(ROWS)) == ["d"]
    text = table(found)
    assert "0.5000 ± 0.1667" in text
    assert "correct 3  wrong 2  no_answer 1" in text
    picture = bars(found)
    assert picture.count("<rect") == 1 + 2 + 6  # ground, legend, a pair a data set
    assert "0.667" in picture


def test_a_data_sets_name_cannot_become_markup():
    assert "<script>" not in bars({"<script>": summarize(ROWS)})


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062), (9, 2.26216), (29, 2.04523), (200, 1.97190), (201, 1.97184), (10**6, 1.95997)],
)
def test_t_quantiles_are_those_of_the_tables(degrees, expected):
    assert t_quantile(degrees) == pytest.approx(expected, rel=1e-5)


def test_paired_interval_by_hand():
    # Differences 1, 0, 1/2: mean 1/2, std 1/2, error 1/(2√3), t of 2 degrees 4.30265.
    mean, low, high = paired_interval(torch.tensor([0, 0, 0.5]), torch.tensor([1, 0, 1.0]))
    half = 4.30265 / (2 * math.sqrt(3))
    assert (mean, low, high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), rel=1e-5)


def results_folder(path, rows):
    path.mkdir()
    (path / "responses.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_two_results_are_compared_problem_by_problem(tmp_path, capsys):
    a = results_folder(tmp_path / "a", ROWS)
    # The same problems under other numbers, all right; and one that the other has not.
    swapped = [r | {"problem": 1 - r["problem"], "correct": True, "answer_class": 0} for r in ROWS]
    b = results_folder(tmp_path / "b", [*swapped, *[row(7, False)] * 3])
    rows = compare(a, b)
    avg, maj, passed = rows
    assert (avg["figure"], avg["problems"], avg["k"]) == ("avg", 2, [3, 3])
    assert (avg["a"], avg["b"], avg["difference"]) == (0.5, 1.0, 0.5)
    # Differences 1/3 and 2/3: std √2/6, error 1/6, t of 1 degree 12.7062.
    assert avg["high"] - avg["difference"] == pytest.approx(12.7062 / 6, rel=1e-4)
    assert (maj["difference"], passed["difference"]) == (0.25, 0.0)
    assert main([str(a), str(b)]) == 0
    shown = capsys.readouterr().out
    assert "avg@3" in shown
    assert "+0.5000" in shown
    assert main([str(a), str(b), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(rows))


def test_a_run_stands_for_its_evaluation(tmp_path):
    a = results_folder(tmp_path / "a", ROWS)
    (tmp_path / "run").mkdir()
    results_folder(tmp_path / "run" / "evaluation", ROWS)
    assert compare(a, tmp_path / "run") == compare(a, tmp_path / "run" / "evaluation")


def test_pass_at_k_of_different_k_is_not_compared(tmp_path):
    a = results_folder(tmp_path / "a", ROWS)
    b = results_folder(tmp_path / "b", [*ROWS, row(0, True), row(1, True)])
    assert [r["figure"] for r in compare(a, b)] == ["avg", "maj"]


def test_what_cannot_be_compared_is_one_line(tmp_path, capsys):
    a = results_folder(tmp_path / "a", ROWS)
    assert main([str(a), str(tmp_path)]) == 2
    assert "no responses.jsonl" in capsys.readouterr().err
    b = results_folder(tmp_path / "b", [row(0, True, prompt="another")])
    assert main([str(a), str(b)]) == 2
    assert "no problem in common" in capsys.readouterr().err
