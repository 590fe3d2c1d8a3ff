"""The ladder's arithmetic: intervals, interpolation, pairing by seed, and runs that are not made twice."""

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import ladder
import ladder_report as report


def run(condition: str, seed: int, averages: list[float]) -> report.Run:
    """Checkpoints every 320 updates, 100,000 tokens and 30 seconds."""
    points = [
        {"step": 20 * i, "updates": 320 * i, "tokens": 100_000 * i, "seconds": 30.0 * i, "avg": average}
        for i, average in enumerate(averages)
    ]
    curves = {key: [0.0] for key in ladder.KEPT}
    return {"condition": condition, "seed": seed, "heldout": points, "curves": curves}


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622)])
def test_t_quantile(degrees: int, quantile: float) -> None:
    """Student's table."""
    assert report.t_quantile(degrees) == pytest.approx(quantile, abs=1e-4)


def test_interval_of_three_values() -> None:
    """1, 2, 3: mean 2, std 1, so 4.3027 · 1 / √3."""
    mean, half = report.mean_and_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / math.sqrt(3), abs=1e-5)
    assert math.isnan(report.mean_and_interval([1.0])[1])


def test_interpolation_and_area() -> None:
    """From 0.2 over 0.4 to 0.8 in two equal pieces: area (0.3 + 0.6) / 2."""
    one = run("1_naive_grpo", 1, [0.2, 0.4, 0.8])
    assert report.at(one, "updates", 480) == pytest.approx(0.6)
    assert report.at(one, "tokens", 200_000) == pytest.approx(0.8)
    assert report.at(one, "tokens", 200_001) is None
    assert report.area(one) == pytest.approx(0.45)


def test_window_and_rise_of_a_curve() -> None:
    """1 … 100: steps 18 to 22 have the mean 20; the last ten 95.5, the first ten 5.5."""
    one = {"curves": {"x": [float(i) for i in range(1, 101)]}}
    assert report.window(one, "x", 18, 22) == 20.0
    assert report.rise(one, "x") == 90.0


def test_differences_are_of_the_seeds_that_both_have() -> None:
    runs: report.Runs = {
        "1_naive_grpo": {1: run("1_naive_grpo", 1, [0.2, 0.4]), 3: run("1_naive_grpo", 3, [0.2, 0.2])},
        "6_dynamic_sampling": {
            seed: run("6_dynamic_sampling", seed, [0.2, last])
            for seed, last in ((1, 0.8), (2, 0.9), (3, 0.5))
        },
    }
    found = report.differences(runs, ("6_dynamic_sampling", "1_naive_grpo"), report.area)
    assert found == pytest.approx([0.2, 0.15])  # ((0.2+0.8) − (0.2+0.4))/2, ((0.2+0.5) − (0.2+0.2))/2


def test_bold_only_where_the_interval_excludes_zero() -> None:
    assert report.bold("x", [0.1, 0.11, 0.12]) == "**x**"
    assert report.bold("x", [0.1, -0.11, 0.12]) == "x"
    assert report.bold("x", [0.1]) == "x"  # one seed has no interval


def test_report_of_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ladder.QUICK:
        for seed, last in ((1, 0.6), (2, 0.8)):
            file = ladder.result_file(tmp_path, name, seed)
            result = run(name, seed, [0.2, last])
            result["curves"] = {key: [0.1, 0.2] for key in [*ladder.KEPT, *report.PLAIN.values()]}
            file.write_text(json.dumps(result))
    report.report(tmp_path, tmp_path / "out")
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| naive GRPO | 30 | 2 | 0.450 ± 0.635 |" in text  # areas 0.4, 0.5: std 0.0707, · 12.706 / √2
    assert "| + dynamic sampling = DAPO less naive GRPO | +20 | 2 | +0.000 ± 0.000 |" in text
    assert (tmp_path / "out" / "ladder.png").stat().st_size > 10_000


def test_a_finished_run_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ladder.result_file(tmp_path, "1_naive_grpo", 1).write_text("{}")
    runner = ladder.Runner(tmp_path / "work", tmp_path, tmp_path / "config.yaml", [0], keep=False)
    made: list[tuple[str, int]] = []

    def only_note(name: str, seed: int) -> str:
        made.append((name, seed))
        return ""

    monkeypatch.setattr(runner, "run", only_note)
    assert ladder.run_all(runner, ["1_naive_grpo", "6_dynamic_sampling"], [1, 2], jobs=1)
    assert sorted(made) == [("1_naive_grpo", 2), ("6_dynamic_sampling", 1), ("6_dynamic_sampling", 2)]


def test_an_interrupted_run_is_resumed_and_a_new_one_is_not(tmp_path: Path) -> None:
    runner = ladder.Runner(tmp_path, tmp_path, tmp_path / "config.yaml", [0], keep=False)
    folder = tmp_path / "run"
    assert "--resume" not in runner._training("dapo_without_clip_higher", 1, folder)
    folder.mkdir()
    (folder / "config.yaml").touch()
    words = runner._training("dapo_without_clip_higher", 1, folder)
    assert words[-2:] == ["--resume", "true"]
    assert words[words.index("--clip_eps_high") + 1] == "0.2"


def test_every_condition_has_a_name_in_the_table_and_its_files() -> None:
    assert list(ladder.CONDITIONS) == list(report.LABELS)
    for condition in ladder.CONDITIONS.values():
        assert (ladder.ROOT / "configs" / "ladder" / f"{condition.rung}.yaml").exists()
