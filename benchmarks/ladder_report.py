"""Table and pictures of the ladder's results; what is compared stands in `ladder_hypotheses.md`.

Every number is a mean over seeds with its 95 % interval (Student's t), every difference is paired: the two
runs of a seed begin with the same problems in the same order.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpmath import betainc, findroot, mpf

Run = dict[str, Any]
Runs = dict[str, dict[int, Run]]
"""condition → seed → what `ladder.py` kept."""

LABELS = {
    "1_naive_grpo": "naive GRPO",
    "2_overlong_filtering": "+ overlong filtering",
    "3_clip_higher": "+ Clip-Higher",
    "4_soft_overlong_punishment": "+ soft overlong punishment (filtering off)",
    "5_token_level_loss": "+ token-level loss",
    "6_dynamic_sampling": "+ dynamic sampling = DAPO",
    "dapo_without_clip_higher": "DAPO without Clip-Higher",
    "dapo_without_soft_punishment": "DAPO without soft punishment",
    "dapo_without_token_level": "DAPO without token-level loss",
}
PAPER = {"1": 30, "2": 36, "3": 38, "4": 41, "5": 42, "6": 50}
"""AIME 2024 avg@32 of Table 1."""

DAPO = "6_dynamic_sampling"
STEPS = list(LABELS)[:6]
PAIRS = [
    *zip(STEPS[1:], STEPS[:-1], strict=True),
    (DAPO, "1_naive_grpo"),
    *((DAPO, name) for name in list(LABELS)[6:]),
]
"""(with, without): the five steps of Table 1, the whole of it, and DAPO against itself less one technique."""

CHECKPOINT_EVERY = 10
"""Rollout steps, in `configs/columns_cpu.yaml`."""
STEPS_READ = (20, 40, 100)
"""Rollout steps of 16 updates: 320, 640 and 1,600 updates. Counted in steps, since an update whose responses
are all filtered is not made."""
TOKENS = (100_000, 200_000, 400_000)


def read(results: Path) -> Runs:
    """All finished runs of a folder. One that was interrupted has a checkpoint more, which is left out: it is
    not among those of the others."""
    runs: Runs = {}
    for file in sorted(results.glob("*_seed*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        run["heldout"] = [point for point in run["heldout"] if point["step"] % CHECKPOINT_EVERY == 0]
        runs.setdefault(run["condition"], {})[run["seed"]] = run
    return runs


# --- Statistics ---------------------------------------------------------------------------------------------


def t_quantile(degrees: int) -> float:
    """The 0.975 quantile of Student's t: P(|t| > q) = I_{ν/(ν+q²)}(ν/2, 1/2) = 0.05."""

    def tail(q: Any) -> Any:
        return betainc(mpf(degrees) / 2, 0.5, 0, degrees / (degrees + q * q), regularized=True) - 0.05

    return float(findroot(tail, (1.9, 13.0), solver="anderson"))


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval; nan with fewer than two values."""
    if len(values) < 2:
        return (values[0] if values else math.nan), math.nan
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), t_quantile(len(values) - 1) * error


def at(run: Run, axis: str, place: float) -> float | None:
    """Held-out avg@k of a run at so many updates, tokens or seconds, linear between checkpoints; None beyond
    the last."""
    points = [(point[axis], point["avg"]) for point in run["heldout"]]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= place <= x1:
            return float(y0 + (y1 - y0) * (place - x0) / (x1 - x0))
    return None


def area(run: Run, axis: str = "step", end: float | None = None) -> float | None:
    """Mean of held-out avg@k: the area under its curve against rollout steps, or another axis, up to its end
    or to `end`; None if the run ends before."""
    end = run["heldout"][-1][axis] if end is None else end
    last = at(run, axis, end)
    if last is None:
        return None
    points = [(point[axis], point["avg"]) for point in run["heldout"] if point[axis] < end] + [(end, last)]
    pieces = [(x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points)]
    return float(sum(pieces) / end)


def window(run: Run, key: str, first: int, last: int) -> float:
    """Mean of a curve over rollout steps, counted from 1, both ends included."""
    found = [value for value in run["curves"][key][first - 1 : last] if value is not None]
    return statistics.fmean(found)


def rise(run: Run, key: str) -> float:
    """A curve's last ten steps less its first ten."""
    steps = len(run["curves"][key])
    return window(run, key, steps - 9, steps) - window(run, key, 1, 10)


