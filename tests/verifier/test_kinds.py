"""The kinds of faults that verifiers have, one property each: rewritings are accepted, near misses refused.

Every test draws its numbers and names, so that it speaks of the kind and not of an example.
"""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dapo_ref.verifier import judge, vocabulary
from tests.support.drawn import INTEGERS, NAMES, PROPER, SMALL, accepts, few


@few
@given(NAMES, SMALL)
def test_braces_carry_meaning(x: str, k: int) -> None:
    pairs = [
        (f"{k}^{{{x}-1}}", f"{k}^{{{x}}}-1"),
        (f"\\sqrt{{{x}+{k}}}", f"\\sqrt{{{x}}}+{k}"),
        (f"\\frac{{1}}{{{x}+{k}}}", f"\\frac{{1}}{{{x}}}+{k}"),
        (f"\\log_2{{({x}+{k})}}", f"\\log_2{{{x}}}+{k}"),
        (f"{x}_{{{k}+1}}", f"{x}_{{{k}}}+1"),
    ]
    for a, b in pairs:
        assert not accepts(a, b)
        assert not accepts(b, a)
        assert accepts(a.replace("{", "{ ").replace("}", " }"), a)


@few
@given(NAMES, NAMES, INTEGERS)
def test_a_side_of_an_equation_is_not_a_mere_name(x: str, y: str, n: int) -> None:
    assume(x != y)
    for named in (
        f"{x} = {n}",
        f"{n} = {x}",
        f"{x}({y}) = {n}",
        f"{x}+{y} = {n}",
        f"|AB| = {n}",
        f"area = {n}",
    ):
        assert accepts(named, str(n))
    for side in (
        f"-{x}",
        f"|{x}|",
        f"2{x}",
        f"{x}^2",
        f"\\sqrt{{{x}}}",
        f"\\frac{{1}}{{{x}}}",
        f"{x}-1",
        f"\\sin {x}",
    ):
        assert not accepts(f"{side} = {n}", str(n))
    assert not accepts(f"{x}+{y} = {n}", f"{x}-{y} = {n}")
    assert not accepts(f"{x} = {n}", f"{y} = {n}")
    assert not accepts(f"\\frac{{{x}}}{{{y}}} = {n}", f"\\frac{{{y}}}{{{x}}} = {n}")
    assert not accepts(f"\\sin {x} = {n}", f"\\cos {x} = {n}")
    assert accepts(f"{n} - {y} = {x}", f"{x}+{y} = {n}")
    assert accepts(f"2{x} = {2 * n} - 2{y}", f"{x}+{y} = {n}")


@few
@given(INTEGERS, PROPER, st.sampled_from(["", "-"]))
def test_mixed_numbers(n: int, part: tuple[int, int], sign: str) -> None:
    p, q = part
    value, other = Fraction(n) + Fraction(p, q), Fraction(n) - Fraction(p, q)
    for form in (f"{n}\\frac{{{p}}}{{{q}}}", f"{n} {p}/{q}", f"{n}\\,\\dfrac{{{p}}}{{{q}}}"):
        assert accepts(sign + form, f"{sign}{value.numerator}/{value.denominator}")
        assert not accepts(sign + form, f"{sign}{other.numerator}/{other.denominator}")
        assert not accepts(sign + form, f"{sign}{n * p}/{q}")


@few
@given(INTEGERS, st.integers(2, 99), st.integers(2, 99))
def test_a_modulus_counts(n: int, m: int, other: int) -> None:
    assume(m != other)
    for form in ("{} \\pmod {{{}}}", "x \\equiv {} \\pmod {{{}}}", "{} (mod {})"):
        assert accepts(form.format(n, m), f"{n} \\pmod {{{m}}}")
        assert accepts(form.format(n + m, m), f"{n} \\pmod {{{m}}}")
        assert accepts(form.format(n, m), str(n))
        assert not accepts(form.format(n + 1, m), f"{n} \\pmod {{{m}}}")
        assert not accepts(form.format(n, other), f"{n} \\pmod {{{m}}}")


@few
@given(INTEGERS, st.sampled_from(sorted(vocabulary.MEASURES.keys() | vocabulary.COUNTED)))
def test_units_come_from_a_list(n: int, unit: str) -> None:
    unit = unit.upper() if unit in ("n", "j", "w", "v", "k", "a") else unit
    assert accepts(f"{n} {unit}", str(n))
    assert accepts(f"{n}\\text{{ {unit}}}" if unit != "$" else f"{n}\\$", str(n))
    assert not accepts(f"{n + 1} {unit}", str(n))


