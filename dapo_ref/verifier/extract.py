"""Which text of a response is its answer, found by linear scans over a bounded tail.

In this order: the last `Answer:` label that opens a line or a sentence; the last run of boxes (by
configuration); an `<answer>` tag; the last sentence of the form "the answer is …"; a response that ends in
bold, whose only sentence holds one formula, or whose last sentence concludes ("Therefore, …") with its only
number. A number that nothing marks as the answer is never fished for.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

END_OF_TURN = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>"),
    *("<|im_start|>", "<|user|>", "<｜end▁of▁sentence｜>"),
)
TAIL_CHARS = 20_000
REGION_CHARS = 4_000  # of text after a label
NEAR_CHARS = 500
MAX_LABELS = 50  # looked at, from the last one back

_LABEL_WORDS = ("answer", "答案")
_FOREIGN_LABEL_WORDS = (
    "réponse",
    "antwort",
    "respuesta",
    "resposta",
    "risposta",
    "ответ",
    "答え",
    "정답",
    "الإجابة",
)
_AFTER_LABEL = re.compile(r"s?\s{0,3}[*_\"'`”’)}\]]{0,4}\s{0,3}[:：][ \t]*[*_`]{0,3}")
_HEADING_END = re.compile(r"s?[*_ \t]{0,6}\r?\n")
_QUALIFIER = (
    r"(?:so|thus|hence|therefore|the|my|our|your|final|correct|numerical|numeric|short|exact|la|die"
    r"|最终的?|最後の)"
)
_BEFORE_LABEL = re.compile(
    rf"(?:^|[.!?:;,)\]}}>|$。！？，；：])\s{{0,4}}(?:[^\w.!?]|_|\\\w{{2,12}}\{{){{0,8}}(?:{_QUALIFIER}[\s*_]{{0,4}}){{0,4}}$",
    re.IGNORECASE,
)
_HEADING = re.compile(rf"^\s{{0,4}}[*#_\s>-]{{1,8}}(?:{_QUALIFIER}\s{{0,3}}){{0,3}}$", re.IGNORECASE)
_PHRASE = re.compile(
    r"s?(?:\s{0,3}to\s[\w\s]{1,40})?\s{0,3}"
    r"(?:(?:is|are|was|equals|would be|should be|must be|will be|est|ist|es|är|是|为|為|=)\s{0,3}[:：]?"
    r"|(?=\s?(?:\\\(|\\\[|\$)))",
    re.IGNORECASE,
)
_BOX_MACROS = ("\\boxed", "\\fbox", "\\framebox")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*")
_BETWEEN_BOXES = re.compile(
    r"(?:\s[A-Za-z]{3,20}\s(?=and\b|or\b))?"  # as in "5 apples and 6 pears"
    r"(?:[\s$,;.&~、，]|\\[\[\](),;!\\ ]|\\q?quad|\\(?:text|mbox|textrm)\s*\{\s*(?:and|or|,)*\s*\}"
    r"|and|or|和|或){0,30}",
)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\s*(-?\s?[\w.,/]+|\\[dt]?frac\s?\d\d)")
_TAG = re.compile(r"</?(?:answer|solution|final|b|strong|p|div|span|think|br)\s*/?>", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\.)[.。](?!\.)(?=\s+[A-Z\[(\"'\u4e00-\u9fff]|\s*$)|(?<=\d)。")
_MARKDOWN = re.compile(r"\*\*|__|`")
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_FORMULA = re.compile(r"\$\$?([^$]{1,500})\$\$?|\\\((.{1,500}?)\\\)|\\\[(.{1,500}?)\\\]", re.DOTALL)
_CONCLUSION = re.compile(
    r"(?<!\w)(?:Therefore|Thus|Hence|So|Consequently|In conclusion|Donc|Daher|因此|所以|इसलिए|لذا)"
    r"(?=[\s,，])"
)
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[-−]?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")
_VERBS = (
    r"(?:\b(?:is|are|equals|equal to|be|gets?|gives?|have|has|yields|obtain|find|est|ist|es)\b|[是为為])"
    r"\s{0,3}"
)
_VERB = re.compile(_VERBS + r"[:：]?\s{0,3}")
_VERB_WITH_NUMBER = re.compile(_VERBS + r"[$\\({]{0,3}-?\d")
_OR = re.compile(r"\bor\b")
_PROSE = re.compile(r"[\"'$\\(]{0,3}[^\W\d_]{2,}|\$[^$\d]{1,40}\$\s")
_NEGATION = re.compile(
    r"\b(?:not|no|never|neither|cannot|without|unless|if|either|maybe|wrong|incorrect|false|any|some|e\.g)\b|n't|不|非",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"^\s*(?:approximately|exactly|about|roughly|around|only|just|[~≈=]|\\approx|\\sim|(?:an|a|the)(?=\s[a-z]{4}))\s*",
    re.IGNORECASE,
)
_REMARK = re.compile(
    r"\((?:\\?b?mod\s?[^()]{1,20}|(?:since|because|as|for)\s[^()]{1,200}|(?!(?:or|and|not)\b)[A-Za-z][a-z]{2}[^()\d\\]{0,60})\)\$?$"
)
_CLAUSE = re.compile(
    r",\s+(?:in total|in all|so|since|because|which|where|when|as|hence|thus|therefore)\b[^\d\\$]{0,300}$",
    re.IGNORECASE,
)


def extract_answer(
    response: str, *, boxed: bool = True, end_of_turn: Sequence[str] = END_OF_TURN
) -> str | None:
    r"""Find the text that the response marks as its answer.

    Args:
        response: the response alone, never the prompt.
        boxed: whether `\boxed{…}` and `\fbox{…}` mark an answer when no `Answer:` line does.
        end_of_turn: texts of special tokens; nothing after the first of them counts.

    Returns: The marked text, stripped of its wrapping; None when nothing is marked. Several adjacent boxes
        come back as a list, joined by commas. No text raises.
    """
    end = end_pattern(tuple(end_of_turn)).search(response) if end_of_turn else None
    cut = end.start() if end else len(response)
    tail = response[max(0, cut - TAIL_CHARS) : cut]
    _, closed, after = tail.rpartition("</think>")
    if closed and after.strip():
        tail = after
    return marked_text(tail, boxed)


@lru_cache(maxsize=16)
def end_pattern(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """One pattern for all end-of-turn texts; a first character that they share makes its search fast."""
    first = tokens[0][:1] if len({token[:1] for token in tokens}) == 1 else ""
    rest = "|".join(re.escape(token[len(first) :]) for token in tokens)
    return re.compile(f"{re.escape(first)}(?:{rest})")


def marked_text(tail: str, boxed: bool) -> str | None:
    """The first of the ways to mark an answer that finds one."""
    answer = labelled(tail)
    if answer is None and boxed:
        answer = last_boxes(tail)
    if answer is None:
        answer = tagged(tail)
    if answer is None:
        answer = labelled(tail, _FOREIGN_LABEL_WORDS)
    if answer is None:
        answer = phrased(tail)
    if answer is None:
        answer = emphasised(tail)
    if answer is None:
        answer = concluded(tail)
    return answer


def lowered(text: str) -> str:
    """Lower case of the same length, so that positions agree."""
    result = text.lower()
    return result if len(result) == len(text) else "".join(c.lower() if c.isascii() else c for c in text)


def label_ends(tail: str, words: Sequence[str], low: int = 0) -> Iterator[tuple[int, int]]:
    """Where a label word stands in tail[low:], as (start, end), the last one first."""
    text = lowered(tail[low:])
    found = {word: text.rfind(word) for word in words}
    for _ in range(MAX_LABELS):
        word = max(found, key=found.__getitem__)
        if found[word] < 0:
            return
        yield low + found[word], low + found[word] + len(word)
        found[word] = text.rfind(word, 0, found[word])


def labelled(tail: str, words: Sequence[str] = _LABEL_WORDS) -> str | None:
    """The text after the last label that has any."""
    near = max(0, len(tail) - NEAR_CHARS)
    for low in (near, 0) if near else (0,):  # it nearly always stands near the end
        for start, end in label_ends(tail, words, low):
            value_start = after_label(tail, start, end)
            if value_start is None:
                continue
            answer = clean(region(tail, value_start))
            if answer and lowered(answer).strip(" :：\"'.") not in words:
                return answer
    return None


def after_label(tail: str, start: int, end: int) -> int | None:
    """Where the value begins, if the word at [start, end) is a label: it opens a line or sentence, and a
    colon follows, or it is a heading of its own."""
    line_start = tail.rfind("\n", 0, start) + 1
    before = tail[max(line_start, start - 80) : start]
    if start - line_start > 80:
        before = "…" + before
    colon = _AFTER_LABEL.match(tail, end)
    if colon:
        return colon.end() if _BEFORE_LABEL.search(before) else None
    heading = _HEADING_END.match(tail, end)
    return heading.end() if heading and _HEADING.match(before) else None


def region(tail: str, start: int) -> str:
    """The rest of the line, or the next line with text, extended until brackets of displayed maths close."""
    text = tail[start : start + REGION_CHARS]
    body = text.lstrip(" \t\r\n\"'`")
    line, _, rest = body.partition("\n")
    while rest and is_open(line):
        more, _, rest = rest.partition("\n")
        line += "\n" + more
        if line.count("\n") > 30:
            break
    return line


def is_open(text: str) -> bool:
    """Whether displayed maths or an environment has begun and not ended."""
    return (
        text.count("\\[") > text.count("\\]")
        or text.count("\\(") > text.count("\\)")
        or text.count("\\begin{") > text.count("\\end{")
        or text.count("$$") % 2 == 1
        or text.rstrip() in ("$", "\\boxed{")
    )


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


def find_boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Every outermost box as (start, end, content), `\boxed 5` included; unbalanced ones are left out."""
    boxes: list[tuple[int, int, str]] = []
    starts = [pos for pos in map(text.find, _BOX_MACROS) if pos >= 0]
    if not starts:
        return boxes
    pairs = brace_pairs(text, min(starts))
    end = 0
    for match in _BOX.finditer(text, min(starts)):
        if match.start() < end:
            continue  # inside the box before
        close = pairs.get(match.end())
        if close is not None:
            end = close + 1
            boxes.append((match.start(), end, text[match.end() + 1 : close]))
        elif text[match.end() - 1].isspace() and (bare := _BARE_BOX.match(text, match.end())):
            end = bare.end()
            boxes.append((match.start(), end, bare[1].rstrip(".,")))
    return boxes


