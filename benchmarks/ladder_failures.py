"""Table and pictures of the failures that the field reports; `ladder_hypotheses.md` says what is compared.

A run has 50 rollout steps; it is paired with the ladder's own run of the same seed, cut there.
"""

import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ladder_report import (
    DAPO,
    Figures,
    Measure,
    Run,
    Runs,
    area,
    at,
    bold,
    differences,
    draw,
    markdown,
    mean_and_interval,
    read,
    shown,
    values,
    window,
)

NAIVE = "1_naive_grpo"
STEPS = 50
TOKENS = 250_000

LABELS = {
    NAIVE: "naive GRPO",
    "fast_naive": "learning rate 1e-3",
    "fast_clip_higher": "1e-3, ε_high 0.28",
    "fast_dual_clip_10": "1e-3, ε_high 0.28, dual clip c = 10",
    "fast_dual_clip_3": "1e-3, ε_high 0.28, dual clip c = 3",
    "fast_clip_none": "1e-3, no clip",
    DAPO: "DAPO",
    "updates_1": "one update a step",
    "updates_4": "four updates a step",
    "updates_8": "eight updates a step",
    "filter_on_reward": "filter on rewards",
    "clip_none": "no clip",
    "clip_high_1": "ε_high 1",
    "clip_high_0.5": "ε_high 0.5",
    "groups_of_4": "groups of 4",
    "groups_of_16": "groups of 16",
    "groups_of_32": "groups of 32, eight updates",
    "microbatch_means": "means per micro-batch",
}

MEAN: Measure = partial(area, end=STEPS)
END: Measure = partial(at, axis="step", place=STEPS)
BY_TOKENS: Measure = partial(area, axis="tokens", end=TOKENS)


class Comparison(NamedTuple):
    """A hypothesis: the first condition less the second one, in a measure; `expected` is `<`, `>` or `=`."""

    name: str
    pair: tuple[str, str]
    measure: Measure
    expected: str


COMPARISONS = (
    Comparison("F1", ("fast_naive", NAIVE), END, "<"),
    Comparison("F2", ("fast_clip_higher", "fast_naive"), END, ">"),
    Comparison("F3", ("fast_dual_clip_10", "fast_clip_higher"), END, "="),
    Comparison("F4", ("fast_dual_clip_3", "fast_clip_higher"), END, ">"),
    Comparison("F5", ("fast_clip_none", "fast_naive"), END, "<"),
    Comparison("F6", ("updates_1", DAPO), MEAN, "<"),
    Comparison("F7", ("updates_4", DAPO), MEAN, "<"),
    Comparison("F8", ("filter_on_reward", DAPO), MEAN, "<"),
    Comparison("F9", ("clip_none", DAPO), MEAN, "<"),
    Comparison("F10", ("clip_high_1", DAPO), MEAN, "="),
    Comparison("F11", ("clip_high_0.5", DAPO), MEAN, "="),
    Comparison("F12", ("groups_of_4", DAPO), BY_TOKENS, "<"),
    Comparison("F13", ("groups_of_16", DAPO), BY_TOKENS, ">"),
    Comparison("F14", ("groups_of_32", "updates_8"), BY_TOKENS, ">"),
    Comparison("F15", ("microbatch_means", DAPO), MEAN, "="),
)
MEASURES: dict[str, Measure] = {
    "mean over 50 steps": MEAN,
    "step 20": partial(at, axis="step", place=20),
    "step 50": END,
    f"mean to {TOKENS:,} tokens": BY_TOKENS,
}


def peak(run: Run, key: str) -> float | None:
    """The largest value of a curve in the steps looked at."""
    drawn = [value for value in run["curves"].get(key, [])[:STEPS] if value is not None]
    return max(drawn, default=None)


def late(run: Run, key: str) -> float | None:
    """A curve's mean over the last ten steps."""
    return window(run, key, STEPS - 9, STEPS) if key in run["curves"] else None


def whole(run: Run, key: str) -> float | None:
    """A curve's mean over the steps looked at; None if the run does not have it."""
    return window(run, key, 1, STEPS) if key in run["curves"] else None


