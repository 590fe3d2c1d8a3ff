"""Rows made into problems: bare questions and verl's chat format, repeats dropped, references checked.

The published DAPO-Math-17K holds each prompt 100 times, the AIME 2024 file beside it each problem 32 times;
training counts on one of each. §3.5 says how the answers became integers; here any reference passes that the
verifier can compare.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from dapo_ref.data.sources import Addressed, Row, read_rows, require_layout
from dapo_ref.errors import DataError
from dapo_ref.layout import DEFAULT, Layout

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """A question q with its reference answer a, Eq. 8's (q, a) ~ D.

    Attributes:
        messages: the prompt as chat messages, each `{"role": …, "content": …}`.
        reference: the answer that responses are compared with.
        source: where it came from, for messages. Neither `==` nor `repr` sees it: data that moved to another
            folder are still the same data.
        fields: the other columns of its row, as JSON would hold them, for a reward function; mostly empty.
    """

    messages: tuple[dict[str, str], ...]
    reference: str
    source: str = field(compare=False, repr=False)
    fields: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass
class Counts:
    """What happened to the rows of a source.

    Attributes:
        rows: read.
        repeats: dropped for having prompt and reference of an earlier row.
        conflicts: dropped for having the prompt of an earlier row and another reference.
        first_conflict: where the first of them is.
        unasked: problems of the chat format whose prompt asks for neither `Answer:` nor a box.
        times: how often each problem stands there, if all stand there equally often; else 0. 32 in the
            published AIME 2024.
        sentences: references that look like prose, if references are checked.
    """

    rows: int = 0
    repeats: int = 0
    conflicts: int = 0
    first_conflict: str = ""
    unasked: int = 0
    times: int = 0
    sentences: int = 0


class Fault(NamedTuple):
    """A row that cannot be used."""

    address: str
    why: str


def load_problems(
    source: str, *, prompt_template: str, check_references: bool = True, layout: Layout = DEFAULT
) -> list[Problem]:
    """Reads a data set, drops repeats, and checks that its references can be verified at all.

    Of rows with the same prompt (but for surrounding white space) the first is kept. Where their references
    differ that is a warning and no error: published sets hold a few such rows among thousands, and one
    doubtful reference is no reason not to train on the rest.

    Args:
        source: a JSONL, JSON, CSV or parquet file, `TASK:SPLIT[:COUNT]` of a generated task,
            `reasoning_gym:TASK[:SPLIT[:COUNT]]`, or `org/name[[:CONFIG]:SPLIT]` of the hub.
        prompt_template: wraps a bare question at `{question}`; prompts in chat format stay as they are.
        check_references: whether every reference must verify against itself.
        layout: how rows are read.

    Returns:
        The problems in the order of the source, at least one.

    Raises:
        DataError: the source cannot be read, a row cannot be used, or nothing is left.
    """
    problems, counts = read_problems(source, prompt_template, check_references, layout)
    report(source, problems, counts)
    return problems


def report(source: str, problems: Sequence[Problem], counts: Counts) -> None:
    """Logs the counts, with a warning for what looks wrong."""
    log.info("%s", summary(source, problems, counts))
    if counts.conflicts:
        log.warning(
            "%s: %d rows repeat a prompt with another reference (the first: %s); the earlier is kept",
            source,
            counts.conflicts,
            counts.first_conflict,
        )
    if counts.sentences:
        log.warning(
            "%s: %d references look like sentences, which a response would have to repeat; answer_pattern "
            "picks the answer out of them, `python -m dapo_ref.data` shows them",
            source,
            counts.sentences,
        )
    if counts.unasked:
        log.warning(
            "%s: %d prompts in chat format ask for no last line `Answer: …`, which the verifier reads",
            source,
            counts.unasked,
        )


def is_sentence(reference: str) -> bool:
    """Whether a reference looks like prose: five words in a row, which would be compared one by one."""
    return re.search(r"(?<![\\\w])[^\W\d_]+(?:[ ,;:]+[^\W\d_]+){4}", reference) is not None


def read_problems(
    source: str,
    prompt_template: str,
    check_references: bool = True,
    layout: Layout = DEFAULT,
    faults: list[Fault] | None = None,
) -> tuple[list[Problem], Counts]:
    """As `load_problems`, with the counts returned instead of logged.

    Args:
        faults: rows that cannot be used are put here and left out; without it the first one is raised.
    """
    if "{question}" not in prompt_template:
        raise DataError(f"prompt_template must contain {{question}}, got {prompt_template!r}")
    problems, counts = _without_repeats(read_rows(source, layout), prompt_template, layout, faults)
    if not problems and faults:
        raise DataError(f"{faults[0].address}: {faults[0].why}; no row of {source} can be used")
    if not problems:
        raise DataError(f"{source}: no problems: the data set is empty")
    if check_references and not layout.keep_fields:
        _check_references(source, problems)
        counts.sentences = sum(is_sentence(problem.reference) for problem in problems)
    return problems, counts


def summary(source: str, problems: Sequence[Problem], counts: Counts) -> str:
    """The counts as one line."""
    return f"{source}: {counts.rows} rows, {counts.repeats} repeats dropped, {len(problems)} problems"


def _without_repeats(
    rows: Iterable[Addressed], prompt_template: str, layout: Layout, faults: list[Fault] | None
) -> tuple[list[Problem], Counts]:
    counts = Counts()
    problems: list[Problem] = []
    references: dict[tuple[str, ...], str] = {}  # of each prompt seen
    seen: Counter[tuple[str, ...]] = Counter()
    for address, row in rows:
        try:
            problem = _problem(row, address, prompt_template, layout)
        except DataError as error:
            if faults is None:
                raise
            faults.append(Fault(address, str(error).removeprefix(f"{address}: ")))
            counts.rows += 1
            continue
        prompt = tuple(text.strip() for message in problem.messages for text in message.values())
        earlier = references.setdefault(prompt, problem.reference)
        counts.rows += 1
        seen[prompt] += 1
        if len(references) > len(problems):
            problems.append(problem)
            counts.unasked += _is_chat(row) and not _asks_for_answer(problem)
        elif earlier == problem.reference:
            counts.repeats += 1
        else:
            counts.conflicts += 1
            counts.first_conflict = counts.first_conflict or address
    counts.times = min(seen.values()) if len(set(seen.values())) == 1 else 0
    return problems, counts


def _problem(row: Row, address: str, prompt_template: str, layout: Layout) -> Problem:
    require_layout(list(row), address, layout)
    layout = layout.of(row)
    if layout.named:
        return _named_problem(row, address, prompt_template, layout)
    if _is_chat(row):
        reference = _picked(_ground_truth(row["reward_model"], address, layout), address, layout)
        fields = _fields(row, ("prompt", "reward_model"), layout)
        return Problem(_chat(row["prompt"], address), reference, address, fields)
    key = "question" if row.get("question") is not None or "problem" not in row else "problem"
    question = _text(row[key], key, row, address).strip()
    reference = _picked(_answer(row["answer"], "answer", row, address, layout), address, layout)
    fields = _fields(row, (key, "answer"), layout)
    return Problem(_asked(question, prompt_template), reference, address, fields)


def _asked(question: str, prompt_template: str) -> tuple[dict[str, str], ...]:
    content = prompt_template.replace("{question}", question)  # not str.format: LaTeX is full of braces
    return ({"role": "user", "content": content},)


def _named_problem(row: Row, address: str, prompt_template: str, layout: Layout) -> Problem:
    """A problem by the columns that the configuration names; the question may be chat messages."""
    standard = next((name for name in ("question", "problem") if row.get(name) is not None), "question")
    paths = (layout.question or standard, layout.answer or "answer")
    question, answer = (value_at(row, path) for path in paths)
    if isinstance(question, list):
        messages = _chat(question, address, paths[0])
    else:
        messages = _asked(_text(question, paths[0], row, address).strip(), prompt_template)
    reference = _picked(_answer(answer, paths[1], row, address, layout), address, layout)
    return Problem(messages, reference, address, _fields(row, [p.split(".")[0] for p in paths], layout))


def value_at(row: Row, path: str) -> Any:
    """The value of a column, or of a field below one (`answer.value`, `answers.0`); None if there is none."""
    if path in row:
        return row[path]
    value: Any = row
    for name in path.split("."):
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict):
            value = value.get(name)
        else:
            return None
    return value


def _picked(reference: str, address: str, layout: Layout) -> str:
    """What the last match of the pattern has in its group; the whole reference without a pattern."""
    if not layout.pattern:
        return reference
    found = [match[1].strip() for match in re.finditer(layout.pattern, reference) if match[1]]
    if not found or not found[-1]:
        raise DataError(
            f"{address}: answer_pattern {layout.pattern!r} matches nothing in {_shown(reference)}"
        )
    return found[-1]


def _fields(row: Row, used: Sequence[str], layout: Layout) -> dict[str, Any]:
    """The other columns as JSON has them; what it has no notion of (a date, say) as text."""
    if not layout.keep_fields:
        return {}
    return json.loads(_json({key: value for key, value in row.items() if key not in used}))


def _json(value: Any) -> str:
    def plain(value: Any) -> Any:
        return float(value) if isinstance(value, Decimal) else str(value)

    return json.dumps(value, default=plain, ensure_ascii=False)


def _is_chat(row: Row) -> bool:
    return "prompt" in row and "reward_model" in row


def _asks_for_answer(problem: Problem) -> bool:
    text = " ".join(message["content"] for message in problem.messages).lower()
    return "answer:" in text or "boxed" in text


def _chat(prompt: Any, address: str, column: str = "prompt") -> tuple[dict[str, str], ...]:
    """verl's `prompt`, reduced to role and content (parquet fills other fields with nulls)."""
    if not isinstance(prompt, list) or not prompt or not all(isinstance(message, dict) for message in prompt):
        raise DataError(
            f"{address}: `{column}` must be a list of chat messages {{role, content}}, found {_shown(prompt)}"
        )
    messages = tuple(
        {key: _text(message.get(key), key, message, f"{address}: `{column}`") for key in ("role", "content")}
        for message in prompt
    )
    if messages[-1]["role"] == "assistant":
        raise DataError(
            f"{address}: `{column}` ends with an assistant message; the last must ask for a response"
        )
    return messages


