"""What a rollout step is measured by: one JSON line a step in `metrics.jsonl`.

The four quantities that §4.3 watches are `response/length_mean`, `reward/mean`, `policy/entropy` and
`policy/mean_prob` (Fig. 7). Shares of right answers are over *all* sampled responses, not only over the
groups that dynamic sampling keeps: those are mixed by construction.

`docs/metrics.md` says what each key means.
"""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dapo_ref.distributed.processes import Processes
from dapo_ref.dynamic_sampling import GroupBuffer
from dapo_ref.objective import Clipping
from dapo_ref.policy.batching import MicroBatch
from dapo_ref.scoring import rewards_of
from dapo_ref.types import Group
from dapo_ref.verifier import Status


@dataclass
class StepMetrics:
    """Collects one rollout step; `record` turns it into a line, the same on every process."""

    timers: dict[str, float] = field(default_factory=dict)
    rollout: dict[str, float] = field(default_factory=dict)
    skipped_updates: int = 0
    grad_norms: list[float] = field(default_factory=list)
    trained_tokens: int = 0
    pending_losses: list[float] = field(default_factory=list)  # of the update in progress; it may be skipped
    # Sums of this process, added up over processes when the step ends.
    loss: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    sampled_tokens: float = 0.0  # tokens under π_old, of which entropy and probability are taken
    entropy: float = 0.0
    prob: float = 0.0
    ratio_max: float = 0.0
    clipped_dual: float = 0.0
    log_ratio_sum: float = 0.0
    high_prob: float = 0.0
    high_prob_max: float = 0.0
    gap_tokens: float = 0.0  # tokens of which the sampler's own log-probability is known
    gap_abs: float = 0.0
    gap_sum: float = 0.0
    gap_max: float = 0.0

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the time of a block to `time/<name>_s`."""
        start = time.perf_counter()
        yield
        self.timers[name] = self.timers.get(name, 0.0) + time.perf_counter() - start

    def add_rollout(self, buffer: GroupBuffer[Group], groups: Sequence[Group]) -> None:
        """Counts what was sampled: `groups` are all of the step, kept or not."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        count = len(rollouts)
        lengths = [len(rollout.response_ids) for rollout in rollouts]
        statuses = [rollout.verdict.status for rollout in rollouts if rollout.verdict]
        self.rollout = {
            "reward/mean": float(rewards_of(groups).mean()),
            "reward/accuracy": sum(rollout.correct for rollout in rollouts) / count,
            "response/length_mean": sum(lengths) / count,
            "response/length_max": max(lengths),
            "response/truncated_frac": sum(rollout.truncated for rollout in rollouts) / count,
            "sampling/groups_generated": buffer.groups_generated,
            "sampling/groups_kept": len(buffer.groups),
            "sampling/groups_qualified": buffer.groups_qualified,
            "sampling/all_correct_frac": buffer.groups_all_correct / buffer.groups_generated,
            "sampling/all_wrong_frac": buffer.groups_all_wrong / buffer.groups_generated,
            "sampling/rounds": buffer.rounds,
            "tokens/generated": sum(lengths),
        }
        if own := [rollout.own for rollout in rollouts if rollout.own]:
            self.rollout["reward/failed"] = sum(bool(o.failure) and not o.timed_out for o in own)
            self.rollout["reward/timed_out"] = sum(o.timed_out for o in own)
        self.rollout |= {f"verdict/{status}_frac": statuses.count(status) / count for status in Status}

    def add_old_policy(self, micro: MicroBatch, entropy: Tensor) -> None:
        """Adds a micro-batch whose `old_logprobs` are filled in: what was sampled from (Fig. 7), and how far
        that is from what the sampler computed.

        Args:
            entropy: [b, T] of π_old.
        """
        assert micro.old_logprobs is not None
        mask = micro.response_mask
        self.sampled_tokens += float(mask.sum())
        self.entropy += float(entropy.detach()[mask].sum())
        self.prob += float(micro.old_logprobs[mask].exp().sum())
        if micro.sampler_logprobs is not None and mask.any():
            gap = (micro.sampler_logprobs - micro.old_logprobs)[mask].double()
            self.gap_tokens += len(gap)
            self.gap_abs += float(gap.abs().sum())
            self.gap_sum += float(gap.sum())
            self.gap_max = max(self.gap_max, float(gap.abs().max()))

    def add_microbatch(self, loss: Tensor, clipping: Clipping) -> None:
        """Adds what one forward pass of an update shows."""
        self.pending_losses.append(float(loss.detach()))
        self.clipped_low += clipping.low
        self.clipped_high += clipping.high
        self.clipped_dual += clipping.dual
        self.log_ratio_sum += clipping.log_ratio_sum
        self.high_prob += clipping.high_prob_sum
        self.high_prob_max = max(self.high_prob_max, clipping.high_prob_max)
        self.ratio_max = max(self.ratio_max, clipping.ratio_max)

    def end_update(self, grad_norm: float, num_tokens: int) -> list[float]:
        """Counts one optimiser update; a norm that is not finite is one that was skipped.

        Returns:
            The losses of its micro-batches on this process.
        """
        losses, self.pending_losses = self.pending_losses, []
        self.trained_tokens += num_tokens
        if math.isfinite(grad_norm):
            self.grad_norms.append(grad_norm)
            self.loss += sum(losses)
        else:
            self.skipped_updates += 1
        return losses

    def record(self, processes: Processes, step: int, updates: int, learning_rate: float) -> dict[str, Any]:
        """The line of this step; a collective.

        Args:
            processes: sums are taken over them.
            step: rollout steps done, this one included.
            updates: optimiser updates of the run so far.
            learning_rate: of this step.
        """
        sums = processes.sum(
            [
                *(self.loss, self.clipped_low, self.clipped_high, self.clipped_dual, self.log_ratio_sum),
                *(self.sampled_tokens, self.entropy, self.prob, self.high_prob),
                *(self.gap_tokens, self.gap_abs, self.gap_sum),
            ]
        )
        loss, low, high, dual, log_ratio, sampled, entropy, prob, high_prob, *gap = sums
        names = sorted(self.timers)
        ratio_max, high_prob_max, gap_max, *times = processes.max(
            [self.ratio_max, self.high_prob_max, self.gap_max, *(self.timers[name] for name in names)]
        )
        made = len(self.grad_norms)
        record = {
            "step": step,
            "updates": updates,
            "loss": loss / made if made else None,
            "grad_norm": sum(self.grad_norms) / made if made else None,
            "lr": learning_rate,
            **self.rollout,
            "policy/entropy": entropy / max(sampled, 1),
            "policy/mean_prob": prob / max(sampled, 1),
            "policy/clip_frac_low": low / max(self.trained_tokens, 1),
            "policy/clip_frac_high": high / max(self.trained_tokens, 1),
            "policy/clip_high_prob": high_prob / high if high else None,
            "policy/clip_high_prob_max": high_prob_max if high else None,
            "policy/clip_frac_dual": dual / max(self.trained_tokens, 1),
            "policy/kl_old": log_ratio / max(self.trained_tokens, 1),
            "policy/ratio_max": ratio_max,
            "policy/sampler_gap_mean": gap[1] / gap[0] if gap[0] else None,
            "policy/sampler_gap_max": gap_max if gap[0] else None,
            "policy/sampler_gap_kl": gap[2] / gap[0] if gap[0] else None,
            "updates/skipped": self.skipped_updates,
            "tokens/trained": self.trained_tokens,
            **{f"time/{name}_s": seconds for name, seconds in zip(names, times, strict=True)},
            "memory/peak_mb": processes.peak_memory_mb(),
        }
        return {key: None if value is None else finite(value) for key, value in record.items()}


