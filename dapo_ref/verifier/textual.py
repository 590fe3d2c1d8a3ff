"""The Unicode policy: one mapping from what people type to ASCII and LaTeX, for answers and references alike.

Decimal digits of any script count as digits (as `int()` has it); superscript digits are exponents; circled
digits and Roman numerals are not numbers. Every hyphen, dash and minus sign is a minus. Blanks of any width,
invisible characters and pictures become a blank rather than nothing, so that no two digits are ever joined by
deletion.
"""

import re
import unicodedata

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_RUNS = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+|[{''.join(_SUBSCRIPTS)}]+")
_COMMANDS = """
    …ldots √sqrt πpi ∞infty ≤le ⩽le ≦le ≥ge ⩾ge ≧ge ≠ne ≈approx ≃approx ≅approx ≡equiv ∪cup ∩cap ∈in
    ∅emptyset ∀forall ∑sum ∏prod ∫int ±pm ∓mp ⌊lfloor ⌋rfloor ⌈lceil ⌉rceil ⟨langle ⟩rangle θtheta αalpha
    βbeta γgamma δdelta ϕphi φvarphi λlambda μmu ωomega ∠angle △triangle →to ⇒Rightarrow ∖setminus ∣mid
"""
_FRACTIONS = "½12 ⅓13 ⅔23 ¼14 ¾34 ⅕15 ⅖25 ⅗35 ⅘45 ⅙16 ⅚56 ⅛18 ⅜38 ⅝58 ⅞78"
_SYMBOLS = {
    **dict.fromkeys("−–—‒‐‑﹣⁃", "-"),
    **dict.fromkeys("×⋅·∙•∗⨯", "*"),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("“”„″‟«»", '"'),
    **dict.fromkeys("‘’‚′", "'"),
    **dict.fromkeys("、，", ","),
    **dict.fromkeys("°℃º", "\\degree "),
    **dict.fromkeys("∎\ufe0e\ufe0f", " "),
    **{"。": ".", "∶": ":", "∛": "\\sqrt[3] ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}"},
    **{command[0]: f"\\{command[1:]} " for command in _COMMANDS.split()},
    **{fraction[0]: f"\\frac{{{fraction[1]}}}{{{fraction[2]}}}" for fraction in _FRACTIONS.split()},
}
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def _plain(char: str) -> str:
    if char.isascii() or char in _SYMBOLS:
        return _SYMBOLS.get(char, char)
    digit = unicodedata.decimal(char, None)
    if digit is not None:
        return str(digit)
    if "\uff01" <= char <= "\uff5e":  # full-width forms of ASCII
        return chr(ord(char) - 0xFEE0)
    return " " if unicodedata.category(char) in ("Zs", "Cf", "So") else char


def _raised_or_lowered(match: re.Match[str]) -> str:
    table, mark = (_SUPERSCRIPTS, "^") if match[0][0] in _SUPERSCRIPTS else (_SUBSCRIPTS, "_")
    return f"{mark}{{{''.join(map(table.__getitem__, match[0]))}}}"


def to_ascii_math(text: str) -> str:
    """Rewrite Unicode digits, signs and symbols as ASCII or LaTeX; leave what has no policy as it is.

    Any string will do, lone surrogates included; the time is linear in its length.
    """
    return text if text.isascii() else "".join(map(_plain, _RUNS.sub(_raised_or_lowered, text)))


def brace_pairs(text: str, start: int) -> dict[int, int]:
    """The index of the closing brace for every opening one from `start` on; escaped braces do not count."""
    pairs: dict[int, int] = {}
    stack: list[int] = []
    for match in _BRACES.finditer(text, start):
        if match[0] == "{":
            stack.append(match.start())
        elif match[0] == "}" and stack:
            pairs[stack.pop()] = match.start()
    return pairs
