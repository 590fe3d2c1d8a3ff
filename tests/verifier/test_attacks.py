"""Hostile answers: each ends, raises nothing, executes nothing, and leaves the memory of this process flat.

The time bound only guards against hanging; how fast these are refused is measured in the benchmark.
"""

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dapo_ref.verifier import VerifierPool, is_equivalent, judge, recipe_judge

GUARD_SECONDS = 60.0
MEMORY_GROWTH_MB = 200

SIZE = {
    "tower": "9^{9^{9^{9}}}",
    "tower that cancels": "9^{9^{9^9}} - 9^{9^{9^9}} + 5",
    "python tower": "9**9**9**9",
    "powers of powers": "((2^{9999})^{9999})^{9999}",
    "factorials": "((((9!)!)!)!)!",
    "long factorial row": "5" + "!" * 900,
    "factorial sums": "+".join(f"\\frac{{1}}{{{k}!}}" for k in range(2950, 3000)),
    "binomial": "\\binom{1000000000}{500000000}",
    "exponentials": "e^{e^{e^{e^{e}}}}",
    "angle": "\\sin(10^{30000})",
    "irrational tower": "\\pi^{\\pi^{\\pi^{\\pi^{\\pi}}}}",
    "large surd power": "(1+\\sqrt{2})^{1000000000}",
    "scientific": "1e999999999999",
    "negative scientific": "1e-999999999999",
    "megabyte of digits": "7" * 1_000_000,
    "5000 digits": "1" * 5_000,
    "open brackets": "(" * 5_000,
    "closed brackets": ")" * 5_000,
    "balanced brackets": "(" * 5_000 + "5" + ")" * 5_000,
    "balanced braces": "{" * 5_000 + "5" + "}" * 5_000,
    "fractions": "\\frac{1}{" * 2_000 + "5" + "}" * 2_000,
    "bare fractions": "\\frac" * 2_000,
    "roots": "\\sqrt{" * 2_000 + "5" + "}" * 2_000,
    "functions": "\\sin" * 300 + " x",
    "signs": "-" * 20_000 + "5",
    "bars": "|" * 900,
    "long sum": "+".join(["1"] * 20_000),
    "long product": "x" * 900,
    "quotients": "1/" * 450 + "1",
    "expansion": "(a+b+c+d+e+f)^{200}",
    "mixed expansion": "(a+b+\\sqrt{c})^{12}(x+y+z+\\sin t)^{12}",
    "trigonometric identity": "+".join(f"\\sin^{{2}}({k}x)+\\cos^{{2}}({k}x)" for k in range(1, 201)),
    "shorter trigonometric identity": "+".join(f"\\sin^{{2}}({k}x)+\\cos^{{2}}({k}x)" for k in range(1, 25)),
    "infinite sum": "\\sum_{n=1}^{\\infty} \\frac{1}{n^2}",
    "huge sum": "\\sum_{k=1}^{1000000000} k",
    "nested sums": "\\sum_{a=1}^{999} \\sum_{b=1}^{999} \\sum_{c=1}^{999} 1",
    "huge product": "\\prod_{k=1}^{10^{9}} k",
    "integral": "\\int_0^{\\infty} e^{-x^2} \\sin(x^3) dx",
    "determinant": "\\begin{vmatrix}" + "\\\\".join(["&".join(["x+1"] * 9)] * 9) + "\\end{vmatrix}",
    "wide matrix": "\\begin{pmatrix}" + "&".join(["1"] * 400) + "\\end{pmatrix}",
    "environments": "\\begin{pmatrix}" * 300,
    "many signs": "\\pm" * 30 + "1",
    "long list": ",".join(f"\\sqrt{{{k}}}" for k in range(100, 200)),
    "subscripts": "x_{" * 300,
    "text macros": "\\text{" * 300,
    "labels": "Answer:" * 5_000,
    "spaced labels": "answer " * 20_000,
    "open boxes": "\\boxed{" * 20_000,
    "bold": "**" * 50_000,
    "tags": "<answer>" * 10_000,
    "sentences": "a. " * 20_000,
    "statements": "it is " * 300,
    "blanks": " " * 1_000_000,
    "newlines": "\n" * 1_000_000,
    "backslashes": "\\" * 1_000_000,
    "dollars": "$" * 100_000,
}

MARKER = "attack_marker"
CODE = [
    f"__import__('os').system('touch {MARKER}')",
    f"5+0*__import__('os').system('touch {MARKER}')",
    f"5;__import__('os').system('touch {MARKER}')",
    f"5\n__import__('os').system('touch {MARKER}')",
    f"\\boxed{{__import__('os').system('touch {MARKER}')}}",
    f"open('{MARKER}','w').write('x')",
    f"[5, open('{MARKER}','w')][0] # \\pi",
    f"eval(\"open('{MARKER}','w')\")",
    f'exec(\'open(chr(97)+"{MARKER}","w")\')',
    f"sympify(\"open('{MARKER}','w')\")",
    f"lambdify([], Symbol(\"open('{MARKER}','w')\"))()",
    f"(lambda: open('{MARKER}','w'))()",
    f"f\"{{open('{MARKER}','w')}}\"",
    f"getattr(__import__('o'+'s'),'sys'+'tem')('touch {MARKER}')",
    "().__class__.__bases__[0].__subclasses__()",
    "Integer(5).__class__.__mro__[-1].__subclasses__()",
    "x.__init__.__globals__",
    "\\x5f\\x5fimport\\x5f\\x5f('os')",
    f'𝓮𝓿𝓪𝓵(\'open("{MARKER}","w")\')',
    f'ｅｖａｌ(\'open("{MARKER}","w")\')',
    f"\\input{{{MARKER}}}",
    f"\\write18{{touch {MARKER}}}",
    f"$(touch {MARKER})",
    f"`touch {MARKER}`",
    *(
        "exit()",
        "quit()",
        "raise SystemExit",
        "input()",
        "breakpoint()",
        "None",
        "True",
        "E",
        "I",
        "oo",
        "nan",
        "0/0",
    ),
    *(
        "5j",
        "{{5}}",
        "%d",
        "{0}",
        "\ud800",
        "\udfff5",
        "5\x00",
        "\x00" * 100,
        "\u202e5",
        "\u200f52",
        "5\u0301",
        "Ⅴ",
        "⑤",
    ),
]


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
