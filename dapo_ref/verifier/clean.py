"""A marked text → the bare value in it: without tags, boxes, quotes, and the prose around what it states.

Prose is only dropped where it denies nothing and offers no alternative; else the text stays as it is, which
the parser then refuses.
"""

import re

from dapo_ref.verifier.textual import brace_pairs

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*")
_BARE_BOX = re.compile(r"\s*(-?\s?[\w.,/]+|\\[dt]?frac\s?\d\d)")
_JOINED_BOXES = re.compile(
    r"(?:[\s$,;.&~、，]|\\[\[\](),;!\\ ]|\\q?quad|and|or|和|或"
    r"|\\(?:text|mbox|textrm)\s*\{\s*(?:and|or|,)*\s*\})*"
    r"|[^.\n]{0,60}\b(?:and|or)\b[^.\n]{0,60}"
)
_MOVES_ON = re.compile(
    r"\b(?:then|so|thus|hence|therefore|wait|actually|final|finally|answer|which|but)\b", re.I
)
# What stands in one formula with a box: neither 3 + \boxed{25} nor \boxed{25} + 9 states 25.
_SIGN_BEFORE = re.compile(r"(?:^|[\s$({=])[-−]$")
_PART_BEFORE = re.compile(
    r"[-−+/^_\d]\{?$|\|$|(?<![A-Za-z\\])[A-Za-z]$|[\w$-]\($|\\\{$"
    r"|\\(?:neq?|lfloor|lceil|alpha|beta|theta|log|ln|sin|cos|tan|d?binom|[dt]?frac|sqrt|pm|mp|cdot|times|pi)(?:\{[^{}]*\})?[\s{]*$"
    r"|(?:\b(?:not|never|cannot)|n't)(?:\s(?:be|equal))?[\s$\\(\[]*$"
)
_PART_AFTER = re.compile(
    r"(?:\.\d|,\d{3}(?!\d)|_\{?\d|(?:!|\s?=\s?-?[\d.]+)(?=\s?(?:\$|\\[)\]]))"
    r"|\s?(?:[-+/^]\s?\{?\d|\\(?:neq?\b|bmod\b|cdot|times|pi|sqrt|[dt]?frac))|[a-z](?![a-z]))[^$\n]{0,40}?"
    r"(?=\$|\\\)|\\\]|[.,;]?\s|$)"
)
_STRUCK = re.compile(r"~~[^~\n]+~~")
_TAG = re.compile(r"</?(?:answer|solution|final|b|strong|p|div|span|think|br)\s*/?>", re.IGNORECASE)
_MARKDOWN = re.compile(r"\*\*|__|`")
_EMPHASIS = re.compile(r"(?<![\w)}\]])\*\*|\*\*(?![\w({\\-])|__|`")  # 2**10 is a power
_WRAPPING = " \t\r\n\"'“”*∎■□✓✔✅🎉"
_SENTENCE_END = re.compile(r"(?<!\.)[.!。।](?!\.)(?=\s+[A-Z\[(\"'\u4e00-\u9fff]|\s*$)|(?<=\d)。")
_PROSE = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{3,}")
_PROSE_OR_VERB = re.compile(rf"{_PROSE.pattern}|\bis\b|[^\W\d_a-zA-Z]")
RETRACTION = re.compile(
    r"\b(?:wrong|incorrect|actually|wait|sorry|mistake|correction|oops|instead|rather"
    r"|should (?:be|have been)|re(?:check|compute|calculate|consider)|checking again|not (?:correct|right)"
    r"|hmm+|edit(?=:)|alternatively|scratch that|take (?:that|it) back|on (?:reflection|second thoughts?)"
    r"|double[- ]counts?|miscount(?:ed)?|korrektur|falsch|fehler|erreur|pardon|plutôt|en fait|corrección"
    r"|perdón|me equivoqué|incorrecto|errore|correzione|неверно|ошиб\w+|исправ\w+)\b"
    r"|不对|错了|应该是|更正|訂正|間違|틀렸|정정",
    re.IGNORECASE,
)
DENIAL = re.compile(  # of the answer before it, also without another number
    r"\banswer\s(?:is|was)(?:\snot\b|n't)|\}\$?\s(?:is|was)\s(?:wrong|incorrect|not\s(?:correct|right))\b"
    r"|^\s{0,9}[^\n]{0,60}?\b(?:this|that|it)(?:['’]s|\sis|\swas)\s(?:wrong|incorrect|not\s(?:correct|right))\b"
    r"|^\s{0,9}[^\n]{0,60}?\b(?:this|that|it)\s(?:can't|cannot)\sbe\s(?:correct|right|true)\b"
    r"|^\s{0,9}[^\n]{0,60}?\b(?:this|that|which)\s(?:contradicts|is\simpossible)\b",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|neither|cannot|without|unless|if|either|or|maybe|perhaps|possibly|false|any|some|but"
    r"|at (?:least|most)|(?:less|more|greater|fewer|other) than|up to|between|over|under|almost|nearly"
    rf"|e\.g)\b|n't|不|非|{RETRACTION.pattern}",
    re.IGNORECASE,
)
_VERBS = (
    r"(?:\b(?:is|are|equals|equal to|be|gets?|gives?|have|has|yields|obtain|find|takes|needs|costs|est|ist"
    r"|[Ee]s gibt|es|é|è|[Ii]l y a|[Hh]ay|[Hh]á|là|adalah)\b|[是为為]|共有|равен|:(?=\s))\s{0,3}[:：]?\s{0,3}"
)
_VERB = re.compile(_VERBS)
_VERB_WITH_NUMBER = re.compile(_VERBS + r"[$\\({]{0,3}-?\d")
_LEAD = re.compile(
    r"^\s*(?:(?:\\(?:textbf|text|mathrm|mathbf)\s*\{\s*\([A-E]\)\s*\}|\([A-E]\)(?=[\s~\\]))"
    r"(?:\s|~|\\[ ,;]|\\quad)*(?=[-$\d]|\\[dtf])"
    r"|(?:approximately|exactly|about|roughly|around|only|just|an?\stotal\sof)(?=[\s$\\])|≈|~|\\approx|\\sim)\s*",
    re.IGNORECASE,
)
_TAIL = re.compile(
    r"(?:\s*\((?:since|because|as|for|by|from|using|where|when|attained|achieved|at|i\.e\.|see|exactly|approximately|approx\.?|about|≈|\\approx)\s?[^()]*(?:\([^()]*\)[^()]*)*\)"
    r"|[\s—–]+(?:because|since|as\s(?:desired|required|claimed|needed))\b.{0,300}"
    r"|,\s+(?:in total|in all|so|since|because|which|where|when|as|hence|thus|therefore|attained)\b.{0,300}"
    r"|\s+(?:is|as)\s(?:the|our|my)\s(?:\w+\s)?answer|\s*(?:です|となります|である|입니다|이다|है|हैं))[\s.。।]*$",
    re.IGNORECASE | re.DOTALL,
)


