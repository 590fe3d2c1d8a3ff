"""Equivalence: stages and statuses. What single pairs decide is in `cases.jsonl`."""

import subprocess
import sys
from pathlib import Path

import pytest
import sympy

from dapo_ref.verifier import Status, check_reference, is_equivalent, judge
from dapo_ref.verifier import __main__ as command
from dapo_ref.verifier.algebra import apply_to_matrices
from dapo_ref.verifier.decide import compare, decide, read_integer, spelling
from dapo_ref.verifier.verdict import MAX_LOGGED_CHARS, NeedsSymbolicError, UnparsableError

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.mark.parametrize(
    ("response", "status"),
    [
        ("Answer: 25", Status.CORRECT),
        ("Answer: 26", Status.WRONG),
        ("no mark at all", Status.NO_ANSWER),
        ("Answer: 25 or 26", Status.MULTIPLE),
        ("\\boxed{25} and \\boxed{26}", Status.MULTIPLE),
        ("Answer: 25 26", Status.UNPARSABLE),
        ("Answer: 9^{9^9}", Status.TOO_BIG),
        ("Answer: " + "7" * 3_000, Status.TOO_BIG),
        ("Answer: 1/0", Status.UNPARSABLE),
    ],
)
def test_status(response: str, status: Status) -> None:
    verdict = judge(response, "25")
    assert verdict.status is status
    assert verdict.correct is (status is Status.CORRECT)


def test_boxes_can_be_switched_off() -> None:
    assert judge("\\boxed{25}", "25").correct
    assert judge("\\boxed{25}", "25", boxed=False).status is Status.NO_ANSWER


def test_logged_answer_is_bounded() -> None:
    verdict = judge("Answer: " + "7" * 3_000, "25")
    assert verdict.answer is not None
    assert len(verdict.answer) == MAX_LOGGED_CHARS + 1


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("1/2", "0.5"),
        ("(2,1)", "(1,2)"),
        ("25 or 26", "25"),
        ("\\sqrt{16}", "4"),
        ("A", "A"),
    ],
)
def test_exact_stages_need_no_symbolic_one(answer: str, reference: str) -> None:
    compare(answer, reference, symbolic=False)  # raises NeedsSymbolicError if they do


@pytest.mark.parametrize(
    ("answer", "reference"), [("\\sqrt{12}", "2\\sqrt{3}"), ("\\sin 2x", "2 \\sin x \\cos x")]
)
def test_symbolic_stage_is_asked_for(answer: str, reference: str) -> None:
    with pytest.raises(NeedsSymbolicError):
        compare(answer, reference, symbolic=False)
    assert compare(answer, reference, symbolic=True) is Status.CORRECT


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("2^{2^{-1000}}", "1"),  # differs from 1 in the 302nd digit
        ("\\sqrt{2} + 10^{-300}", "\\sqrt{2}"),
        ("x + 10^{-90}", "x"),
        ("\\sqrt{x} + 10^{-200}", "\\sqrt{x}"),  # below the digits compared: sympy's expansion sees it
        ("(x+1)^2 + 10^{-200}", "x^2 + 2x + 1"),
        ("\\frac{1}{2004!}", "\\frac{1}{2006!}"),
        ("e^{-2000}", "e^{-2001}"),
        ("e^{-2000}", "0"),
        ("1 - 1/e", "1 + 1/e"),
        ("|x|", "x"),
        ("\\lfloor x \\rfloor", "x"),
    ],
)
def test_near_misses(answer: str, reference: str) -> None:
    assert not is_equivalent(answer, reference)


def test_names_are_real() -> None:
    """√(1/n) = 1/√n where both are real; √(x²) is |x|, not x."""
    assert is_equivalent("\\sqrt{1/n}", "\\frac{1}{\\sqrt{n}}")
    assert is_equivalent("x^{2/3}", "\\sqrt[3]{x}^2")
    assert is_equivalent("|x|", "\\sqrt{x^2}")
    assert not is_equivalent("x", "\\sqrt{x^2}")


