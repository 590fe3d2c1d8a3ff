"""What an evaluation reports: avg@k, pass@j, maj@k, and how responses end (§4.1: AIME 2024, avg@32).

Figures are taken from rows, one a response, as `scoring.rollout_rows` and `run/evaluator.py` make them; a row
says with `data` and `problem` what it is a response to.

Dimension key: P problems, k samples a problem.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dapo_ref.verifier import Status

Row = Mapping[str, Any]
ALL = "all"
"""Name of the figures over the problems of all data sets."""


def avg_at_k(correct: Tensor) -> tuple[float, float]:
    """avg@k, the mean over problems of the share of right samples, and its standard error.

    The samples of a problem are not independent draws of the benchmark, so the error is that of a mean of P
    problem means: std over problems (Bessel-corrected) / √P.

    Args:
        correct: [P, k] bool.

    Returns:
        (avg@k, standard error); the error is nan for a single problem.
    """
    return mean_and_error(correct.double().mean(dim=1))


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean of [P] values and its standard error, std / √P; the error is nan for a single one."""
    error = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), error


def pass_at_k(correct: Tensor, k: int) -> float:
    """Unbiased pass@k: the chance that k of the n samples, drawn without replacement, hold a right one.

        pass@k = mean over problems of 1 − C(n − c, k) / C(n, k),   c the right samples of a problem

    Args:
        correct: [P, n] bool.
        k: at most n.

    Raises:
        ValueError: k is not in 1 … n.
    """
    samples = correct.shape[1]
    if not 1 <= k <= samples:
        raise ValueError(f"k must be between 1 and the {samples} samples of a problem, got {k}")
    counts = correct.sum(dim=1).tolist()
    return sum(1 - math.comb(samples - c, k) / math.comb(samples, k) for c in counts) / len(counts)


def majority(classes: Iterable[int | None]) -> tuple[float, bool]:
    """Whether the answer that most samples of a problem agree on is the right one: one term of maj@k.

    Args:
        classes: of each sample, from `Scorer.answer_classes`: equivalent answers have the same number, the
            right one has 0, a sample without an answer has None and no vote.

    Returns:
        (1 or 0, and with a tie for the first place 1/m if the right answer is among the m that share it,
        the chance that a fair draw between them picks it; whether there was a tie).
    """
    votes = Counter(found for found in classes if found is not None)
    if not votes:
        return 0.0, False
    most = max(votes.values())
    first = [found for found, count in votes.items() if count == most]
    return (0 in first) / len(first), len(first) > 1


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """All figures of the responses to some problems.

    Args:
        rows: of whole problems, the same number of samples for each. Those that are `too_long` were not
            asked: they count as wrong, and how responses end is said of the others.

    Returns:
        As `results.json` holds them; a figure that does not exist is None.
    """
    problems = by_problem(rows)
    correct = torch.tensor([[row["correct"] for row in samples] for samples in problems.values()])
    k = correct.shape[1]
    mean, error = avg_at_k(correct)
    voted = [majority(row["answer_class"] for row in samples) for samples in problems.values()]
    asked = [row for row in rows if not row.get("too_long")]
    statuses = Counter(row["status"] for row in asked)
    probs = [row["mean_prob"] for row in asked if row["mean_prob"] is not None]
    return {
        "problems": len(problems),
        "too_long": len(problems) - len(asked) // k,
        "samples_per_problem": k,
        f"avg@{k}": mean,
        "standard_error": None if math.isnan(error) else error,
        f"maj@{k}": sum(value for value, _ in voted) / len(voted),
        "maj_ties_frac": sum(tie for _, tie in voted) / len(voted),
        **{f"pass@{j}": pass_at_k(correct, j) for j in powers_up_to(k)},
        "truncated_frac": sum(row["truncated"] for row in asked) / len(asked),
        "no_answer_frac": statuses[Status.NO_ANSWER] / len(asked),
        "length_mean": sum(row["length"] for row in asked) / len(asked),
        "mean_prob": sum(probs) / len(probs) if probs else None,
        "verdicts": {str(status): statuses[status] for status in Status},
    }


def by_problem(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows of each (data set, problem), in the order in which they come."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["data"], row["problem"]), []).append(row)
    return found


def powers_up_to(k: int) -> list[int]:
    """1, 2, 4 … and k itself."""
    return [2**i for i in range(k.bit_length()) if 2**i < k] + [k]


def figures(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """`summarize` for each data set by name, and, where there are several, over `all` their problems."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    found = {name: summarize([row for row in rows if row["data"] == name]) for name in names}
    return found if len(names) == 1 else {**found, ALL: summarize(rows)}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures for a screen: a column a data set."""
    lines = [f"{'':<22}" + "".join(f"{name:>18}" for name in found)]
    first = next(iter(found.values()))
    for key in first:
        if key not in ("verdicts", "standard_error"):
            cells = [
                _cell(results[key], results["standard_error"] if key.startswith("avg@") else None)
                for results in found.values()
            ]
            lines.append(f"{key:<22}" + "".join(f"{cell:>18}" for cell in cells))
    for name, results in found.items():
        counts = "  ".join(f"{status} {n}" for status, n in results["verdicts"].items() if n)
        lines.append(f"{'verdicts ' + name:<22}  {counts}")
    return "\n".join(lines)


def _cell(value: Any, error: float | None) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else "–" if value is None else str(value)
    return text if error is None else f"{text} ± {error:.4f}"
