"""Hostile answers: each ends, raises nothing, executes nothing, and leaves the memory of this process flat.

The time bound only guards against hanging; how fast these are refused is measured in the benchmark.
"""

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dapo_ref.verifier import VerifierPool, is_equivalent, judge, recipe_judge
from tests.support.attacks import CODE, SIZE

GUARD_SECONDS = 60.0
MEMORY_GROWTH_MB = 200


@pytest.fixture
def memory_stays_flat() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEMORY_GROWTH_MB


@pytest.mark.usefixtures("memory_stays_flat")
@pytest.mark.parametrize("reference", ["5", "\\sqrt{2} + x", "(1, 2)"])
@pytest.mark.parametrize("name", SIZE)
def test_size_attack(name: str, reference: str) -> None:
    attack = SIZE[name]
    started = time.monotonic()
    if name != "tower that cancels":  # equal to 5 on paper: either verdict is right
        assert not is_equivalent(attack, reference)
    for response in (f"Answer: {attack}", f"\\boxed{{{attack}}}", attack):
        assert not judge(response, reference).correct
        assert not recipe_judge(response, reference).correct
    assert time.monotonic() - started < GUARD_SECONDS


@pytest.mark.parametrize("index", range(len(CODE)))
def test_code_is_not_executed(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for reference in ("7", "\\pi", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"):
        assert not is_equivalent(CODE[index], reference)
        assert not judge(f"Answer: {CODE[index]}", reference).correct
    assert list(tmp_path.iterdir()) == []


def test_attacks_through_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same attacks in workers: every one gets a verdict, in order, and none is correct."""
    monkeypatch.chdir(tmp_path)
    attacks = [*SIZE.values(), *CODE]
    pairs = [(f"Answer: {attack}", "\\sqrt{2} + x") for attack in attacks]
    with VerifierPool(workers=1, timeout_s=GUARD_SECONDS) as pool:
        assert pool.verify_many([*pairs, ("Answer: x + \\sqrt{2}", "\\sqrt{2} + x")]) == [False] * len(
            pairs
        ) + [True]
        assert pool.counts["died"] == pool.counts["killed"] == 0
    assert list(tmp_path.iterdir()) == []


def test_an_attack_as_reference_raises_nothing() -> None:
    for attack in [*SIZE.values(), *CODE]:
        judge("Answer: \\sqrt{7}", attack)
        recipe_judge("Answer: 5", attack)
