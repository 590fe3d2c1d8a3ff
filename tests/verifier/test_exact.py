"""Exact evaluation: values computed by hand, and bounds that hold before anything large is computed."""

from fractions import Fraction

import pytest

from dapo_ref.verifier.exact import Evaluator, exact_points, integer_root
from dapo_ref.verifier.parse import parse
from dapo_ref.verifier.values import Expr, Node
from dapo_ref.verifier.verdict import MAX_BITS, InexactError, TooBigError, UndefinedError


def node(text: str) -> Node:
    value = parse(text)
    assert isinstance(value, Expr)
    return value.node


@pytest.mark.parametrize(
    "text",
    [
        *(
            "9^{9^9}",
            "9^{9^{9^9}}",
            "2^{2^{40}}",
            "2^{-100000}",
            "(1/3)^{99999}",
            "3001!",
            "((5!)!)!",
            "2^{32000} \\cdot 2^{32000} \\cdot 2^{32000}",
        ),
        *(
            "\\binom{1000000000}{500000000}",
            "\\sum_{k=1}^{10000} k",
            "\\prod_{k=1}^{1000} k^{100}",
            "10^{10^{10}} - 10^{10^{10}}",
        ),
    ],
)
def test_too_big(text: str) -> None:
    with pytest.raises(TooBigError):
        Evaluator()(node(text))


def test_just_inside_the_bounds() -> None:
    assert Evaluator()(node("2^{20000}")) == 2**20000
    assert Evaluator()(node("\\frac{3000!}{2999!}")) == 3000
    assert (2**20000).bit_length() <= MAX_BITS


def test_work_is_bounded_however_it_is_spread() -> None:
    """A thousand values of thousands of bits each fit one by one; together they pass MAX_WORK."""
    terms = Node("add", tuple(node("2^{20000}") for _ in range(900)))
    with pytest.raises(TooBigError):
        Evaluator()(terms)


@pytest.mark.parametrize("text", ["1/0", "0^0", "0^{-1}", "5 \\bmod 0", "\\log_1 5", "\\frac{1}{2-2}"])
def test_undefined(text: str) -> None:
    with pytest.raises(UndefinedError):
        Evaluator()(node(text))


@pytest.mark.parametrize(
    "text", ["\\sqrt{2}", "2^{1/2}", "\\pi", "e", "\\sin 1", "x", "(-1)^{1/2}", "\\log_2 3", "(1/2)!"]
)
def test_inexact(text: str) -> None:
    with pytest.raises(InexactError):
        Evaluator()(node(text))


def test_no_float_takes_part() -> None:
    """2^53 + 1 and decimals that have no binary form."""
    assert Evaluator()(node("9007199254740993 - 9007199254740992")) == 1
    assert Evaluator()(node("0.1 + 0.2 - 0.3")) == 0


@pytest.mark.parametrize("degree", [2, 3, 7])
def test_integer_root(degree: int) -> None:
    for base in (0, 1, 2, 12345678901234567890):
        assert integer_root(base**degree, degree) == base
    with pytest.raises(InexactError):
        integer_root(10**30 + 1, degree)


def test_points_are_fixed_and_avoid_integers() -> None:
    assert exact_points({"x", "y"}, signed=False) == exact_points({"y", "x"}, signed=False)
    values = [value for point in exact_points({"x", "y"}, signed=True) for value in point.values()]
    assert len(set(values)) == 8
    assert all(value.denominator == 97 for value in values)
    assert Evaluator({"x": Fraction(3, 97)})(node("97x")) == 3