@pytest.mark.parametrize(
    ("answer", "reference", "stage"),
    [
        ("25", "25", "integers"),
        ("x + 1", "x+1", "same text"),
        ("Even", "\\text{even}", "words"),
        ("0.5", "\\frac{1}{2}", "exact"),
        ("x = 1 and y = 2", "(1, 2)", "structure"),
        ("\\sqrt{8}", "2\\sqrt{2}", "sympy"),
    ],
)
def test_stage(answer: str, reference: str, stage: str) -> None:
    decision = decide(answer, reference, symbolic=True)
    assert (decision.status, decision.stage) == (Status.CORRECT, stage)


def test_the_command_line_shows_every_step() -> None:
    command = [sys.executable, "-m", "dapo_ref.verifier", "so \\boxed{\\sqrt{8}}", "2\\sqrt{2}"]
    lines = subprocess.run(command, cwd=ROOT, check=True, timeout=120, capture_output=True, text=True).stdout
    for shown in ("'\\\\sqrt{8}'", "root(num:8, num:2)", "2*sqrt(2)", "stage: sympy", "correct=True"):
        assert shown in lines


def test_read_integer() -> None:
    assert read_integer(" 007 ") == 7
    assert read_integer("-1,234,567") == -1234567
    assert [
        read_integer(text) for text in ("1,23", "1234,567", "1 2", "", "٢٥", "²", "5.0", "9" * 5_000)
    ] == [None] * 8


def test_spelling_joins_no_digits_and_keeps_braces() -> None:
    assert spelling("1 2") == "1 2"
    assert spelling("\\left( 1 , 2 \\right)") == "(1,2)"
    assert spelling(".5") != spelling("5")
    assert spelling("2^{n-1}") != spelling("2^{n}-1")
    assert spelling("\\dfrac{1}{ 2}") == spelling("\\frac{1}{2}")


@pytest.mark.parametrize(
    "reference", ["34", "-7", "\\frac{3}{4}", "(1, 2)", "\\text{east}", "x^2+1", "52_8", "2, 3"]
)
def test_check_reference_accepts(reference: str) -> None:
    assert check_reference(reference) is None


@pytest.mark.parametrize("reference", ["", "  ", "9" * 3_000, "**"])
def test_check_reference_refuses_in_one_line(reference: str) -> None:
    reason = check_reference(reference)
    assert reason is not None
    assert "\n" not in reason


def test_import_and_integers_load_neither_sympy_nor_torch() -> None:
    code = "\n".join(
        [
            "import sys, dapo_ref.verifier as v",
            "assert v.verify('Answer: 5', '5') and v.verify('Answer: 1/2', '0.5')",
            "assert not {'sympy', 'mpmath', 'torch', 'multiprocessing'} & set(sys.modules), 'too early'",
            "assert v.verify('Answer: \\\\sqrt{8}', '2\\\\sqrt{2}')",
            "assert 'sympy' not in sys.modules, 'it belongs into a worker'",
        ]
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("5 cm", "5 m"),
        ("m+n=5", "5"),
        (r"x \ge 5", r"[5,\infty)"),
        ("(1,2)", "(2,1)"),
        (r"\sqrt{8}", "3"),
        ("no", "1"),
    ],
)
def test_the_command_shows_every_stage(
    answer: str, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["verifier", f"Answer: ${answer}$", reference])
        command.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("extraction: ")
    assert [line.split(":")[0] for line in lines[-2:]] == ["stage", "verdict"]


def test_sums_and_quotients_of_matrices_and_numbers() -> None:
    matrix, number = sympy.ImmutableMatrix([[1, 2], [3, 4]]), sympy.Integer(2)
    assert apply_to_matrices("div", matrix, number) == matrix / 2
    for op, *args in (("add", matrix, number), ("add", number, matrix), ("div", number, matrix)):
        with pytest.raises(UnparsableError, match="arithmetic of matrices"):
            apply_to_matrices(op, *args)
