"""What the page draws, as JSON: curves, configurations, length histograms, and rollouts within a bound.

Only files of the run folder are read, also while the run writes them. Neither DeepSpeed nor a model is
imported.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dapo_ref.run.files import read_lines
from dapo_ref.verifier import recipe_judge

LENGTH_BINS = 24
OWN_KEYS = ("output_dir", "resume", "allow_config_change")  # of a start, not of a run: never a difference
NO_MATTER = (
    *(*OWN_KEYS, "seed", "compare_recipe", "record_tokens", "checkpoint_every", "keep_checkpoints"),
    *("tracker", "evaluate_every", "eval_data", "eval_samples_per_problem", "eval_top_p"),
)
"""Keys in which runs may differ and still be the same but for their seed."""

Line = Mapping[str, Any]


class Panel(NamedTuple):
    """A plot of the page: its title, what to know about it, the keys of its curves, its section.

    `scale` is how its axis reads: `share` of 0 … 1, `log` for what spans powers of ten, or plain.
    """

    title: str
    note: str
    keys: tuple[str, ...]
    section: str
    scale: str = "plain"


PANELS = [
    Panel("Accuracy", "all sampled responses, temperature 1", ("reward/accuracy",), "Learning", "share"),
    Panel("Mean reward", "Fig. 7b · Eq. 7 + Eq. 13", ("reward/mean",), "Learning"),
    Panel("Response length", "Fig. 7a · tokens", ("response/length_mean",), "Learning"),
    Panel("Entropy", "Fig. 2b, 7c · nats", ("policy/entropy",), "Learning"),
    Panel("Mean probability", "Fig. 7d · of sampled tokens", ("policy/mean_prob",), "Learning"),
    Panel("Truncated", "share that ran into the cap", ("response/truncated_frac",), "Learning", "share"),
    Panel(
        "Groups without a gradient",
        "Fig. 3b · share of those sampled",
        ("sampling/all_correct_frac", "sampling/all_wrong_frac"),
        "Dynamic sampling",
        "share",
    ),
    Panel(
        "Groups",
        "generated, mixed, kept",
        ("sampling/groups_generated", "sampling/groups_qualified", "sampling/groups_kept"),
        "Dynamic sampling",
    ),
    Panel("Rounds", "of generation, a step", ("sampling/rounds",), "Dynamic sampling"),
    Panel("Acceptance", "mixed groups, share", ("derived/acceptance",), "Dynamic sampling", "share"),
    Panel(
        "Clipped tokens",
        "Eq. 10 · share below 1−ε_low, above 1+ε_high",
        ("policy/clip_frac_low", "policy/clip_frac_high"),
        "Update",
    ),
    Panel("Largest ratio", "Eq. 9 · of a token", ("policy/ratio_max",), "Update"),
    Panel("Gradient norm", "before clipping", ("grad_norm",), "Update"),
    Panel("Loss", "Eq. 8 · mean over the step's updates", ("loss",), "Update"),
    Panel(
        "Seconds by phase",
        "of a step, the slowest process",
        ("time/rollout_s", "time/update_s", "time/logprobs_s", "time/verify_s", "time/evaluate_s"),
        "Cost",
    ),
    Panel("Tokens a second", "sampled, trained", ("derived/generated_a_s", "derived/trained_a_s"), "Cost"),
    Panel("Tokens a step", "generated, trained", ("tokens/generated", "tokens/trained"), "Cost"),
    Panel("Memory", "largest process, MB", ("memory/peak_mb",), "Cost"),
    Panel(
        "Verdicts that are not right or wrong",
        "share of responses",
        (
            *("verdict/no_answer_frac", "verdict/unparsable_frac", "verdict/multiple_frac"),
            *("verdict/timeout_frac", "verdict/too_big_frac", "verdict/recipe_disagrees_frac"),
        ),
        "Verifier",
    ),
]


def read_run(folder: Path, name: str) -> dict[str, Any]:
    """A run as the page knows it, without its rollouts.

    Raises:
        FileNotFoundError: there is no metrics.jsonl.
    """
    lines = [with_derived(line) for line in read_lines(require_run(folder))]
    config = read_config(folder / "config.yaml")
    trained = [line for line in lines if line.get("step") != 0]  # step 0 holds an evaluation alone
    return {
        "name": name,
        "config": config,
        "seedless": json.dumps({k: v for k, v in config.items() if k not in NO_MATTER}),
        "axes": {
            "step": [line.get("step", i + 1) for i, line in enumerate(lines)],
            "updates": [line.get("updates", 0) for line in lines],
            "tokens": list(accumulate(line.get("tokens/generated") or 0 for line in lines)),
            "time": [round(t, 2) for t in accumulate(map(seconds, lines))],
        },
        "curves": columns(lines),
        "lengths": length_histogram(folder, [line.get("step", i + 1) for i, line in enumerate(trained)]),
    }


def require_run(folder: Path) -> Path:
    """The metrics of a run folder.

    Raises:
        FileNotFoundError: the folder does not exist, or holds no run.
    """
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist")
    file = folder / "metrics.jsonl"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no run (no metrics.jsonl)")
    return file


def read_config(file: Path) -> dict[str, Any]:
    """The resolved configuration; empty where there is none."""
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None
    return content if isinstance(content, dict) else {}


def seconds(line: Line) -> float:
    """What a step took, all phases."""
    return sum(value for key, value in line.items() if key.startswith("time/") and value)


def with_derived(line: Line) -> dict[str, Any]:
    """A line with the quotients that people ask for."""
    quotients = {
        "derived/acceptance": ("sampling/groups_qualified", "sampling/groups_generated"),
        "derived/generated_a_s": ("tokens/generated", "time/rollout_s"),
        "derived/trained_a_s": ("tokens/trained", "time/update_s"),
    }
    found = {
        key: line[above] / line[below]
        for key, (above, below) in quotients.items()
        if line.get(above) is not None and line.get(below)
    }
    return {**line, **found}


def columns(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """Each key's values over the lines, null where a line has none; six digits."""
    keys = dict.fromkeys(key for line in lines for key in line)
    return {key: [_short(line.get(key)) for line in lines] for key in keys if key not in ("step", "updates")}


