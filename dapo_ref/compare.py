"""Two evaluations compared: `python -m dapo_ref.compare A B`, two folders that `evaluate.py` wrote, or two
runs whose `evaluation/` it wrote.

Both answered the same problems, so the difference is taken problem by problem: how hard a problem is cancels.
What is given is the mean difference B − A and its 95 % interval, that of a mean of P paired differences
(Student's t with P − 1 degrees of freedom). An interval without 0 is a difference that the choice of problems
does not explain.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import mpmath
import torch
from torch import Tensor

from dapo_ref.evaluation import ALL, by_problem, majority, mean_and_error
from dapo_ref.run.files import read_lines

LEVEL = 0.95


def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """t such that a Student variable of so many degrees of freedom is within ±t with probability `level`."""
    if degrees > 200:  # an expansion around the normal distribution, exact to five digits there
        z = NormalDist().inv_cdf((1 + level) / 2)
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)

    def beyond(t: float) -> float:  # P(|T| > t), falling
        return float(mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True))

    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > 1 - level else (low, middle)
    return low


def paired_interval(a: Tensor, b: Tensor) -> tuple[float, float, float]:
    """Mean of b − a and the bounds of its interval; a and b are [P], of the same problems."""
    mean, error = mean_and_error(b.double() - a.double())
    half = t_quantile(len(a) - 1) * error if len(a) > 1 else float("nan")
    return mean, mean - half, mean + half


def values(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What a problem adds to avg@k, maj@k and pass@k."""
    right = [row["correct"] for row in samples]
    vote, _ = majority(row["answer_class"] for row in samples)
    return {"avg": sum(right) / len(right), "maj": vote, "pass": float(any(right))}


def compare(first: Path, second: Path) -> list[dict[str, Any]]:
    """A row for each data set and figure, and over all data sets where there are several.

    Raises:
        ValueError: a folder holds no results, or they have no problem in common.
    """
    problems = [_problems(folder) for folder in (first, second)]
    common = [key for key in problems[0] if key in problems[1]]
    if not common:
        raise ValueError(f"{first} and {second} have no problem in common")
    sizes = [len(next(iter(found.values()))) for found in problems]
    names = list(dict.fromkeys(name for name, *_ in common))
    rows = []
    for name in [*names, ALL] if len(names) > 1 else names:
        keys = [key for key in common if name in (key[0], ALL)]
        pairs = [[values(found[key]) for key in keys] for found in problems]
        for figure in pairs[0][0]:
            if figure == "pass" and sizes[0] != sizes[1]:
                continue  # grows with k
            a, b = (torch.tensor([v[figure] for v in side], dtype=torch.float64) for side in pairs)
            mean, low, high = paired_interval(a, b)
            rows.append(
                {"data": name, "figure": figure, "k": sizes, "problems": len(keys), "a": float(a.mean())}
                | {"b": float(b.mean()), "difference": mean, "low": low, "high": high}
            )
    return rows


def _problems(folder: Path) -> dict[tuple[str, ...], Sequence[Mapping[str, Any]]]:
    """Samples by what the problem says: the same one may have another number elsewhere."""
    places = (folder, folder / "evaluation")
    file = next((place / "responses.jsonl" for place in places if (place / "responses.jsonl").exists()), None)
    if file is None:
        raise ValueError(f"{folder} holds no results of evaluate.py (no responses.jsonl)")
    groups = by_problem(read_lines(file))
    return {(name, s[0]["prompt"], s[0]["reference"]): s for (name, _), s in groups.items()}


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows for a screen."""
    lines = [f"{'':<18}{'':<10}{'problems':>9}{'A':>9}{'B':>9}{'B − A':>9}   {LEVEL:.0%} interval"]
    for row in rows:
        k = row["k"][0] if len(set(row["k"])) == 1 else f"{row['k'][0]},{row['k'][1]}"
        figure = f"{row['figure']}@{k}"
        sure = "" if row["low"] <= 0 <= row["high"] or row["low"] != row["low"] else "  without 0"
        lines.append(
            f"{row['data']:<18}{figure:<10}{row['problems']:>9}{row['a']:>9.4f}{row['b']:>9.4f}"
            f"{row['difference']:>+9.4f}   [{row['low']:+.4f}, {row['high']:+.4f}]{sure}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dapo_ref.compare", description="Two evaluations, problem by problem."
    )
    parser.add_argument(
        "a", type=Path, metavar="A", help="folder that evaluate.py wrote, or a run with evaluation/ inside"
    )
    parser.add_argument("b", type=Path, metavar="B", help="another, of the same problems")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    try:
        rows = compare(args.a, args.b)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(rows, indent=1) if args.json else text(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