def last_boxes(tail: str) -> str | None:
    """The content of the last box, with the boxes it is joined to by `and`, `or`, commas or blanks."""
    boxes = [box for box in find_boxes(tail) if box[2].strip()]
    preferred = [box for box in boxes if tail.startswith("\\boxed", box[0])]
    boxes = preferred or boxes
    if not boxes:
        return None
    run = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not _BETWEEN_BOXES.fullmatch(tail[box[1] : run[0][0]][:200]):
            break
        run.insert(0, box)
    contents = list(dict.fromkeys(clean(content[:REGION_CHARS]) for _, _, content in run))
    return ", ".join(contents)


def without_lead_in(text: str) -> str:
    """Drop the prose before a box that it leads up to: "for n = 3 the total is $\\boxed{25}$"."""
    start = min(pos for pos in map(text.find, _BOX_MACROS) if pos >= 0)
    before = text[:start].rstrip(" $\\([")
    if not before.endswith(("is", "are", "=", ":", "equals", "get", "have", "gives")):
        return text
    words = re.findall(r"[A-Za-z]{3,}", before)
    refused = _NEGATION.search(before) or _OR.search(before) or find_boxes(before) or not words
    return text if refused else text[start:]


def unbox(text: str, joined: bool) -> str:
    """Replace each box by its content; adjacent boxes become a list. When `joined`, only boxes stay."""
    boxes = find_boxes(text)
    if not boxes:
        return text
    if joined:
        return last_boxes(text) or ""
    pieces: list[str] = []
    pos = 0
    for start, end, content in boxes:
        gap = text[pos:start]
        pieces.append(", " if pieces and not gap.strip(" $") else gap)
        pieces.append(content)
        pos = end
    return "".join(pieces) + text[pos:]


