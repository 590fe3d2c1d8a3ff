"""Text → tree: precedence, what joins and what does not, and the bounds. Trees are written out by hand."""

from fractions import Fraction

import pytest

from dapo_ref.verifier.exact import Evaluator
from dapo_ref.verifier.parse import parse
from dapo_ref.verifier.tokens import number, tokenize
from dapo_ref.verifier.tree import Node, num, relation
from dapo_ref.verifier.verdict import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_TOKENS,
    TooBigError,
    UnparsableError,
)


def value_of(text: str) -> Fraction:
    return Evaluator()(parse(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2^3^2", 512),  # from the right: 2^(3^2)
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2^{-1}", Fraction(1, 2)),
        ("1/2/2", Fraction(1, 4)),
        ("2 - 3 - 4", -5),
        ("3!^2", 36),
        ("\\frac12", Fraction(1, 2)),
        ("\\frac1{72}", Fraction(1, 72)),
        ("\\dfrac{1}{2}", Fraction(1, 2)),
        ("3\\frac{1}{2}", Fraction(7, 2)),  # a mixed number
        ("3\\frac{5}{2}", Fraction(15, 2)),  # an improper fraction is a factor
        ("1 1/2", Fraction(3, 2)),
        ("11/2", Fraction(11, 2)),
        ("2(3)", 6),
        ("(2)(3)", 6),
        ("2^2 3^2", 36),
        ("\\sqrt16", 4),
        ("-3\\frac{1}{2}", Fraction(-7, 2)),  # the sign is of the whole
        ("2 \\cdot 3\\frac{1}{2}", 7),
        ("1,234", 1234),
        ("12{,}345", 12345),
        ("1\\,000\\,000", 1000000),
        (".5", Fraction(1, 2)),
        ("1.5e-2", Fraction(3, 200)),
        ("0.1\\overline{6}", Fraction(1, 6)),
        ("{7 \\choose 2}", 21),
        ("17 \\bmod 5", 2),
        ("|2 - 5|", 3),
        ("\\lfloor -1.5 \\rfloor", -2),
        ("5²", 25),
        ("½", Fraction(1, 2)),
        ("3½", Fraction(7, 2)),
        ("٢٥", 25),
        ("\\text{13}", 13),
        ("25_{10}", 25),
        ("31_8", 25),
        ("twenty-five", 25),
        ("two hundred and five", 205),
        ("5 million", 5000000),
        ("3 out of 4", Fraction(3, 4)),
        ("0.(3)", Fraction(1, 3)),
        ("0.1666...", Fraction(1, 6)),
        ("0.\\dot{1}4285\\dot{7}", Fraction(1, 7)),
        ("1'234'567", 1234567),
        ("1_234_567", 1234567),
        ("1.234,5", Fraction(2469, 2)),
    ],
)
def test_exact_value(text: str, expected: Fraction | int) -> None:
    assert value_of(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("25 26", "2 5", "{2}{5}", "\\text{1}\\text{2}", "5\u200b5", "25..26", "25...", "x 2", "25_", "25^"),
        *(
            "(1",
            "1)",
            "(1}",
            "\\frac{1}",
            "1 +",
            "* 2",
            "5;__import__('os')",
            'f"x"',
            "#",
            "\\input{x}",
            "²⁵",
        ),
        *(
            "25 is wrong",
            "\\frac123",
            "25 hundredths",
            "25 (wrong)",
            "25 below zero",
            "two dozen",
            "39_8",
            "3.14159...",
            "123,4567 8",
            "\\begin{pmatrix} 1 & 2 \\\\ 3 \\end{pmatrix}",
        ),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UnparsableError):
        parse(text)


@pytest.mark.parametrize("text", ["\\lim_{x \\to 0} x", "\\int_0^1 x", "5!!"])
def test_what_is_not_evaluated_inside_brackets(text: str) -> None:
    assert parse(text).op == "text"
    with pytest.raises(UnparsableError):
        parse(f"({text}, 1)")


