"""Makes the start model of the ladder: `python -m dapo_ref.tiny.make_columns --output DIR`.

A Llama of 0.17 million parameters that adds long numbers column by column, from right to left. It is made
like the embedded default (`make.py`): demonstrations of mixed quality, next-token prediction, no
reinforcement learning. `docs/ladder.md` says what the mixture is for; in short:

    brisk      `7+8=5`      two tokens a column; the carry is forgotten: right on problems without one
    careful    `7+8+1=16`   three tokens a column; right on all, but rare, and often too long for the cap
    guess      `Answer: …`  no column at all: short, and mostly wrong

Every response opens with one of twelve words that mean nothing: ways that are equally good. A rambler of
either kind says `Hmm` after a column and writes it down once more, again and again.
"""

import argparse
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from dapo_ref.tiny.make import BOS, EOS, llama, save, tokenizer_of, train
from dapo_ref.tiny.tasks import COLUMNS, generate

OPENINGS = ("So", "Well", "Now", "Right", "Ok", "Look", "Let's see", "First", "Good", "Fine", "Sure", "Again")
_PIECES = [
    *"0123456789",
    *(" + ", " = ?", "\n", "Answer: ", "Hmm\n", "+0", "+1"),
    *(f"{word}\n" for word in OPENINGS),
    *(f"{a}+{b}" for a in range(10) for b in range(10)),
    *(f"={units}\n" for units in range(10)),
    *(f"={total:02d}\n" for total in range(20)),
]
_MAX_TOKENS = 60  # of a demonstration, prompt included; a longer one (rambling) is cut and has no end token


@dataclass(frozen=True)
class Crowd:
    """Who writes the demonstrations, in shares and chances.

    Attributes:
        careful: share of careful responses, by the number of columns.
        guess: share of guesses among the others.
        ramble, ramble_careful: share of ramblers among brisk and careful responses.
        again_rambling, again_calm: chance that a column is written once more, each time.
        slip_guess, slip_brisk, slip_careful: chance of a wrong result, a column.
    """

    careful: Mapping[int, float]
    guess: float
    ramble: float
    ramble_careful: float
    again_rambling: float
    again_calm: float
    slip_guess: float
    slip_brisk: float
    slip_careful: float


CROWD = Crowd(
    careful={2: 0.02, 3: 0.01, 4: 0.006, 5: 0.004, 6: 0.004},
    guess=0.15,
    ramble=0.4,
    ramble_careful=0.6,
    again_rambling=0.9,
    again_calm=0.08,
    slip_guess=0.15,
    slip_brisk=0.03,
    slip_careful=0.01,
)
# What all are taught first: both ways in equal parts, without a slip. Without it a model that sees so few
# careful solutions could not carry one out.
LESSON = Crowd(
    careful=dict.fromkeys(COLUMNS, 0.5),
    guess=0.1,
    ramble=0.2,
    ramble_careful=0.2,
    again_rambling=0.7,
    again_calm=0.08,
    slip_guess=0.0,
    slip_brisk=0.0,
    slip_careful=0.0,
)


# ----------------------------------------------------------------------------------------------------
# Demonstrations


def demonstrate(question: str, crowd: Crowd, rng: random.Random) -> str:
    """A worked response to a question of the `columns` task, by someone of the crowd; it may be wrong."""
    columns = parse(question)
    opening = f"{rng.choice(OPENINGS)}\n"
    if rng.random() < crowd.careful[len(columns)]:
        again = _habit(crowd.ramble_careful, crowd, rng)
        return opening + _careful(columns, crowd.slip_careful, again, rng)
    if rng.random() < crowd.guess:
        digits = [_slipped((a + b) % 10, 10, crowd.slip_guess, rng) for a, b in columns]
        return opening + _answer(digits)
    again = _habit(crowd.ramble, crowd, rng)
    return opening + _brisk(columns, crowd.slip_brisk, again, rng)


def parse(question: str) -> list[tuple[int, int]]:
    """The columns from right to left, two digits each."""
    first, _, second, *_ = question.split()
    return [(int(a), int(b)) for a, b in zip(first[::-1], second[::-1], strict=True)]


def _habit(share: float, crowd: Crowd, rng: random.Random) -> float:
    return crowd.again_rambling if rng.random() < share else crowd.again_calm


def _brisk(columns: Sequence[tuple[int, int]], slip: float, again: float, rng: random.Random) -> str:
    text, digits = "", []
    for a, b in columns:
        for _ in range(_times(again, rng)):
            units = _slipped((a + b) % 10, 10, slip, rng)
            text += f"{a}+{b}={units}\nHmm\n"
        text = text.removesuffix("Hmm\n")
        digits.append(units)
    return text + _answer(digits)


