"""Prompts: what Algorithm 1 samples its batches from (line 2), and the order in which it does.

`keep_short_prompts` encodes problems by the tokenizer's chat template, and `PromptStream` deals the prompts
out; its position is part of a checkpoint.
"""

import contextlib
import hashlib
import logging
import random
import string
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, TypeVar

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from dapo_ref.data.problems import Problem
from dapo_ref.errors import DataError

log = logging.getLogger(__name__)

T = TypeVar("T")

DATE_CODES = [f"%{pad}{letter}" for pad in ("", "-") for letter in string.ascii_letters] + ["%%"]
DATE_MACRO = """{% macro strftime_now(format) %}{% set filled = namespace(text=format) %}
{% for code, value in date_fields.items() %}{% set filled.text = filled.text.replace(code, value) %}
{% endfor %}{{ filled.text }}{% endmacro %}
"""
"""Instead of transformers' own `strftime_now`, which asks the clock; a template takes only plain data."""


def render_prompt(problem: Problem, tokenizer: PreTrainedTokenizerBase, date: str = "") -> str:
    """The prompt as the text whose tokens the model sees.

    A tokenizer without a chat template gets the plainest thing that ends the question: its
    beginning-of-sequence token if it has one, the contents of the messages, a newline.

    Args:
        date: that a template prints which asks for it, YYYY-MM-DD; today where empty.

    Raises:
        DataError: the chat template refuses the messages (some know no system role).
    """
    if tokenizer.chat_template is None:
        contents = "\n\n".join(message["content"] for message in problem.messages)
        return f"{tokenizer.bos_token or ''}{contents}\n"
    return _by_template(tokenizer, problem, date)


