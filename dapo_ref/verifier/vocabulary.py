"""The fixed vocabulary of the tokenizer: every command, function and short unit that an answer may hold."""


def words(text: str) -> frozenset[str]:
    """The blank-separated words of a table."""
    return frozenset(text.split())


FUNCTIONS = words(
    "sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh log ln lg exp sqrt abs gcd "
    "lcm max min floor ceil sgn"
)
GREEK = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar"
)
RELATIONS = {
    **{"=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "==": "=", "!=": "!=", ":=": "="},
    **{"\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">="},
    **{"\\lt": "<", "\\gt": ">", "\\ne": "!=", "\\neq": "!=", "\\approx": "=", "\\in": "in", "\\equiv": "="},
}
OPERATORS = {
    **{"\\cdot": "*", "\\times": "*", "\\div": "/", "\\ast": "*", "\\pm": "pm", "\\mp": "mp"},
    **{"\\mod": "mod", "\\bmod": "mod", "\\choose": "choose", "\\over": "over"},
}
BRACKETS = {
    **dict.fromkeys(("\\{", "\\lbrace"), ("open", "{}")),
    **dict.fromkeys(("\\}", "\\rbrace"), ("close", "{}")),
    **dict.fromkeys(("\\langle", "\\lparen"), ("open", "(")),
    **dict.fromkeys(("\\rangle", "\\rparen"), ("close", ")")),
    **dict.fromkeys(("\\vert", "\\lvert", "\\rvert", "\\mid", "\\|"), ("bar", "|")),
    **{"\\lbrack": ("open", "["), "\\rbrack": ("close", "]")},
    **{
        "\\lfloor": ("open", "⌊"),
        "\\rfloor": ("close", "⌋"),
        "\\lceil": ("open", "⌈"),
        "\\rceil": ("close", "⌉"),
    },
}
IGNORED = words(
    r"\left \right \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \displaystyle \textstyle "
    r"\limits \nolimits \( \) \[ \] \, \; \: \! \> \space \thinspace \rm \bf \it \hfill \nonumber "
    r"\therefore \tiny \small \normalsize \large \Large \LARGE \huge \Huge"
) | {"\\ ", "\\\n", "\\\t"}
WITH_SETTING = words(r"\color \textcolor \phantom \hphantom \vphantom \hspace \vspace \label \tag")
BIG_OPERATORS = words(
    r"\int \iint \oint \sum \prod \lim \limsup \liminf \partial \forall \exists \nabla \bigcup \bigcap"
)
TEXT_MACROS = words(r"\text \mbox \textrm \textbf \textit \textsf \texttt \textnormal \hbox")
FONT_MACROS = words(
    r"\mathrm \mathbf \mathit \mathsf \mathtt \boldsymbol \bm \operatorname \operatorname* \mathcal \mathbb "
    r"\underline \boxed \fbox \emph \mathop \vec \hat \bar \widehat \overrightarrow"
)
MACROS = {
    **dict.fromkeys(("\\frac", "\\dfrac", "\\tfrac", "\\cfrac"), "frac"),
    **dict.fromkeys(("\\binom", "\\dbinom", "\\tbinom"), "binom"),
    **{"\\sqrt": "sqrt", "\\overline": "overline", "\\begin": "begin", "\\end": "end", "\\pmod": "pmod"},
}
ELLIPSES = words(r"\ldots \dots \cdots \dotsc")
ARROWS = words(r"\to \rightarrow \Rightarrow \implies \mapsto")
FIGURES = words(r"\angle \triangle \measuredangle")
SHORT_UNITS = words(
    "cm mm km dm nm kg mg ml mL dL ft in yd mi lb oz hr hrs min mins sec secs ms pm am mph rpm kph deg "
    "rad day way men man boy box cat dog egg car toy pen bag cup lbs yds yen won bus job cow pig hen row set "
    "pcs mol per Hz kW kWh MB GB ct th st nd rd pct sq cu hat bar pie bit"
)
LETTER_UNITS = words("m g s h L l")
JOINERS = {
    **dict.fromkeys(("and", "et", "und", "和", "及", "与"), "and"),
    **dict.fromkeys(("or", "oder", "或"), "or"),
}
CURRENCY = frozenset("€£¥₹₽₩¢")
VOWELS = frozenset("aeiouyAEIOUY")