def tagged(tail: str) -> str | None:
    """The content of the last `<answer>…</answer>`."""
    text = lowered(tail)
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return clean(tail[start + 8 : end][:REGION_CHARS]) or None if start >= 0 else None


def phrased(tail: str) -> str | None:
    """What the last sentence of the form "the answer is …" says."""
    for words in (_LABEL_WORDS, _FOREIGN_LABEL_WORDS):
        for _, end in label_ends(tail, words):
            match = _PHRASE.match(tail, end)
            if match is not None:
                return clean(region(tail, match.end())) or None
    return None


def emphasised(tail: str) -> str | None:
    """Bold text that ends the response, or the only formula of a response of one short line."""
    text = tail.strip()
    bold = next(reversed(list(_BOLD.finditer(text, max(0, len(text) - 300)))), None)
    after = text[bold.end() :] if bold is not None else ""
    if bold is not None and len(after) <= 30 and "\n" not in after and not any(map(str.isdigit, after)):
        return clean(bold[1]) or None
    if len(text) < 400 and "\n\n" not in text:
        formulas = list(_FORMULA.finditer(text))
        if len(formulas) == 1:
            return clean(next(group for group in formulas[0].groups() if group)) or None
    return None


def concluded(tail: str) -> str | None:
    """The only number of a last, complete sentence that begins with "therefore" or the like."""
    text = tail[-300:].strip()
    starts = [match.end() for match in _CONCLUSION.finditer(text)]
    if not starts or text[-1:] not in (".", "。", "।", "!"):
        return None
    sentence = text[starts[-1] : -1]
    numbers = _NUMBER.findall(sentence)
    if len(numbers) != 1 or _SENTENCE_END.search(sentence) or _NEGATION.search(sentence):
        return None
    return None if {"\\", "$"} & set(sentence) else clean(numbers[0])