OTHER_WORDS = [
    *(
        "halves",
        "thirds",
        "quarters",
        "tenths",
        "hundredths",
        "tens",
        "dozen",
        "gross",
        "score",
        "squared",
        "quux",
    ),
    *(
        "(wrong)",
        "(rejected)",
        "(not sure)",
        "or so",
        "at most",
        "below zero",
        "maybe",
        "base eight",
        "factorial",
    ),
    *("plus one", "is wrong", "and a half", "to 30", "percentile"),
]


@pytest.mark.parametrize("words", OTHER_WORDS)
def test_any_other_word_after_a_number_is_not_a_unit(words: str) -> None:
    for n in (3, 25):
        assert not accepts(f"{n} {words}", str(n))
        assert not accepts(f"{n}\\text{{ {words}}}", str(n))


@few
@given(
    INTEGERS, st.sampled_from([("cm", "cm^2"), ("cm^2", "cm^3"), ("m", "km"), ("s", "min"), ("m/s", "m/s^2")])
)
def test_known_units_may_not_differ(n: int, units: tuple[str, str]) -> None:
    a, b = (
        f"{n} \\text{{ {unit.split('^')[0]}}}" + "".join("^" + p for p in unit.split("^")[1:])
        for unit in units
    )
    assert accepts(a, a)
    assert accepts(a, str(n))
    assert accepts(str(n), b)
    assert not accepts(a, b)
    assert not accepts(b, a)


@few
@given(st.integers(1, 60), st.integers(61, 99), SMALL)
def test_ratios(a: int, b: int, k: int) -> None:
    assert accepts(f"{k * a}:{k * b}", f"{a}:{b}")
    assert not accepts(f"{b}:{a}", f"{a}:{b}")
    assert accepts(f"{a}:{b}", f"\\frac{{{a}}}{{{b}}}")
    assert not accepts(f"{k}:1", str(k))
    assert not accepts(f"{k}:0", f"{k + 1}:0")
    assert not accepts(f"{k}:00", f"{k + 1}:00")  # times of day


@few
@given(INTEGERS, INTEGERS)
def test_names_of_a_tuple(a: int, b: int) -> None:
    assume(a != b)
    right = (f"x={a}, y={b}", f"y={b}, x={a}", f"x = {a} and y = {b}", f"(x,y)=({a},{b})", f"(y,x)=({b},{a})")
    wrong = (f"y={a}, x={b}", f"x={b}, y={a}", f"(y,x)=({a},{b})", f"({b},{a})", f"{b}, {a}")
    for form in right:
        assert accepts(form, f"({a},{b})")
    for form in wrong:
        assert not accepts(form, f"({a},{b})")


@few
@given(INTEGERS, INTEGERS)
def test_a_retraction_leaves_no_answer(a: int, b: int) -> None:
    assume(a != b)
    for form in (
        "{}. Actually, it is {}.",
        "{}\n\nWait, that is wrong. It should be {}.",
        "{} - wait, {}",
        "{}, no, {}",
    ):
        assert not accepts(form.format(a, b), str(a))
        assert not accepts(form.format(a, b), str(b))
    assert accepts(f"{a}\n\nAnswer: {b}", str(b))
    assert not accepts(f"{a}\n\n\\boxed{{{b}}}", str(a))


@few
@given(st.integers(1, 89), st.integers(90, 179))
def test_degrees(a: int, b: int) -> None:
    assert accepts(f"{a}^\\circ + {b}^\\circ", str(a + b))
    assert accepts(f"{a + b} degrees", f"{a + b}^\\circ")
    assert not accepts(f"{a}^\\circ + {b}", str(a + b))
    assert accepts("\\sin(90^\\circ - x)", "\\cos x")
    assert not accepts(f"\\sin({a}^\\circ - x)", "\\cos x")


@few
@given(
    INTEGERS,
    st.sampled_from(
        ["\\frac{{{}}}", "\\sqrt{{{}", "({}", "{})", "{{{}", "{}}}", "{}^", "{}+", "|{}", "{}\\cdot"]
    ),
)
def test_malformed_text_is_refused(n: int, form: str) -> None:
    assert not accepts(form.format(n), str(n))
    assert not accepts(form.format(n * n), str(n))


