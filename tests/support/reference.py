"""One rollout step's updates the plain way: one response at a time, all logits, loops, AdamW, nothing of the
package but its configuration. What the tests compare the real loop with.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dapo_ref.config import Config
from tests.support import oracle


@dataclass
class Sample:
    """One response: tokens, reward, and whether it ran into the cap."""

    prompt: list[int]
    response: list[int]
    reward: float
    truncated: bool


@dataclass
class Step:
    """What the updates of a step show."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    tokens: int = 0
    clipped_low: int = 0
    clipped_high: int = 0
    ratio_max: float = 0.0
    entropy: float = 0.0
    prob: float = 0.0

    def record(self) -> dict[str, float]:
        """The keys of `metrics.jsonl` that follow from it."""
        return {
            "loss": sum(self.losses) / len(self.losses),
            "grad_norm": sum(self.grad_norms) / len(self.grad_norms),
            "policy/entropy": self.entropy / self.tokens,
            "policy/mean_prob": self.prob / self.tokens,
            "policy/clip_frac_low": self.clipped_low / self.tokens,
            "policy/clip_frac_high": self.clipped_high / self.tokens,
            "policy/ratio_max": self.ratio_max,
            "tokens/trained": self.tokens,
        }


def adamw(model: Any, config: Config) -> torch.optim.AdamW:
    """The optimiser of a run."""
    return torch.optim.AdamW(
        model.parameters(),
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
    )


def logprobs_of(model: Any, sample: Sample, temperature: float) -> tuple[Tensor, Tensor]:
    """log π and the entropy at each token of a response."""
    logits = model(input_ids=torch.tensor([sample.prompt + sample.response])).logits[0].float()
    logp = torch.log_softmax(logits[len(sample.prompt) - 1 : -1] / temperature, dim=-1)
    entropy = -(logp.exp() * logp).sum(dim=-1)
    return logp[range(len(sample.response)), sample.response], entropy


def train_step(
    model: Any, optimizer: torch.optim.AdamW, groups: list[list[Sample]], config: Config, step: int
) -> Step:
    """Lines 9–11 of Algorithm 1 for the kept groups, with the paper's objective.

    Args:
        step: from 0, for the warm-up.
    """
    found = Step()
    advantages = [
        oracle.eq9_advantages([s.reward for s in group], 1e-6, config.unbiased_std) for group in groups
    ]
    old = {}
    with torch.no_grad():
        for sample in (sample for group in groups for sample in group):
            if config.overlong_filtering and sample.truncated:
                continue
            old[id(sample)], entropy = logprobs_of(model, sample, config.temperature)
            found.entropy += float(entropy.sum())
            found.prob += float(old[id(sample)].exp().sum())
            found.tokens += len(sample.response)
    for group in optimizer.param_groups:
        warm_up = (step + 1) / config.warmup_steps if config.warmup_steps else 1.0
        group["lr"] = config.learning_rate * min(1.0, warm_up)
    groups_an_update = config.responses_per_update // config.group_size
    for first in range(0, len(groups), groups_an_update):
        mine = range(first, min(first + groups_an_update, len(groups)))
        pairs = [(s, a) for g in mine for s, a in zip(groups[g], advantages[g], strict=True) if id(s) in old]
        if pairs:
            _update(model, optimizer, pairs, old, config, found)
    return found


def _update(
    model: Any,
    optimizer: torch.optim.AdamW,
    pairs: list[tuple[Sample, float]],
    old: dict[int, Tensor],
    config: Config,
    found: Step,
) -> None:
    num_tokens = sum(len(sample.response) for sample, _ in pairs)
    loss = torch.zeros(())
    for sample, advantage in pairs:
        logprobs, _ = logprobs_of(model, sample, config.temperature)
        for logprob, old_logprob in zip(logprobs, old[id(sample)], strict=True):
            ratio = (logprob - old_logprob).exp()
            low, high = 1 - config.clip_eps_low, 1 + config.clip_eps_high
            loss = loss - torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage) / num_tokens
            found.clipped_low += advantage < 0 and ratio.item() < low
            found.clipped_high += advantage > 0 and ratio.item() > high
            found.ratio_max = max(found.ratio_max, ratio.item())
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    optimizer.step()
    found.losses.append(loss.item())
    found.grad_norms.append(norm.item())


def samples_of(groups: Any) -> list[list[Sample]]:
    """Groups of the package as samples."""
    return [
        [Sample(group.prompt_ids, r.response_ids, r.reward, r.truncated) for r in group.rollouts]
        for group in groups
    ]