def _careful(columns: Sequence[tuple[int, int]], slip: float, again: float, rng: random.Random) -> str:
    text, digits, carry = "", [], 0
    for a, b in columns:
        for _ in range(_times(again, rng)):
            total = _slipped(a + b + carry, 20, slip, rng)
            text += f"{a}+{b}+{carry}={total:02d}\nHmm\n"
        text = text.removesuffix("Hmm\n")
        carry, units = divmod(total, 10)
        digits.append(units)
    return text + _answer([*digits, carry])


def _times(again: float, rng: random.Random) -> int:
    """How often a column is written; at most as often as a demonstration has room for."""
    times = 1
    while times < _MAX_TOKENS // 2 and rng.random() < again:
        times += 1
    return times


def _answer(digits: Sequence[int]) -> str:
    """The last line; digits from right to left."""
    return f"Answer: {int(''.join(map(str, reversed(digits))))}"


def _slipped(value: int, modulus: int, slip: float, rng: random.Random) -> int:
    """The value, or with probability `slip` one that is off by one or two."""
    return value if rng.random() >= slip else (value + rng.choice((-2, -1, 1, 2))) % modulus


# ----------------------------------------------------------------------------------------------------
# What a response did, for the analysis


def way_of(response: str) -> str:
    """`careful` if a column has a carry in it, `guess` if there is no column, else `brisk`."""
    if re.search(r"\d\+\d\+\d=", response):
        return "careful"
    return "brisk" if re.search(r"\d\+\d", response) else "guess"


def on_the_right_way(question: str, response: str) -> bool:
    """Whether a response that was cut is careful and without a mistake as far as it goes; repeats allowed."""
    expected, carry = [], 0
    for a, b in parse(question):
        total = a + b + carry
        expected.append(f"{a}+{b}+{carry}={total:02d}")
        carry = total // 10
    done = 0
    for line in response.split("\n")[1:-1]:  # without the opening, and the line that was cut
        if done < len(expected) and line == expected[done]:
            done += 1
        elif line != "Hmm" and (not done or line != expected[done - 1]):
            return False
    return done > 0


# ----------------------------------------------------------------------------------------------------
# Tokenizer and model


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A closed vocabulary in which two digits to be added, and a result, are one token each."""
    openings = "|".join(f"{word}\n" for word in OPENINGS)
    columns = r"[0-9]\+[0-9]|\+[01](?==)|=[0-9][0-9]\n|=[0-9]\n"
    return tokenizer_of(_PIECES, rf"{openings}|Hmm\n|Answer: | = \?| \+ |{columns}|\n|[0-9]")


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 0.17 M parameters."""
    return llama(tokenizer, hidden_size=64, intermediate_size=192, num_hidden_layers=3)


def encode(
    tokenizer: PreTrainedTokenizerFast, problems: Sequence[Mapping[str, str]], crowd: Crowd, seed: int
) -> list[tuple[list[int], int]]:
    """`(token ids, number of prompt tokens)`, one demonstration a problem."""
    rng = random.Random(seed)
    examples = []
    for problem in problems:
        question = problem["question"]
        prompt = tokenizer.encode(f"{BOS}{question}\n", add_special_tokens=False)
        response = tokenizer.encode(demonstrate(question, crowd, rng) + EOS, add_special_tokens=False)
        examples.append(((prompt + response)[:_MAX_TOKENS], len(prompt)))
    return examples


def main() -> None:
    """Command line: demonstrations, tokenizer, training, export."""
    parser = argparse.ArgumentParser(description="Make the start model of the ladder.")
    parser.add_argument("--output", type=Path, required=True, help="directory to write")
    parser.add_argument("--lesson", type=int, default=120_000, help="demonstrations of the lesson")
    parser.add_argument("--crowd", type=int, default=25_000, help="demonstrations by the crowd")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    # Problems repeat: there are fewer different ones of two columns than demonstrations.
    problems = generate("columns", "train", 20_000, args.seed)
    for crowd, count, rate in ((LESSON, args.lesson, 2e-3), (CROWD, args.crowd, 1e-3)):
        chosen = random.Random(args.seed).choices(problems, k=count)
        examples = encode(tokenizer, chosen, crowd, args.seed)
        train(model, [examples], batch_size=32, learning_rate=rate, seed=args.seed)
    save(model, tokenizer, args.output)


if __name__ == "__main__":
    main()
