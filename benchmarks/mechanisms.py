"""Where each technique of DAPO shows: policies of a few numbers, trained with the project's own loss.

    python benchmarks/mechanisms.py              # ten seeds of every condition, and the table
    python benchmarks/mechanisms.py --seeds 0 1  # others

A language model is too much to see one cause at a time. Here a response is a choice or a length, drawn from
one to sixteen logits; all else is DAPO: groups of 16, 32 groups with right and wrong answers, 16 updates a
rollout step with Adam. What is compared, and in which direction, was written down before the runs, after a
look at seeds 0 to 3: `HYPOTHESES`.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started from anywhere, without an install

import torch
from ladder_report import bold, markdown, mean_and_interval
from torch import Tensor
from torch.nn.functional import logsigmoid

from dapo_ref.dynamic_sampling import has_mixed_outcomes
from dapo_ref.loss import group_advantages, masked_surrogate, sample_level_mean, token_level_mean
from dapo_ref.reward import correctness_reward, overlong_filter, soft_overlong_penalty

GROUPS, GROUP_SIZE, UPDATES = 32, 16, 16
STEPS_OF_WORK = 8  # tokens of a solution, whose probability is not trained
CAP = 24


@dataclass(frozen=True)
class Responses:
    """[P, G, T] `logprobs`, `mask`; [P, G] `correct`, `truncated`, and `kind`, what was chosen."""

    logprobs: Tensor
    mask: Tensor
    correct: Tensor
    truncated: Tensor
    kind: Tensor


Draw = Callable[[Tensor], Responses]
"""Responses that were drawn, as a function of θ: π_θ moves away from the π_old that drew them."""


class Ways:
    """One token: which of K ways. `right` is how often each answers right; of the prompts a share is `open`,
    the others are always right or always wrong."""

    def __init__(self, start: list[float], right: list[float], open_share: float = 1.0) -> None:
        self.start, self.right, self.open_share = torch.tensor(start), torch.tensor(right), open_share

    def sample(self, theta: Tensor, groups: int) -> Draw:
        ways = torch.multinomial(theta.softmax(0), groups * GROUP_SIZE, True).view(groups, GROUP_SIZE)
        correct = torch.rand(groups, GROUP_SIZE) < self.right[ways]
        is_open, always = torch.rand(groups, 1) < self.open_share, torch.rand(groups, 1) < 0.5
        correct = torch.where(is_open, correct, always)
        mask = torch.ones(groups, GROUP_SIZE, 1, dtype=torch.bool)
        cut = torch.zeros_like(correct)
        return lambda t: Responses(t.log_softmax(0)[ways].unsqueeze(-1), mask, correct, cut, ways)


class Rambling:
    """Right or wrong is chance. A wrong response then says something useless again and again: one logit
    decides at each token whether it goes on, up to 96 of them."""

    start = torch.tensor([2.7])  # 0.94: about 16 tokens

    def sample(self, theta: Tensor, groups: int) -> Draw:
        correct = torch.rand(groups, GROUP_SIZE) < 0.5
        goes_on, stops = drawn_lengths(theta[0], groups, 96)
        wrong = ~correct.unsqueeze(-1)
        cut = torch.zeros_like(correct)
        return lambda t: with_lengths(t[0], goes_on & wrong, stops & wrong, correct, cut, correct.long())


class CarefulOrBrisk:
    """Brisk is right half of the time. Careful is right on nine of ten, but first goes on for as long as a
    logit says, and is cut at the cap half of the time: it has to learn to be shorter before it pays."""

    start = torch.tensor([0.0, 0.0, 3.1])  # both ways alike; 0.957 ** 16 = 0.49

    def sample(self, theta: Tensor, groups: int) -> Draw:
        careful = torch.multinomial(theta[:2].softmax(0), groups * GROUP_SIZE, True).view(groups, GROUP_SIZE)
        goes_on, stops = drawn_lengths(theta[2], groups, CAP - STEPS_OF_WORK)
        long = (careful == 1).unsqueeze(-1)
        cut = (careful == 1) & ~stops.any(-1)
        right = torch.rand(groups, GROUP_SIZE) < torch.tensor([0.5, 0.9])[careful]

        def responses(t: Tensor) -> Responses:
            found = with_lengths(t[2], goes_on & long, stops & long, right & ~cut, cut, careful)
            first = torch.cat([t[:2].log_softmax(0)[careful].unsqueeze(-1), found.logprobs[..., 1:]], dim=-1)
            return replace(found, logprobs=first)

        return responses


def drawn_lengths(logit: Tensor, groups: int, cap: int) -> tuple[Tensor, Tensor]:
    """[P, G, cap] where a response goes on, and where it stops; nowhere if it is cut."""
    on = torch.rand(groups, GROUP_SIZE, cap) < logit.sigmoid()
    goes_on = on.cumprod(-1).bool()
    return goes_on, ~on & torch.cat([torch.ones_like(on[..., :1]), goes_on[..., :-1]], dim=-1)


def with_lengths(
    logit: Tensor, goes_on: Tensor, stops: Tensor, correct: Tensor, cut: Tensor, kind: Tensor
) -> Responses:
    """The solution's tokens, then those that a logit decides."""
    work = torch.zeros(*goes_on.shape[:2], STEPS_OF_WORK)
    decided = goes_on * logsigmoid(logit) + stops * logsigmoid(-logit)
    mask = torch.cat([torch.ones_like(work, dtype=torch.bool), goes_on | stops], dim=-1)
    return Responses(torch.cat([work, decided], dim=-1), mask, correct, cut, kind)


