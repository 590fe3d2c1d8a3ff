"""More kinds of faults, as in `test_kinds.py`: signs, words of other languages, marks, matrices, rays."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dapo_ref.verifier import judge, vocabulary
from tests.support.drawn import INTEGERS, NAMES, SMALL, accepts, few

FOREIGN_UNITS = sorted(
    vocabulary.words("个 颗 人 元 分钟 小时 岁 本 千克 개 명 heures Stunden личность km часов")
)
FOREIGN_NUMERALS = sorted(vocabulary.words("百 千 万 亿 半 成 分之一 个半 萬 倍多 毛五 아님 не"))


@few
@given(INTEGERS)
def test_a_sign_or_a_value_in_braces(n: int) -> None:
    for minus in ("{-}", "{ - }", "-"):
        assert accepts(f"{minus}{n}", f"-{n}")
        assert accepts(f"{minus}\\frac{{1}}{{{n}}}", f"-\\frac{{1}}{{{n}}}")
        assert not accepts(f"{minus}{n}", str(n))
    assert accepts(f"{{+}}{n}", str(n))
    assert not accepts(f"2{{-}}{n}", f"-{2 * n}")
    assert not accepts(f"2^{{-}}{n}", f"-{n}")


@few
@given(INTEGERS, st.sampled_from(FOREIGN_UNITS))
def test_units_of_other_languages(n: int, unit: str) -> None:
    known = unit != "личность"
    for form in (f"{n}{unit}", f"{n} {unit}", f"{n}\\text{{ {unit}}}"):
        assert accepts(form, str(n)) == known
        assert not accepts(form, str(n + 1))
    assert not accepts(f"{n} 分钟", f"{n} hours")
    assert accepts(f"{n} 分钟", f"{n} minutes")


@pytest.mark.parametrize("word", FOREIGN_NUMERALS)
def test_words_of_other_languages_that_change_a_value(word: str) -> None:
    for n in (3, 25):
        assert not accepts(f"{n}{word}", str(n))


@few
@given(st.integers(1, 999), st.integers(0, 999), st.integers(0, 999))
def test_european_groups_need_two_marks(a: int, b: int, c: int) -> None:
    value = 1_000_000 * a + 1_000 * b + c
    text = f"{a}.{b:03}.{c:03}"
    assert accepts(text, str(value))
    assert accepts(f"{text},5", f"{value}.5")
    assert not accepts(text, str(value + 1))
    assert not accepts(f"{text}.5", str(value))
    assert not accepts(f"{a}.{b:03}", str(1_000 * a + b))
    assert not accepts(f"{a}.{b:03}.{c % 100:02}", str(100_000 * a + 100 * b + c % 100))


@few
@given(SMALL, SMALL, SMALL)
def test_two_stars_are_a_power_or_emphasis(a: int, b: int, n: int) -> None:
    assert accepts(f"{a}**{b}", str(a**b))
    assert accepts(f"x**{a} + y**{b}", f"x^{a}+y^{b}")
    assert accepts(f"**{a}{b}**", f"{a}{b}")
    assert accepts(f"**{a}{b}** cm", f"{a}{b}")
    assert not accepts(f"{a}**{b}", f"{a}{b}")
    assert not accepts(f"x**{a} + y**{b}", f"x^{a}+y^{b + n}")


@few
@given(SMALL, SMALL)
def test_three_to_four_is_a_ratio(a: int, b: int) -> None:
    assume(a != b)
    assert accepts(f"{a} to {b}", f"{a}:{b}")
    assert accepts(f"{2 * a} to {2 * b}", f"{a}:{b}")
    assert not accepts(f"{a} to {b}", f"{b}:{a}")
    for integer in (a, b, b - a, a + b):
        assert not accepts(f"{a} to {b}", str(integer))


@pytest.mark.parametrize(
    "said", ["all real numbers", "\\text{all real numbers}", "\\mathbb{R}", "\\mathbb R", "ℝ"]
)
def test_the_real_numbers(said: str) -> None:
    for reference in ("(-\\infty, \\infty)", "\\mathbb{R}", "x \\in \\mathbb{R}"):
        assert accepts(said, reference)
    for reference in ("\\mathbb{Z}", "(0, \\infty)", "\\emptyset", "5", "[-\\infty, 0)"):
        assert not accepts(said, reference)


@few
@given(INTEGERS, st.sampled_from(["\\qed", "\\blacksquare", "\\square", "$\\square$", "∎"]))
def test_the_mark_at_the_end_of_a_proof(n: int, mark: str) -> None:
    assert accepts(f"{n} {mark}", str(n))
    assert not accepts(f"{n} {mark}", str(n + 1))
    assert not accepts(f"{n} {mark} {n}", str(n))
    assert not accepts(mark, str(n))


@few
@given(st.integers(-9, 9), st.integers(1, 9), st.sampled_from(["<", "\\le", ">", "\\ge"]), NAMES)
def test_linear_conditions_are_rays(b: int, k: int, op: str, x: str) -> None:
    """k x + b < c is x < (c − b)/k; a negative factor turns it; |x| < k is the interval around 0."""
    turned = {"<": ">", "\\le": "\\ge", ">": "<", "\\ge": "\\le"}
    other = {"<": "\\le", "\\le": "<", ">": "\\ge", "\\ge": ">"}
    reference = f"{x} {op} {k}"
    assert accepts(f"{k}{x} + {b} {op} {k * k + b}", reference)
    assert accepts(f"-{k}{x} + {b} {turned[op]} {-k * k + b}", reference)
    assert accepts(f"{k} {turned[op]} {x}", reference)
    assert not accepts(f"-{k}{x} + {b} {op} {-k * k + b}", reference)
    assert not accepts(f"{k}{x} + {b} {other[op]} {k * k + b}", reference)
    assert not accepts(f"{k}{x} + {b} {op} {k * k + b + 1}", reference)
    assert accepts(f"|{x}| < {k}", f"(-{k}, {k})")
    assert accepts(f"|{x}| \\ge {k}", f"(-\\infty, -{k}] \\cup [{k}, \\infty)")
    assert not accepts(f"|{x}| \\le {k}", f"(-{k}, {k})")
    assert not accepts(f"|{x}| < {k}", f"(-{k + 1}, {k})")
    assert not accepts(f"|{x}| > {k}", f"(-{k}, {k})")


@few
@given(INTEGERS)
def test_a_total_of(n: int) -> None:
    assert accepts(f"a total of {n}", str(n))
    assert not accepts(f"a total of {n} or {n + 1}", str(n))
    assert accepts("DNE", "\\text{does not exist}")
    assert not accepts("DNE", str(n))


@few
@given(st.lists(st.integers(-9, 9), min_size=4, max_size=4), SMALL)
def test_sums_and_multiples_of_matrices(entries: list[int], k: int) -> None:
    """k A, A/k, −A and A + A are written out entry by entry; a wrong factor or a product is not."""

    def matrix(values: list[int] | list[str]) -> str:
        a, b, c, d = values
        return f"\\begin{{pmatrix}} {a} & {b} \\\\ {c} & {d} \\end{{pmatrix}}"

    assume(any(entries))
    a, times = matrix(entries), matrix([k * n for n in entries])
    assert accepts(f"{k}{a}", times)
    assert accepts(f"\\frac{{1}}{{{k}}}{times}", a)
    assert accepts(f"-{a}", matrix([-n for n in entries]))
    assert accepts(f"{a} + {a}", matrix([2 * n for n in entries]))
    assert accepts(a.replace("pmatrix", "bmatrix"), a)
    assert not accepts(f"{k + 1}{a}", times)
    assert not accepts(f"{a} + {a}", a)
    assert not accepts(f"\\frac{{{k}}}{{{matrix([1, 1, 1, 1])}}}", matrix([k, k, k, k]))
    assert not accepts(f"{k} + {a}", matrix([n + k for n in entries]))
    assert not accepts(a, matrix([*entries[:3], entries[3] + 1]))
    assert not accepts(a, matrix([*entries[:3], entries[3] + 1]).replace("pmatrix", "vmatrix"))


@few
@given(INTEGERS, st.sampled_from("ABCDE"))
def test_a_choice_before_its_value(n: int, letter: str) -> None:
    for form in (
        f"\\textbf{{({letter})}} {n}",
        f"\\text{{({letter}) }}\\ {n}",
        f"\\textbf{{({letter}) }} ${n}$",
    ):
        assert accepts(form, str(n))
        assert not accepts(form, str(n + 1))
        assert not accepts(form.replace(str(n), f"{n} or {n + 1}"), str(n))
    assert accepts(f"\\textbf{{({letter})}}", f"\\text{{({letter})}}")
    assert not accepts(f"\\textbf{{({letter})}}", str(n))


@few
@given(INTEGERS)
def test_a_last_line_after_hashes(n: int) -> None:
    for form in (f"#### {n}", f"So it is.\n#### {n}\n", f"#### {n + 1}\n#### ${n}$", f"#### {n}.0"):
        assert judge(form, str(n)).correct
        assert not judge(form, str(n + 2)).correct
    for heading in (
        f"#### {n}. Simplify",
        f"#### Step {n}",
        f"#### {n}\nmore text",
        f"#### {n}.",
        f"##### {n}",
    ):
        assert not judge(heading, str(n)).correct
    assert judge(f"Answer: {n}\n#### {n + 1}", str(n)).correct


@few
@given(INTEGERS)
def test_the_same_value_twice_is_one_value(n: int) -> None:
    assert accepts(f"{n}, {n}", str(n))
    assert accepts(f"{n} (exactly)", str(n))
    assert not accepts(f"{n}, {n}, {n + 1}", str(n))


@few
@given(st.sampled_from("xyz"), st.sampled_from("xyz"), SMALL)
def test_letters_after_a_number_are_factors(x: str, y: str, k: int) -> None:
    assume(x != y)
    assert accepts(f"{k}{x}{y}", f"{k}{y}{x}")
    assert not accepts(f"{k}{x}{y}", f"{k + 1}{x}{y}")
    assert accepts(f"{x} >= {k}", f"[{k}, \\infty)")
    assert not accepts(f"{x} > {k}", f"[{k}, \\infty)")


@pytest.mark.parametrize(
    ("said", "reference"), [("no such line", "no such point"), ("obtuse", "obtuse angle")]
)
def test_words_are_compared_in_full(said: str, reference: str) -> None:
    assert accepts(said, said.upper())
    assert not accepts(said, reference)


@few
@given(st.lists(st.integers(-5, 5), min_size=9, max_size=9))
def test_determinants(e: list[int]) -> None:
    """a d − b c, and the rule of Sarrus for three rows."""
    two = e[0] * e[3] - e[1] * e[2]
    assert accepts(f"\\begin{{vmatrix}} {e[0]} & {e[1]} \\\\ {e[2]} & {e[3]} \\end{{vmatrix}}", str(two))
    three = (
        e[0] * (e[4] * e[8] - e[5] * e[7])
        - e[1] * (e[3] * e[8] - e[5] * e[6])
        + e[2] * (e[3] * e[7] - e[4] * e[6])
    )
    rows = " \\\\ ".join(" & ".join(map(str, e[k : k + 3])) for k in (0, 3, 6))
    assert accepts(f"\\begin{{vmatrix}} {rows} \\end{{vmatrix}}", str(three))
    assert not accepts(f"\\begin{{vmatrix}} {rows} \\end{{vmatrix}}", str(three + 1))


@few
@given(INTEGERS, SMALL, SMALL)
def test_lower_signs_go_together(n: int, a: int, b: int) -> None:
    """n ± a ∓ b is n + a − b or n − a + b."""
    assert accepts(f"{n} \\pm {a} \\mp {b}", f"{n + a - b}, {n - a + b}")
    assert not accepts(f"{n} \\pm {a} \\mp {b}", f"{n + a + b}, {n - a - b}")
    assert accepts(f"{n} \\mp {a}", f"{n - a}, {n + a}")


@few
@given(NAMES, NAMES, SMALL)
def test_an_inequality_turns_with_a_negative_factor(x: str, y: str, k: int) -> None:
    assume(x != y)
    assert accepts(f"{k}{x} + {k}{y} < {k * k}", f"{x}+{y} < {k}")
    assert accepts(f"-{x} - {y} > -{k}", f"{x}+{y} < {k}")
    assert not accepts(f"{x} + {y} > {k}", f"{x}+{y} < {k}")
    assert not accepts(f"-{x} - {y} < -{k}", f"{x}+{y} < {k}")
    assert not accepts(f"{x} + {y} \\le {k}", f"{x}+{y} < {k}")


@few
@given(st.integers(2, 99))
def test_a_number_in_words_multiplies_nothing(n: int) -> None:
    ones = {value: word for word, value in vocabulary.NUMBER_WORDS.items()}
    word = ones.get(n) or f"{ones[n - n % 10]}-{ones[n % 10]}"
    assert accepts(word, str(n))
    assert accepts(f"minus {word}", str(-n))
    assert accepts(f"negative {n}", str(-n))
    assert not accepts(f"negative {n}", str(n))
    for twice in (f"{n} ({word})", f"{word} ({n})", f"{n} {word}", f"{word} {n}"):
        assert not accepts(twice, str(n * n))


@few
@given(INTEGERS)
def test_ordinals_are_no_fractions(n: int) -> None:
    for ordinal in ("st", "nd", "rd", "th"):
        assert accepts(f"{n}{ordinal}", str(n))
        assert not accepts(f"{n}{ordinal}s", str(n))


@few
@given(st.integers(1, 999), st.integers(0, 9999))
def test_a_comma_in_braces(a: int, b: int) -> None:
    text = f"{a}{{,}}{b:04}"
    assert accepts(text, f"{a}.{b:04}")
    assert not accepts(text, f"{a}{b:04}")
    assert accepts(f"{a}{{,}}{b % 1000:03}", f"{a}{b % 1000:03}")
    assert accepts(f"0{{,}}{b:04}", f"0.{b:04}")
    assert not accepts(f"0{{,}}{b % 1000:03}", str(b % 1000 or 1))
    assert not accepts(f"1{a:03}{{,}}{b % 1000:03}", f"1{a:03}{b % 1000:03}")


@few
@given(INTEGERS, st.sampled_from(["{}^\\circ {}", "{}°{}", "{}^{{\\circ}}\\text{{{}}}", "{} \\degree {}"]))
def test_temperatures_have_a_scale(n: int, form: str) -> None:
    assert accepts(form.format(n, "C"), str(n))
    assert accepts(form.format(n, "C"), f"{n}°C")
    assert not accepts(form.format(n, "C"), f"{n}°F")
    assert not accepts(form.format(n + 1, "F"), str(n))
    assert not accepts(f"{n} radians", f"{n}^\\circ")
    assert not accepts(form.format(n, "C") + "+1", str(n))


@few
@given(NAMES, INTEGERS)
def test_a_bar_belongs_to_the_name(x: str, n: int) -> None:
    assert accepts(f"\\bar{{{x}}}", f"\\overline{{{x}}}")
    assert accepts(f"\\bar {x}", f"\\bar{{{x}}}")
    assert not accepts(f"\\bar {x}", x)
    assert not accepts(f"\\bar{{{n}}}", str(n))


@few
@given(st.integers(2, 20), st.integers(2, 9), st.integers(3, 50))
def test_a_congruence_of_two_values(k: int, base: int, m: int) -> None:
    rest = base**k % m
    assert accepts(f"{base}^{{{k}}} \\equiv {rest} \\pmod{{{m}}}", str(rest))
    assert not accepts(f"{base}^{{{k}}} \\equiv {rest + 1} \\pmod{{{m}}}", str(rest + 1))
    assert not accepts(f"{base}^{{{k}}} \\equiv {rest + 1} \\equiv {rest} \\pmod{{{m}}}", str(rest))


@few
@given(
    st.sampled_from(["\\gcd({},{})", "\\max({},{})", "\\det({}{})", "\\sum_{{k=1}}^{{{}}} {}_k"]), INTEGERS
)
def test_functions_that_a_problem_asks_for(form: str, n: int) -> None:
    asked = form.format("a", "b")
    assert accepts(f"{asked} = {n}", str(n))
    assert not accepts(f"{asked} = {n}", str(n + 1))
    assert not accepts(f"{asked} > {n}", str(n))
    assert not accepts(f"\\gcd({n},{2 * n}) = {n + 1}", str(n + 1))  # n, in truth
    if "sum" not in form:
        for more in (f"2{asked}", f"{asked}+1", f"{asked}^2"):
            assert not accepts(f"{more} = {n}", str(n))


def test_infinity_takes_part_in_no_arithmetic() -> None:
    for text in ("\\frac{5}{\\infty}", "e^{-\\infty}", "0 \\cdot \\infty", "\\infty - \\infty"):
        assert not accepts(text, "0")
    assert accepts("+\\infty", "\\infty")
    assert not accepts("-\\infty", "\\infty")


@few
@given(NAMES, INTEGERS, st.sampled_from(["align*", "aligned", "gather", "equation"]))
def test_a_display_is_no_structure(x: str, n: int, name: str) -> None:
    def display(content: str) -> str:
        return f"\\begin{{{name}}} {content} \\end{{{name}}}"

    assert accepts(display(str(n)), str(n))
    assert accepts(display(f"{x} &= {n - 1} + 1 \\\\ &= {n}"), str(n))
    assert not accepts(display(f"{x} &= {n} \\\\ &= {n + 1}"), str(n))
    assert not accepts(display(f"{n} \\\\ {n + 1}"), str(n * (n + 1)))
    assert not accepts(f"\\begin{{{name}}} {n}", str(n))


@few
@given(INTEGERS, SMALL)
def test_a_box_that_is_a_part_of_a_formula(n: int, k: int) -> None:
    for before, after in (
        ("", f"+{k}"),
        ("", f" - {k}"),
        ("", f"^{k}"),
        (f"{k}+", ""),
        (f"{k}/", ""),
        (str(k), ""),
        ("", "x"),
        ("", "\\pi"),
        ("", f" \\cdot {k}"),
        ("\\pm ", ""),
        ("\\sqrt{", "}"),
        (f"\\frac{{{k}}}{{", "}"),
    ):
        assert not judge(f"so $x = {before}\\boxed{{{n}}}{after}$.", str(n)).correct
    assert judge(f"so $x = \\boxed{{{n}}}^{k}$.", str(n**k)).correct
    assert judge(f"so $-\\boxed{{{n}}}$.", str(-n)).correct
    for text in (
        "**\\boxed{{{}}}**",
        "- \\boxed{{{}}}",
        "$\\boxed{{{}}}^\\circ$",
        "$x \\le (\\boxed{{{}}})$",
        "$\\boxed{{{}}}$ a day",
        "\\boxed{{{}}} a day",
        "\\boxed{{{}}} - as claimed in 1.",
    ):
        assert judge(text.format(n), str(n)).correct


TAKEN_BACK = [
    *("Scratch that: {}", "I take that back. {}", "On reflection, the correct value is {}.", "Actually {}."),
    *("But that double counts, so {}.", "Korrektur: {}", "不对，应该是{}", "Неверно, {}.", "Pardon, {}."),
]


@pytest.mark.parametrize("words", TAKEN_BACK)
@pytest.mark.parametrize(
    "mark",
    [
        "Answer: {}",
        "It is \\boxed{{{}}}.",
        "\\fbox{{{}}}",
        "The answer is {}.",
        "答案：{}",
        "<answer>{}</answer>",
    ],
)
def test_an_answer_that_is_taken_back(mark: str, words: str) -> None:
    for n in (3, 250):
        assert not judge(f"{mark.format(n)}\n\n{words.format(n + 1)}", str(n)).correct
        assert judge(f"{mark.format(n)}\n\nThis agrees with the {n + 1} cases above.", str(n)).correct
        assert judge(f"Is it 7? {words.format(n + 1)}\n\n{mark.format(n)}", str(n)).correct
        assert judge(f"{mark.format(n + 1)}\n\n{words.format(n)}\n\n{mark.format(n)}", str(n)).correct


@few
@given(INTEGERS)
def test_a_value_that_is_said_to_be_the_answer(n: int) -> None:
    for words in ("{} is the answer.", "We see that {} is our final answer!", "คำตอบคือ {}", "(Answer: {})"):
        assert judge(words.format(n), str(n)).correct
    for words in (
        *("{} is not the answer.", "{} is the wrong answer.", "Perhaps {} is the answer.", "~~{}~~"),
        *(
            "{} or 1 is the answer.",
            "My first answer was {}. It is 1.",
            "Answer: ~~{}~~ 1",
            "The wrong answer is {}.",
        ),
    ):
        assert not judge(words.format(n), str(n)).correct
    assert judge(f"Answer: ~~1~~ {n}", str(n)).correct


@few
@given(
    INTEGERS, st.sampled_from(["es gibt {} Möglichkeiten", "hay {} maneras", "il y a {} façons", "共有{}种"])
)
def test_how_many_there_are_in_other_languages(n: int, form: str) -> None:
    assert accepts(form.format(n), str(n))
    assert not accepts(form.format(n), str(n + 1))
    assert not accepts(form.format(f"nicht {n}"), str(n))
    assert not accepts(form.format(f"{n} oder 1"), str(n))


@few
@given(INTEGERS)
def test_a_later_answer_and_a_box_that_is_denied(n: int) -> None:
    assert not judge(f"Answer: {n}\n\nSo the answer is {n + 1}.", str(n)).correct
    assert judge(f"Answer: ${n}$\n\nSo the answer is {n}.", str(n)).correct
    assert judge(f"Answer: {n}\n\nThe answer is large because of the {n + 1} cases.", str(n)).correct
    for denied in (
        "It is not $\\boxed{{{}}}$.",
        "It can't be \\boxed{{{}}}.",
        "We never get ${}$ but not \\boxed{{{}}}.",
    ):
        assert not judge(denied.format(n, n), str(n)).correct
    assert judge(f"If it is not prime, we get \\boxed{{{n}}}.", str(n)).correct


@few
@given(INTEGERS, NAMES)
def test_integer_parts_and_functions_of_functions(n: int, x: str) -> None:
    for asked in (f"\\lfloor 100{x} \\rfloor", f"\\lceil \\sqrt{{{x}}} \\rceil", f"f(f({x}))", f"f(g({n}))"):
        assert accepts(f"{asked} = {n}", str(n))
        assert not accepts(f"2{asked} = {n}", str(n))
    assert not accepts(f"\\lfloor {n + 1}.5 \\rfloor = {n}", str(n))


@few
@given(INTEGERS)
def test_a_kelvin_is_no_thousand(n: int) -> None:
    assert accepts(f"{n} K", str(n))
    for thousands in (f"{n}K dollars", f"{n}K people", f"\\${n}K"):
        assert not accepts(thousands, str(n)) or n == 0
    for money in (f"${abs(n)}K", f"\\${abs(n)}k"):
        assert accepts(money, str(1000 * abs(n)))
        assert not accepts(money, str(abs(n))) or n == 0
    assert accepts(f"({n:b})_2", str(n))
    assert not accepts(f"({n:b})_2", f"{n:b}")


@few
@given(st.integers(3, 999))
def test_what_else_is_in_the_formula_of_a_box(n: int) -> None:
    box = f"\\boxed{{{n}}}"
    for part in (
        "x{}",
        "\\log {}",
        "\\sin{}",
        "2^{{{}}}",
        "a_{{{}}}",
        "\\binom{{{}}}{{2}}",
        "|{}|",
        "x \\neq {}",
    ):
        assert not judge(f"${part.format(box)}$", str(n)).correct
        assert not judge(part.format(box), str(n)).correct
    for part in (
        "\\gcd({}, 2)",
        "-({})",
        "({}, 1)",
        "\\{{{}, 1\\}}",
        "\\lfloor {} \\rfloor",
        "f({})",
        "\\alpha{}",
    ):
        assert not judge(f"${part.format(box)}$", str(n)).correct
    for part in ("{}_8", "{} = 1", "{}.5", "{},000", "{}!", "{} \\neq 1"):
        assert not judge(f"${part.format(box)}$", str(n)).correct
    for said in (
        "{}!",
        "is {}.",
        "a total of{}",
        "${}$, 100 in all",
        "$x = {}$",
        "$x \\le {}$",
        "$N \\equiv {}$",
    ):
        assert judge(said.format(box), str(n)).correct


@few
@given(st.integers(2, 999))
def test_an_answer_that_is_denied_afterwards(n: int) -> None:
    for denial in (
        f"Hence the final answer is not {n}.",
        "No, that's not right.",
        "But that can't be right.",
        "This is wrong.",
        f"Hmm, no. It is {n + 1}.",
        f"Edit: {n + 1}",
        f"Let me recompute: the sum is {n + 1}.",
        "This contradicts the condition.",
    ):
        assert not judge(f"\\boxed{{{n}}}. {denial}", str(n)).correct
        assert not judge(f"Answer: {n}\n\n{denial}", str(n)).correct
    assert not judge(f"\\boxed{{{n}}} is wrong.", str(n)).correct
    for remark in (
        "That is right.",
        "This is the answer.",
        "It is not hard to see why.",
        "It cannot be larger.",
        "This contradicted nothing.",
    ):
        assert judge(f"\\boxed{{{n}}}. {remark}", str(n)).correct
        assert judge(f"Answer: {n}\n\n{remark}", str(n)).correct
