"""A run drawn: `python -m dapo_ref.report RUN [RUN …] [--output DIR]`.

Panels follow the paper: accuracy and entropy (Fig. 2), share of all-correct groups (Fig. 3b), length,
reward, entropy and mean probability (Fig. 7). The x-axis counts optimiser updates, as the paper's does, or
with `--x tokens` the response tokens generated, for a fair look at runs with and without dynamic sampling.
Several runs share the panels. `report.png` and `report.html` (the same picture, the configuration, and
responses from the first and the last step) go to the run folder, or to `--output`. Needs matplotlib.
"""

import argparse
import base64
import html
import json
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from dapo_ref.run.files import read_metrics

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
    records = {run.name: read_metrics(run / "metrics.jsonl") for run in runs}
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
        return list(accumulate(line["tokens/generated"] for line in lines))
    return [line["updates"] for line in lines]


def page(run: Path, picture: Path) -> str:
    """One HTML page, without anything loaded from elsewhere; model text is escaped."""
    encoded = base64.b64encode(picture.read_bytes()).decode()
    config = html.escape((run / "config.yaml").read_text())
    files = sorted((run / "rollouts").glob("step_*.jsonl"))
    samples = "".join(_samples(file) for file in dict.fromkeys([files[0], files[-1]])) if files else ""
    return (
        f"<!doctype html><meta charset='utf-8'><title>{html.escape(run.name)}</title>"
        "<style>body{font-family:sans-serif;margin:2em}img{max-width:100%}"
        "pre{white-space:pre-wrap;background:#f4f4f4;padding:.6em}</style>"
        f"<h1>{html.escape(run.name)}</h1><img alt='metrics' src='data:image/png;base64,{encoded}'>"
        f"{samples}<h2>Configuration</h2><pre>{config}</pre>"
    )


def _samples(file: Path, count: int = 6) -> str:
    rows: list[dict[str, Any]] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    chosen = rows[:: max(1, len(rows) // count)][:count]
    texts = [
        f"{row['prompt']}{row['response']}\n\n"
        f"[{row['status']}, reference {row['reference']}, reward {row['reward']}]"
        for row in chosen
    ]
    shown = "".join(f"<pre>{html.escape(text)}</pre>" for text in texts)
    return f"<h2>{html.escape(file.stem)}</h2>{shown}"


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dapo_ref.report", description="Draw a run.")
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders; the first gives the page"
    )
    parser.add_argument("--x", choices=list(X_AXES), default="updates", help="what the x-axis counts")
    parser.add_argument("--output", type=Path, help="where to write; default: the first run folder")
    args = parser.parse_args(argv)
    output = args.output or args.runs[0]
    try:
        output.mkdir(parents=True, exist_ok=True)
        draw(args.runs, output / "report.png", args.x)
        (output / "report.html").write_text(page(args.runs[0], output / "report.png"), encoding="utf-8")
    except (FileNotFoundError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(output / "report.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