@few
@given(NAMES)
def test_a_root_of_a_square_is_an_absolute_value(x: str) -> None:
    assert accepts(f"|{x}|", f"\\sqrt{{{x}^2}}")
    assert not accepts(x, f"\\sqrt{{{x}^2}}")
    assert not accepts(f"\\sqrt{{{x}^2}}", x)


@few
@given(st.integers(1, 60), st.integers(2, 60))
def test_a_rounding_after_an_exact_value(p: int, q: int) -> None:
    exact = Fraction(p, q)
    assume(1000 % exact.denominator)
    reference = f"\\frac{{{exact.numerator}}}{{{exact.denominator}}}"
    for mark in ("\\approx", "≈", "\\simeq"):
        assert accepts(f"{reference} {mark} {float(exact):.3f}", reference)
        assert not accepts(f"{reference} {mark} {float(exact):.3f}", f"\\frac{{{p + q}}}{{{q}}}")
    assert not accepts(f"{float(exact):.3f}", reference)
    assert accepts("\\sqrt{2} \\approx 1.414", "\\sqrt{2}")


@few
@given(st.integers(0, 99), st.sampled_from([3, 7, 9, 11, 13, 37]), st.sampled_from([1, 2, 10]))
def test_recurring_decimals(p: int, q: int, tens: int) -> None:
    value = Fraction(p * q + 1, q * tens)
    whole, rest = divmod(value.numerator, value.denominator)
    digits, seen = "", {}
    while rest not in seen and rest:
        seen[rest] = len(digits)
        digit, rest = divmod(10 * rest, value.denominator)
        digits += str(digit)
    assume(rest)
    head, period = digits[: seen[rest]], digits[seen[rest] :]
    reference = f"{value.numerator}/{value.denominator}"
    dots = f"\\dot{{{period[0]}}}" + (f"{period[1:-1]}\\dot{{{period[-1]}}}" if len(period) > 1 else "")
    for tail in (f"({period})", f"\\overline{{{period}}}", f"{3 * period}...", f"{3 * period}\\ldots", dots):
        assert accepts(f"{whole}.{head}{tail}", reference)
    assert not accepts(f"{whole}.{head}{period}", reference)
    assert not accepts(f"{whole}.{head}{period}...", reference) or len(set(period)) < len(period)


PROSE = [
    *(
        "{}. This is because the sum is even.",
        "{} is the answer.",
        "{} ∎",
        "{}, as required.",
        "{}. I hope it is correct.",
    ),
    *(
        "There are {} ways.",
        "The final answer is {}.",
        "approximately {}",
        "about {}",
        "{} (since 1 + 1 = 2)",
        "{} QED",
    ),
    *(
        "n = {}",
        "{}, which is even.",
        "We have exactly {} possible values.",
        "{} ✅",
        "the total is $\\boxed{{{}}}$",
    ),
]
DENIALS = [
    "not {}",
    "{} or 1",
    "at least {}",
    "at most {}",
    "less than {}",
    "maybe {}",
    "{}?",
    "{} to 1000",
    "x > {}",
]


@few
@given(INTEGERS, st.sampled_from(PROSE), st.sampled_from(DENIALS))
def test_prose_around_the_answer(n: int, prose: str, denial: str) -> None:
    assert accepts(prose.format(n), str(n))
    assert not accepts(prose.format(n + 1), str(n))
    assert not accepts(denial.format(n), str(n))


LANGUAGES = [
    *(
        "答案：{}",
        "最终答案是 {}。",
        "Respuesta: {}",
        "La respuesta es {}.",
        "Réponse : {}",
        "La réponse est {}.",
    ),
    *("Antwort: {}", "Die Antwort ist {}.", "Ответ: {}", "Resposta: {}", "A resposta é {}.", "Risposta: {}"),
    *(
        "答え：{}",
        "答えは{}です。",
        "정답: {}",
        "정답은 {}입니다.",
        "الإجابة: {}",
        "उत्तर: {}",
        "Cevap: {}",
        "Đáp án: {}",
    ),
    *("Jawaban: {}", "Odpowiedź: {}", "Antwoord: {}"),
]


@few
@given(INTEGERS, st.sampled_from(LANGUAGES))
def test_labels_in_other_languages(n: int, form: str) -> None:
    for response in (form.format(n), f"1 + 1 = 2\n\n{form.format(f'${n}$')}"):
        assert judge(response, str(n)).correct
        assert not judge(response, str(n + 1)).correct