Measure = Callable[[Run], float | None]
MEASURES: dict[str, Measure] = {
    "mean over the run": area,
    **{f"step {step}": partial(at, axis="step", place=step) for step in STEPS_READ},
    **{f"{count:,} tokens": partial(at, axis="tokens", place=count) for count in TOKENS},
}


def values(runs: Runs, name: str, measure: Measure) -> dict[int, float]:
    """A measure by seed, where it exists."""
    found = {seed: measure(run) for seed, run in runs.get(name, {}).items()}
    return {seed: value for seed, value in found.items() if value is not None}


def differences(runs: Runs, pair: tuple[str, str], measure: Measure) -> list[float]:
    """With less without, of the seeds that both have."""
    first, second = (values(runs, name, measure) for name in pair)
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


# --- Tables -------------------------------------------------------------------------------------------------

AROUND_20: dict[str, Any] = {"first": 18, "last": 22}
AROUND_40: dict[str, Any] = {"first": 38, "last": 42}
FIGURE_DIFFERENCES: list[tuple[str, str, tuple[str, str], Measure]] = [
    (
        "Fig. 2",
        "entropy around step 20",
        ("3_clip_higher", "2_overlong_filtering"),
        partial(window, key="policy/entropy", **AROUND_20),
    ),
    (
        "Fig. 4",
        "entropy around step 40",
        ("5_token_level_loss", "4_soft_overlong_punishment"),
        partial(window, key="policy/entropy", **AROUND_40),
    ),
    (
        "Fig. 4",
        "response length around step 40",
        ("5_token_level_loss", "4_soft_overlong_punishment"),
        partial(window, key="response/length_mean", **AROUND_40),
    ),
    (
        "Fig. 5",
        "truncated, steps 1 to 20",
        ("2_overlong_filtering", "1_naive_grpo"),
        partial(window, key="response/truncated_frac", first=1, last=20),
    ),
    (
        "Fig. 6",
        "held-out avg@4 at 200,000 tokens",
        (DAPO, "5_token_level_loss"),
        partial(at, axis="tokens", place=200_000),
    ),
]
"""(figure, quantity, (with, without), measure); `around` is the mean of five steps."""

FIGURE_RISES = [
    ("Fig. 3b", "share of all-correct groups", "sampling/all_correct_frac"),
    ("Fig. 7", "response length", "response/length_mean"),
    ("Fig. 7", "mean reward", "reward/mean"),
    ("Fig. 7", "entropy", "policy/entropy"),
    ("Fig. 7", "mean probability", "policy/mean_prob"),
]
"""(figure, quantity, key): the last ten steps less the first ten, of one condition."""

PLAIN = {
    "accuracy": "reward/accuracy",
    "groups all right": "sampling/all_correct_frac",
    "groups all wrong": "sampling/all_wrong_frac",
    "truncated": "response/truncated_frac",
    "of these on the right way": "truncated/on_the_right_way",
    "length, 10th percentile": "length/p10",
    "length, 90th percentile": "length/p90",
    "entropy, nats a token": "policy/entropy",
    "clipped high": "policy/clip_frac_high",
    "clipped low": "policy/clip_frac_low",
    "careful": "way/careful",
    "with a repeat": "way/repeats",
}
"""What a plain run shows of the task."""
SPANS = ((1, 10), (11, 20), (21, 40), (41, 60), (61, 80), (81, 100))


def shown(numbers: Sequence[float], sign: str = "") -> str:
    """`0.512 ± 0.034`."""
    if not numbers:
        return "—"
    mean, half = mean_and_interval(numbers)
    return f"{mean:{sign}.3f}" + ("" if math.isnan(half) else f" ± {half:.3f}")


