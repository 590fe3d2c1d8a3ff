"""`dapo_ref/report/`: the right figure in the right panel, at the right place of its axis."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dapo_ref.evaluation import figures
from dapo_ref.report import PANELS, command, data, draw, main
from dapo_ref.report.bars import bars
from dapo_ref.report.data import length_histogram, page_data, read_groups, read_run, run_names
from dapo_ref.report.page import embedded, page
from tests.test_evaluation import ROWS
from tests.test_evaluation import row as response_row
from tests.test_report import fake_run

pytest.importorskip("matplotlib")
from matplotlib.axes import Axes


def test_each_panel_of_the_page_draws_what_its_title_says() -> None:
    assert {panel.title: panel.keys for panel in data.PANELS} == {
        "Accuracy": ("reward/accuracy",),
        "Mean reward": ("reward/mean",),
        "Response length": ("response/length_mean",),
        "Entropy": ("policy/entropy",),
        "Mean probability": ("policy/mean_prob",),
        "Truncated": ("response/truncated_frac",),
        "Groups without a gradient": ("sampling/all_correct_frac", "sampling/all_wrong_frac"),
        "Groups": tuple(f"sampling/groups_{kind}" for kind in ("generated", "qualified", "kept")),
        "Rounds": ("sampling/rounds",),
        "Acceptance": ("derived/acceptance",),
        "Clipped tokens": ("policy/clip_frac_low", "policy/clip_frac_high"),
        "Largest ratio": ("policy/ratio_max",),
        "Gradient norm": ("grad_norm",),
        "Loss": ("loss",),
        "Seconds by phase": tuple(
            f"time/{phase}_s" for phase in ("rollout", "update", "logprobs", "verify", "evaluate")
        ),
        "Tokens a second": ("derived/generated_a_s", "derived/trained_a_s"),
        "Tokens a step": ("tokens/generated", "tokens/trained"),
        "Memory": ("memory/peak_mb",),
        "Verdicts that are not right or wrong": tuple(
            f"verdict/{kind}_frac"
            for kind in ("no_answer", "unparsable", "multiple", "timeout", "too_big", "recipe_disagrees")
        ),
    }
    shares = {panel.title for panel in data.PANELS if panel.scale == "share"}
    assert shares == {"Accuracy", "Truncated", "Groups without a gradient", "Acceptance"}


def test_the_picture_draws_each_key_over_updates_or_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of its own for each key and step; a step without a value is left out."""
    run = tmp_path / "run"
    run.mkdir()
    keys = [key for keys in PANELS.values() for key in keys]
    lines = [
        {"updates": 4 * step, **{key: 100 * step + i for i, key in enumerate(keys)}} for step in (1, 2, 3)
    ]
    lines[1]["grad_norm"] = None
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    drawn: list[Any] = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, *xy, label: drawn.append((xy, label)) or plot(self, *xy))
    titles: list[str] = []
    monkeypatch.setattr(Axes, "set_title", lambda self, title, **settings: titles.append(title))
    generated = keys.index("tokens/generated")
    tokens = [100 + generated, 300 + 2 * generated, 600 + 3 * generated]
    for x, places in (("updates", [4, 8, 12]), ("tokens", tokens)):
        drawn.clear()
        draw([run], tmp_path / "report.png", x)
        for i, (key, (xy, label)) in enumerate(zip(keys, drawn, strict=True)):
            steps = (1, 3) if key == "grad_norm" else (1, 2, 3)
            assert xy == (
                tuple(places[step - 1] for step in steps),
                tuple(100 * step + i for step in steps),
            ), key
            assert label == next((key for panel in PANELS.values() if key in panel and len(panel) > 1), None)
    assert titles[: len(PANELS)] == list(PANELS)