BESIDE: dict[str, Measure] = {
    "entropy, steps 18–22": partial(window, key="policy/entropy", first=18, last=22),
    "entropy, last ten": partial(late, key="policy/entropy"),
    "clipped high": partial(whole, key="policy/clip_frac_high"),
    "clipped low": partial(whole, key="policy/clip_frac_low"),
    "dual clip": partial(whole, key="policy/clip_frac_dual"),
    "largest ratio": partial(peak, key="policy/ratio_max"),
    "careful, last ten": partial(late, key="way/careful"),
    "guess, last ten": partial(late, key="way/guess"),
    "tokens generated": lambda run: sum(run["curves"]["tokens/generated"][:STEPS]),
}


def seeds_of(runs: Runs) -> set[int]:
    """Seeds that any failure was run with; of the ladder's own runs only these are looked at."""
    return {seed for name in LABELS if name not in (NAIVE, DAPO) for seed in runs.get(name, {})}


def verdict(expected: str, numbers: Sequence[float]) -> str:
    """What the interval says of the hypothesis."""
    mean, half = mean_and_interval(numbers)
    if math.isnan(half):
        return "too few seeds"
    seen = "=" if abs(mean) <= half else ">" if mean > 0 else "<"
    if seen == expected:
        return "holds" if expected != "=" else "no difference seen"
    return "not seen" if seen == "=" else "differs" if expected == "=" else "reversed"


def table(runs: Runs) -> str:
    """Means, what stands beside them, and the hypotheses, as Markdown."""
    there = [name for name in LABELS if name in runs]
    rows = []
    for name in there:
        cells = [shown(list(values(runs, name, measure).values())) for measure in MEASURES.values()]
        rows.append([LABELS[name], str(len(runs[name])), *cells])
    text = "Held-out avg@4, mean over seeds ± 95 % interval.\n\n"
    text += markdown(["condition", "seeds", *MEASURES], rows) + "\n\nMeans over seeds.\n\n"
    rows = []
    for name in there:
        found = [list(values(runs, name, measure).values()) for measure in BESIDE.values()]
        rows.append([LABELS[name], *(f"{statistics.fmean(v):.3g}" if v else "—" for v in found)])
    text += markdown(["condition", *BESIDE], rows) + "\n\nPaired differences by seed ± 95 % interval.\n\n"
    rows = []
    for name, pair, measure, expected in COMPARISONS:
        if numbers := differences(runs, pair, measure):
            what = f"{LABELS[pair[0]]} less {LABELS[pair[1]]}"
            cell = bold(shown(numbers, "+"), numbers)
            rows.append([name, what, str(len(numbers)), f"{expected} 0", cell, verdict(expected, numbers)])
    return text + markdown(["", "difference", "seeds", "expected", "found", ""], rows) + "\n"


HELDOUT = ("held-out avg@4", "heldout", "step")
ENTROPY = ("entropy, nats", "policy/entropy", "step")
FIGURES: Figures = {
    "failures_fast": (
        [NAIVE, "fast_naive", "fast_clip_higher", "fast_dual_clip_10", "fast_dual_clip_3", "fast_clip_none"],
        [HELDOUT, ENTROPY, ("largest ratio of the step", "policy/ratio_max", "step")],
    ),
    "failures_dapo": (
        [DAPO, "updates_1", "updates_4", "filter_on_reward", "clip_none", "clip_high_1"],
        [HELDOUT, ENTROPY, ("guesses", "way/guess", "step")],
    ),
    "failures_groups": (
        ["groups_of_4", DAPO, "groups_of_16", "groups_of_32"],
        [("held-out avg@4", "heldout", "tokens"), HELDOUT],
    ),
}


def cut(run: Run) -> Run:
    """The first 50 steps of a run."""
    curves: dict[str, Any] = {key: drawn[:STEPS] for key, drawn in run["curves"].items()}
    return {**run, "heldout": [p for p in run["heldout"] if p["step"] <= STEPS], "curves": curves}


def report(results: Path, output: Path) -> None:
    """Writes `failures.md` and the pictures, and prints the table."""
    runs = read(results)
    seeds = seeds_of(runs)
    runs = {name: {seed: run for seed, run in of.items() if seed in seeds} for name, of in runs.items()}
    output.mkdir(parents=True, exist_ok=True)
    text = table(runs)
    (output / "failures.md").write_text(text, encoding="utf-8")
    halves = {name: {seed: cut(run) for seed, run in of.items()} for name, of in runs.items()}
    made = {file: f for file, f in FIGURES.items() if runs.keys() & set(f[0]) - {NAIVE, DAPO}}
    draw(halves, output, made, LABELS)
    print(text)