def table(runs: Runs) -> str:
    """Means, then paired differences, as Markdown."""
    head = ["condition", "paper", "seeds", *MEASURES]
    rows = []
    for name in [name for name in LABELS if name in runs]:
        paper = str(PAPER.get(name[0], "")) if name in STEPS else ""
        cells = [shown(list(values(runs, name, measure).values())) for measure in MEASURES.values()]
        rows.append([LABELS[name], paper, str(len(runs[name])), *cells])
    text = f"Held-out avg@4, mean over seeds ± 95 % interval.\n\n{markdown(head, rows)}\n"
    head = ["difference", "paper", "seeds", *MEASURES]
    rows = []
    for pair in [pair for pair in PAIRS if differences(runs, pair, area)]:
        found = [differences(runs, pair, measure) for measure in MEASURES.values()]
        cells = [bold(shown(numbers, "+"), numbers) for numbers in found]
        rows.append([f"{LABELS[pair[0]]} less {LABELS[pair[1]]}", in_paper(pair), str(len(found[0])), *cells])
    note = "Paired differences by seed ± 95 % interval; bold where it excludes 0."
    text = f"{text}\n{note}\n\n{markdown(head, rows)}\n\n{figures(runs)}\n"
    return f"{text}\n{plain(runs)}\n" if "1_naive_grpo" in runs else text


def figures(runs: Runs) -> str:
    """The quantities of the paper's figures, as differences by seed."""
    rows = []
    for figure, quantity, pair, measure in FIGURE_DIFFERENCES:
        if numbers := differences(runs, pair, measure):
            what = f"{quantity}: {LABELS[pair[0]]} less {LABELS[pair[1]]}"
            rows.append([figure, what, str(len(numbers)), bold(shown(numbers, "+"), numbers)])
    for figure, quantity, key in FIGURE_RISES:
        for name in [name for name in ("1_naive_grpo", DAPO) if name in runs]:
            numbers = [rise(run, key) for run in runs[name].values()]
            what = f"{quantity}, last ten steps less first ten: {LABELS[name]}"
            rows.append([figure, what, str(len(numbers)), bold(shown(numbers, "+"), numbers)])
    return markdown(["figure", "quantity", "seeds", "difference"], rows)


def plain(runs: Runs) -> str:
    """What naive GRPO shows of the task, by spans of rollout steps."""
    rows = []
    for what, key in PLAIN.items():
        spans = [
            [
                window(run, key, *span)
                for run in runs["1_naive_grpo"].values()
                if len(run["curves"][key]) >= span[0]
            ]
            for span in SPANS
        ]
        rows.append([what, *(f"{statistics.fmean(found):.3g}" if found else "—" for found in spans)])
    return markdown(["naive GRPO, steps", *(f"{first}–{last}" for first, last in SPANS)], rows)


def in_paper(pair: tuple[str, str]) -> str:
    """The difference in Table 1, points."""
    if not all(name in STEPS for name in pair):
        return ""
    return f"{PAPER[pair[0][0]] - PAPER[pair[1][0]]:+d}"


def bold(text: str, numbers: Sequence[float]) -> str:
    """Marks a difference whose interval excludes 0."""
    mean, half = mean_and_interval(numbers)
    return f"**{text}**" if abs(mean) > half else text


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- Pictures -----------------------------------------------------------------------------------------------

Panel = tuple[str, str, str]
"""(title, what is drawn: a key of the curves or `heldout`, x-axis: a key of `AXES`)"""

Figures = dict[str, tuple[list[str], list[Panel]]]
"""file → conditions and panels"""

