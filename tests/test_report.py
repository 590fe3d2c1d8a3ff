"""`dapo_ref/report/`: what is drawn is what the run's files say, and model text cannot become markup."""

import json
import shutil

import pytest

from dapo_ref.report import PANELS, command, data, draw, main, positions
from dapo_ref.report.data import (
    advantages_of,
    length_histogram,
    page_data,
    read_groups,
    read_run,
    run_names,
    spread,
)
from dapo_ref.report.page import embedded, page
from tests.run.test_metrics import LISTED
from tests.support.browser import needs_chromium, run_in_page

pytest.importorskip("matplotlib")
from matplotlib.axes import Axes

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def fake_run(folder, response="Answer: 3", steps=(1, 2, 3), seed=7, **config):
    (folder / "rollouts").mkdir(parents=True)
    settings = {"seed": seed, "group_size": 2, "output_dir": str(folder), **config}
    (folder / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    keys = [key for panel in data.PANELS for key in panel.keys if not key.startswith("derived/")]
    lines = [{"step": step, "updates": 4 * step, **dict.fromkeys(keys, 0.1 * step)} for step in steps]
    for line in lines:
        line |= {"sampling/groups_generated": 4, "sampling/groups_qualified": line["step"]}
    lines[1]["grad_norm"] = None  # a step whose updates were all skipped
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in steps:
        rows = []
        for right in range(3):  # groups with 0, 1 and 2 of 2 right
            for g in range(2):
                good = g < right
                row = {"prompt": f"{step} + {right} = ", "reference": str(step + right), "source": "t#0"}
                row |= {"response": f"Answer: {step + right}" if good else response, "kept": right == 1}
                row |= {"answer": "3", "status": "correct" if good else "wrong", "correct": good}
                row |= {"truncated": g == 1, "length": 4 + step, "reward": 1.0 if good else -1.5}
                rows.append(row)
        file = folder / f"rollouts/step_{step:06d}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_command_writes_page_and_picture(tmp_path, capsys):
    run = fake_run(tmp_path / "run", HOSTILE)
    assert main([str(run)]) == 0
    text = (run / "report.html").read_text()
    assert (run / "report.png").read_bytes().startswith(b"\x89PNG")
    assert text.count("<script") == 3  # data, rollouts, the page's own; none of the model's
    assert "<img" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert capsys.readouterr().out.strip() == str(run / "report.html")


def test_runs_are_drawn_together_and_elsewhere(tmp_path):
    runs = [str(fake_run(tmp_path / name)) for name in ("first", "second")]
    assert main([*runs, "--output", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.png"]
    assert not (tmp_path / "first" / "report.html").exists()


def test_the_pictures_axis_counts_updates_or_tokens_generated_so_far(tmp_path):
    lines = [{"updates": u, "tokens/generated": n} for u, n in ((4, 100), (7, 50), (7, 30))]
    assert positions(lines, "updates") == [4, 7, 7]
    assert positions(lines, "tokens") == [100, 150, 180]
    assert main([str(fake_run(tmp_path / "run")), "--x", "tokens"]) == 0


def test_a_folder_without_metrics_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "metrics.jsonl" in capsys.readouterr().err


def test_a_folder_that_does_not_exist_is_said_and_not_made(tmp_path, capsys):
    run = fake_run(tmp_path / "run")
    assert main([str(run), str(tmp_path / "rnu"), "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'rnu'} does not exist\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_the_picture_has_a_curve_for_each_of_two_runs_of_one_name(tmp_path, monkeypatch):
    runs = [fake_run(tmp_path / name / "run") for name in ("a", "b")]
    labels = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda *args, **kwargs: labels.append(kwargs["label"]) or plot(*args))
    draw(runs, tmp_path / "report.png")
    assert labels[:2] == ["a/run", "b/run"]


def test_panels_draw_recorded_keys():
    assert {key for keys in PANELS.values() for key in keys} <= set(LISTED)
    unlisted = {"time/evaluate_s", "sampling/groups_qualified"}
    drawn = {key for panel in data.PANELS for key in panel.keys}
    assert {k for k in drawn if not k.startswith(("derived/", "verdict/"))} <= set(LISTED) | unlisted


def test_without_matplotlib_the_page_is_written_and_the_picture_is_said_to_be_missing(
    tmp_path, monkeypatch, capsys
):
    run = fake_run(tmp_path / "run")
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert main([str(run)]) == 0
    assert (run / "report.html").exists()
    assert not (run / "report.png").exists()
    assert "pip install matplotlib" in capsys.readouterr().err


def test_watch_draws_again_when_there_is_a_new_step(tmp_path, monkeypatch):
    run = fake_run(tmp_path / "run")
    drawn = []

    def wait(seconds):
        drawn.append((seconds, (run / "report.html").read_text().count('"tokens/trained"')))
        (run / "report.html").unlink(missing_ok=True)
        if len(drawn) == 2:
            raise KeyboardInterrupt
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "updates": 16}\n{"step": 5, "upd')

    monkeypatch.setattr(command.time, "sleep", wait)
    assert main([str(run), "--watch", "7"]) == 0
    assert [seconds for seconds, _ in drawn] == [7, 7]


# --- Data ---------------------------------------------------------------------------------------------------


def test_a_run_as_the_page_knows_it(tmp_path):
    run = read_run(fake_run(tmp_path / "run"), "name")
    assert run["axes"]["step"] == [1, 2, 3]
    assert run["axes"]["updates"] == [4, 8, 12]
    assert run["axes"]["tokens"] == pytest.approx([0.1, 0.3, 0.6])
    assert run["axes"]["time"] == pytest.approx([0.5, 1.5, 3.0])  # five phases of 0.1 · step
    assert run["curves"]["grad_norm"] == [0.1, None, 0.3]
    assert run["curves"]["derived/acceptance"] == [0.25, 0.5, 0.75]
    # Lengths 5, 6 and 7 of six responses each: bins of one token from 1.
    assert run["lengths"] == {
        "width": 1,
        "counts": [[0, 0, 0, 0, 6, 0, 0], [0, 0, 0, 0, 0, 6, 0], [0, 0, 0, 0, 0, 0, 6]],
    }


def test_runs_that_differ_in_their_seed_alone_are_known(tmp_path):
    one, two, other = (
        read_run(fake_run(tmp_path / name, seed=seed, learning_rate=rate), name)
        for name, seed, rate in (("a", 1, 0.1), ("b", 2, 0.1), ("c", 2, 0.2))
    )
    assert one["seedless"] == two["seedless"] != other["seedless"]


def test_a_line_that_is_still_written_and_a_missing_rollout_file_are_no_error(tmp_path):
    run = fake_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "upd')
    (run / "rollouts/step_000002.jsonl").unlink()
    assert read_run(run, "x")["axes"]["step"] == [1, 2, 3]
    assert length_histogram(run, [1, 2, 3])["counts"][1] is None
    shutil.rmtree(run / "rollouts")
    assert length_histogram(run, [1, 2, 3]) is None


def test_groups_hold_reward_advantage_verdicts_and_recorded_tokens(tmp_path):
    run = fake_run(tmp_path / "run")
    (run / "tokens").mkdir()
    row = {"group": 0, "sample": 1, "tokens": ["a", "b"], "probs": [0.5, 1.0], "clipped": ".h"}
    (run / "tokens/step_000002.jsonl").write_text(json.dumps(row) + "\n")
    wrong, mixed, right = read_groups(run, 2, {"group_size": 2, "unbiased_std": True})
    assert [group["kept"] for group in (wrong, mixed, right)] == [False, True, False]
    assert mixed["reference"] == "3"
    first, second = mixed["responses"]
    # Rewards 1 and −1.5: mean −0.25, std √(2 · 1.25²) = 1.7678, Â = ±0.707.
    assert (first["advantage"], second["advantage"]) == (0.707, -0.707)
    assert (first["recipe"], second["recipe"]) == (True, True)  # `Answer: 3` is right by its rule
    assert second["tokens"] == [["a", "b"], [0.5, 1.0], ".h"]
    assert "tokens" not in first
    assert advantages_of([1.0, -1.5], unbiased=False)[0] == pytest.approx(1, abs=1e-5)


def test_rollouts_in_the_page_are_bounded_and_spread_over_the_run(tmp_path):
    assert spread(list(range(1, 10))) == [1, 9, 5, 3, 7, 2, 4, 6, 8]
    assert spread([4]) == [4]
    run = fake_run(tmp_path / "run", steps=tuple(range(1, 10)))
    whole = page_data([run], 1.0)[1][0]
    assert (whole["of"], sorted(whole["steps"])) == (9, list(range(1, 10)))
    size = len(json.dumps(whole["steps"][1]))
    part = page_data([run], 3.5 * size / 1e6)[1][0]
    assert (part["of"], list(part["steps"])) == (9, [1, 5, 9])
    assert list(page_data([run], 0)[1][0]["steps"]) == [1]  # one step at least


def test_names_of_runs_tell_them_apart(tmp_path):
    assert run_names([tmp_path / "a/run", tmp_path / "b/other"]) == ["run", "other"]
    assert run_names([tmp_path / "a/run", tmp_path / "b/run"]) == ["a/run", "b/run"]


def test_embedded_json_cannot_leave_its_element():
    text = embedded({"a": "</script><!--\u2028\ud800"})
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text)["a"].startswith("</script><!--")


# --- In a browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    work = tmp_path_factory.mktemp("page")
    runs = [fake_run(work / name, HOSTILE, seed=seed) for name, seed in (("first", 1), ("second", 2))]
    (work / "report.html").write_text(page(*page_data(runs, 1.0)))
    return work / "report.html"


@needs_chromium
def test_the_page_draws_switches_axes_filters_and_asks_for_nothing(opened):
    script = """
    const paths = () => document.querySelector('svg[aria-label="Accuracy"] .line').getAttribute('d');
    say(document.querySelectorAll('.plot:not([hidden]) .line').length > 30);
    const labels = () => [...document.querySelectorAll('svg[aria-label="Accuracy"] text')]
      .map((t) => t.textContent);
    const before = paths(), told = labels().pop();
    const axis = document.getElementById('axis');
    axis.value = 'updates'; axis.dispatchEvent(new Event('change'));
    say(told + ' ' + labels().pop());
    const smooth = document.getElementById('smooth');
    smooth.value = 0.9; smooth.dispatchEvent(new Event('input'));
    say(paths() !== before);
    say(document.querySelectorAll('svg[aria-label="Accuracy"] .line').length);
    const bands = document.getElementById('bands'); bands.click();
    say(document.querySelectorAll('svg[aria-label="Accuracy"] .line').length);
    say([...document.querySelectorAll('#differences th')].map((n) => n.textContent).join(' '));
    openStep(1, 2);
    say(state.step + ' ' + document.getElementById('count').textContent);
    const show = document.querySelector('select[aria-label="show"]');
    for (const kind of ['mixed', 'wrong', 'truncated', 'none', 'dropped', 'tokens']) {
      show.value = kind; show.dispatchEvent(new Event('change'));
      say(kind + ' ' + document.getElementById('count').textContent);
    }
    show.value = 'all'; show.dispatchEvent(new Event('change'));
    say(document.querySelector('#group pre').textContent.slice(0, 17));
    const search = document.querySelector('input[type=search]');
    search.value = '2 + 1'; search.dispatchEvent(new Event('input'));
    say(document.getElementById('count').textContent + ' ' + document.querySelector('mark').textContent);
    const plot = document.querySelector('svg[aria-label="Accuracy"]');
    plot.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft' }));
    say(document.querySelector('.legend').textContent.includes('at 12'));
    document.getElementById('theme').click();
    say(document.documentElement.dataset.theme);
    say(document.title);
    say(performance.getEntriesByType('resource').length);
    """
    said = run_in_page(opened, script)
    assert said[0] == "true"
    assert said[1] == "3 12"  # the last label of the x-axis: steps, then updates
    assert said[2:5] == ["true", "2", "1"]
    assert said[5] == "key first second seed"
    assert said[6] == "2 3 groups"
    assert said[7:13] == [
        *("mixed 1 groups", "wrong 1 groups", "truncated 3 groups", "none 0 groups", "dropped 2 groups"),
        "tokens 0 groups",
    ]
    assert said[13:] == [HOSTILE[:17], "1 groups 2 + 1", "true", "dark", "first · second", "0"]


@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen_and_a_state_can_be_shared(opened, width):
    script = "openStep(0, 3); say(document.documentElement.scrollWidth <= innerWidth); say(state.smooth);"
    assert run_in_page(opened, script, width, fragment="#%7B%22smooth%22%3A0.5%7D") == ["true", "0.5"]
