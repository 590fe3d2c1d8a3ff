"""The equations of DAPO, written out with Python floats and loops: what the tests compare the tensors with.

Nothing here is fast, clever or shared with the package. Each function names its equation (v1 of the paper).
"""

import math
import random
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass
class Response:
    """One response oᵢ: a number a token, one reward, and its advantage."""

    logprobs: list[float]
    old_logprobs: list[float]
    reward: float
    advantage: float = 0.0


Group = list[Response]


def eq7_reward(is_equivalent: bool) -> float:
    """Eq. 7."""
    if is_equivalent:
        return 1.0
    return -1.0


def eq9_advantages(rewards: list[float], eps: float, unbiased: bool) -> list[float]:
    """Eq. 9, right (Eq. 4 is the same), with the authors' eps in the denominator."""
    mean = sum(rewards) / len(rewards)
    sum_of_squares = 0.0
    for reward in rewards:
        sum_of_squares += (reward - mean) ** 2
    if unbiased and len(rewards) > 1:
        std = math.sqrt(sum_of_squares / (len(rewards) - 1))
    else:
        std = math.sqrt(sum_of_squares / len(rewards))
    return [(reward - mean) / (std + eps) for reward in rewards]


def eq9_ratio(logprob: float, old_logprob: float) -> float:
    """Eq. 9, left (Eq. 6 is the same): a quotient of probabilities."""
    return math.exp(logprob) / math.exp(old_logprob)


def eq10_term(ratio: float, advantage: float, eps_low: float, eps_high: float) -> float:
    """The inner term of Eq. 10; with eps_low = eps_high that of Eq. 5."""
    if ratio < 1 - eps_low:
        clipped = 1 - eps_low
    elif ratio > 1 + eps_high:
        clipped = 1 + eps_high
    else:
        clipped = ratio
    return min(ratio * advantage, clipped * advantage)


def eq10_slope(ratio: float, advantage: float, eps_low: float, eps_high: float) -> float:
    """Derivative of `eq10_term` by the ratio, away from its kinks: Â, or 0 where the clip binds."""
    if advantage > 0 and ratio > 1 + eps_high:
        return 0.0
    if advantage < 0 and ratio < 1 - eps_low:
        return 0.0
    return advantage


def dual_clip_term(term: float, advantage: float, c: float) -> float:
    """The authors' lower bound for negative advantages (in no equation)."""
    if advantage < 0:
        return max(term, c * advantage)
    return term


def _term(response: Response, t: int, eps_low: float, eps_high: float) -> float:
    ratio = eq9_ratio(response.logprobs[t], response.old_logprobs[t])
    return eq10_term(ratio, response.advantage, eps_low, eps_high)


def eq5_objective(groups: list[Group], eps: float) -> float:
    """Eq. 5 without its KL term: mean over questions of 1/G Σᵢ 1/|oᵢ| Σₜ."""
    over_questions = 0.0
    for group in groups:
        over_responses = 0.0
        for response in group:
            over_tokens = 0.0
            for t in range(len(response.logprobs)):
                over_tokens += _term(response, t, eps, eps)
            over_responses += over_tokens / len(response.logprobs)
        over_questions += over_responses / len(group)
    return over_questions / len(groups)


def eq8_objective(groups: list[Group], eps_low: float, eps_high: float) -> float:
    """Eq. 8 (and 10, 12) as printed: mean over questions of 1/Σᵢ|oᵢ| Σᵢ Σₜ, the sum over one group."""
    over_questions = 0.0
    for group in groups:
        total = 0.0
        tokens = 0
        for response in group:
            for t in range(len(response.logprobs)):
                total += _term(response, t, eps_low, eps_high)
                tokens += 1
        over_questions += total / tokens
    return over_questions / len(groups)


def gspo_objective(groups: list[Group], eps_low: float, eps_high: float) -> float:
    """GSPO (arXiv 2507.18071): mean over questions and responses of min(sᵢ Âᵢ, clip(sᵢ) Âᵢ)."""
    over_questions = 0.0
    for group in groups:
        over_responses = 0.0
        for response in group:
            likelihood = old_likelihood = 1.0
            for t in range(len(response.logprobs)):
                likelihood *= math.exp(response.logprobs[t])
                old_likelihood *= math.exp(response.old_logprobs[t])
            ratio = (likelihood / old_likelihood) ** (1 / len(response.logprobs))
            over_responses += eq10_term(ratio, response.advantage, eps_low, eps_high)
        over_questions += over_responses / len(group)
    return over_questions / len(groups)


def cispo_weight(response: Response, t: int, eps_low: float, eps_high: float) -> float:
    """The clipped weight of MiniMax-M1 (arXiv 2506.13585), which has no gradient."""
    ratio = eq9_ratio(response.logprobs[t], response.old_logprobs[t])
    return min(max(ratio, 1 - eps_low), 1 + eps_high)


