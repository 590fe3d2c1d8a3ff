"""The scoring rule of the published recipe, for comparison with its runs; `verifier: recipe` selects it.

Last 300 characters, last `Answer:`, a fixed rewriting of the text, string equality. It is kept with its
quirks (it deletes words inside words, and everything before the last `=`), but every step is linear in the
text.
"""

import re

from dapo_ref.verifier.verdict import Status, Verdict

TAIL_CHARS = 300
NO_ANSWER = "[INVALID]"
_LABEL = re.compile(r"answer\s*:(\s*)", re.IGNORECASE)
_REWRITTEN = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
_WORDS = """
    square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits
    cents degrees cm gm pounds meters meals edges students childrentickets multiples
"""
_DELETED = (  # in this order
    *_WORDS.split(),
    *("\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}"),
    *("\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_FRACTION = re.compile(r"frac([^{])(.)")
_ROOT = re.compile(r"sqrt([^{])")


def last_labelled(text: str) -> str:
    """The rest of the line after the last `Answer:` that is followed by text."""
    best = NO_ANSWER
    pos = 0
    while (match := _LABEL.search(text, pos)) is not None:
        pos = match.end()
        if pos < len(text):
            end = text.find("\n", pos)
            end = len(text) if end < 0 else end
            best, pos = text[pos:end], end
        elif blanks := match[1].replace("\n", ""):
            best = blanks[-1]  # nothing but blanks follows: the recipe takes the last one
    return best


def first_formula(line: str) -> str:
    """If a line holds `$…$`, only its first formula stays."""
    left = line.find("$")
    right = line.find("$", left + 1) if left >= 0 else -1
    return line[left : right + 1] if right >= 0 else line


def unwrap(text: str, macro: str, last: bool) -> str:
    """Remove `macro` and the first (or the last) closing brace after it, keeping what stands between."""
    pieces = []
    pos = 0
    while (start := text.find(macro, pos)) >= 0:
        inner = start + len(macro)
        end = text.rfind("}", inner) if last else text.find("}", inner)
        if end < 0:
            break
        pieces += [text[pos:start], text[inner:end]]
        pos = end + 1
    return "".join(pieces) + text[pos:]


def normalise(text: str) -> str:
    """The recipe's rewriting of an answer or a reference, at most a few hundred characters long."""
    text = text.rpartition("=")[2]
    for old, new in _REWRITTEN:
        text = text.replace(old, new)
    for word in _DELETED:
        text = text.replace(word, "")
    text = "\n".join(map(first_formula, text.split("\n")))
    for macro in ("\\text{", "\\textbf{", "\\overline{"):
        text = unwrap(text, macro, last=False)
    text = unwrap(text, "\\boxed{", last=True)
    text = _FRACTION.sub(r"frac{\1}{\2}", text)
    text = _ROOT.sub(r"sqrt{\1}", text).replace("$", "")
    digits = text.replace(",", "")
    return (digits if digits.isdigit() else text).strip()


def recipe_judge(response: str, reference: str) -> Verdict:
    """Decide one response by the recipe's rule: `correct`, `wrong` or `no_answer`, and the rewritten text."""
    answer = normalise(last_labelled(response[-TAIL_CHARS:]))
    if answer == normalise(reference):
        return Verdict.of(Status.CORRECT, answer)
    return Verdict.of(Status.NO_ANSWER if answer == NO_ANSWER else Status.WRONG, answer)