def finite(value: float) -> float | None:
    """JSON has no nan and no inf: they become null."""
    return value if math.isfinite(value) else None


def summary_line(record: Mapping[str, Any], of_steps: int, left_s: float = math.nan) -> str:
    """A step in one line of at most 120 columns, for people; lines stand under one another.

    Args:
        record: of the step.
        of_steps: of the run.
        left_s: seconds until the run's end, as far as can be told.
    """
    norm, entropy = record["grad_norm"], record["policy/entropy"]
    kept = f"{record['sampling/groups_kept']}/{record['sampling/groups_generated']}"
    return (
        f"step {record['step']:>{len(str(of_steps))}}/{of_steps}  right {record['reward/accuracy']:.3f}  "
        f"length {record['response/length_mean']:>5.0f}  cut {record['response/truncated_frac']:.2f}  "
        f"kept {kept:>8} in {record['sampling/rounds']}  "
        f"entropy {'nan' if entropy is None else f'{entropy:.2f}':>4}  "
        f"grad {'skipped' if norm is None else f'{norm:.3g}':>7}  "
        f"{duration(seconds_of(record)):>6}" + (f"  {duration(left_s)} left" if left_s > 0 else "")
    )


def seconds_of(record: Mapping[str, Any]) -> float:
    """What a step took, all phases."""
    return sum(value for key, value in record.items() if key.startswith("time/"))


def duration(seconds: float) -> str:
    """A time in its largest fitting unit: 9.7 s, 12 min, 3 h."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
