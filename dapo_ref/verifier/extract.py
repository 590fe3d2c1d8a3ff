"""Which text of a response is its answer, found by linear scans over a bounded tail.

In this order: the last `Answer:` label that opens a line or a sentence; the last run of boxes (by
configuration); an `<answer>` tag; the last sentence of the form "the answer is …"; a response that ends in
bold, whose only sentence holds one formula, or whose last sentence concludes ("Therefore, …") with its only
number; a last line `#### 25`. A number that nothing marks as the answer is never fished for.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from dapo_ref.verifier.clean import DENIAL, RETRACTION, clean, last_boxes

END_OF_TURN = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>"),
    *("<|im_start|>", "<|user|>", "<｜end▁of▁sentence｜>"),
)
TAIL_CHARS = 20_000
REGION_CHARS = 4_000  # of text after a label
NEAR_CHARS = 500
MAX_LABELS = 50  # looked at, from the last one back

_LABEL_WORDS = [
    ["answer", "答案"],
    re.split(
        r",\s+",
        """réponse, antwort, respuesta, resposta, risposta, ответ, відповідь, 答え, 解答, 回答, 答, 정답, 답,
        الإجابة, الجواب, उत्तर, cevap, yanıt, odpowiedź, đáp án, đáp số, jawaban, antwoord, svar, απάντηση,
        คำตอบ, válasz, răspuns, پاسخ""",
    ),
]
_AFTER_LABEL = re.compile(r"s?(?:\s\w{2,14})?\s{0,3}[*_\"'`”’)}\]]{0,4}\s{0,3}[:：][ \t]*[*_`]{0,3}")
_HEADING_END = re.compile(r"s?[*_ \t]{0,6}\r?\n")
_QUALIFIER = (
    r"(?:so|thus|hence|therefore|the|my|our|your|final|correct|numerical|numeric|short|exact|la|le|die|endgültige"
    r"|итоговый|окончательный|최종|最终的?|最終|最後の)"
)
_BEFORE_LABEL = re.compile(
    rf"(?:^|[.!?:;,)\]}}>|$。！？，；：])\s{{0,4}}(?:[^\w.!?]|_|\\\w{{2,12}}\{{){{0,8}}(?:{_QUALIFIER}[\s*_]{{0,4}}){{0,4}}$",
    re.IGNORECASE,
)
_HEADING = re.compile(rf"^\s{{0,4}}[*#_\s>-]{{1,8}}(?:{_QUALIFIER}\s{{0,3}}){{0,3}}$", re.IGNORECASE)
_PHRASE = re.compile(
    r"s?(?:\s(?:final|finale|finala|ostateczna))?(?:\s{0,3}to\s[\w\s]{1,40})?\s{0,3}"
    r"(?:(?:(?:is|are|was|equals|(?:would|should|must|will) be|est|ist|lautet|es|é|è|är|to|là|adalah|равен"
    r"|هو|هي)(?!\w)|คือ|[是为為は은는=])\s{0,3}[:：]?|(?=\s?(?:\\\(|\\\[|\$|\d+\sहै)))",
    re.IGNORECASE,
)
_FORMER = re.compile(r"\b(?:first|initial|earlier|previous|original|old|wrong|incorrect)\s$", re.IGNORECASE)
_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.IGNORECASE | re.DOTALL)
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")
_FORMULA = re.compile(r"\$\$?([^$]{1,500})\$\$?|\\\((.{1,500}?)\\\)|\\\[(.{1,500}?)\\\]", re.DOTALL)
_CONCLUSION = re.compile(
    r"(?<!\w)(?:Therefore|Thus|Hence|So|Consequently|In conclusion|Donc|Daher|因此|所以|इसलिए|لذا)(?=[\s,，])"
)
_IS_THE_ANSWER = re.compile(r"\bis (?:the|our|my) (?:\w+ )?answer[.!]$")
_HASHES = re.compile(r"(?:^|\n)####[ \t]+([-+$]{0,3}\d(?:[\d,./]*\d)?[$%]?)\s*$")  # no heading
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[-−]?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")
_DENIAL = re.compile(
    r"\b(?:not|no|never|neither|cannot|if|or|maybe|perhaps|possibly|suppose|wrong|incorrect)\b|n't|不|非",
    re.IGNORECASE,
)


def extract_answer(
    response: str, *, boxed: bool = True, end_of_turn: Sequence[str] = END_OF_TURN
) -> str | None:
    """The text that a response (without its prompt) marks as its answer, stripped of its wrapping.

    None when nothing is marked, or when it is taken back afterwards. Several adjacent boxes, or a label and a
    later box, come back as a list. `boxed`: whether a box marks an answer when no `Answer:` line does.
    `end_of_turn`: texts of special tokens; nothing after the first of them counts. No text raises.
    """
    end = end_pattern(tuple(end_of_turn)).search(response) if end_of_turn else None
    cut = end.start() if end else len(response)
    tail = response[max(0, cut - TAIL_CHARS) : cut]
    _, closed, after = tail.rpartition("</think>")
    if closed and after.strip():
        tail = after
    for words in _LABEL_WORDS:
        answer = labelled(tail, words, boxed)
        if answer is not None:
            return answer or None
    answer = last_boxes(tail, REGION_CHARS) if boxed else None
    if answer is not None:
        last = max(map(tail.rfind, ("\\boxed", "\\fbox", "\\framebox")))
        return None if taken_back(tail[last:]) else answer
    ways = (tagged, phrased, emphasised, concluded, hashed)
    return next((found for way in ways if (found := way(tail))), None)


@lru_cache(maxsize=16)
def end_pattern(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """One pattern for all end-of-turn texts."""
    return re.compile("|".join(map(re.escape, tokens)))


def lowered(text: str) -> str:
    """Lower case of the same length, so that positions agree."""
    result = text.lower()
    return result if len(result) == len(text) else "".join(c.lower() if c.isascii() else c for c in text)


def labels(words: Sequence[str], tail: str, low: int = 0) -> list[tuple[int, int]]:
    """Where a label word stands in tail[low:], as (start, end), the last one first."""
    text = lowered(tail[low:])
    found = [match.span() for word in words if word in text for match in re.finditer(word, text)]
    return [(low + start, low + end) for start, end in sorted(found, reverse=True)[:MAX_LABELS]]


def labelled(tail: str, words: Sequence[str], boxed: bool) -> str | None:
    """The text after the last label that has any; empty where it is taken back later on."""
    near = max(0, len(tail) - NEAR_CHARS)
    for low in (near, 0) if near else (0,):  # it nearly always stands near the end
        for start, end in labels(words, tail, low):
            value = after_label(tail, start, end)
            if value is None:
                continue
            text, end = region(tail, value)
            inner = tail[:start].rstrip(' "').endswith(("{", "(", "["))  # \text{Answer: 25}
            answer = clean(without_closing(text) if inner else text)
            if answer and lowered(answer).strip(" :：\"'.") not in words:
                return with_what_follows(answer, tail[end:], boxed)
    return None


def with_what_follows(answer: str, rest: str, boxed: bool) -> str:
    """Add a box, or a number that "the answer is", after the label if it says something else; a retraction
    leaves no answer."""
    if not rest.strip():
        return answer
    if taken_back(rest):
        return ""
    later = last_boxes(rest, REGION_CHARS) if boxed and "\\" in rest else None
    if later is None and (said := phrased(rest)) and _NUMBER.fullmatch(said.strip("$")):
        later = said
    return answer if later in (None, answer) else f"{answer}, {later}"


def taken_back(rest: str) -> bool:
    """Whether what follows an answer denies it, or retracts it and has another number."""
    if DENIAL.search(rest):
        return True
    retraction = RETRACTION.search(rest) if rest.strip() else None
    return retraction is not None and any(map(str.isdigit, rest[retraction.start() :]))


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


def region(tail: str, start: int) -> tuple[str, int]:
    """The rest of the line, or the next line with text, until brackets of displayed maths close; its end."""
    text = tail[start : start + REGION_CHARS]
    body = text.lstrip(" \t\r\n\"'`")
    line, _, rest = body.partition("\n")
    while rest and is_open(line) and line.count("\n") <= 30:
        more, _, rest = rest.partition("\n")
        line += "\n" + more
    return line, start + len(text) - len(rest)


def without_closing(text: str) -> str:
    """The text without its first closing bracket that nothing in it opened."""
    level = 0
    for index, char in enumerate(text):
        level += (char in "([{") - (char in ")]}")
        if level < 0:
            return f"{text[:index]} {text[index + 1 :]}"
    return text


def is_open(text: str) -> bool:
    """Whether displayed maths or an environment has begun and not ended."""
    return (
        text.count("\\[") > text.count("\\]")
        or text.count("\\(") > text.count("\\)")
        or text.count("\\begin{") > text.count("\\end{")
        or text.count("$$") % 2 == 1
        or text.rstrip() in ("$", "\\boxed{")
    )


def tagged(tail: str) -> str | None:
    """The content of the last `<answer>…</answer>`."""
    found = list(_TAGGED.finditer(tail))
    if not found or taken_back(tail[found[-1].end() :]):
        return None
    return clean(found[-1][1][:REGION_CHARS])


def phrased(tail: str) -> str | None:
    """What the last sentence of the form "the answer is …" says."""
    spans = (span for words in _LABEL_WORDS for span in labels(words, tail))
    ends = (end for start, end in spans if not _FORMER.search(tail, max(0, start - 20), start))
    match = next(filter(None, (_PHRASE.match(tail, end) for end in ends)), None)
    if match is None:
        return None
    text, end = region(tail, match.end())
    return None if taken_back(tail[end:]) else clean(text) or None


def emphasised(tail: str) -> str | None:
    """Bold text that ends the response, or the only formula of a response of one short line."""
    text = tail.strip()
    bold = next(reversed(list(_BOLD.finditer(text, max(0, len(text) - 300)))), None)
    after = text[bold.end() :] if bold is not None else ""
    if bold is not None and len(after) <= 30 and "\n" not in after and not any(map(str.isdigit, after)):
        return clean(bold[1])
    formulas = list(_FORMULA.finditer(text)) if len(text) < 400 and "\n\n" not in text else []
    return clean(next(filter(None, formulas[0].groups()))) if len(formulas) == 1 else None


def concluded(tail: str) -> str | None:
    """The only number of a last, complete sentence: "Therefore, …" or "… is the answer"."""
    text = tail[-300:].strip()
    starts = [match.end() for match in _CONCLUSION.finditer(text)]
    if _IS_THE_ANSWER.search(text):
        starts = starts or [max(text.rfind(end, 0, -1) for end in (". ", "! ", "? ", "\n", "; ")) + 1]
    if not starts or text[-1:] not in (".", "。", "।", "!"):
        return None
    sentence = text[starts[-1] : -1]
    numbers = _NUMBER.findall(sentence)
    if len(numbers) != 1 or re.search(r"[.。]\s", sentence) or _DENIAL.search(sentence):
        return None
    return None if {"\\", "$"} & set(sentence) else clean(numbers[0])


def hashed(tail: str) -> str | None:
    """A last line `#### 25`, as in GSM8K."""
    match = _HASHES.search(tail, max(0, len(tail) - NEAR_CHARS))
    return clean(match[1]) if match else None