def test_structures() -> None:
    one, two, x = num(1), num(2), Node("sym", ("x",))
    assert parse("1, 2") == parse("1 \\text{ and } 2") == Node("list", (one, two))
    assert parse("(1, 2]") == Node("(]", (one, two))
    assert parse("\\{1, 2\\}") == Node("set", (one, two))
    assert parse("\\{\\}") == parse("\\emptyset") == Node("set", ())
    assert parse("1:2") == Node("ratio", (one, two))
    assert parse("1:02") == Node("clock", (one, two))
    assert parse("x = 1") == parse("x: 1") == relation(("=",), x, one)
    assert parse("(1,2) \\cup (2,1)") == Node("cup", (Node("()", (one, two)), Node("()", (two, one))))
    assert parse("\\{x : x > 1\\}") == Node("builder", (x, relation((">",), x, one)))
    assert parse("even") == Node("text", ("even",))
    assert parse("\\pm 1") == Node("list", (one, Node("neg", (one,))))
    assert parse("1 \\pmod 2") == parse("1 (mod 2)") == Node("congruent", (one, two))


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        *(
            ("2 cm", "cm^1"),
            ("2cm^{2}", "cm^2"),
            ("2 square centimeters", "cm^2"),
            ("2 \\text{ cm}^3", "cm^3"),
        ),
        *(("2 mph", "hour^-1 mile^1"), ("2 miles per hour", "hour^-1 mile^1"), ("2 m/s^2", "m^1 second^-2")),
        *(
            ("2s", "second^1"),
            ("2 N", "N^1"),
            ("\\$2", "dollar^1"),
            ("€2", "euro^1"),
            ("2 usd", "dollar^1"),
            ("2 dollars", "dollar^1"),
            ('2"', "inch^1"),
        ),
    ],
)
def test_units_have_one_name(text: str, unit: str) -> None:
    node = parse(text)
    assert (node.op, node.args[:2]) == ("unit", (num(2), Node("text", (unit,))))


def test_a_comma_that_can_be_read_in_two_ways() -> None:
    assert parse("1,5") == Node("either", (num(Fraction(3, 2)), Node("list", (num(1), num(5)))))
    assert parse("100,200") == Node("either", (num(100200), Node("list", (num(100), num(200)))))
    assert parse("12,34,567").args[0] == num(1234567)
    assert parse("1,234") == num(1234)


def test_function_arguments() -> None:
    x = Node("sym", ("x",))
    two_x = Node("mul", (num(2), x))
    assert parse("\\sin 2x") == parse("\\sin(2x)") == Node("fn:sin", (two_x,))
    assert parse("\\sin^2 x") == parse("(\\sin x)^2") == Node("pow", (Node("fn:sin", (x,)), num(2)))
    assert parse("\\sin^{-1} x") == parse("\\arcsin x")
    assert parse("\\log_2 x") == Node("log", (x, num(2)))


def test_bounds_on_text() -> None:
    assert parse("1" * 500) == num(int("1" * 500))
    with pytest.raises(TooBigError):
        tokenize("1" * (MAX_CHARS + 1))
    with pytest.raises(TooBigError):
        tokenize("+" * (MAX_TOKENS + 1))
    with pytest.raises(TooBigError):
        number("1e99999999")
    deep = MAX_DEPTH // 2
    assert parse("(" * deep + "1" + ")" * deep) == num(1)
    for opening, closing in ("()", "{}", ("\\frac{1}{", "}"), ("\\sqrt{", "}"), ("\\text{", "}")):
        with pytest.raises(TooBigError):
            parse(opening * (MAX_DEPTH + 5) + "1" + closing * (MAX_DEPTH + 5))
    for row in ("-" * 100 + "1", "2" + "^2" * 100, "\\sin" * 100 + " x", "1/" * 100 + "1", "\\frac" * 100):
        with pytest.raises(TooBigError):
            parse(row)


def test_a_long_product_is_not_a_deep_tree() -> None:
    assert len(parse("xyz").args) == 3
    assert len(parse("2 \\cdot 3 \\cdot 5 \\cdot 7").args) == 4
