"""What is checked of the engine, and of the model that it samples from."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dapo_ref.data import Problem
from dapo_ref.distributed.engine import Engine
from dapo_ref.objective import build_objective
from dapo_ref.plan import Phase
from dapo_ref.policy.batching import collate, microbatches, minibatches
from dapo_ref.policy.pretrained import torch_dtype
from dapo_ref.policy.rollout import sample_groups
from dapo_ref.preflight.checks import FailedError, NotHereError
from dapo_ref.preflight.machine import seconds
from dapo_ref.types import Batch, Group, Rollout

RESPONSE_LENGTH, GROUP_SIZE, NUM_PROMPTS = 24, 4, 3
GAPS = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""Nats by which two ways to compute a log-probability may differ on average."""
FUSED = re.compile(r"flash|fmha|cudnn\w*sdpa|mem_eff|splitkv")
"""In the names of kernels that never hold all scores."""


def drawn_batch(vocabulary: int) -> Batch:
    """Ragged groups of random tokens; half of the responses are praised, half are punished."""
    pick = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=pick).tolist()

    groups = []
    for i, lengths in enumerate([(9, 30, 2, 17), (40, 5, 1, 23)] * 2):
        rollouts = [Rollout(tokens(n), "", False, reward=0.0) for n in lengths]
        groups.append(Group(Problem((), "0", ""), tokens(20 + i), rollouts))
    batch = collate(groups, overlong_filtering=False)
    batch.advantages = torch.tensor([1.0, -1.0]).repeat(len(batch) // 2)
    return batch


class PolicyChecks:
    """What is checked of the engine and of the model that it samples from; all are collectives."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.config = engine.config
        self.vocabulary = engine.policy.model.config.get_text_config().vocab_size
        self.batch = drawn_batch(self.vocabulary)

    def precision(self) -> str:
        """Master weights and the sum over the processes are fp32, whatever is computed in."""
        found = self.engine.state_dtypes()
        wrong = [f"{what} are {dtype}" for what, dtype in found.items() if dtype != torch.float32]
        if wrong:
            raise FailedError(
                f"{', '.join(wrong)}, not float32: take the DeepSpeed version of requirements.txt"
            )
        return f"{' and '.join(found)} in float32"

    def update(self) -> str:
        """One optimiser update: forward, backward, reduction, step."""
        (mini,) = minibatches(self.batch, len(self.batch))
        plan = self.engine.microbatches(self.batch, mini)
        objective = build_objective(self.config)
        for micro in plan:
            logprobs, _ = self.engine.logprobs(micro)
            micro.old_logprobs = logprobs.detach()
            self.engine.backward(objective(logprobs, micro, mini), last=micro is plan[-1])
        norm = self.engine.step(self.config.learning_rate)
        if not (math.isfinite(norm) and norm > 0):
            raise FailedError(f"the gradient's norm is {norm}: try --precision fp32 and --packing false")
        return f"{len(plan)} micro-batches a process, gradient norm {norm:.3g}"

    @torch.no_grad()
    def packing(self) -> str:
        """Packed rows give what padded ones give."""
        if not self.engine.policy.packed:
            raise NotHereError("the model is computed with padded rows")
        packed = self._logprobs(self.batch, packed=True)
        with self.engine.policy.generating():
            padded = self._logprobs(self.batch, packed=False)
        return self._close(packed, padded, "packed and padded rows", "set packing to false")

    @torch.no_grad()
    def sampling(self) -> str:
        """Rows leave and join, and the sampler's log-probabilities are those of training."""
        groups = self._sample(RESPONSE_LENGTH, rollout_batch_size=GROUP_SIZE + 1)
        batch = collate(groups, overlong_filtering=False)
        batch.advantages = torch.zeros(len(batch))
        trained = self._logprobs(batch, packed=self.engine.policy.packed)
        sampled = {row: torch.tensor(list(values)) for row, values in enumerate(batch.sampler_logprobs)}
        if not all(len(values) for values in sampled.values()):
            raise NotHereError("this sampler does not tell its log-probabilities with top_p below 1")
        return self._close(sampled, trained, "sampled and trained policy", "see policy/sampler_gap_mean")

    def decoding(self) -> str:
        """A token takes as long at lengths that were not there before as at those that were."""
        self._require_gpu()
        new, again = (
            seconds(lambda: self._sample(64, prompt_length=777), self.engine.device, times=1) / 64
            for _ in range(2)
        )
        text = f"{1e3 * new:.1f} ms a token at new lengths, {1e3 * again:.1f} ms at the same again"
        if new > 3 * again + 0.02:
            raise FailedError(f"{text}: attention is planned for each length; switch its cuDNN kernel off")
        return text

    def kernels(self) -> str:
        """Names of the attention kernels of a packed forward and backward pass and of sampling."""
        self._require_gpu()
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            self.update()
            self._sample(4)
        names = {event.key for event in trace.key_averages()}
        found = sorted({word.group() for name in names if (word := FUSED.search(name.lower()))})
        if not found:
            raise FailedError("no fused attention kernel ran: rows of the paper's length will not fit")
        return ", ".join(found)

    def memory(self, planned: Callable[[], Phase]) -> str:
        """What the plan's largest phase takes is allocated once and freed.

        Args:
            planned: that phase; called on a GPU alone.
        """
        self._require_gpu()
        phase = planned()
        text = f"{phase.total / 1e9:.1f} GB planned for {phase.name}"
        missing = max(0, int(phase.total) - torch.cuda.memory_allocated())
        try:
            torch.empty(missing, dtype=torch.uint8, device=self.engine.device)
        except torch.OutOfMemoryError as error:
            raise FailedError(f"{text} do not fit: {phase.turn}; see train.py --plan") from error
        finally:
            torch.cuda.empty_cache()
        return f"{text} fit"

    def _require_gpu(self) -> None:
        if self.engine.device.type != "cuda":
            raise NotHereError("for GPUs")

    def _sample(self, length: int, prompt_length: int = 20, **changes: Any) -> list[Group]:
        """Some groups, with end tokens enough for lengths to differ."""
        sampling = dataclasses.replace(
            self.config.sampling, group_size=GROUP_SIZE, max_response_length=length, **changes
        )
        pick = torch.Generator().manual_seed(1)
        prompts = [
            (
                Problem((), "0", ""),
                torch.randint(self.vocabulary, (prompt_length + 3 * i,), generator=pick).tolist(),
            )
            for i in range(NUM_PROMPTS)
        ]
        self.engine.seed(0)
        ends = range(0, self.vocabulary, 16) if length == RESPONSE_LENGTH else [0]
        with self.engine.rollout_model() as model:
            return sample_groups(model, _NoTokenizer(self.vocabulary), prompts, sampling, list(ends))  # type: ignore[arg-type]

    def _logprobs(self, batch: Batch, packed: bool) -> dict[int, Tensor]:
        """log π of each response; every process computes all of them."""
        found = {}
        for micro in microbatches(batch, range(len(batch)), 256, 1, 0, packed=packed):
            logprobs, _ = self.engine.logprobs(micro.to(self.engine.device))
            for row, values in zip(micro.rows, logprobs.cpu(), strict=True):
                found[row] = values[: len(batch.response_ids[row])]
        return found

    def _close(self, one: dict[int, Tensor], other: dict[int, Tensor], what: str, hint: str) -> str:
        gap = (torch.cat([one[row] for row in one]) - torch.cat([other[row] for row in one])).abs()
        text = f"{what} differ by {float(gap.mean()):.2g} nats on average, {float(gap.max()):.2g} at most"
        if not float(gap.mean()) <= GAPS[torch_dtype(self.config)]:
            raise FailedError(f"{text}: {hint}")
        return text


class _NoTokenizer:
    """Nobody reads what is sampled here."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return {"": self._vocabulary - 1}

    def batch_decode(self, rows: Sequence[list[int]], **kwargs: Any) -> list[str]:
        return [""] * len(rows)
