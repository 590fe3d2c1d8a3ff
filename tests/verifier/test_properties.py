"""Properties: random text raises nothing; random expressions equal themselves and their rearrangements only.

The grammar of expressions: integers 1 … 9, the names x and y, π; sums, differences, products, quotients,
squares, square roots of positive integers, sine. Each is printed as LaTeX and as plain text.
"""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_ref.verifier import Status, extract_answer, is_equivalent, judge, recipe_judge
from dapo_ref.verifier.verdict import Verdict

SAMPLES = 200
ALLOWED_MISSES = SAMPLES // 100

FRAGMENTS = [" ", "\n", "\u200b", "\ud800"]
for row in (
    r"\frac \sqrt { } ( ) [ ] \{ \} ^ _ ! + - * / = < , 1 25 0.5 x e i \pi \sin \log \text{ \boxed{ & \\",
    r"\begin{pmatrix} \end{pmatrix} $ \( \) Answer: is and or cm \cup \infty | % \pm \le \binom \lfloor",
    r"\sum_{k=1}^{3} \overline{ ° ² ½ − . ; :",
):
    FRAGMENTS += row.split()


def check_everything(text: str) -> None:
    """Whatever the text, there is a verdict that is consistent with itself, and again the same one."""
    verdict = judge(text, "25")
    assert isinstance(verdict, Verdict)
    assert verdict.correct == (verdict.status is Status.CORRECT)
    assert (verdict.answer is None) == (verdict.status is Status.NO_ANSWER)
    assert judge(text, "25") == verdict
    judge(f"Answer: {text}", text)
    is_equivalent(text, "x^2 + \\sqrt{2}")
    recipe_judge(text, text)
    extract_answer(text, boxed=False)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_random_text_raises_nothing(text: str) -> None:
    check_everything(text)


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
def test_random_fragments_raise_nothing(text: str) -> None:
    check_everything(text)


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers_are_equal_only_to_themselves(a: int, b: int) -> None:
    forms = [
        str(a),
        f"{a:,}",
        f"${a}$",
        f"\\boxed{{{a}}}",
        f"{a}.0",
        f"x = {a}",
        f"\\frac{{{2 * a}}}{{2}}",
        f"{a} cm",
    ]
    for form in forms:
        assert judge(f"Answer: {form}", str(a)).correct
        assert judge(f"Answer: {form}", str(b)).correct == (a == b)


@settings(max_examples=200, deadline=None)
@given(st.integers(-999, 999), st.integers(1, 999), st.integers(1, 50))
def test_fractions(p: int, q: int, factor: int) -> None:
    reference = f"\\frac{{{p}}}{{{q}}}"
    assert is_equivalent(f"{p * factor}/{q * factor}", reference)
    assert is_equivalent(f"\\dfrac{{{-p}}}{{{-q}}}", reference)
    assert not is_equivalent(f"{p * factor + 1}/{q * factor}", reference)


Tree = tuple


def random_tree(rng: random.Random, depth: int) -> Tree:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(
            [("num", rng.randint(1, 9)), ("sym", "x"), ("sym", "y"), ("num", rng.randint(1, 9)), ("pi",)]
        )
    op = rng.choice(["add", "add", "sub", "mul", "mul", "div", "square", "root", "sin"])
    if op == "root":
        return ("root", rng.randint(2, 30))
    if op in ("square", "sin"):
        return (op, random_tree(rng, depth - 1))
    return (op, random_tree(rng, depth - 1), random_tree(rng, depth - 1))


def latex(tree: Tree) -> str:
    match tree:
        case ("num" | "sym", leaf):
            return str(leaf)
        case ("pi",):
            return "\\pi"
        case ("add", a, b):
            return f"\\left({latex(a)} + {latex(b)}\\right)"
        case ("sub", a, b):
            return f"\\left({latex(a)} - {latex(b)}\\right)"
        case ("mul", a, b):
            return f"{latex(a)} \\cdot {latex(b)}"
        case ("div", a, b):
            return f"\\frac{{{latex(a)}}}{{{latex(b)}}}"
        case ("square", a):
            return f"\\left({latex(a)}\\right)^{{2}}"
        case ("root", n):
            return f"\\sqrt{{{n}}}"
        case ("sin", a):
            return f"\\sin\\left({latex(a)}\\right)"
    raise AssertionError(tree)


