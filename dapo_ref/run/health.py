"""Warnings when a run goes wrong in a known way, each once, with the key to look at (`docs/metrics.md`)."""

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Record = Mapping[str, Any]

ENTROPY_STEPS, STILL_STEPS, NORM_STEPS = 5, 20, 10


class Rule(NamedTuple):
    """A known way to go wrong: how many steps it takes to be seen, whether it is there, what to say.

    `wrong` is given the records of the last `steps` steps, the newest last.
    """

    steps: int
    wrong: Callable[[list[Record]], bool]
    text: str


def _value(record: Record, key: str) -> float:
    value = record.get(key)
    return 0.0 if value is None else float(value)


def _norm_jumps(records: list[Record]) -> bool:
    *before, now = [_value(record, "grad_norm") for record in records]
    return now > 10 * statistics.median(before) > 0


RULES = [
    Rule(
        ENTROPY_STEPS,
        lambda rs: all(_value(r, "policy/entropy") < 0.01 for r in rs),
        f"policy/entropy is below 0.01 for {ENTROPY_STEPS} steps: responses are alike; raise clip_eps_high",
    ),
    Rule(
        1,
        lambda rs: _value(rs[-1], "sampling/all_correct_frac") == 1,
        "sampling/all_correct_frac is 1: no group has a gradient; the data are too easy",
    ),
    Rule(
        1,
        lambda rs: _value(rs[-1], "sampling/all_wrong_frac") == 1,
        "sampling/all_wrong_frac is 1: no group has a gradient; the data are too hard, or look at verdict/",
    ),
    Rule(
        1,
        lambda rs: (
            _value(rs[-1], "sampling/groups_qualified") < 0.1 * _value(rs[-1], "sampling/groups_generated")
        ),
        "sampling/groups_qualified is under 10 % of sampling/groups_generated: most is discarded; use "
        "easier or harder data, or a larger group_size",
    ),
    Rule(
        1,
        lambda rs: _value(rs[-1], "response/truncated_frac") > 0.2,
        "response/truncated_frac is above 0.2: raise max_response_length",
    ),
    Rule(
        STILL_STEPS,
        lambda rs: not any(_value(r, f"policy/clip_frac_{side}") for r in rs for side in ("low", "high")),
        f"policy/clip_frac_low and _high are 0 for {STILL_STEPS} steps: the policy hardly moves in a "
        "step; one update a step (responses_per_update), or a small learning_rate",
    ),
    Rule(
        NORM_STEPS,
        _norm_jumps,
        f"grad_norm is ten times the median of the {NORM_STEPS - 1} steps before: look at its rollouts",
    ),
    Rule(
        1,
        lambda rs: _value(rs[-1], "policy/sampler_gap_mean") > 0.05,
        "policy/sampler_gap_mean is above 0.05: the policy that samples is not the one that is trained; "
        "docs/metrics.md says what to try",
    ),
    Rule(
        1,
        lambda rs: _value(rs[-1], "verdict/timeout_frac") > 0,
        "verdict/timeout_frac is above 0: raise verifier_timeout_s, or verifier_workers",
    ),
]


class Health:
    """Remembers the last steps and what was said; begins anew with each start."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque(maxlen=max(rule.steps for rule in RULES))
        self._said: set[str] = set()

    def check(self, record: Record) -> list[str]:
        """Warnings that a step gives rise to and that were not given before."""
        self._records.append(record)
        found = []
        for rule in RULES:
            recent = list(self._records)[-rule.steps :]
            if len(recent) == rule.steps and rule.text not in self._said and rule.wrong(recent):
                self._said.add(rule.text)
                found.append(f"step {record['step']}: {rule.text}")
        return found
