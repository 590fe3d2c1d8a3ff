"""Agreement on the shared labelled cases and data sets; skipped where they are not at hand.

They are looked for in `shared` beside the repository, or where DAPO_SHARED points.
"""

import json
import os
from pathlib import Path

import pytest

from dapo_ref.verifier import check_reference, is_equivalent, judge
from dapo_ref.verifier.decide import read_integer

SHARED = Path(os.environ.get("DAPO_SHARED") or Path(__file__).resolve().parents[3] / "shared")
CASES = SHARED / "verifier" / "cases.jsonl"

pytestmark = pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")

WRAPPINGS = [
    *("Answer: {}", "Answer: ${}$", "Answer: ${}$.", "**Answer:** {}", "Answer: **{}**", "**Answer: ${}$**"),
    *(
        "Answer: \\({}\\)",
        "Answer:\n\\[\n{}\n\\]",
        "Answer: $\\boxed{{{}}}$",
        "It is \\boxed{{{}}}.",
        "Answer: {}.",
    ),
    *("The answer is ${}$.", "Answer: {}<|im_end|>", "$$\\boxed{{{}}}$$"),
]
UNITS = ["Answer: {} units", "Answer: ${}$ square units", "Answer: ${}\\text{{ cm}}$", "Answer: $n = {}$"]


def load_cases() -> list[dict]:
    cases = [json.loads(line) for line in CASES.read_text().split("\n") if line]
    return [case for case in cases if not case.get("contested") and not case.get("any_verdict")]


def decide(case: dict) -> bool:
    if "response" in case:
        return judge(case["response"], case["gold"]).correct
    answer = case["answer"] if "answer" in case else "".join(text * n for text, n in case["answer_gen"])
    return is_equivalent(answer, case["gold"])


def test_agreement() -> None:
    """No false positive on integer data or under attack; ≥ 99 % on marked integers; ≥ 97 % overall."""
    wrong, integers, integer_misses = [], 0, []
    cases = load_cases()
    for case in cases:
        marked = case.get("anchor") in (None, "answer_line", "boxed")
        is_integer = marked and read_integer(case["gold"]) is not None
        integers += is_integer
        if decide(case) != case["expected"]:
            wrong.append(case)
            integer_misses += [case["id"]] * is_integer
    strict = {"dapo17k", "aime", "adversarial"}
    assert [case["id"] for case in wrong if not case["expected"] and strict & set(case["scope"])] == []
    assert len(integer_misses) <= 0.01 * integers, integer_misses
    assert len(wrong) <= 0.03 * len(cases), [case["id"] for case in wrong]


def references() -> list[str]:
    found = set()
    for path in sorted((SHARED / "data").glob("*.jsonl")):
        found |= {str(json.loads(line)["answer"]) for line in path.read_text().split("\n") if line}
    return sorted(found)


def test_every_reference_verifies_against_itself() -> None:
    assert [reason for reason in map(check_reference, references()) if reason] == []


def test_every_reference_verifies_wrapped() -> None:
    missed = []
    for reference in references():
        is_number = reference.lstrip("-").replace(".", "").isdigit()
        for wrapping in WRAPPINGS + UNITS * is_number:
            response = wrapping.format(reference)
            if not judge(response, reference).correct:
                missed.append((response, reference))
    assert missed == []