def _ground_truth(reward_model: Any, address: str, layout: Layout) -> str:
    """verl's `reward_model.ground_truth`; the struct also comes written out as JSON."""
    if isinstance(reward_model, str):
        try:
            reward_model = json.loads(reward_model, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{address}: `reward_model` is text but not JSON: {_shown(reward_model)}"
            ) from error
    if not isinstance(reward_model, dict):
        raise DataError(f"{address}: `reward_model` must hold `ground_truth`, found {_shown(reward_model)}")
    where = f"{address}: `reward_model`"
    return _answer(reward_model.get("ground_truth"), "ground_truth", reward_model, where, layout)


def _answer(value: Any, key: str, row: Row, where: str, layout: Layout) -> str:
    """A reference as text; a number as its digits, `34.0` as `34`; for a reward function, lists as JSON."""
    if layout.keep_fields and isinstance(value, list | dict):
        return _json(value)
    if isinstance(value, float):  # of a parquet column
        value = Decimal(repr(value))
    if isinstance(value, Decimal) and value.is_finite():
        if value == value.to_integral_value() and value.adjusted() < 30:
            value = int(value)
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(value, key, row, where, "text or a number").strip()


def _text(value: Any, key: str, row: Row, where: str, kind: str = "text") -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        state = "is missing" if key not in row else "is empty"
        found = ", ".join(f"`{name}`" for name in row)
        raise DataError(f"{where}: `{key}` {state}; expected {kind}, found keys {found}")
    if not isinstance(value, str):
        raise DataError(f"{where}: `{key}` must be {kind}, found {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: `{key}` holds half a surrogate pair, which is no character") from error
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '…'}"


def _check_references(source: str, problems: Sequence[Problem]) -> None:
    from dapo_ref.verifier import check_reference

    verdicts = {reference: check_reference(reference) for reference in {p.reference for p in problems}}
    refused = [problem for problem in problems if verdicts[problem.reference] is not None]
    if refused:
        shown = [f"{p.source} {p.reference[:60]!r}: {verdicts[p.reference]}" for p in refused[:3]]
        if len(refused) > 3:
            shown.append("…")
        raise DataError(
            f"{source}: {len(refused)} of {len(problems)} references do not verify against themselves, so no "
            f"response could ever be right: {'; '.join(shown)}; mend or remove these rows"
        )