def find_boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Every outermost box as (start, end, content), `\boxed 5` included; unbalanced ones are left out."""
    boxes: list[tuple[int, int, str]] = []
    marks = list(_BOX.finditer(text))
    pairs = brace_pairs(text, marks[0].start()) if marks else {}
    end = 0
    for match in marks:
        close = pairs.get(match.end())
        if match.start() < end:
            continue  # inside the box before
        if close is not None:
            end = close + 1
            boxes.append((match.start(), end, text[match.end() + 1 : close]))
        elif text[match.end() - 1].isspace() and (bare := _BARE_BOX.match(text, match.end())):
            end = bare.end()
            boxes.append((match.start(), end, bare[1].rstrip(".,")))
    return boxes


def last_boxes(tail: str, longest: int) -> str | None:
    """The content of the last box, with the boxes it is joined to by `and`, `or`, commas or blanks.

    None without a box; empty where the box is only a part of what the formula states.
    """
    boxes = [box for box in find_boxes(tail) if box[2].strip()]
    boxes = [box for box in boxes if tail.startswith("\\boxed", box[0])] or boxes
    if not boxes:
        return None
    run = [boxes[-1]]
    start, end, content = run[0]
    sign, after = _SIGN_BEFORE.search(tail, max(0, start - 2), start), _PART_AFTER.match(tail, end)
    if not sign and _PART_BEFORE.search(tail, max(0, start - 30), start):
        return ""
    if sign or after:
        return f"{'-' if sign else ''}{{{clean(content[:longest])}}}{after[0] if after else ''}"
    for box in reversed(boxes[:-1]):
        between = tail[box[1] : run[0][0]][:200]
        if not _JOINED_BOXES.fullmatch(between) or _MOVES_ON.search(between):
            break
        run.insert(0, box)
    return ", ".join(dict.fromkeys(clean(content[:longest]) for _, _, content in run))


def unbox(text: str, joined: bool) -> str:
    """Replace each box by its content; prose that leads up to the first is dropped. When `joined`, only
    boxes stay."""
    boxes = find_boxes(text)
    if joined or not boxes:
        return (last_boxes(text, len(text)) or "") if boxes else text
    before = text[: boxes[0][0]]
    leads_up = "=" not in before or re.search(r"(?:\bis|\bare|=|:|equals|get|have|gives)[\s$\\(\[]*$", before)
    pieces = [] if leads_up and _PROSE.search(before) and not _NEGATION.search(before) else [before]
    for k, (_, end, content) in enumerate(boxes):
        gap = text[end : boxes[k + 1][0] if k + 1 < len(boxes) else len(text)]
        pieces += [content, ", " if k + 1 < len(boxes) and not gap.strip(" $") else gap]
    return "".join(pieces)


def clean(text: str, joined: bool = False) -> str:
    """The bare value in a marked text, an answer or a reference; cleaning twice changes nothing more.

    `joined`: whether a box stands for the whole text, as in references.
    """
    if text.isdecimal():
        return text
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "~~" in text:
        text = _STRUCK.sub(" ", text)
    if _EMPHASIS.search(text):
        text = _MARKDOWN.sub(" ", text)
    for _ in range(3):
        text = unbox(text, joined) if "box" in text else text
    text = text.replace('\\"', " ")
    inches = text.rstrip().endswith('"') and text.count('"') == 1  # 20"
    text = text.strip() if inches else text.strip(_WRAPPING)
    if _PROSE_OR_VERB.search(text):
        text = statement(text)
    text = _LEAD.sub("", text)
    return text[:-1].rstrip() if text.endswith((".", "。")) and not text.endswith("..") else text


def statement(text: str) -> str:
    """What "The sum of 5 terms is 25, since …. I hope it is correct." says."""
    text = text.partition("I hope it is correct")[0].strip()
    end = _SENTENCE_END.search(text)
    if end and end.end() < len(text) and any(c.isdigit() or c in "\\$" for c in text[: end.start()]):
        if _NEGATION.search(text[end.end() :]):
            return text
        text = text[: end.start()].strip()
    for _ in range(3):
        tail = _TAIL.search(text)
        if tail and tail.start() and not _NEGATION.search(tail[0]):
            text = text[: tail.start()].strip()
    inner = re.sub(r"\\(?:text|mbox|textrm)\s*\{([^{}]*)\}", r"\1", text)  # \text{The answer is } 25
    lead = re.match(r"[\"'$\\(]{0,3}[^\W\d_]{2,}|\$[^$\d]{1,40}\$\s", inner)
    verbs = [match for match in _VERB.finditer(inner) if match.end() < len(inner)] if lead else []
    if verbs:
        before, after = inner[: verbs[-1].start()], inner[verbs[-1].end() :]
        if not _NEGATION.search(before) and not _VERB_WITH_NUMBER.search(before):
            return after.strip(_WRAPPING)
    return text
