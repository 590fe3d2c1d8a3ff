"""`python -m dapo_ref.report RUN [RUN …] [--output DIR] [--watch SECONDS]`.

`report.html` is one file that loads nothing from elsewhere: curves, configurations and their differences, a
browser of rollouts. `report.png` beside it is for documents; it needs matplotlib and is left out without.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dapo_ref.report.data import page_data, require_run
from dapo_ref.report.page import page
from dapo_ref.report.pictures import X_AXES, draw
from dapo_ref.run.files import replacing


def write(runs: Sequence[Path], output: Path, x: str, rollouts_mb: float, watch_s: float = 0) -> None:
    """Writes the page, and the picture where matplotlib is installed.

    Raises:
        FileNotFoundError: a folder without metrics.
    """
    text = page(*page_data(runs, rollouts_mb), watch_s=watch_s)
    with replacing(output / "report.html") as file:
        file.write(text)
    if importlib.util.find_spec("matplotlib"):
        draw(runs, output / "report.png", x)
    elif not watch_s:
        print("report.png is left out: `pip install matplotlib` for it", file=sys.stderr)


def watch(runs: Sequence[Path], output: Path, x: str, rollouts_mb: float, seconds: float) -> None:
    """Writes anew whenever a run has a new step, until it is interrupted."""
    before: list[float] = []
    while True:
        now = [(run / "metrics.jsonl").stat().st_mtime for run in runs]
        if now != before:
            write(runs, output, x, rollouts_mb, seconds)
            before = now
        time.sleep(seconds)


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dapo_ref.report", description="Draw a run.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument("--x", choices=list(X_AXES), default="updates", help="the picture's x-axis")
    parser.add_argument("--output", type=Path, help="where to write; default: the first run folder")
    parser.add_argument(
        "--rollouts_mb", type=float, default=12.0, help="rollouts in the page, at most, over all runs"
    )
    parser.add_argument(
        "--watch", nargs="?", type=float, const=10.0, default=0.0, metavar="SECONDS", help="redraw every …"
    )
    args = parser.parse_args(argv)
    output = args.output or args.runs[0]
    try:
        for run in args.runs:  # before anything is made
            require_run(run)
        output.mkdir(parents=True, exist_ok=True)
        write(args.runs, output, args.x, args.rollouts_mb, args.watch)
        print(output / "report.html", flush=True)
        if args.watch:
            watch(args.runs, output, args.x, args.rollouts_mb, args.watch)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0