def test_the_command_passes_axis_and_bounds_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = fake_run(tmp_path / "run"), fake_run(tmp_path / "other")
    asked: list[Any] = []
    monkeypatch.setattr(command, "draw", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(command, "page_data", lambda runs, mb: asked.append(mb) or page_data(runs, mb))
    assert main([str(run), str(other), "--x=tokens", "--rollouts_mb=3"]) == 0
    assert asked == [3.0, ([run, other], run / "report.png", "tokens")]
    assert '"watch_s":0' in (run / "report.html").read_text(encoding="utf-8")


def test_step_0_has_curves_and_no_lengths(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run")
    file = run / "metrics.jsonl"
    text = file.read_text(encoding="utf-8")
    file.write_text('{"step": 0, "updates": 0, "eval/d/avg@2": 0.5}\n' + text, encoding="utf-8")
    found = read_run(run, "x")
    assert found["axes"]["step"] == [0, 1, 2, 3]
    assert found["curves"]["eval/d/avg@2"] == [0.5, None, None, None]
    assert len(found["lengths"]["counts"]) == 3
    assert not {"step", "updates"} & found["curves"].keys()


def test_quotients_are_tokens_over_the_time_of_their_phase() -> None:
    line = {"tokens/generated": 60, "time/rollout_s": 4.0, "tokens/trained": 30, "time/update_s": 10.0}
    found = data.with_derived(line | {"sampling/groups_qualified": 0, "sampling/groups_generated": 8})
    assert (found["derived/generated_a_s"], found["derived/trained_a_s"]) == (15.0, 3.0)
    assert found["derived/acceptance"] == 0.0
    assert data.with_derived({"tokens/generated": 60, "time/rollout_s": 0.0}) == {
        "tokens/generated": 60,
        "time/rollout_s": 0.0,
    }
    assert data.seconds({"time/a_s": 1.5, "time/b_s": None, "time/c_s": 2.0, "loss": 9.0}) == 3.5


def test_bins_of_several_tokens_hold_lengths_up_to_their_end(tmp_path: Path) -> None:
    """The longest has 49 tokens: 24 bins of three, 1–3, 4–6 …; the 17 that are needed."""
    (tmp_path / "rollouts").mkdir()
    lengths = [1, 3, 4, 48, 49, 0]
    rows = "".join(json.dumps({"length": length}) + "\n" for length in lengths)
    (tmp_path / "rollouts/step_000001.jsonl").write_text(rows, encoding="utf-8")
    found = length_histogram(tmp_path, [1, 2])
    assert found is not None
    counts = [0] * 17
    counts[0], counts[1], counts[15], counts[16] = 3, 1, 1, 1
    assert found == {"width": 3, "counts": [counts, None]}


def test_a_response_of_the_page_is_that_of_the_file(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", "no number")
    (run / "tokens").mkdir()
    rows = [
        {"group": group, "sample": 0, "tokens": ["a"], "probs": [0.5], "clipped": str(group)}
        for group in (0, 1)
    ]
    (run / "tokens/step_000003.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8"
    )
    # Kept are groups 0 and 2 of the file: the second kept one is number 1.
    file = run / "rollouts/step_000003.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for i, line in enumerate(lines):
        line["kept"] = i // 2 != 1
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    groups = read_groups(run, 3, {"group_size": 2, "unbiased_std": False})
    clips = [[r["tokens"][2] if "tokens" in r else None for r in group["responses"]] for group in groups]
    assert clips == [["0", None], [None, None], ["1", None]]
    first, second = groups[1]["responses"]
    assert first | {"recipe": True} == {
        **{"text": "Answer: 4", "answer": "3", "status": "correct", "correct": True, "truncated": False},
        **{"length": 7, "reward": 1.0, "advantage": 1.0, "recipe": True},  # ±1.25 over a std of 1.25
    }
    assert (second["text"], second["reward"], second["truncated"]) == ("no number", -1.5, True)
    assert (second["correct"], second["recipe"], second["advantage"]) == (False, False, -1.0)
    assert (groups[1]["prompt"], groups[1]["reference"], groups[1]["source"]) == ("3 + 1 = ", "4", "t#0")


def test_the_bound_is_shared_by_the_runs_and_one_folder_twice_has_two_names(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / name, steps=tuple(range(1, 10))) for name in ("a", "b")]
    size = len(json.dumps(page_data(runs, 1.0)[1][0]["steps"][1]))
    for part in page_data(runs, 2 * 3.5 * size / 1e6)[1]:
        assert sorted(part["steps"]) == [1, 5, 9]
    assert run_names([runs[0], runs[0]])[0] != run_names([runs[0], runs[0]])[1]
    curves, _ = page_data(runs, 1.0)
    assert [run["name"] for run in curves["runs"]] == ["a", "b"]
    assert curves["own_keys"] == ["output_dir", "resume", "allow_config_change"]


def test_the_page_has_its_runs_as_title_and_reloads_as_often_as_asked(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / name) for name in ("a<b", "c")]
    text = page(*page_data(runs, 1.0), watch_s=7)
    assert "<title>a&lt;b · c" in text
    assert '"watch_s":7' in text
    assert embedded("\u2029\u2028") == '"\\u2029\\u2028"'


def test_bars_are_as_high_as_their_figures(tmp_path: Path) -> None:
    """avg 1/2 ± 1/6 and maj 3/4 of a height of 180 above y = 224; the second data set is all right."""
    picture = bars(figures([*ROWS, *[response_row(0, True, data="e")] * 3]))
    found = re.findall(r'<rect x="(\d+)" y="([\d.]+)" width="26" height="([\d.]+)" fill="(#\w+)"', picture)
    heights = [(float(y), float(height)) for _, y, height, _ in found]
    assert heights[:4] == [(134.0, 90.0), (89.0, 135.0), (44.0, 180.0), (44.0, 180.0)]
    assert [colour for *_, colour in found[:2]] == ["#0072b2", "#e69f00"]
    assert len({x for x, *_ in found}) == len(found) == 6
    assert '<path d="M73.0 164.0V104.0"' in picture  # 224 − 180 · (1/2 ∓ 1/6)
    assert ">avg@3</text>" in picture
    assert ">maj@3</text>" in picture
