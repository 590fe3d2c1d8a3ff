"""The Unicode policy: one mapping from what people type to ASCII and LaTeX, applied to answers and
references.

Decimal digits of any script count as digits (as `int()` has it); superscript digits are exponents; circled
digits and Roman numerals are not numbers. Every hyphen, dash and minus sign is a minus. Invisible
characters (zero width, direction marks) become a blank rather than nothing, so that no two digits are ever
joined by deletion.
"""

import re
import unicodedata

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")

_SYMBOLS = {
    **dict.fromkeys("−–—‒‐‑﹣⁃", "-"),
    **dict.fromkeys("×⋅·∙•∗⨯", "*"),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("“”„″‟«»", '"'),
    **dict.fromkeys("‘’‚′", "'"),
    **dict.fromkeys("、，", ","),
    **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062", " "),
    **dict.fromkeys("\u2063\u2064\u2066\u2067\u2068\u2069\ufeff\u00ad\ufe0e\ufe0f", " "),
    "。": ".",
    "∶": ":",
    "…": "\\ldots ",
    "√": "\\sqrt ",
    "∛": "\\sqrt[3] ",
    "π": "\\pi ",
    "∞": "\\infty ",
    "≤": "\\le ",
    "⩽": "\\le ",
    "≦": "\\le ",
    "≥": "\\ge ",
    "⩾": "\\ge ",
    "≧": "\\ge ",
    "≠": "\\ne ",
    "≈": "\\approx ",
    "≡": "\\equiv ",
    "∪": "\\cup ",
    "∩": "\\cap ",
    "∈": "\\in ",
    "∅": "\\emptyset ",
    "∀": "\\forall ",
    "∑": "\\sum ",
    "∏": "\\prod ",
    "∫": "\\int ",
    "±": "\\pm ",
    "∓": "\\mp ",
    "ℝ": "\\mathbb{R}",
    "ℤ": "\\mathbb{Z}",
    "°": "^\\circ ",
    "℃": "^\\circ ",
    "⌊": "\\lfloor ",
    "⌋": "\\rfloor ",
    "⌈": "\\lceil ",
    "⌉": "\\rceil ",
    "⟨": "\\langle ",
    "⟩": "\\rangle ",
    "θ": "\\theta ",
    "α": "\\alpha ",
    "β": "\\beta ",
    "ϕ": "\\phi ",
    "φ": "\\varphi ",
    "λ": "\\lambda ",
    "μ": "\\mu ",
    "ω": "\\omega ",
    **{
        char: f"\\frac{{{num}}}{{{den}}}"
        for char, num, den in [
            *[("½", 1, 2), ("⅓", 1, 3), ("⅔", 2, 3), ("¼", 1, 4), ("¾", 3, 4), ("⅕", 1, 5), ("⅖", 2, 5)],
            *[
                ("⅗", 3, 5),
                ("⅘", 4, 5),
                ("⅙", 1, 6),
                ("⅚", 5, 6),
                ("⅛", 1, 8),
                ("⅜", 3, 8),
                ("⅝", 5, 8),
                ("⅞", 7, 8),
            ],
        ]
    },
}


def _plain(char: str) -> str:
    if char.isascii():
        return char
    if char in _SYMBOLS:
        return _SYMBOLS[char]
    digit = unicodedata.decimal(char, None)
    if digit is not None:
        return str(digit)
    if "\uff01" <= char <= "\uff5e":  # full-width forms of ASCII
        return chr(ord(char) - 0xFEE0)
    return char


def to_ascii_math(text: str) -> str:
    """Rewrite Unicode digits, signs and symbols as ASCII or LaTeX; leave what has no policy as it is.

    Args:
        text: any string, lone surrogates included.

    Returns:
        The rewritten text, computed in time linear in its length.
    """
    if text.isascii():
        return text
    text = _SUPERSCRIPT_RUN.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda m: "_{" + "".join(_SUBSCRIPTS[c] for c in m[0]) + "}", text)
    return "".join(map(_plain, text))
