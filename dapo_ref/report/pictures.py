"""A run as one picture, `report.png`, for documents and papers.

Panels follow the paper: accuracy and entropy (Fig. 2), share of all-correct groups (Fig. 3b), length,
reward, entropy and mean probability (Fig. 7). The x-axis counts optimiser updates, as the paper's does, or
with `--x tokens` the response tokens generated, for a fair look at runs with and without dynamic sampling.
Several runs share the panels. Needs matplotlib.
"""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from dapo_ref.report.data import run_names
from dapo_ref.run.files import read_lines

PANELS = {
    "accuracy of all sampled responses": ["reward/accuracy"],
    "mean reward (Fig. 7b)": ["reward/mean"],
    "response length, tokens (Fig. 7a)": ["response/length_mean"],
    "share of truncated responses": ["response/truncated_frac"],
    "entropy, nats (Fig. 2b, 7c)": ["policy/entropy"],
    "mean probability (Fig. 7d)": ["policy/mean_prob"],
    "share of sampled groups (Fig. 3b)": ["sampling/all_correct_frac", "sampling/all_wrong_frac"],
    "groups": ["sampling/groups_generated", "sampling/groups_kept"],
    "share of clipped tokens": ["policy/clip_frac_low", "policy/clip_frac_high"],
    "gradient norm": ["grad_norm"],
    "seconds a step": ["time/rollout_s", "time/logprobs_s", "time/update_s"],
    "tokens a step": ["tokens/generated", "tokens/trained"],
}
X_AXES = {"updates": "optimiser updates", "tokens": "response tokens generated so far"}


def draw(runs: Sequence[Path], file: Path, x: str = "updates") -> None:
    """Writes the panels of one or several runs as a PNG.

    Args:
        runs: their folders.
        file: the picture.
        x: a key of `X_AXES`.

    Raises:
        ImportError: matplotlib is not installed.
        FileNotFoundError: a folder without metrics.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the report needs matplotlib: pip install matplotlib") from error
    names = run_names(runs)
    records = {name: read_lines(run / "metrics.jsonl") for name, run in zip(names, runs, strict=True)}
    places = {name: positions(lines, x) for name, lines in records.items()}
    figure = Figure(figsize=(15, 10), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(3, 4).flat, PANELS.items(), strict=True):
        for name, lines in records.items():
            for key in keys:
                found = zip(places[name], lines, strict=True)
                points = [(place, line[key]) for place, line in found if line.get(key) is not None]
                label = " ".join(([name] if len(records) > 1 else []) + ([key] if len(keys) > 1 else []))
                axes.plot(*zip(*points, strict=True), label=label or None)
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=7)
    figure.supxlabel(X_AXES[x])
    figure.savefig(file, dpi=90)


def positions(lines: Sequence[dict[str, Any]], x: str) -> list[float]:
    """Where each line of metrics.jsonl stands on the x-axis."""
    if x == "tokens":
        return list(accumulate(line.get("tokens/generated", 0) for line in lines))
    return [line["updates"] for line in lines]
