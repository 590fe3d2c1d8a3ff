"""Exact evaluation: values computed by hand, and bounds that hold before anything large is computed."""

from fractions import Fraction

import pytest

from dapo_ref.verifier.exact import Evaluator, check_power, exact_value
from dapo_ref.verifier.parse import parse
from dapo_ref.verifier.tree import Node
from dapo_ref.verifier.verdict import MAX_BITS, InexactError, TooBigError, UndefinedError


def node(text: str) -> Node:
    return parse(text)


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


@pytest.mark.parametrize("text", ["1/0", "0^0", "0^{-1}", "5 \\bmod 0", "\\frac{1}{2-2}"])
def test_undefined(text: str) -> None:
    with pytest.raises(UndefinedError):
        Evaluator()(node(text))


@pytest.mark.parametrize(
    "text", ["\\sqrt{2}", "2^{1/2}", "\\pi", "e", "\\sin 1", "x", "(-1)^{1/2}", "\\log_2 3", "(1/2)!"]
)
def test_inexact(text: str) -> None:
    with pytest.raises(InexactError):
        Evaluator()(node(text))


def test_rounding() -> None:
    values = [Evaluator()(node(text)) for text in ("\\lceil 5/2 \\rceil", "\\lfloor 5/2 \\rfloor")]
    assert values == [3, 2]
    assert [Evaluator()(node(f"\\l{op} -5/2 \\r{op}")) for op in ("ceil", "floor")] == [-2, -3]


def test_powers_are_refused_before_they_are_computed() -> None:
    """3 has 2 bits and its denominator 1; 3 · 21,845 = 65,535 is the last below 2 MAX_BITS = 65,536."""
    check_power(Fraction(3), 21_845)
    with pytest.raises(TooBigError):
        check_power(Fraction(3), 21_846)


def test_no_float_takes_part() -> None:
    """2^53 + 1 and decimals that have no binary form."""
    assert Evaluator()(node("9007199254740993 - 9007199254740992")) == 1
    assert Evaluator()(node("0.1 + 0.2 - 0.3")) == 0


def test_exact_value_is_none_where_sympy_has_to_look() -> None:
    assert exact_value(node("\\sqrt{16}")) == 4
    assert exact_value(node("\\sqrt{17}")) is None