World = Ways | Rambling | CarefulOrBrisk


@dataclass(frozen=True)
class Settings:
    """DAPO, but for what a condition takes away."""

    steps: int = 40
    learning_rate: float = 0.02
    clip_eps_high: float = 0.28
    token_level: bool = True
    dynamic_sampling: bool = True
    overlong_filtering: bool = False
    soft_punishment: bool = False


@dataclass(frozen=True)
class Step:
    """What was sampled in a rollout step, dropped groups too."""

    theta: Tensor
    responses: Responses
    tokens: int


def train(world: World, settings: Settings, seed: int) -> list[Step]:
    """The rollout steps of one run."""
    torch.manual_seed(seed)
    theta = world.start.clone().requires_grad_(True)
    adam = torch.optim.Adam([theta], lr=settings.learning_rate)
    history = []
    for _ in range(settings.steps):
        before = theta.detach().clone()
        kept: list[tuple[Draw, Tensor]] = []
        tokens = 0
        while sum(len(groups) for _, groups in kept) < GROUPS:
            draw = world.sample(before, GROUPS)
            found = draw(before)
            tokens += int(found.mask.sum())
            mixed = has_mixed_outcomes(found.correct) if settings.dynamic_sampling else torch.ones(GROUPS)
            kept.append((draw, mixed.nonzero().flatten()))
        history.append(Step(before, found, tokens))
        update(theta, adam, kept, settings)
    return history


def batch(theta: Tensor, kept: Sequence[tuple[Draw, Tensor]]) -> Responses:
    """The groups that were kept, one row a response, with their probabilities under θ."""
    parts = [(draw(theta), groups) for draw, groups in kept]
    return Responses(
        *(
            torch.cat([getattr(part, field.name)[groups] for part, groups in parts])[:GROUPS].flatten(0, 1)
            for field in fields(Responses)
        )
    )


def update(
    theta: Tensor, adam: torch.optim.Optimizer, kept: Sequence[tuple[Draw, Tensor]], settings: Settings
) -> None:
    """Algorithm 1, lines 9 to 12."""
    old = batch(theta.detach(), kept)
    rewards = correctness_reward(old.correct)
    if settings.soft_punishment:  # a cut response is one token longer than the longest whole one
        rewards = rewards + soft_overlong_penalty(old.mask.sum(-1) + old.truncated, CAP + 1, 8)
    advantages = group_advantages(rewards.view(GROUPS, GROUP_SIZE)).flatten()
    mask = overlong_filter(old.mask, old.truncated) if settings.overlong_filtering else old.mask
    for rows in torch.randperm(len(mask)).chunk(UPDATES):
        surrogate = masked_surrogate(
            batch(theta, kept).logprobs[rows],
            old.logprobs[rows],
            advantages[rows],
            mask[rows],
            clip_eps_low=0.2,
            clip_eps_high=settings.clip_eps_high,
        )
        if settings.token_level:
            objective = token_level_mean(surrogate, mask[rows], max(int(mask[rows].sum()), 1))
        else:
            objective = sample_level_mean(surrogate, mask[rows], len(rows))
        adam.zero_grad()
        (-objective).backward()
        adam.step()


# --- What is measured ---------------------------------------------------------------------------------------

Measure = Callable[[list[Step]], float]


