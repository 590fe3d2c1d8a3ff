"""Arithmetic tasks, generated: every problem is a pure function of (task, split, seed, position).

The paper trains on DAPO-Math-17K, whose answers were rewritten to integers so that a rule can check them
(§3.5). These tasks keep that property (every answer is an integer) at a size that a model of a million
parameters, or a small pretrained one, can learn on a CPU.

The train and test splits are disjoint by construction. Each problem has a *key*, the operands without their
order (3 + 5 and 5 + 3 share one), and a hash of the key alone decides the split. Word problems are held out
further: the names and the objects of the test split never occur in the train split.
"""

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

Split = Literal["train", "test"]

_TEST_ONE_IN = 5  # a fifth of all keys belongs to the test split
_MAX_REPEATS = 2000  # this many repeated draws in a row: the task is used up


class Draw(NamedTuple):
    """One problem as drawn, before the split is decided: `key` is what the two splits may not share."""

    key: str
    question: str
    answer: int


Drawer = Callable[[random.Random, Split], Draw]


def generate(task: str, split: Split, count: int, seed: int) -> list[dict[str, str]]:
    """The first `count` problems of a task, all different, each `{"question": str, "answer": str}`.

    Deterministic in its four arguments; a larger `count` continues the same list.

    Raises:
        ValueError: the task or the split is unknown, or the split holds fewer than `count` questions.
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; known tasks: {', '.join(sorted(TASKS))}")
    if split not in ("train", "test"):
        raise ValueError(f"unknown split {split!r}; known splits: train, test")
    rng = random.Random(f"{task}/{split}/{seed}")
    problems: dict[str, str] = {}
    repeats = 0
    while len(problems) < count:
        draw = TASKS[task](rng, split)
        if split_of(draw.key) != split:
            continue
        repeats = repeats + 1 if draw.question in problems else 0
        if repeats > _MAX_REPEATS:
            raise ValueError(f"{task}/{split} holds about {len(problems)} different questions, not {count}")
        problems[draw.question] = str(draw.answer)
    return [{"question": question, "answer": answer} for question, answer in problems.items()]


def split_of(key: str) -> Split:
    """The split that owns a key: a hash of the key and of nothing else."""
    return "test" if zlib.crc32(key.encode()) % _TEST_ONE_IN == 0 else "train"


# ----------------------------------------------------------------------------------------------------
# The tiny task: running sums and differences, for the model that ships in `model/`


def _tiny(rng: random.Random, split: Split) -> Draw:
    """`47 + 38 - 9 = ?`: two or three terms of one or two digits; every partial result lies in 0 … 99."""
    total = _one_or_two_digits(rng)
    terms, question = [total], str(total)
    size = rng.choice((2, 3, 3))
    while len(terms) < size:
        term = _one_or_two_digits(rng) * rng.choice((1, -1))
        if not 0 <= total + term <= 99:
            continue
        total += term
        terms.append(term)
        question += f" {'+' if term > 0 else '-'} {abs(term)}"
    return Draw(f"tiny {sorted(terms)}", f"{question} = ?", total)


def _one_or_two_digits(rng: random.Random) -> int:
    return rng.randint(2, 9) if rng.random() < 0.3 else rng.randint(10, 99)


# ----------------------------------------------------------------------------------------------------
# Columns: sums of two long numbers, half of them without a carry, for the model that ships in `columns/`

COLUMNS = range(2, 7)


def _columns(rng: random.Random, split: Split) -> Draw:
    """`4713 + 2856 = ?`: two numbers of two to six digits; half of the problems have no carry at all.

    Who adds each column for itself and forgets the carry is right on one half and wrong on the other."""
    count = rng.choice(COLUMNS)
    carries = rng.random() < 0.5
    while True:
        pairs = [(rng.randint(0, 9), rng.randint(0, 9)) for _ in range(count - 1)]
        pairs = [(rng.randint(1, 8), rng.randint(1, 8)), *pairs]
        if not carries:
            pairs = [(9 - a, 9 - b) if a + b > 9 else (a, b) for a, b in pairs]
        if any(a + b > 9 for a, b in pairs) == carries:
            break
    first, second = (int("".join(map(str, digits))) for digits in zip(*pairs, strict=True))
    return Draw(f"columns {sorted((first, second))}", f"{first} + {second} = ?", first + second)


# ----------------------------------------------------------------------------------------------------
# Plain sums and products, for a small pretrained model

_SUM_PHRASES = ("What is {}?", "Calculate {}.", "Work out {}.", "Find the value of {}.")


def _phrased(rng: random.Random, task: str, symbol: str, operands: Sequence[int], answer: int) -> Draw:
    expression = f" {symbol} ".join(map(str, operands))
    return Draw(f"{task} {sorted(operands)}", rng.choice(_SUM_PHRASES).format(expression), answer)


def _one_digit_sums(rng: random.Random, split: Split) -> Draw:
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return _phrased(rng, "one_digit_sums", "+", (a, b), a + b)


def _one_digit_products(rng: random.Random, split: Split) -> Draw:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return _phrased(rng, "one_digit_products", "*", (a, b), a * b)


def _two_digit_sums(rng: random.Random, split: Split) -> Draw:
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    return _phrased(rng, "two_digit_sums", "+", (a, b), a + b)


def _three_term_sums(rng: random.Random, split: Split) -> Draw:
    terms = [rng.randint(2, 60) for _ in range(3)]
    return _phrased(rng, "three_term_sums", "+", terms, sum(terms))


# ----------------------------------------------------------------------------------------------------
# Word problems: a story is a template and a rule; names, objects and numbers of the test split are held out

_NAMES: dict[Split, str] = {
    "train": (
        "Ada Boris Chloe Daniel Elif Farid Greta Hugo Ines Jonas Kemal Lena Marco Nadia Oscar Petra Quentin "
        "Rosa Stefan Tamar Umar Vera Wanda Yuki"
    ),
    "test": "Amir Bianca Cyril Dalia Emil Freya Gwen Hassan",
}
_OBJECTS: dict[Split, str] = {
    "train": (
        "apples books candles coins cookies crayons eggs feathers flowers keys lemons marbles mugs pencils "
        "photos shells stamps stickers tickets towels"
    ),
    "test": "beads buttons maps oranges pebbles postcards ribbons spoons",
}


class Story(NamedTuple):
    """A word problem: `{n}`, `{m}` are two names, `{x}` the objects, `{a}`, `{b}`, `{c}` the numbers."""

    text: str
    ranges: tuple[tuple[int, int], ...]
    answer: Callable[..., int]


_FEW, _SOME, _MANY = (2, 9), (5, 30), (20, 60)

_ONE_STEP = (
    Story(
        "{n} has {a} {x} and finds {b} more. How many {x} does {n} have now?",
        (_SOME, _SOME),
        lambda a, b: a + b,
    ),
    Story(
        "There are {a} {x} on the table and {b} {x} on the shelf. How many {x} are there in all?",
        (_SOME, _SOME),
        lambda a, b: a + b,
    ),
    Story(
        "{n} brought {a} {x} to school, and {m} brought {b}. How many {x} did they bring in all?",
        (_SOME, _SOME),
        lambda a, b: a + b,
    ),
    Story(
        "{n} had {a} {x} and gave {b} of them to {m}. How many {x} are left for {n}?",
        (_MANY, (2, 19)),
        lambda a, b: a - b,
    ),
    Story(
        "A box held {a} {x}. {n} took out {b}. How many {x} are still in the box?",
        (_MANY, (2, 19)),
        lambda a, b: a - b,
    ),
    Story(
        "{n} owns {a} {x}, which is {b} more than {m} owns. How many {x} does {m} own?",
        (_MANY, (2, 19)),
        lambda a, b: a - b,
    ),
    Story(
        "{n} packs {a} bags with {b} {x} in each. How many {x} does {n} pack?",
        (_FEW, _FEW),
        lambda a, b: a * b,
    ),
    Story(
        "Each of {a} children is handed {b} {x}. How many {x} are handed out?",
        (_FEW, _FEW),
        lambda a, b: a * b,
    ),
)

_TWO_STEPS = (
    Story(
        "{n} has {a} {x}, buys {b} more and then loses {c}. How many {x} does {n} have in the end?",
        (_MANY, _SOME, (2, 19)),
        lambda a, b, c: a + b - c,
    ),
    Story(
        "{n} starts the day with {a} {x}, gives {m} {b} and gets {c} back. How many {x} does {n} have now?",
        (_MANY, (9, 19), _FEW),
        lambda a, b, c: a - b + c,
    ),
    Story(
        "{n} fills {a} boxes with {b} {x} each and keeps {c} {x} apart. How many {x} are there in all?",
        (_FEW, _FEW, _SOME),
        lambda a, b, c: a * b + c,
    ),
    Story(
        "A shop has {a} rows of {b} {x}, and {n} buys {c} of them. How many {x} has the shop left?",
        ((4, 9), (5, 9), (2, 19)),
        lambda a, b, c: a * b - c,
    ),
    Story(
        "{n} collected {a} {x}, and {m} collected {b} more than {n}. How many {x} did they collect together?",
        (_SOME, _FEW),
        lambda a, b: a + (a + b),
    ),
    Story(
        "{n} has {a} {x}. {m} has {b} times as many. How many {x} do they have together?",
        (_FEW, (2, 5)),
        lambda a, b: a + a * b,
    ),
    Story(
        "{n} gave {a} {x} to {m} and {b} to a neighbour, out of {c} at first. How many {x} has {n} kept?",
        (_FEW, _FEW, _MANY),
        lambda a, b, c: c - a - b,
    ),
)


def _told(rng: random.Random, split: Split, stories: Sequence[Story]) -> Draw:
    story = rng.choice(stories)
    numbers = [rng.randint(low, high) for low, high in story.ranges]
    name, other = rng.sample(_NAMES[split].split(), 2)
    slots = dict(zip("abc", numbers, strict=False))
    question = story.text.format(n=name, m=other, x=rng.choice(_OBJECTS[split].split()), **slots)
    return Draw(f"story {sorted(numbers)}", question, story.answer(*numbers))


def _one_step_word_problems(rng: random.Random, split: Split) -> Draw:
    return _told(rng, split, _ONE_STEP)


def _two_step_word_problems(rng: random.Random, split: Split) -> Draw:
    return _told(rng, split, _TWO_STEPS)


# ----------------------------------------------------------------------------------------------------

_PLAIN: dict[str, Drawer] = {
    "one_digit_sums": _one_digit_sums,
    "one_digit_products": _one_digit_products,
    "two_digit_sums": _two_digit_sums,
    "three_term_sums": _three_term_sums,
    "one_step_word_problems": _one_step_word_problems,
    "two_step_word_problems": _two_step_word_problems,
}


_EASY_AND_HARD = (_one_digit_sums, _one_digit_products, _one_step_word_problems, _two_step_word_problems)


def _mixture(rng: random.Random, split: Split) -> Draw:
    """Two easy kinds and two hard ones, each as likely. There are about 200 questions of each easy kind
    in the train split; once they are used up the hard ones are alone."""
    return rng.choice(_EASY_AND_HARD)(rng, split)


TASKS: dict[str, Drawer] = {"tiny": _tiny, "columns": _columns, **_PLAIN, "mixture": _mixture}
