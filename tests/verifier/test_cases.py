"""The labelled cases of this repository: one line of `cases.jsonl` is one test."""

import json
from pathlib import Path

import pytest

from dapo_ref.verifier import is_equivalent, judge

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict) -> None:
    if "response" in case:
        decided = judge(case["response"], case["reference"]).correct
    else:
        decided = is_equivalent(case["answer"], case["reference"])
    assert decided is case["expected"], case


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_reference_of_case_matches_itself(case: dict) -> None:
    assert judge(f"Answer: {case['reference']}", case["reference"]).correct
    assert judge(f"Thus \\boxed{{{case['reference']}}}.", case["reference"]).correct