def steps_to_half(history: list[Step]) -> float:
    """Rollout steps until the second way has half of the probability; their number if it never has."""
    return next((i for i, s in enumerate(history) if s.theta.softmax(0)[1] > 0.5), len(history))


def tokens_to_half(history: list[Step]) -> float:
    """Responses generated by then, in thousands (they have one token)."""
    return sum(s.tokens for s in history[: int(steps_to_half(history))]) / 1000


def entropy(history: list[Step]) -> float:
    """Of the last policy, in nats."""
    probs = history[-1].theta.softmax(0)
    return float(-(probs * probs.log()).sum())


def length_of_wrong(history: list[Step]) -> float:
    """Tokens, mean of the last five steps."""
    last = [s.responses for s in history[-5:]]
    return statistics.fmean(float(r.mask.sum(-1)[~r.correct].float().mean()) for r in last)


def careful(history: list[Step]) -> float:
    """Share of careful responses in the first five steps, while it is still cut so often."""
    return statistics.fmean(float(s.responses.kind.float().mean()) for s in history[:5])


RARE = Ways([0.0, -3.89], right=[0.3, 0.9])  # from 2 % of the probability
EQUAL = Ways([k / 5 - 1.5 for k in range(16)], right=[0.5] * 16)
FEW_OPEN = Ways([0.0, -3.89], right=[0.3, 0.9], open_share=0.2)
CONDITIONS: dict[str, tuple[World, Settings]] = {
    "a rare way, ε_high 0.28": (RARE, Settings()),
    "a rare way, ε_high 0.2": (RARE, Settings(clip_eps_high=0.2)),
    "sixteen equal ways, ε_high 0.28": (EQUAL, Settings(steps=120, learning_rate=0.05)),
    "sixteen equal ways, ε_high 0.2": (EQUAL, Settings(steps=120, learning_rate=0.05, clip_eps_high=0.2)),
    "rambling, token-level": (Rambling(), Settings()),
    "rambling, sample-level": (Rambling(), Settings(token_level=False)),
    "careful or brisk": (CarefulOrBrisk(), Settings()),
    "careful or brisk, filtering": (CarefulOrBrisk(), Settings(overlong_filtering=True)),
    "careful or brisk, punishment": (CarefulOrBrisk(), Settings(soft_punishment=True)),
    "one prompt in five open, dynamic sampling": (FEW_OPEN, Settings(steps=80)),
    "one prompt in five open, without": (FEW_OPEN, Settings(steps=80, dynamic_sampling=False)),
}
HYPOTHESES: list[tuple[str, str, str, Measure, str]] = [  # (one, the other, quantity, measure, expected)
    ("a rare way, ε_high 0.28", "a rare way, ε_high 0.2", "steps to half", steps_to_half, "< 0"),
    ("sixteen equal ways, ε_high 0.28", "sixteen equal ways, ε_high 0.2", "entropy", entropy, "> 0"),
    ("rambling, token-level", "rambling, sample-level", "length when wrong", length_of_wrong, "< 0"),
    ("careful or brisk, filtering", "careful or brisk", "share of careful, early", careful, "> 0"),
    ("careful or brisk, punishment", "careful or brisk", "share of careful, early", careful, "< 0"),
    (
        "one prompt in five open, dynamic sampling",
        "one prompt in five open, without",
        "steps to half",
        steps_to_half,
        "< 0",
    ),
    (
        "one prompt in five open, dynamic sampling",
        "one prompt in five open, without",
        "thousand responses to half",
        tokens_to_half,
        "> 0",
    ),
]


def report(found: Mapping[str, Mapping[int, list[Step]]]) -> str:
    """The table: both sides, and the paired difference with its 95 % interval."""
    rows = []
    for number, (first, second, what, measure, expected) in enumerate(HYPOTHESES, start=1):
        sides = [[measure(run) for run in found[name].values()] for name in (first, second)]
        numbers = [a - b for a, b in zip(*sides, strict=True)]
        mean, interval = mean_and_interval(numbers)
        difference = bold(f"{mean:+.3g} ± {interval:.2g}", numbers)
        means = [f"{statistics.fmean(side):.3g}" for side in sides]
        rows.append([f"M{number}", f"{what}: {first} less {second}", *means, difference, expected])
    return markdown(["", "quantity", "one", "the other", "difference", "expected"], rows)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train policies of a few numbers; print what differs.")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(101, 111)))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        name: {seed: train(world, settings, seed) for seed in args.seeds}
        for name, (world, settings) in CONDITIONS.items()
    }
    print(report(found))


if __name__ == "__main__":
    main()
