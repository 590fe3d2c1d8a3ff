"""`dapo_ref/report.py`: what is drawn is what the run's files say, and model text cannot become markup."""

import json

import pytest

from dapo_ref.report import PANELS, main, positions
from tests.run.test_metrics import LISTED

pytest.importorskip("matplotlib")


def fake_run(folder, response):
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 7\n")
    keys = [key for keys in PANELS.values() for key in keys]
    lines = [{"updates": step, **dict.fromkeys(keys, 0.1 * step)} for step in (1, 2, 3)]
    lines[1]["grad_norm"] = None  # a step whose updates were all skipped
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = {"prompt": "1 + 1 = ", "response": response, "reference": "2", "status": "wrong", "reward": -1.0}
    for step in (1, 2, 3):
        (folder / f"rollouts/step_{step:06d}.jsonl").write_text(
            json.dumps(row | {"reference": str(step)}) + "\n"
        )
    return folder


def test_page_holds_picture_configuration_and_first_and_last_responses(tmp_path, capsys):
    run = fake_run(tmp_path / "run", "<script>alert('x')</script>")
    assert main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert (run / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "seed: 7" in page
    assert "reference 1," in page
    assert "reference 3," in page
    assert "reference 2," not in page
    assert "&lt;script&gt;alert" in page
    assert "<script>" not in page
    assert capsys.readouterr().out.strip() == str(run / "report.html")


def test_runs_are_drawn_together_and_elsewhere(tmp_path):
    runs = [str(fake_run(tmp_path / name, "Answer: 3")) for name in ("first", "second")]
    assert main([*runs, "--output", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.png"]
    assert not (tmp_path / "first" / "report.html").exists()


def test_the_axis_counts_updates_or_tokens_generated_so_far(tmp_path):
    lines = [{"updates": u, "tokens/generated": n} for u, n in ((4, 100), (7, 50), (7, 30))]
    assert positions(lines, "updates") == [4, 7, 7]
    assert positions(lines, "tokens") == [100, 150, 180]
    assert main([str(fake_run(tmp_path / "run", "")), "--x", "tokens"]) == 0


def test_a_folder_without_metrics_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "metrics.jsonl" in capsys.readouterr().err


def test_panels_draw_recorded_keys():
    assert {key for keys in PANELS.values() for key in keys} <= set(LISTED)