def cispo_objective(groups: list[Group], eps_low: float, eps_high: float) -> float:
    """CISPO (arXiv 2506.13585): weight · Âᵢ · log π over all tokens, divided by their number."""
    total = 0.0
    tokens = 0
    for group in groups:
        for response in group:
            for t in range(len(response.logprobs)):
                weight = cispo_weight(response, t, eps_low, eps_high)
                total += weight * response.advantage * response.logprobs[t]
                tokens += 1
    return total / tokens


def truncated_weight(response: Response, t: int, cap: float) -> float:
    """min(π_old / π_sampler, C); the response's `logprobs` are π_old's, its `old_logprobs` the sampler's."""
    return min(math.exp(response.logprobs[t]) / math.exp(response.old_logprobs[t]), cap)


def truncated_objective(groups: list[Group], sampler: float, cap: float, low: float, high: float) -> float:
    """Eq. 12 with each term times min(π_old / π_sampler, C); the sampler had each token `sampler` nats
    likelier than π_old."""
    total = 0.0
    tokens = 0
    for group in groups:
        for response in group:
            for t in range(len(response.logprobs)):
                old = math.exp(response.old_logprobs[t])
                weight = min(old / math.exp(response.old_logprobs[t] + sampler), cap)
                total += weight * _term(response, t, low, high)
                tokens += 1
    return total / tokens


def eq12_objective(groups: list[Group], eps_low: float, eps_high: float) -> float:
    """Eq. 12 over the tokens of the mini-batch: every token of every group has the same weight (D1)."""
    total = 0.0
    tokens = 0
    for group in groups:
        for response in group:
            for t in range(len(response.logprobs)):
                total += _term(response, t, eps_low, eps_high)
                tokens += 1
    return total / tokens


def eq11_keeps(correct: list[bool]) -> bool:
    """Eq. 11: 0 < number of equivalent answers < G."""
    equivalent = 0
    for answer in correct:
        if answer:
            equivalent += 1
    return 0 < equivalent < len(correct)


def eq13_penalty(length: int, max_length: int, cache_length: int) -> float:
    """Eq. 13, its three lines."""
    if length <= max_length - cache_length:
        return 0.0
    if length <= max_length:
        return ((max_length - cache_length) - length) / cache_length
    return -1.0


@dataclass
class Padded:
    """The same responses as tensors, B = P·G rows of T ≥ the longest, float64."""

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    response_mask: Tensor
    group_tokens: Tensor


def pad(groups: list[Group], extra: int = 0, filler: float = 0.0) -> Padded:
    """Right-pads to the longest response and `extra` more; `filler` stands at padding."""
    responses = [response for group in groups for response in group]
    width = max(len(response.logprobs) for response in responses) + extra
    logprobs = torch.full((len(responses), width), filler, dtype=torch.float64)
    old_logprobs = logprobs.clone()
    mask = torch.zeros(len(responses), width, dtype=torch.bool)
    for i, response in enumerate(responses):
        length = len(response.logprobs)
        logprobs[i, :length] = torch.tensor(response.logprobs, dtype=torch.float64)
        old_logprobs[i, :length] = torch.tensor(response.old_logprobs, dtype=torch.float64)
        mask[i, :length] = True
    return Padded(
        logprobs,
        old_logprobs,
        torch.tensor([response.advantage for response in responses], dtype=torch.float64),
        mask,
        torch.tensor([sum(len(r.logprobs) for r in group) for group in groups for _ in group]),
    )


@st.composite
def ragged_groups(draw: st.DrawFn) -> list[Group]:
    """1–4 groups of 1–5 responses of 1–7 tokens. A third of the ratios lie beyond each of the clip bounds,
    rewards are ±1 with a penalty on some, and advantages are those of Eq. 9."""
    num_groups = draw(st.integers(1, 4))
    group_size = draw(st.integers(1, 5))
    rng = random.Random(draw(st.integers(0, 2**32)))
    groups = []
    for _ in range(num_groups):
        group = []
        for _ in range(group_size):
            length = draw(st.integers(1, 7))
            old = [rng.uniform(-4.0, -0.01) for _ in range(length)]
            new = [x + rng.uniform(-0.7, 0.7) for x in old]
            reward = rng.choice([1.0, -1.0]) + rng.choice([0.0, -0.25, -1.0])
            group.append(Response(new, old, reward))
        advantages = eq9_advantages([r.reward for r in group], 1e-6, unbiased=True)
        for response, advantage in zip(group, advantages, strict=True):
            response.advantage = advantage
        groups.append(group)
    return groups