FIGURES: Figures = {
    "ladder": (STEPS, [("held-out avg@4", "heldout", "updates"), ("held-out avg@4", "heldout", "tokens")]),
    "fig2_clip_higher": (
        ["2_overlong_filtering", "3_clip_higher", "dapo_without_clip_higher", DAPO],
        [("held-out avg@4", "heldout", "updates"), ("entropy, nats", "policy/entropy", "updates")],
    ),
    "fig3_saturation": (
        ["1_naive_grpo", "5_token_level_loss", DAPO],
        [
            ("share of all-correct groups (Fig. 3b)", "sampling/all_correct_frac", "updates"),
            ("share of all-wrong groups", "sampling/all_wrong_frac", "updates"),
        ],
    ),
    "fig4_token_level": (
        ["4_soft_overlong_punishment", "5_token_level_loss", "dapo_without_token_level", DAPO],
        [
            ("entropy, nats", "policy/entropy", "updates"),
            ("response length, tokens", "response/length_mean", "updates"),
        ],
    ),
    "fig5_overlong": (
        ["1_naive_grpo", "2_overlong_filtering", "dapo_without_soft_punishment", DAPO],
        [
            ("held-out avg@4", "heldout", "updates"),
            ("entropy, nats", "policy/entropy", "updates"),
            ("truncated", "response/truncated_frac", "updates"),
        ],
    ),
    "fig6_dynamic_sampling": (
        ["5_token_level_loss", DAPO],
        [
            ("held-out avg@4", "heldout", "updates"),
            ("held-out avg@4", "heldout", "tokens"),
            ("held-out avg@4", "heldout", "seconds"),
        ],
    ),
    "fig7_monitored": (
        ["1_naive_grpo", DAPO],
        [
            ("response length, tokens", "response/length_mean", "updates"),
            ("mean reward", "reward/mean", "updates"),
            ("entropy, nats", "policy/entropy", "updates"),
            ("mean probability", "policy/mean_prob", "updates"),
        ],
    ),
    "ways": (
        STEPS,
        [
            ("careful responses", "way/careful", "updates"),
            ("clipped high", "policy/clip_frac_high", "updates"),
        ],
    ),
}
AXES = {
    "step": "rollout steps",
    "updates": "optimiser updates",
    "tokens": "response tokens generated",
    "seconds": "seconds",
}


def curve(run: Run, key: str, axis: str) -> list[tuple[float, float]]:
    """(x, y) of one run."""
    if key == "heldout":
        return [(point[axis], point["avg"]) for point in run["heldout"]]
    drawn = run["curves"][key]
    xs = run["curves"]["updates"] if axis == "updates" else range(1, len(drawn) + 1)
    pairs = zip(xs, drawn, strict=True)
    return [(x, y) for x, y in pairs if y is not None]


def band(runs: Sequence[Run], key: str, axis: str) -> tuple[list[float], list[float], list[float]]:
    """x, mean and half-width over runs. Against tokens and seconds the x of the runs differ: their mean is
    taken, checkpoint by checkpoint. With two runs the half-width is half their distance: the interval of two
    values hides everything."""
    columns = zip(*(curve(run, key, axis) for run in runs), strict=False)
    xs, means, halves = [], [], []
    for column in columns:
        mean, half = mean_and_interval([y for _, y in column])
        xs.append(statistics.fmean(x for x, _ in column))
        means.append(mean)
        drawn = [y for _, y in column]
        halves.append(half if len(drawn) > 2 else (max(drawn) - min(drawn)) / 2)
    return xs, means, halves


def draw(runs: Runs, output: Path, figures: Figures, labels: Mapping[str, str]) -> None:
    """One PNG a figure; what has no run yet is left out. A condition has one colour in all figures."""
    from matplotlib.figure import Figure

    for file, (names, panels) in figures.items():
        there = [name for name in names if name in runs]
        if not there:
            continue
        figure = Figure(figsize=(5 * len(panels), 3.6), layout="constrained")
        for axes, (title, key, axis) in zip(figure.subplots(1, len(panels)).flat, panels, strict=True):
            for name in there:
                xs, means, halves = band(list(runs[name].values()), key, axis)
                color = f"C{list(labels).index(name) % 10}"
                label = f"{labels[name]} ({len(runs[name])})"
                axes.plot(xs, means, color=color, label=label)
                lows, highs = ([m + sign * h for m, h in zip(means, halves, strict=True)] for sign in (-1, 1))
                axes.fill_between(xs, lows, highs, color=color, alpha=0.15, linewidth=0)
            axes.set_title(title, fontsize=10)
            axes.set_yscale("log" if key == "policy/ratio_max" else "linear")
            axes.set_xlabel(AXES[axis], fontsize=9)
            axes.grid(alpha=0.3)
        figure.axes[0].legend(fontsize=7)
        figure.savefig(output / f"{file}.png", dpi=90)


def report(results: Path, output: Path) -> None:
    """Writes `table.md` and the pictures, and prints the table."""
    runs = read(results)
    output.mkdir(parents=True, exist_ok=True)
    text = table(runs)
    (output / "table.md").write_text(text, encoding="utf-8")
    draw(runs, output, FIGURES, LABELS)
    print(text)
