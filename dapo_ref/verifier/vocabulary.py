"""The fixed vocabulary of the grammar: commands, functions, units, number words. New notation starts here."""

import re
from collections import Counter


def words(text: str) -> frozenset[str]:
    """The blank-separated words of a table."""
    return frozenset(text.split())


FUNCTIONS = words(
    "sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh log ln lg exp sqrt abs gcd "
    "lcm max min floor ceil sgn det"
)
TRIGONOMETRIC = words("sin cos tan cot sec csc")
GREEK = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar"
)
RELATIONS = {op: op for op in ("=", "<", ">", "<=", ">=", "!=")} | {"==": "=", ":=": "="}
_COMMANDS = r"""
    rel <=      \le \leq \leqslant
    rel >=      \ge \geq \geqslant
    rel <       \lt
    rel >       \gt
    rel !=      \ne \neq
    rel =       \equiv
    rel ~       \approx \simeq \sim
    rel in      \in
    op *        \cdot \times \ast
    op /        \div
    op pm       \pm
    op mp       \mp
    op mod      \mod \bmod
    op choose   \choose
    op over     \over
    op :        \colon
    op %        \%
    op '        \prime
    setop cup   \cup
    setop cap   \cap
    setop setminus  \setminus
    arrow to    \to \rightarrow \mapsto
    arrow implies   \Rightarrow \implies
    cur $       \$
    const pi    \pi
    const oo    \infty
    id angle    \angle \measuredangle
    id triangle \triangle
    deg deg     \circ \degree
    dots ...    \ldots \dots \cdots \dotsc
    text emptyset  \emptyset \varnothing
    macro frac  \frac \dfrac \tfrac \cfrac
    macro binom \binom \dbinom \tbinom
    macro sqrt  \sqrt
    macro overline  \overline \bar
    macro pmod  \pmod
    open {}     \{ \lbrace
    close {}    \} \rbrace
    open (      \langle \lparen
    close )     \rangle \rparen
    open [      \lbrack
    close ]     \rbrack
    open ⌊      \lfloor
    close ⌋     \rfloor
    open ⌈      \lceil
    close ⌉     \rceil
    bar |       \vert \lvert \rvert \mid \|
    begin .     \begin
    end .       \end
    row .       \\
    sep quad    \quad \qquad
    big .       \int \iint \oint \sum \prod \lim \limsup \liminf \partial \forall \exists
    big .       \nabla \bigcup \bigcap
    prose .     \text \mbox \textrm \textbf \textit \textsf \texttt \textnormal \hbox
    font .      \mathrm \mathbf \mathit \mathsf \mathtt \boldsymbol \bm \operatorname \operatorname* \mathcal
    font .      \mathbb \underline \boxed \fbox \emph \mathop \vec \hat \widehat \overrightarrow
    setting .   \color \textcolor \phantom \hphantom \vphantom \hspace \vspace \label \tag
    blank .     \left \right \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \displaystyle
    blank .     \textstyle \limits \nolimits \( \) \[ \] \, \; \: \! \> \space \thinspace \rm \bf \it \hfill
    blank .     \nonumber \therefore \qed \square \blacksquare \tiny \small \normalsize \large \Large \LARGE
    blank .     \huge \Huge
"""
COMMANDS = {  # command → kind and text of its token
    **{f"\\{name}": ("func", name) for name in FUNCTIONS},
    **{f"\\{name}": ("id", name) for name in GREEK},
    **dict.fromkeys(("\\ ", "\\\n", "\\\t"), ("blank", ".")),
    **{
        command: (kind, text)
        for kind, text, *commands in map(str.split, _COMMANDS.strip().split("\n"))
        for command in commands
    },
}
WORDS = {  # plain words, likewise
    **{name: ("func", name) for name in FUNCTIONS},
    **dict.fromkeys(("and", "et", "und", "和", "及", "与"), ("sep", "and")),
    **dict.fromkeys(("or", "oder", "ou", "或"), ("sep", "or")),
    **dict.fromkeys(("inf", "infty", "infinity", "oo"), ("const", "oo")),
    **dict.fromkeys(("percent", "pct", "percentage"), ("op", "%")),
    **dict.fromkeys(("minus", "negative"), ("op", "-")),
    **{currency: ("cur", currency) for currency in ("usd", "eur", "rs", "inr")},
    **{"pi": ("const", "pi"), "mod": ("op", "mod")},
}
AFTER_VALUE = {"to": ("op", ":"), "min": ("text", "min")}  # … and those that mean it only after a value
AFTER_VALUE |= dict.fromkeys(("degree", "degrees", "deg"), ("deg", "deg"))
AFTER_VALUE |= dict.fromkeys(("st", "nd", "rd", "th"), ("text", "place"))  # 12th; 12ths are no places
MATRICES = words("matrix pmatrix bmatrix Bmatrix smallmatrix array")
DISPLAYS = words("equation displaymath math align aligned alignat gather gathered split multline eqnarray")
VOWELS = frozenset("aeiouyAEIOUY")
NO_SOLUTION = words(
    "none nosolution nosolutions norealsolution norealsolutions nosuchnumber emptyset theemptyset noroots "
    "norealroots nointegersolutions nopositiveintegersolutions thereisnosolution therearenosolutions "
    "norealnumbers nosuchvalues nosuchintegers nosuchnumbers keinelösung pasdesolution sinsolución 无解"
)
REAL_NUMBERS = words("allrealnumbers allreals realnumbers therealnumbers setofallrealnumbers")
SAME_WORDS = {"dne": "does not exist"}

