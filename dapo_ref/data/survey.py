"""What `python -m dapo_ref.data` says of a data set: columns, rows that fall out, references, lengths.

Rows that cannot be used are collected here, where training stops at the first.
"""

import json
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from dapo_ref.data.problems import Counts, Fault, Problem, is_sentence, read_problems, summary
from dapo_ref.data.prompts import encode_prompt
from dapo_ref.data.sources import read_rows
from dapo_ref.errors import DataError
from dapo_ref.layout import Layout

SHOWN = 3  # examples of a kind
BINS, BAR = 10, 40  # lines of a histogram, columns of its longest bar


@dataclass(frozen=True)
class Survey:
    """A data set with what is wrong with it.

    Attributes:
        problems: those that can be used, without repeats; references not checked.
        faults: rows that cannot be used.
        refused: problems whose reference does not verify against itself, with the reason.
    """

    source: str
    problems: list[Problem]
    counts: Counts
    faults: list[Fault]
    refused: list[tuple[Problem, str]]

    def text(self) -> Iterator[str]:
        """Lines for people."""
        yield summary(self.source, self.problems, self.counts)
        yield (
            f"{self.counts.conflicts} repeats with another reference dropped, "
            f"{self.counts.unasked} prompts ask for no `Answer:`"
        )
        kinds = groupby(sorted(self.faults, key=lambda f: _kind(f.why)), key=lambda f: _kind(f.why))
        for kind, faults in kinds:
            places = [fault.address for fault in faults]
            yield f"{len(places)} rows fall out: {kind} ({_some(places)})"
        yield f"{len(self.problems) - len(self.refused)} references verify against themselves"
        if self.refused:
            shown = [f"{p.source}: {why}" for p, why in self.refused]
            yield f"{len(shown)} references do not, and no response could be right: {_some(shown)}"
        sentences = [f"{p.source} {p.reference[:60]!r}" for p in self.problems if is_sentence(p.reference)]
        if sentences:
            yield f"{len(sentences)} references look like sentences, see answer_pattern: {_some(sentences)}"


def survey(source: str, prompt_template: str, layout: Layout) -> Survey:
    """Reads a data set and checks its references.

    Raises:
        DataError: it cannot be read, or no row can be used.
    """
    from dapo_ref.verifier import check_reference

    faults: list[Fault] = []
    problems, counts = read_problems(source, prompt_template, False, layout, faults)
    verdicts = {reference: check_reference(reference) for reference in {p.reference for p in problems}}
    refused = [(p, why) for p in problems if (why := verdicts[p.reference]) is not None]
    return Survey(source, problems, counts, faults, refused)


def columns(source: str, layout: Layout) -> str:
    """Which columns of the first row are taken for what."""
    _, row = next(read_rows(source, layout), ("", {}))
    layout = layout.of(row)
    if layout.named or "prompt" not in row or "reward_model" not in row:
        question = layout.question or ("question" if row.get("question") is not None else "problem")
        taken = (question, layout.answer or "answer")
    else:
        taken = ("prompt", "reward_model.ground_truth")
    others = [name for name in row if name not in {path.split(".")[0] for path in taken} | set(taken)]
    picked = f", picked by {layout.pattern!r}" if layout.pattern else ""
    rest = f"; {', '.join(f'`{name}`' for name in others)} only for reward_function" if others else ""
    return f"question: `{taken[0]}`, answer: `{taken[1]}`{picked}{rest}"


def _kind(why: str) -> str:
    """A reason without what is of one row."""
    return re.split(r"; |, found | in (?:str|int|list|dict) ", why)[0]


def _some(places: Sequence[str]) -> str:
    return ", ".join(places[:SHOWN]) + (", …" if len(places) > SHOWN else "")


def histogram(lengths: Sequence[int], limit: int, what: str) -> Iterator[str]:
    """Lines of bars: how many prompts have so many tokens."""
    longest = max(lengths)
    yield f"prompt {what}: median {statistics.median(lengths):g}, longest {longest}"
    width = max(1, -(-(longest + 1) // BINS))
    counts = [sum(n // width == i for n in lengths) for i in range(longest // width + 1)]
    for i, count in enumerate(counts):
        bar = "█" * -(-BAR * count // max(counts))
        yield f"  {i * width:>6}–{(i + 1) * width - 1:<6} {count:>7} {bar}"
    if limit and longest > limit:
        dropped = sum(n > limit for n in lengths)
        yield f"{dropped} are longer than max_prompt_length {limit}: training drops them"


def overlap(problems: Sequence[Problem], other: Sequence[Problem]) -> list[Problem]:
    """The problems that stand in another data set too, but for case, spaces and punctuation."""
    theirs = {_bare(problem) for problem in other}
    return [problem for problem in problems if _bare(problem) in theirs]


def _bare(problem: Problem) -> str:
    return re.sub(r"[\W_]+", " ", problem.messages[-1]["content"]).casefold().strip()


def convert(found: Survey, out: Path) -> int:
    """Writes the problems whose reference verifies as JSONL; returns their number.

    Args:
        found: read with the template `{question}`, and with the other fields.

    Raises:
        DataError: it cannot be written.
    """
    bad = {id(problem) for problem, _ in found.refused}
    good = [problem for problem in found.problems if id(problem) not in bad]
    part = out.with_name(f"{out.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for problem in good:
                file.write(json.dumps(_row(problem), ensure_ascii=False) + "\n")
        os.replace(part, out)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror}") from error
    return len(good)


def _row(problem: Problem) -> dict[str, object]:
    (first, *rest) = problem.messages
    if not rest and first["role"] == "user":
        return {**problem.fields, "question": first["content"], "answer": problem.reference}
    truth = {"ground_truth": problem.reference}
    return {**problem.fields, "prompt": list(problem.messages), "reward_model": truth}


def visible(problem: Problem, tokenizer: PreTrainedTokenizerBase) -> str:
    """The prompt as its tokens, special ones in ⟦ ⟧, white space at the ends of lines and runs to be seen."""
    ids = encode_prompt(problem, tokenizer)
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    parts = []
    for is_special, run in groupby(ids, key=special.__contains__):
        if is_special:
            parts += [f"⟦{tokenizer.convert_ids_to_tokens(number)}⟧" for number in run]
        else:
            parts.append(repr(tokenizer.decode(list(run)))[1:-1].replace("\\n", "\\n\n"))
    return "".join(parts)


def plain(layout: Layout) -> Layout:
    """The same columns, and the other fields with them."""
    return replace(layout, keep_fields=True)
