"""Switches and other losses beside the executed code of verl, TRL and OpenRLHF, on the same random batches.

    pip download --no-deps --dest FOLDER verl==0.9.1 trl==1.16.0 openrlhf==0.11.2
    for wheel in FOLDER/*.whl; do unzip -qo "$wheel" -d FOLDER; done
    python benchmarks/others.py FOLDER

Functions are compiled out of the others' files as they are; nothing of theirs is installed or kept here.
TRL's loss is part of a method: the lines from the log-ratio to the reduction are run with the names they use.
OpenRLHF's leave-one-out baseline and verl's punishment are lines among others and stand here as formulas.
"""

import argparse
import ast
import random
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dapo_ref.loss import masked_ratio, masked_surrogate, sample_level_mean, token_level_mean
from dapo_ref.loss_variants import (
    centred_advantages,
    cispo_surrogate,
    constant_length_mean,
    dual_clipped,
    gspo_surrogate,
    leave_one_out_advantages,
)
from dapo_ref.reward import soft_overlong_penalty

BATCHES = 240
CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
OPENRLHF = "openrlhf-0.11.2.data/purelib/openrlhf/models"


class VerlConfig(SimpleNamespace):
    """What verl's losses read of their configuration."""

    clip_ratio, clip_ratio_low, clip_ratio_high = 0.2, CLIP["clip_eps_low"], CLIP["clip_eps_high"]
    clip_ratio_c, global_batch_info = 3.0, {}

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)


def compiled(file: Path, *names: str, **globals_: Any) -> SimpleNamespace:
    """Functions and classes of a file, without its imports and their decorators."""
    space = {
        **{"torch": torch, "nn": torch.nn, "np": np, "defaultdict": defaultdict},
        **{"Any": Any, "Optional": Optional, "DictConfig": dict},
        **{"ActorConfig": VerlConfig, "AlgoConfig": type("AlgoConfig", (), {})},
        **globals_,
    }
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if getattr(node, "name", None) in names:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), str(file), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})


def trl_loss(file: Path) -> Any:
    """TRL's loss as a function of (logprobs, old_logprobs, advantages, mask, loss_type, level, high, cap)."""
    lines = file.read_text(encoding="utf-8").split("\n")
    first = next(
        i
        for i, line in enumerate(lines)
        if line.strip() == "log_ratio = per_token_logps - old_per_token_logps"
    )
    branch = 'elif self.loss_type == "luspo":'
    last = [i for i, line in enumerate(lines) if line.strip() == branch and i > first][-1]
    code = compile(textwrap.dedent("\n".join(lines[first:last])), str(file), "exec")

    def loss(
        logprobs: Tensor,
        old: Tensor,
        advantages: Tensor,
        mask: Tensor,
        kind: str,
        level: str,
        high: float,
        cap: int,
    ) -> Tensor:
        arguments = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
        trainer = SimpleNamespace(
            **{
                "importance_sampling_level": level,
                "loss_type": kind,
                "max_completion_length": cap,
                "beta": 0.0,
            },
            **{"epsilon_low": CLIP["clip_eps_low"], "epsilon_high": high, "args": arguments},
            **{"model": SimpleNamespace(training=True), "accelerator": SimpleNamespace(num_processes=1)},
            **{"current_gradient_accumulation_steps": 1, "top_entropy_quantile": 1.0, "use_vllm": False},
            off_policy_mask_threshold=None,
        )
        names = {"torch": torch, "self": trainer, "per_token_logps": logprobs, "old_per_token_logps": old}
        names |= {
            "advantages": advantages.unsqueeze(1),
            "mask": mask.to(logprobs.dtype),
            "entropy_mask": None,
        }
        names |= {"inputs": {"num_items_in_batch": mask.sum().to(logprobs.dtype)}}
        exec(code, names)
        return names["loss"]

    return loss


