"""Which keys a run may change when it is resumed, and what that does to its numbers."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from dapo_ref.config.keys import Config

# Of one start, not of the run: they are not compared.
START_KEYS = frozenset({"output_dir", "resume", "allow_config_change"})

# What a run may change when it is resumed, with the same numbers to the last bit.
FREE_KEYS = frozenset(
    {
        *("rollout_steps", "checkpoint_every", "keep_checkpoints", "on_checkpoint_error", "tracker"),
        "keep_rollouts",
        *("process_group_timeout_s", "max_skipped_updates", "verifier_workers", "compare_recipe"),
        "reward_in_process",
        *("record_tokens", "evaluate_every", "eval_data", "eval_samples_per_problem", "eval_top_p"),
        "exceed_positions",
    }
)

# The same mathematics, but no longer the same numbers.
INEXACT_KEYS = {
    "tokens_per_microbatch": "sums are taken in another order, the last bits differ",
    "packing": "sums are taken in another order, the last bits differ",
    "gradient_checkpointing": "activations are computed twice, the last bits may differ",
    "rollout_batch_size": "other responses are drawn from the same distribution",
    "rollout_kv_tokens": "other responses are drawn from the same distribution",
    "rollout_weights": "other responses are drawn from the same distribution",
    "sampler": "other responses are drawn from the same distribution",
}


@dataclass(frozen=True)
class Change:
    """A key whose value differs between two starts of a run."""

    key: str
    before: Any
    after: Any

    @property
    def changes_mathematics(self) -> bool:
        """Whether the run that goes on is another algorithm's, or another data set's."""
        return self.key not in FREE_KEYS and self.key not in INEXACT_KEYS

    def __str__(self) -> str:
        note = f"; {INEXACT_KEYS[self.key]}" if self.key in INEXACT_KEYS else ""
        return f"{self.key} changes from {self.before!r} to {self.after!r}{note}"


def differences(before: Config, after: Config) -> list[Change]:
    """The keys in which two configurations of a run differ, in the order of the fields."""
    names = [field.name for field in dataclasses.fields(Config) if field.name not in START_KEYS]
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    return [Change(name, old, new) for name, old, new in pairs if old != new]