@few
@given(st.integers(1_000_000, 99_999_999), st.integers(1, 99))
def test_grouping_of_digits(n: int, hundredths: int) -> None:
    western = f"{n:,}"
    head, last = str(n)[:-3], str(n)[-3:]
    indian = head[: len(head) % 2] + "," * (len(head) % 2)
    indian += ",".join(head[k : k + 2] for k in range(len(head) % 2, len(head), 2)) + "," + last
    marks = ("'", "_", "{,}", "\\,", " ", "’")
    for form in (western, indian, *(western.replace(",", mark) for mark in marks)):
        assert accepts(form, str(n))
        assert not accepts(form, str(n + 1))
    value = f"{n}.{hundredths:02d}"
    assert accepts(western.replace(",", ".") + f",{hundredths:02d}", value)
    assert accepts(f"{n},{hundredths:02d}", value) or hundredths % 100 == 0
    assert not accepts(f"{n},{hundredths:02d}", str(100 * n + hundredths))
    assert not accepts(f"{western},0", f"{n}0")


@few
@given(st.integers(-50, 50), st.integers(1, 50))
def test_conditions_are_sets(a: int, width: int) -> None:
    b = a + width
    assert accepts(f"x \\ne {a}", f"(-\\infty,{a})\\cup({a},\\infty)")
    assert accepts(f"\\mathbb{{R}} \\setminus \\{{{a}\\}}", f"(-\\infty,{a})\\cup({a},\\infty)")
    assert accepts(f"{a} < x \\le {b}", f"({a},{b}]")
    assert accepts(f"x > {a} and x \\le {b}", f"({a},{b}]")
    assert accepts(f"\\{{x : {a} < x \\le {b}\\}}", f"({a},{b}]")
    for wrong in (
        f"{a} \\le x \\le {b}",
        f"{a} < x < {b}",
        f"x \\ne {a}",
        f"[{a},{b})",
        f"{a} < x \\le {b + 1}",
    ):
        assert not accepts(wrong, f"({a},{b}]")
    for none in ("no solution", "no real solutions", "None", "\\varnothing"):
        assert accepts(none, "\\emptyset")
        assert not accepts(none, str(a))


@few
@given(NAMES, SMALL, SMALL, SMALL)
def test_rewritten_expressions(x: str, a: int, b: int, c: int) -> None:
    reference = f"({x}+{a})({x}+{b})+{c}"
    right = (f"{c}+({b}+{x})*({a}+{x})", f"{x}^2+{a + b}*{x}+{a * b + c}", f"{c} + ({x}+{b})\\cdot({x}+{a})")
    wrong = (f"({x}+{a})({x}+{b})-{c}", f"({x}+{a})({x}+{b + 1})+{c}", f"{x}^2+{a + b}{x}+{a * b}")
    assert all(accepts(form, reference) for form in right)
    assert not any(accepts(form, reference) for form in wrong)
    assert accepts(f"{a}\\sin {x}\\cos {x}", f"\\frac{{{a}\\sin(2{x})}}{{2}}")


@few
@given(INTEGERS, INTEGERS)
def test_boxes_with_prose_between(a: int, b: int) -> None:
    assume(a != b)
    joined = f"The values are \\boxed{{{a}}} and, in the other case, \\boxed{{{b}}}."
    assert judge(joined, f"{a}, {b}").correct
    assert not judge(joined, str(b)).correct
    assert judge(f"We get \\boxed{{{a}}}, so the answer is \\boxed{{{b}}}.", str(b)).correct


@few
@given(SMALL, SMALL)
def test_cases_whatever_their_spacing(a: int, b: int) -> None:
    reference = f"\\begin{{cases}} x+{a} & x>{b} \\\\ 0 & x \\le {b} \\end{{cases}}"
    assert accepts(reference.replace(" ", ""), reference.replace("\\le ", "\\leq "))
    assert not accepts(reference.replace(f"x+{a}", f"x-{a}"), reference)


@few
@given(st.integers(1, 99))
def test_percent(n: int) -> None:
    for form in (f"{n}%", f"{n}\\%", f"{n} percent", str(n), f"{n}/100"):
        assert accepts(form, f"{n}\\%")
    assert not accepts(f"{n}/100", str(n))
    assert not accepts(f"{100 * n}%", str(n))
    assert not accepts(f"0.{n:02d}\\%", f"{n}\\%")
