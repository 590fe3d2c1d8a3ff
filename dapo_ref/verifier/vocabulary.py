"""The fixed vocabulary of the grammar: commands, functions, units, number words. New notation starts here."""


def words(text: str) -> frozenset[str]:
    """The blank-separated words of a table."""
    return frozenset(text.split())


FUNCTIONS = words(
    "sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh log ln lg exp sqrt abs gcd "
    "lcm max min floor ceil sgn"
)
TRIGONOMETRIC = words("sin cos tan cot sec csc")
GREEK = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar"
)
RELATIONS = {
    **{"=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "==": "=", "!=": "!=", ":=": "="},
    **{"\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">="},
    **{"\\lt": "<", "\\gt": ">", "\\ne": "!=", "\\neq": "!=", "\\in": "in", "\\equiv": "="},
    **{"\\approx": "~", "\\simeq": "~", "\\sim": "~", "~~": "~"},
}
OPERATORS = {
    **{"\\cdot": "*", "\\times": "*", "\\div": "/", "\\ast": "*", "\\pm": "pm", "\\mp": "mp"},
    **{"\\mod": "mod", "\\bmod": "mod", "\\choose": "choose", "\\over": "over", "\\colon": ":"},
}
BRACKETS = {
    **dict.fromkeys(("\\{", "\\lbrace"), ("open", "{}")),
    **dict.fromkeys(("\\}", "\\rbrace"), ("close", "{}")),
    **dict.fromkeys(("\\langle", "\\lparen"), ("open", "(")),
    **dict.fromkeys(("\\rangle", "\\rparen"), ("close", ")")),
    **dict.fromkeys(("\\vert", "\\lvert", "\\rvert", "\\mid", "\\|"), ("bar", "|")),
    **{"\\lbrack": ("open", "["), "\\rbrack": ("close", "]")},
    **{"\\lfloor": ("open", "⌊"), "\\rfloor": ("close", "⌋")},
    **{"\\lceil": ("open", "⌈"), "\\rceil": ("close", "⌉")},
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
    **{"\\sqrt": "sqrt", "\\overline": "overline", "\\pmod": "pmod"},
}
ELLIPSES = words(r"\ldots \dots \cdots \dotsc")
ARROWS = words(r"\to \rightarrow \Rightarrow \implies \mapsto")
FIGURES = words(r"\angle \triangle \measuredangle")
COMMANDS = {  # command → kind and text of its token
    **{f"\\{name}": ("func", name) for name in FUNCTIONS},
    **{f"\\{name}": ("id", name) for name in GREEK},
    **{name: ("rel", text) for name, text in RELATIONS.items()},
    **{name: ("op", text) for name, text in OPERATORS.items()},
    **{name: ("macro", text) for name, text in MACROS.items()},
    **{name: ("dots", "...") for name in ELLIPSES},
    **{name: ("arrow", name) for name in ARROWS},
    **{name: ("big", name) for name in BIG_OPERATORS},
    **{name: ("id", name) for name in FIGURES},
    **{f"\\{name}": ("setop", name) for name in ("cup", "cap", "setminus")},
    **dict.fromkeys(("\\emptyset", "\\varnothing"), ("text", "emptyset")),
    **dict.fromkeys(("\\circ", "\\degree"), ("deg", "deg")),
    **{"\\%": ("op", "%"), "\\prime": ("op", "'"), "\\$": ("cur", "$")},
    **{"\\pi": ("const", "pi"), "\\infty": ("const", "oo")},
    **BRACKETS,
}
JOINERS = {
    **dict.fromkeys(("and", "et", "und", "和", "及", "与"), "and"),
    **dict.fromkeys(("or", "oder", "ou", "或"), "or"),
}
CURRENCY = frozenset("€£¥₹₽₩¢")
VOWELS = frozenset("aeiouyAEIOUY")
NO_SOLUTION = words(
    "none nosolution nosolutions norealsolution norealsolutions nosuchnumber emptyset theemptyset noroots "
    "norealroots nointegersolutions nopositiveintegersolutions thereisnosolution therearenosolutions "
    "norealnumbers nosuchvalues nosuchintegers nosuchnumbers keinelösung pasdesolution sinsolución 无解"
)

LETTER_UNITS = words("m g s h L l N J W V K A")
# What a word after a value may be. A measure has one name, so that two different ones can be told apart …
MEASURES = {
    spelling: name
    for name, spellings in {
        **{"cm": "cm centimeter centimetre", "mm": "mm millimeter millimetre", "nm": "nm nanometer"},
        **{"km": "km kilometer kilometre", "m": "m meter metre", "dm": "dm decimeter", "inch": "in inch inche"},
        **{"foot": "ft foot feet", "yard": "yd yard", "mile": "mi mile", "acre": "acre", "hectare": "hectare ha"},
        **{"second": "s sec second", "minute": "min minute", "hour": "h hr hour", "day": "day", "ms": "ms"},
        **{"week": "week", "month": "month", "year": "year yr", "gram": "g gram", "kg": "kg kilogram kilo"},
        **{"mg": "mg milligram", "pound": "lb pound", "ounce": "oz ounce", "ton": "ton tonne", "L": "l liter litre"},
        **{"mL": "ml milliliter millilitre", "gallon": "gallon gal", "quart": "quart qt", "pint": "pint pt"},
        **{"dollar": "dollar usd buck", "cent": "cent ct penny pennie", "euro": "euro eur", "yuan": "yuan rmb"},
        **{"rupee": "rupee rs", "yen": "yen", "won": "won", "peso": "peso", "N": "n newton", "J": "j joule"},
        **{"W": "w watt", "kW": "kw", "V": "v volt", "K": "k kelvin", "A": "a ampere amp", "Hz": "hz hertz"},
        **{"kWh": "kwh", "mol": "mol mole", "calorie": "calorie cal", "mph": "mph", "kph": "kph kmh", "rpm": "rpm"},
        **{"rad": "rad radian", "MB": "mb megabyte", "GB": "gb gigabyte", "bit": "bit", "byte": "byte"},
        **{"celsius": "celsius", "fahrenheit": "fahrenheit", "pa": "pa pascal", "ohm": "ohm"},
    }.items()
    for spelling in spellings.split()
}
# … and what is counted says nothing about the value.
COUNTED = words(
    "unit way time point piece page book apple orange banana pear peach fruit cookie marble people person man "
    "men woman women child children kid boy girl student teacher pupil friend adult member player worker "
    "employee customer guest visitor passenger voter family bag box boxe pack package packet bottle can jar "
    "cup glass glasse bowl plate basket bucket crate carton sack case slice serving loaf loave cake cupcake pie "
    "pizza sandwich sandwiche egg candy candie candies chocolate potato potatoe tomato tomatoe ticket card coin "
    "dime nickel bill note pen pencil crayon eraser sticker stamp photo picture painting block brick bead "
    "shell flower rose tulip tree plant seed leaf leave stick log animal cat dog puppy puppie bird fish chicken "
    "duck cow pig goat horse sheep rabbit hen rat mouse mice bee ant bug chair table seat room house door "
    "window wall floor tile shelf shelve car bus buse truck bike bicycle wheel train boat plane ship toy doll "
    "ball balloon game match matche goal team round lap trip step song movie email letter word line "
    "file chapter lesson class classe question problem test mark score shirt hat shoe sock dress pair set "
    "group row column order stack pile deck number digit integer value solution root term factor divisor "
    "prime multiple element subset sequence permutation combination arrangement path route triangle square "
    "rectangle circle polygon side edge vertex vertice vertices face diagonal angle corner cube dot cell region "
    "possibility possibilities outcome choice option string code function pupil ring bracelet necklace "
    "job item object thing product machine computer phone battery batterie part rope ribbon wire nail screw "
    "widget gift present tablespoon teaspoon spoon fork knife meal lunch batch batche recipe gem gold life "
    "live vote click view floor level stage story storie stories building city citie country countrie island street "
    "color colour token triple tuple quadruple total altogether left more each "
    "different distinct possible positive ordered real such whole full small large red blue green white black new "
    "any other old long tall wide high deep away ago male female handshake pt th st nd rd qed"
)
DIMENSION_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
AFTER_DIMENSION = {"squared": 2, "cubed": 3}

SCALES = {"hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7}
SCALES |= {"billion": 10**9, "trillion": 10**12}
_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
_ONES += "sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {word: value for value, word in enumerate(_ONES.split())}
NUMBER_WORDS |= {word: 10 * value for value, word in enumerate(_TENS.split(), 2)}


def spoken_number(spoken: list[str]) -> int | None:
    """The value of `two hundred five` or `twenty five`; None when the words do not follow one another so."""
    total, group, room = 0, 0, 10**15  # `room`: what the next small word has to stay below
    for word in spoken:
        if word == "hundred" and 0 < group < 10:
            group, room = 100 * group, 100
        elif word in SCALES and word != "hundred" and group and (not total or SCALES[word] < total):
            total, group, room = total + group * SCALES[word], 0, SCALES[word]
        elif word in NUMBER_WORDS and 0 < NUMBER_WORDS[word] < room:
            group += NUMBER_WORDS[word]
            room = 10 if NUMBER_WORDS[word] >= 20 else 1
        elif not (word == "zero" and len(spoken) == 1):
            return None
    return total + group


def singular(word: str) -> str:
    """A unit's spelling in the tables."""
    word = word.casefold()
    if word in MEASURES or word in COUNTED or len(word) < 3:
        return word
    return word[:-3] + "y" if word.endswith("ies") and word[:-3] + "y" in COUNTED else word.removesuffix("s")


def is_unit_word(word: str) -> bool:
    """Whether a word may follow a value without changing it."""
    return singular(word) in MEASURES or singular(word) in COUNTED or word.casefold() in DIMENSION_WORDS