def _by_template(
    tokenizer: PreTrainedTokenizerBase, problem: Problem, date: str, generation_prompt: bool = True
) -> str:
    dated: dict[str, Any] = {}
    if prints_date(tokenizer):
        day = datetime.fromisoformat(date) if date else datetime.now()
        fields = {code: day.strftime(code) for code in DATE_CODES}
        dated = {"chat_template": DATE_MACRO + tokenizer.get_chat_template(), "date_fields": fields}
    try:
        text = tokenizer.apply_chat_template(
            list(problem.messages), tokenize=False, add_generation_prompt=generation_prompt, **dated
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise DataError(f"{problem.source}: the chat template refuses this prompt: {error}") from error
    assert isinstance(text, str)
    return text


def prints_date(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template asks for the date."""
    return "strftime_now" in str(tokenizer.chat_template)


def require_generation_prompt(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> None:
    """Checks that a prompt ends where the response begins.

    Raises:
        DataError: the template has no generation prompt, and writes something between prompt and response.
    """
    if tokenizer.chat_template is None:
        return
    prompt = _by_template(tokenizer, problem, FIXED_DATE)
    if prompt != _by_template(tokenizer, problem, FIXED_DATE, generation_prompt=False):
        return
    answered = replace(problem, messages=(*problem.messages, {"role": "assistant", "content": "RESPONSE"}))
    header = ""
    with contextlib.suppress(DataError):  # a template that takes no response says nothing about it
        text = _by_template(tokenizer, answered, FIXED_DATE, generation_prompt=False)
        header = text.removeprefix(prompt).partition("RESPONSE")[0].strip()
    if header:
        raise DataError(
            "the chat template has no generation prompt: it ignores add_generation_prompt, and writes "
            f"{header!r} before a response; mend chat_template in the model's folder"
        )


def encode_prompt(problem: Problem, tokenizer: PreTrainedTokenizerBase, date: str = "") -> list[int]:
    """The tokens of a prompt, up to where the response begins.

    The special tokens are those of `render_prompt`'s text, so that a tokenizer that would add its own
    beginning-of-sequence token does not double it.

    Args:
        date: as for `render_prompt`.

    Returns:
        Token ids, without padding.

    Raises:
        DataError: as `render_prompt`.
    """
    text = render_prompt(problem, tokenizer, date)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


FIXED_DATE = "2000-12-31"
"""Decides which prompts are short enough, so that these are the same ones every day."""


def keep_short_prompts(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, max_prompt_length: int, date: str = ""
) -> list[tuple[Problem, list[int]]]:
    """Encodes the prompts and drops those that are too long, with their number in the log.

    Args:
        max_prompt_length: tokens; a prompt of exactly so many stays.
        date: as for `render_prompt`.

    Returns:
        `(problem, prompt ids)` of those that stay, in order, at least one.

    Raises:
        DataError: more than half are too long, or the chat template does not lead up to a response.
    """
    require_generation_prompt(tokenizer, problems[0])
    encoded = [(problem, encode_prompt(problem, tokenizer, FIXED_DATE)) for problem in problems]
    kept = [(problem, ids) for problem, ids in encoded if len(ids) <= max_prompt_length]
    if 2 * len(kept) < len(encoded):
        lengths = sorted(len(ids) for _, ids in encoded)
        raise DataError(
            f"{len(encoded) - len(kept)} of {len(encoded)} prompts are longer than max_prompt_length "
            f"{max_prompt_length}, more than half of the data: raise it (half of them have at most "
            f"{lengths[(len(lengths) - 1) // 2]} tokens, the longest {lengths[-1]}), or leave the long ones "
            "out of the file"
        )
    if len(kept) < len(encoded):
        log.warning(
            "%d of %d prompts are longer than max_prompt_length %d and are dropped",
            len(encoded) - len(kept),
            len(encoded),
            max_prompt_length,
        )
    return of_date(kept, tokenizer, date)


def of_date(
    prompts: Sequence[tuple[Problem, list[int]]], tokenizer: PreTrainedTokenizerBase, date: str
) -> list[tuple[Problem, list[int]]]:
    """The same prompts with another date, if the template prints one."""
    if not prints_date(tokenizer):
        return list(prompts)
    return [(problem, encode_prompt(problem, tokenizer, date)) for problem, _ in prompts]


def data_fingerprint(problems: Iterable[Problem], tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of problems and chat template, whatever the date is."""
    digest = hashlib.sha256(repr(tokenizer.chat_template).encode())
    for problem in problems:
        digest.update(b"\0" + repr(problem).encode())
    return f"problems:{digest.hexdigest()[:16]}"


class PromptStream(Generic[T]):
    """An endless stream of items, each epoch a fresh shuffle of all of them.

    The order is a pure function of seed and epoch: whatever the sizes of the takes, and however often the run
    was stopped and resumed, item number k of the stream is the same.

    Args:
        items: what is dealt out, such as the pairs of `keep_short_prompts`; `repr` must identify an item.
        seed: of the shuffles.
        position: how many items were taken before.
        fingerprint: of the items; a hash of them where empty.

    Raises:
        ValueError: no items, or a negative position.
    """

    def __init__(self, items: Sequence[T], seed: int, position: int = 0, fingerprint: str = "") -> None:
        if not items:
            raise ValueError("a prompt stream needs at least one item")
        if position < 0:
            raise ValueError(f"position must not be negative, got {position}")
        self.position = position
        self.items = items
        self.fingerprint = fingerprint or self.items_fingerprint
        self._seed = seed
        self._shuffled_epoch = -1
        self._order: list[int] = []

    @property
    def epoch(self) -> int:
        """The epoch of the next item, counted from 0."""
        return self.position // len(self.items)

    def take(self, n: int) -> list[T]:
        """The next `n` items; more than an epoch holds is fine.

        Raises:
            ValueError: `n` is negative.
        """
        if n < 0:
            raise ValueError(f"cannot take {n} items")
        taken = []
        for _ in range(n):
            taken.append(self.items[self._index()])
            self.position += 1
        return taken

    def _index(self) -> int:
        if self._shuffled_epoch != self.epoch:
            self._order = list(range(len(self.items)))
            random.Random(f"{self._seed}/{self.epoch}").shuffle(self._order)
            self._shuffled_epoch = self.epoch
        return self._order[self.position % len(self.items)]

    def state_dict(self) -> dict[str, int | str]:
        """What a checkpoint holds: the position, and what it is a position in."""
        return {"position": self.position, "seed": self._seed, "fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Continues where `state` was taken.

        Raises:
            DataError: the state was taken with other items or another seed.
        """
        known = [self.fingerprint]
        if not str(state["fingerprint"]).startswith("problems:"):  # of a checkpoint of before
            known.append(self.items_fingerprint)
        if state["fingerprint"] not in known:
            raise DataError(
                "cannot resume on other data: the prompts are not those of the checkpoint (data, "
                "prompt_template, chat template or max_prompt_length changed); restore them or start anew"
            )
        if state["seed"] != self._seed:
            raise DataError(
                f"cannot resume with seed {self._seed}: the checkpoint's is {state['seed']}, and the order "
                "of the prompts follows from it; restore it or start a new run"
            )
        self.position = int(state["position"])

    @cached_property
    def items_fingerprint(self) -> str:
        """A hash of the items in their order, tokens of prompts included."""
        digest = hashlib.sha256()
        for item in self.items:
            digest.update(repr(item).encode() + b"\0")
        return digest.hexdigest()[:16]