class Table:
    """The largest difference of each row: relative for losses and their gradients, absolute for the rest."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def loss(self, term: str, whose: str, ours: Tensor, theirs: Tensor, logprobs: Tensor) -> None:
        (a,) = torch.autograd.grad(ours, logprobs, retain_graph=True)
        (b,) = torch.autograd.grad(theirs, logprobs, retain_graph=True)
        ours, theirs = ours.detach(), theirs.detach()
        self.value(term, whose, ours / theirs.abs().clamp(min=1), theirs / theirs.abs().clamp(min=1))
        row = self.rows[term, whose]
        row[1] = max(row[1], float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)))

    def value(self, term: str, whose: str, ours: Tensor | float, theirs: Tensor | float) -> None:
        a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (ours, theirs))
        row = self.rows[term, whose]
        row[0] = max(row[0], float((a - b.reshape(a.shape)).abs().max()))

    def print(self) -> None:
        for (term, whose), (value, gradient) in self.rows.items():
            print(f"{term:<28}{whose:<22} value {value:.1e}   gradient {gradient:.1e}")


def losses(
    table: Table, verl: Any, rlhf: Any, trl: Any, rng: random.Random, generator: torch.Generator
) -> None:
    """One random batch through every loss and metric."""
    rows, width = rng.choice([2, 4, 8, 16]), rng.choice([1, 3, 7, 20])
    cap = width + 5
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    logprobs = (-4 * torch.rand(rows, width, generator=generator, dtype=torch.float64)).requires_grad_()
    noise = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    old = logprobs.detach() + rng.choice([0.0, 0.05, 0.5, 1.5]) * noise
    adv = torch.randn(rows, generator=generator, dtype=torch.float64)
    wide, floats, config = adv[:, None].expand(rows, width), mask.double(), VerlConfig()
    batch, padded = (logprobs, old, adv, mask), (old, logprobs, wide, floats)
    high = CLIP["clip_eps_high"]

    gspo = -sample_level_mean(gspo_surrogate(*batch, **CLIP), mask, rows)
    theirs = verl.compute_policy_loss_gspo(*padded, "seq-mean-token-mean", config)[0]
    table.loss("gspo", "verl", gspo, theirs, logprobs)
    policy_loss = rlhf.PolicyLoss(*CLIP.values(), policy_loss_type="gspo")
    table.loss("gspo", "openrlhf", gspo, policy_loss(logprobs, old, wide, floats)[0], logprobs)
    table.loss("gspo", "trl", gspo, trl(*batch, "grpo", "sequence", high, cap), logprobs)

    cispo = -token_level_mean(cispo_surrogate(*batch, **CLIP), mask, mask.sum())
    theirs, metrics = verl.compute_policy_loss_cispo(*padded, "token-mean", config)
    table.loss("cispo", "verl", cispo, theirs, logprobs)
    one_sided = cispo_surrogate(*batch, clip_eps_low=1.0, clip_eps_high=3.0)
    theirs = trl(*batch, "cispo", "token", 4.0, cap)
    table.loss(
        "cispo, no lower bound", "trl", -token_level_mean(one_sided, mask, mask.sum()), theirs, logprobs
    )

    surrogate = masked_surrogate(*batch, **CLIP)
    constant = -constant_length_mean(surrogate, mask, rows, cap)
    table.loss("constant length", "trl", constant, trl(*batch, "dr_grpo", "token", high, cap), logprobs)
    theirs = verl.agg_loss(-surrogate, floats, "seq-mean-token-sum-norm", loss_scale_factor=cap)
    table.loss("constant length", "verl", constant, theirs, logprobs)

    kl = (old - logprobs.detach())[mask].mean()
    table.value("kl_old", "verl", kl, metrics["actor/ppo_kl"])
    table.value("kl_old", "openrlhf", kl, rlhf.PolicyLoss(*CLIP.values())(logprobs, old, wide, floats)[2])
    ratio = masked_ratio(logprobs.detach(), old, mask)
    dual = dual_clipped(ratio, adv, mask, config.clip_ratio_c) / mask.sum()
    metrics = verl.compute_policy_loss_vanilla(*padded, "token-mean", config)[1]
    table.value("share of the dual clip", "verl", dual, metrics["actor/pg_clipfrac_lower"])


def advantages(table: Table, verl: Any, rng: random.Random, generator: torch.Generator) -> None:
    """One random matrix of rewards, and one batch of lengths."""
    groups, size = rng.choice([1, 3, 5]), rng.choice([2, 4, 8, 16])
    rewards = torch.randn(groups, size, generator=generator, dtype=torch.float64)
    if rng.random() < 1 / 3:
        rewards = rewards.sign()
    column, index = rewards.reshape(-1, 1), np.repeat(np.arange(groups), size)
    ones = torch.ones_like(column)
    ours = leave_one_out_advantages(rewards)
    theirs = verl.compute_rloo_outcome_advantage(column.clone(), ones, index)[0]
    table.value("leave-one-out", "verl", ours, theirs)
    others = (rewards.sum(-1, keepdim=True) - rewards) / (size - 1)
    table.value("leave-one-out", "openrlhf (formula)", ours, rewards - others)
    theirs = verl.compute_grpo_outcome_advantage(column.clone(), ones, index, norm_adv_by_std_in_grpo=False)[
        0
    ]
    table.value("centred", "verl", centred_advantages(rewards), theirs)
    lengths = torch.randint(1, 101, (groups * size,), generator=generator)
    punished = ((80 - lengths) / 20 * 2.5).clamp(max=0)
    table.value("penalty factor", "verl (formula)", 2.5 * soft_overlong_penalty(lengths, 100, 20), punished)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the unpacked wheels")
    folder = parser.parse_args().folder
    masked = compiled(folder / "verl/utils/torch_functional.py", "masked_sum", "masked_mean")
    verl = compiled(
        folder / "verl/trainer/ppo/core_algos.py",
        *("agg_loss", "compute_policy_loss_gspo", "compute_policy_loss_cispo", "compute_policy_loss_vanilla"),
        *("compute_rloo_outcome_advantage", "compute_grpo_outcome_advantage"),
        verl_F=masked,
    )
    mean = compiled(folder / OPENRLHF / "utils.py", "masked_mean").masked_mean
    rlhf = compiled(folder / OPENRLHF / "loss.py", "aggregate_loss", "PolicyLoss", masked_mean=mean)
    trl = trl_loss(folder / "trl/trainer/grpo_trainer.py")
    table, rng, generator = Table(), random.Random(0), torch.Generator().manual_seed(0)
    for _ in range(BATCHES):
        losses(table, verl, rlhf, trl, rng, generator)
        advantages(table, verl, rng, generator)
    table.print()


if __name__ == "__main__":
    main()
