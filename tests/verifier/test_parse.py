"""Text → tree: precedence, what joins and what does not, and the bounds. Trees are written out by hand."""

from fractions import Fraction

import pytest

from dapo_ref.verifier.cursor import number
from dapo_ref.verifier.exact import Evaluator
from dapo_ref.verifier.parse import parse
from dapo_ref.verifier.tokens import tokenize
from dapo_ref.verifier.values import Expr, Node, Rel, Seq, SetOp, Text, num
from dapo_ref.verifier.verdict import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_TOKENS,
    TooBigError,
    UnparsableError,
    UnsupportedError,
)


def value_of(text: str) -> Fraction:
    value = parse(text)
    assert isinstance(value, Expr)
    return Evaluator()(value.node)


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
        ("\\sqrt[3]{27}", 3),
        ("\\sqrt[3]{-8}", -2),
        ("8^{1/3}", 2),
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
        ("\\sum_{k=0}^{3} 2^k", 15),
        ("25_{10}", 25),
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
            "25 thousand",
            "123,4567 8",
            "\\begin{pmatrix} 1 & 2 \\\\ 3 \\end{pmatrix}",
        ),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UnparsableError):
        parse(text)


@pytest.mark.parametrize("text", ["\\lim_{x \\to 0} x", "\\int_0^1 x", "\\sum_{n \\ge 1} n", "5!!"])
def test_unsupported_is_named(text: str) -> None:
    with pytest.raises(UnsupportedError):
        parse(text)


def test_structures() -> None:
    one, two = Expr(num(1)), Expr(num(2))
    assert parse("1, 2") == Seq("list", (one, two))
    assert parse("1 \\text{ and } 2") == Seq("list", (one, two))
    assert parse("(1, 2]") == Seq("(]", (one, two))
    assert parse("\\{1, 2\\}") == Seq("{}", (one, two))
    assert parse("\\emptyset") == Seq("{}", ())
    assert parse("1:2") == Seq("ratio", (one, two))
    assert parse("x = 1") == Rel(("=",), (Expr(Node("sym", ("x",))), one))
    assert parse("(1,2) \\cup (2,1)") == SetOp("cup", (Seq("()", (one, two)), Seq("()", (two, one))))
    assert parse("even") == Text("even")
    assert parse("2 cm") == Expr(num(2), "cm")
    assert parse("\\pm 1") == Seq("list", (one, Expr(Node("neg", (num(1),)))))


def test_numeral_in_another_base_is_a_value_of_its_own() -> None:
    assert parse("52_8") == Expr(Node("sym", ("52 base 8",)))
    assert parse("52_{8}") == parse("52_8") != parse("528")


def test_function_arguments() -> None:
    x = Node("sym", ("x",))
    two_x = Node("mul", (num(2), x))
    assert parse("\\sin 2x") == parse("\\sin(2x)") == Expr(Node("fn:sin", (two_x,)))
    assert parse("\\sin^2 x") == parse("(\\sin x)^2") == Expr(Node("pow", (Node("fn:sin", (x,)), num(2))))
    assert parse("\\sin^{-1} x") == parse("\\arcsin x")
    assert parse("\\log_2 x") == Expr(Node("log", (x, num(2))))


def test_bounds_on_text() -> None:
    assert parse("1" * 500) == Expr(num(int("1" * 500)))
    with pytest.raises(TooBigError):
        tokenize("1" * (MAX_CHARS + 1))
    with pytest.raises(TooBigError):
        tokenize("+" * (MAX_TOKENS + 1))
    with pytest.raises(TooBigError):
        number("1e99999999")
    deep = MAX_DEPTH // 2
    assert parse("(" * deep + "1" + ")" * deep) == Expr(num(1))
    for opening, closing in ("()", "{}", ("\\frac{1}{", "}"), ("\\sqrt{", "}"), ("\\text{", "}")):
        with pytest.raises(TooBigError):
            parse(opening * (MAX_DEPTH + 5) + "1" + closing * (MAX_DEPTH + 5))
    for row in ("-" * 100 + "1", "2" + "^2" * 100, "\\sin" * 100 + " x", "1/" * 100 + "1", "\\frac" * 100):
        with pytest.raises(TooBigError):
            parse(row)