LETTER_UNITS = words("m g s h L l N J W V K A")
# What a word after a value may be. A measure has one name, so that two different ones can be told apart …
_MEASURES = """
    cm centimeter centimetre 厘米 | mm millimeter millimetre 毫米 | nm nanometer | dm decimeter
    km kilometer kilometre 千米 公里 км | m meter metre metro 米 метр | inch in | foot ft feet '
    yard yd | mile mi
    acre | hectare ha | second s sec 秒 | minute min 分钟 分鐘 минут | ms | week 周 semaine woche semana
    hour h hr 小时 小時 時間 heure stunde stunden hora часов | day 天 jour tage días
    month 个月 個月 mois monat monate | year yr 年 jahr jahre año лет
    gram g 克 | kg kilogram kilo 千克 公斤 кг | mg milligram | pound lb | ounce oz | ton tonne 吨
    L l liter litre 升 | mL milliliter millilitre 毫升 | gallon gal | quart qt | pint
    dollar usd buck $ 美元 | cent ct penny pennie ¢ | euro eur € 欧元 | yuan rmb 元 | rupee rs inr ₹
    yen ¥ 円 | won ₩ 원 | peso | N newton | J joule | W watt | kW | V volt | K kelvin | A ampere amp
    Hz hertz | kWh | mol mole
    calorie cal | mph | kph kmh | rpm | rad radian | MB megabyte | GB gigabyte | bit | byte
    celsius | fahrenheit | pascal pa | ohm | рубль рублей ₽ | £
"""
MEASURES = {
    spelling: names.split()[0]
    for names in _MEASURES.replace("\n", "|").split("|")
    for spelling in names.casefold().split()
}
# … and what is counted says nothing about the value.
COUNTED = words("""
    unit way time point piece page book apple orange banana pear peach fruit cookie marble people person man
    men woman women child children kid boy girl student teacher pupil friend adult member player worker
    employee customer guest visitor passenger voter family bag box pack package packet bottle can jar cup
    glass bowl plate basket bucket crate carton sack case slice serving loaf loave cake cupcake pie pizza
    sandwich egg candy chocolate potato tomato ticket card coin dime nickel bill note pen pencil crayon
    eraser sticker stamp photo picture painting block brick bead shell flower rose tulip tree plant seed
    leaf leave stick log animal cat dog puppy bird fish chicken duck cow pig goat horse sheep rabbit hen rat
    mouse mice bee ant bug chair table seat room house door window wall floor tile shelf shelve car bus
    truck bike bicycle wheel train boat plane ship toy doll ball balloon game match goal team round lap trip
    step song movie email letter word line file chapter lesson class question problem test mark shirt
    hat shoe sock dress pair set group row column order stack pile deck number digit integer value solution
    root term factor divisor prime multiple element subset sequence permutation combination arrangement path
    route triangle square rectangle circle polygon side edge vertex vertice face diagonal angle corner cube
    dot cell region possibility outcome choice option string code function ring bracelet necklace job item
    object thing product machine computer phone battery part rope ribbon wire nail screw widget gift present
    tablespoon teaspoon spoon fork knife meal lunch batch recipe gem gold life live vote click view level
    stage story building city country island street color colour token triple tuple quadruple total
    altogether left more each different distinct possible positive ordered real such whole full small large
    red blue green white black new any other old long tall wide high deep away ago male female handshake pt
    place lattice only qed marker cracker shovel tower grape carrot lemon farm farmer soldier doctor nurse
    painter driver kitten deer lion monkey elephant frog spider snake muffin brownie donut burger fry
    hamburger lollipop peanut raisin olive onion pepper bean rice nut berry strawberry cherry mango kiwi melon
    watermelon pumpkin
    个 個 颗 只 隻 本 条 條 张 張 人 名 位 岁 歲 次 回 种 種
    块 塊 枚 页 頁 件 台 辆 棵 朵 瓶 盒 袋 包 双 杯 碗 通り 개 명 마리
    personne élève fois façon manière möglichkeit möglichkeiten mal wege personen stück kinder
    persona persone niño personas vez veces manera
    forma maneira человек способ способов способа
""")
COMPOUND = {"mph": {"mile": 1, "hour": -1}, "kph": {"km": 1, "hour": -1}}
DIMENSIONS = {"": 1, "square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_UNIT_FACTOR = re.compile(
    r"(?:((?i:square|sq|cubic|cu)) )?([^\s/*^{}]+)(?: \^ (?:\{ )?(- )?([1-4])(?: \})?)?"
    r"(?: ((?i:squared|cubed)))?(?: \*)?(?: |$)"
)

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
    """A unit's spelling in the tables, if it is in them."""
    word = word.casefold()
    forms = (word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y")
    return next((form for form in forms if form in MEASURES or form in COUNTED), word)


def is_unit_word(word: str) -> bool:
    """Whether a word may follow a value without changing it."""
    return singular(word) in MEASURES or singular(word) in COUNTED or word.casefold() in DIMENSIONS


def unit(text: str) -> str | None:
    """One name for a unit, `cm^2` or `hour^-1 mile^1`: empty when it only counts things, None for anything
    else, such as `halves` or `( wrong )`. Words and signs of `text` stand apart."""
    powers: Counter[str] = Counter()
    for k, part in enumerate(re.split(r" ?(?:/|\bper\b) ?", text)):
        if _UNIT_FACTOR.sub("", part):
            return None
        for before, word, minus, power, after in _UNIT_FACTOR.findall(part):
            name = MEASURES.get(singular(word), "counted" if singular(word) in COUNTED else "")
            if not name or (re.fullmatch("[A-Za-z]", word) and word not in LETTER_UNITS):
                return None
            exponent = DIMENSIONS[before.casefold()] * DIMENSIONS[after.casefold()] * int(power or 1)
            sign = -1 if bool(k) != bool(minus) else 1
            powers.update({name: sign * exponent * p for name, p in COMPOUND.get(name, {name: 1}).items()})
    if powers["K"] > 0 and len(powers) > 1:
        return None  # 5K dollars are thousands
    named = (f"{name}^{power}" for name, power in sorted(powers.items()) if power)
    return "" if "counted" in powers else " ".join(named)