def plain(tree: Tree) -> str:
    match tree:
        case ("num" | "sym", leaf):
            return str(leaf)
        case ("pi",):
            return "pi"
        case ("add", a, b):
            return f"({plain(a)}+{plain(b)})"
        case ("sub", a, b):
            return f"({plain(a)}-{plain(b)})"
        case ("mul", a, b):
            return f"{plain(a)}*{plain(b)}"
        case ("div", a, b):
            return f"({plain(a)})/({plain(b)})"
        case ("square", a):
            return f"({plain(a)})^2"
        case ("root", n):
            return f"sqrt({n})"
        case ("sin", a):
            return f"sin({plain(a)})"
    raise AssertionError(tree)


def rearranged(tree: Tree) -> Tree:
    """Commute every sum and product, a − b → −b + a, a/b → (1/b)·a, a² → a·a."""
    match tree:
        case ("add" | "mul" as op, a, b):
            return (op, rearranged(b), rearranged(a))
        case ("sub", a, b):
            return ("add", ("mul", ("sub", ("num", 0), ("num", 1)), rearranged(b)), rearranged(a))
        case ("div", a, b):
            return ("mul", ("div", ("num", 1), rearranged(b)), rearranged(a))
        case ("square", a):
            return ("mul", rearranged(a), rearranged(a))
        case ("sin", a):
            return ("sin", rearranged(a))
    return tree


def plus_one(tree: Tree) -> Tree:
    return ("add", tree, ("num", 1))


@pytest.mark.parametrize("printer", [latex, plain], ids=["latex", "plain"])
@pytest.mark.parametrize("other", [latex, plain], ids=["as latex", "as plain"])
def test_expressions(printer: Callable[[Tree], str], other: Callable[[Tree], str]) -> None:
    """At least 99 % each: equal to itself, to its rearranged form, and not to itself plus one."""
    rng = random.Random(f"{printer.__name__} {other.__name__}")
    missed = {"itself": 0, "rearranged": 0, "plus one": 0}
    drawn = 0
    while drawn < SAMPLES:
        tree = random_tree(rng, 3)
        if has_zero_divisor(tree):
            continue
        drawn += 1
        reference = printer(tree)
        missed["itself"] += not is_equivalent(other(tree), reference)
        missed["rearranged"] += not is_equivalent(other(rearranged(tree)), reference)
        missed["plus one"] += is_equivalent(other(plus_one(tree)), reference)
    assert max(missed.values()) <= ALLOWED_MISSES, missed


def has_zero_divisor(tree: Tree) -> bool:
    """Whether a divisor vanishes identically, as in 1/(x − x): such an expression has no value."""
    if tree[0] == "div" and abs(at_a_point(tree[2])) < 1e-9:
        return True
    return any(has_zero_divisor(part) for part in tree[1:] if isinstance(part, tuple))


def at_a_point(tree: Tree) -> float:
    match tree:
        case ("num", n):
            return n
        case ("sym", name):
            return {"x": 0.7312, "y": 1.3714}[name]
        case ("pi",):
            return math.pi
        case ("add", a, b):
            return at_a_point(a) + at_a_point(b)
        case ("sub", a, b):
            return at_a_point(a) - at_a_point(b)
        case ("mul", a, b):
            return at_a_point(a) * at_a_point(b)
        case ("div", a, b):
            return at_a_point(a) / (at_a_point(b) or math.inf)
        case ("square", a):
            return at_a_point(a) ** 2
        case ("root", n):
            return math.sqrt(n)
        case ("sin", a):
            return math.sin(at_a_point(a))
    raise AssertionError(tree)