def clean(text: str, joined: bool = False) -> str:
    """Strip what wraps a value: tags, markdown, quotes, boxes, a leading "the area is", a trailing sentence.

    Args:
        text: the marked text, a bare answer, or a reference.
        joined: whether a box stands for the whole text, as in references.

    Returns:
        The bare value; unchanged where nothing wraps it.
    """
    if text.isdecimal():
        return text
    if "<" in text:
        text = _TAG.sub(" ", text)
    text = _MARKDOWN.sub(" ", text) if "**" in text or "__" in text or "`" in text else text
    for _ in range(3):
        if not any(macro in text for macro in _BOX_MACROS):
            break
        text = unbox(text if joined else without_lead_in(text), joined)
    text = text.replace('\\"', " ").strip(" \t\r\n\"'“”*")
    text = first_sentence(text)
    text = stated(without_remark(text))
    text = _LEAD.sub("", without_remark(text))
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text


def stated(text: str) -> str:
    """What "the sum of 5 terms is 25" says, if it is prose that says one thing and denies nothing."""
    if _PROSE.match(text) is None:
        return text
    verbs = [match for match in _VERB.finditer(text) if match.end() < len(text)]
    if not verbs:
        return text
    before = text[: verbs[-1].start()]
    if _NEGATION.search(before) or _OR.search(before) or _VERB_WITH_NUMBER.search(before):
        return text
    return first_sentence(text[verbs[-1].end() :].strip(" \t\r\n\"'"))


def without_remark(text: str) -> str:
    """Drop a modulus, a bracketed remark or a clause such as ", since …" at the end, and a stray brace."""
    if text.endswith(")") or text.endswith(")$"):
        remark = _REMARK.search(text)
        if remark and text[: remark.start()].strip(" $"):
            text = text[: remark.start()]
    clause = _CLAUSE.search(text)
    if clause and clause.start() and not _NEGATION.search(clause[0]):
        text = text[: clause.start()]
    if text.endswith("}") and text.count("}") == text.count("{") + 1:
        text = text[:-1]
    return text.strip()


def first_sentence(text: str) -> str:
    """Drop sentences after the first when they hold no digit or formula: "25. I hope it is correct."""
    text = text.partition("I hope it is correct")[0]
    match = _SENTENCE_END.search(text)
    if match is None:
        return text
    rest = text[match.end() :]
    if any(char.isdigit() for char in rest) or "$" in rest or "\\" in rest or _NEGATION.search(rest):
        return text
    return text[: match.start()]
