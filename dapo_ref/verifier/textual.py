"""The Unicode policy: one mapping from what people type to ASCII and LaTeX, for answers and references alike.

Decimal digits of any script count as digits (as `int()` has it); superscript digits are exponents; circled
digits and Roman numerals are not numbers. Every hyphen, dash and minus sign is a minus. Invisible characters
(zero width, direction marks) and pictures become a blank rather than nothing, so that no two digits are ever
joined by deletion.
"""

import re
import unicodedata

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_SPACES = "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000\u200b\u200c\u200d"
_INVISIBLE = (
    "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069"
)
_COMMANDS = {
    **{"…": "ldots", "√": "sqrt", "π": "pi", "∞": "infty", "≤": "le", "⩽": "le", "≦": "le", "≥": "ge"},
    **{"⩾": "ge", "≧": "ge", "≠": "ne", "≈": "approx", "≃": "approx", "≅": "approx", "≡": "equiv"},
    **{"∪": "cup", "∩": "cap", "∈": "in", "∅": "emptyset", "∀": "forall", "∑": "sum", "∏": "prod"},
    **{"∫": "int", "±": "pm", "∓": "mp", "⌊": "lfloor", "⌋": "rfloor", "⌈": "lceil", "⌉": "rceil"},
    **{"⟨": "langle", "⟩": "rangle", "θ": "theta", "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta"},
    **{"ϕ": "phi", "φ": "varphi", "λ": "lambda", "μ": "mu", "ω": "omega", "∠": "angle", "△": "triangle"},
    **{"→": "to", "⇒": "Rightarrow", "∖": "setminus", "∣": "mid"},
}
_FRACTIONS = "½12 ⅓13 ⅔23 ¼14 ¾34 ⅕15 ⅖25 ⅗35 ⅘45 ⅙16 ⅚56 ⅛18 ⅜38 ⅝58 ⅞78"
_SYMBOLS = {
    **dict.fromkeys("−–—‒‐‑﹣⁃", "-"),
    **dict.fromkeys("×⋅·∙•∗⨯", "*"),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("“”„″‟«»", '"'),
    **dict.fromkeys("‘’‚′", "'"),
    **dict.fromkeys("、，", ","),
    **dict.fromkeys(_SPACES + _INVISIBLE + "\ufeff\u00ad\ufe0e\ufe0f∎", " "),
    **{char: f"\\{name} " for char, name in _COMMANDS.items()},
    **{"。": ".", "∶": ":", "∛": "\\sqrt[3] ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}"},
    **{"°": "^\\circ ", "℃": "^\\circ ", "º": "^\\circ "},
    **{fraction[0]: f"\\frac{{{fraction[1]}}}{{{fraction[2]}}}" for fraction in _FRACTIONS.split()},
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
    return " " if unicodedata.category(char) == "So" else char


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
