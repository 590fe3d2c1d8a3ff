"""What an evaluation reports: avg@k, pass@k, and how responses end (§4.1: AIME 2024, avg@32).

Dimension key: P problems, k samples a problem.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dapo_ref.types import Group
from dapo_ref.verifier import Status


def avg_at_k(correct: Tensor) -> tuple[float, float]:
    """avg@k, the mean over problems of the share of right samples, and its standard error.

    The samples of a problem are not independent draws of the benchmark, so the error is that of a mean of P
    problem means: std over problems (Bessel-corrected) / √P.

    Args:
        correct: [P, k] bool.

    Returns:
        (avg@k, standard error); the error is nan for a single problem.
    """
    means = correct.double().mean(dim=1)
    error = float(means.std() / math.sqrt(len(means))) if len(means) > 1 else math.nan
    return float(means.mean()), error


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


def summarize(groups: Sequence[Group]) -> dict[str, Any]:
    """All figures of an evaluation, as `results.json` holds them.

    Args:
        groups: one a problem, of the same size, verified.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    correct = torch.tensor([[rollout.correct for rollout in group.rollouts] for group in groups])
    samples = correct.shape[1]
    mean, error = avg_at_k(correct)
    statuses = [rollout.verdict.status for rollout in rollouts if rollout.verdict]
    powers = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    return {
        "problems": len(groups),
        "samples_per_problem": samples,
        f"avg@{samples}": mean,
        "standard_error": None if math.isnan(error) else error,
        **{f"pass@{k}": pass_at_k(correct, k) for k in powers},
        "truncated_frac": sum(rollout.truncated for rollout in rollouts) / len(rollouts),
        "no_answer_frac": statuses.count(Status.NO_ANSWER) / len(rollouts),
        "length_mean": sum(len(rollout.response_ids) for rollout in rollouts) / len(rollouts),
        "verdicts": {str(status): statuses.count(status) for status in Status},
    }


def table(results: dict[str, Any]) -> str:
    """The figures for a screen, one a line."""
    lines = []
    for name, value in results.items():
        if isinstance(value, dict):
            value = "  ".join(f"{key} {count}" for key, count in value.items() if count)
        elif isinstance(value, float):
            value = f"{value:.4f}"
        lines.append(f"{name:<22}{value}")
    return "\n".join(lines)