def _short(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


# --- Rollouts -----------------------------------------------------------------------------------------------


def rollout_files(folder: Path) -> dict[int, Path]:
    """The file of each step."""
    return {int(file.stem[5:]): file for file in sorted((folder / "rollouts").glob("step_*.jsonl"))}


@lru_cache(maxsize=4096)
def _lengths_of(file: Path, stamp: int) -> tuple[int, ...]:
    return tuple(row["length"] for row in read_lines(file) if "length" in row)


def length_histogram(folder: Path, steps: Iterable[int]) -> dict[str, Any] | None:
    """Responses by length for each step.

    Returns:
        `width` of a bin in tokens and `counts`, a list of bins a step (None where the file is gone); None
        without any file.
    """
    files = rollout_files(folder)
    found = [
        _lengths_of(files[step], files[step].stat().st_mtime_ns) if step in files else () for step in steps
    ]
    longest = max((max(lengths) for lengths in found if lengths), default=0)
    if not longest:
        return None
    width = max(1, math.ceil(longest / LENGTH_BINS))
    counts: list[list[int] | None] = []
    for lengths in found:
        bins = [0] * math.ceil(longest / width)
        for length in lengths:
            bins[min(max(length - 1, 0) // width, len(bins) - 1)] += 1
        counts.append(bins if lengths else None)
    return {"width": width, "counts": counts}


def read_groups(folder: Path, step: int, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The groups of a step as the page shows them.

    A group is `group_size` rows that follow one another. Its advantages (Eq. 9) are computed anew from the
    rewards; of Eq. 13 the share is what the reward differs from ±1.
    """
    rows = read_lines(rollout_files(folder)[step])
    size = int(config.get("group_size") or 1)
    tokens = read_tokens(folder / "tokens" / f"step_{step:06d}.jsonl")
    groups, kept = [], 0
    for start in range(0, len(rows), size):
        members = rows[start : start + size]
        first = members[0]
        advantages = advantages_of([m["reward"] for m in members], config.get("unbiased_std", True))
        is_kept = bool(first.get("kept", True))
        groups.append(
            {
                "prompt": first["prompt"],
                "reference": first["reference"],
                "source": first.get("source", ""),
                "kept": is_kept,
                "responses": [
                    _response(row, advantage, tokens.get((kept, i)) if is_kept else None)
                    for i, (row, advantage) in enumerate(zip(members, advantages, strict=True))
                ],
            }
        )
        kept += is_kept
    return groups


def _response(row: Line, advantage: float, tokens: Line | None) -> dict[str, Any]:
    correct = bool(row.get("correct", row["status"] == "correct"))
    found = {
        "text": row["response"],
        "answer": row.get("answer"),
        "status": row["status"],
        "correct": correct,
        "truncated": bool(row.get("truncated", False)),
        "length": row.get("length"),
        "reward": row["reward"],
        "advantage": round(advantage, 3),
        "recipe": recipe_judge(row["response"], row["reference"]).correct,
    }
    if tokens is not None:
        found["tokens"] = [tokens["tokens"], tokens["probs"], tokens["clipped"]]
    return found


def advantages_of(rewards: Sequence[float], unbiased: bool) -> list[float]:
    """Eq. 9 for the rewards of a group."""
    mean = sum(rewards) / len(rewards)
    freedom = max(len(rewards) - bool(unbiased), 1)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / freedom)
    return [(reward - mean) / (std + 1e-6) for reward in rewards]


def read_tokens(file: Path) -> dict[tuple[int, int], Line]:
    """What `record_tokens` left of a step: by kept group and response."""
    return {(row["group"], row["sample"]): row for row in read_lines(file)} if file.exists() else {}


def bounded_rollouts(folder: Path, config: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Whole steps for the page, evenly spread over the run, until `limit` bytes of JSON are reached.

    Returns:
        `steps`, by number, and `of`, how many there are in the run folder.
    """
    numbers = list(rollout_files(folder))
    shown: dict[int, list[dict[str, Any]]] = {}
    used = 0
    for number in spread(numbers):
        groups = read_groups(folder, number, config)
        used += len(json.dumps(groups, ensure_ascii=False).encode(errors="replace"))
        if used > limit and shown:
            break
        shown[number] = groups
    return {"of": len(numbers), "steps": {number: shown[number] for number in sorted(shown)}}


def spread(items: Sequence[int]) -> list[int]:
    """All items, first and last before those in between, halving the gaps: any beginning is spread evenly."""
    if len(items) < 3:
        return list(items)
    order, gaps = [items[0], items[-1]], [(0, len(items) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order.append(items[middle])
            gaps += [(low, middle), (middle, high)]
    return order


def page_data(folders: Sequence[Path], rollouts_mb: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(curves and configurations of all runs, their rollouts), each a value for `json.dumps`.

    Args:
        folders: of the runs.
        rollouts_mb: how many megabytes of rollouts the page may hold, over all runs.
    """
    names = run_names(folders)
    runs = [read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
    limit = int(rollouts_mb * 1e6 / len(runs))
    rollouts = [
        bounded_rollouts(folder, run["config"], limit) for folder, run in zip(folders, runs, strict=True)
    ]
    panels = [panel._asdict() for panel in PANELS]
    return {"runs": runs, "panels": panels, "own_keys": list(OWN_KEYS)}, rollouts


def run_names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as much of their path as tells them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({i + 1})" for i, name in enumerate(names)]
