"""How the policy computes its log-probabilities, chosen by comparing it with the model's own forward.

A fast path packs the tokens and takes the vocabulary in chunks. Whether it is right for a model depends on
all that the model does between its tokens and its logits, which no list of names can hold. So the model's own
`model(input_ids).logits` decides: a small model of the same configuration with random weights goes both ways,
before any weights are loaded, and a path that does not give the same numbers is not taken.
"""

import copy
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from dapo_ref.data import Problem
from dapo_ref.errors import ConfigError, one_line
from dapo_ref.policy.batching import collate, microbatches
from dapo_ref.policy.logprobs import Policy
from dapo_ref.policy.small_model import VOCABULARY, original_positions, positions_change, small_model
from dapo_ref.types import Batch, Group, Rollout

log = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Nats, in float32: rounding stays below 1e-4, what a model does beside a plain head is above 1e-2."""


@dataclass(frozen=True)
class Path:
    """packed: without padding, each prompt once. own_head: the model's own logits, not the chunked head."""

    packed: bool
    own_head: bool

    def __str__(self) -> str:
        return f"{'packed' if self.packed else 'padded'}, {'own' if self.own_head else 'chunked'} head"


PATHS = (Path(True, False), Path(False, False), Path(True, True), Path(False, True))
"""From the fastest to the slowest."""


@dataclass(frozen=True)
class Trial:
    """What became of a path: the largest difference in nats, or why it did not run at all."""

    path: Path
    difference: float
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Whether it gives the model's numbers."""
        return self.difference <= TOLERANCE

    def __str__(self) -> str:
        return f"{self.path}: {self.reason or f'off by {self.difference:.2g} nats'}"


def choose_path(hf_config: Any, dtype: torch.dtype, packing: bool, num_positions: int) -> Path:
    """The fastest path that gives the model's own log-probabilities; leaves torch's random state as it was.

    Args:
        hf_config: of the model.
        dtype: that it computes in.
        packing: whether packed paths may be taken.
        num_positions: the longest prompt and response together.

    Raises:
        ConfigError: there is none; the message has model type and size of the difference.
    """
    trials = []
    for trial in try_paths(hf_config, dtype, num_positions):
        if trial.path.packed and not packing:
            continue
        trials.append(trial)
        if trial.passed:
            _say_what_it_costs(trial, hf_config)
            return trial.path
    raise ConfigError(
        f"model: log-probabilities of type {hf_config.model_type!r} cannot be computed as the model does "
        f"itself: {'; '.join(map(str, trials))}{_rope_hint(hf_config, num_positions)}"
    )


def text_architecture(hf_config: Any) -> tuple[type[PreTrainedModel], Any]:
    """Class and configuration of the model that transformers builds for text: of one that also takes images
    or sound, its text model's where that is a model of its own.

    Raises:
        ConfigError: it is not a causal language model, or takes more than text.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(hf_config)
    except Exception as error:  # of any model's code
        raise ConfigError(
            f"model: type {hf_config.model_type!r} cannot be built: {one_line(error)}"
        ) from error
    config = model.config
    others = [name for name in config.sub_configs if name not in ("text_config", "decoder")]
    if others:
        raise ConfigError(
            f"model: type {config.model_type!r} takes more than text ({', '.join(others)}); save its text "
            "model alone as a Hugging Face directory and give that"
        )
    return type(model), config


def try_paths(hf_config: Any, dtype: torch.dtype, num_positions: int = 0) -> Iterator[Trial]:
    """Compares each path in turn with the model's own forward, on a shrunken copy with random weights.

    Raises:
        ConfigError: the copy itself does not run, or sees tokens to the right of the one it stands at.
    """
    with torch.random.fork_rng(devices=[]):
        batch = _few_rows()
        model = small_model(*text_architecture(hf_config), num_positions)
        try:
            truth, seen_ahead = _own_logprobs(model, batch)
        except Exception as error:
            raise ConfigError(
                f"model: model type {hf_config.model_type!r} does not run on tokens alone: {one_line(error)}"
            ) from error
        if seen_ahead > TOLERANCE:
            raise ConfigError(
                f"model: model type {hf_config.model_type!r} is not causal: a token's prediction changes by "
                f"{seen_ahead:.2g} nats with the tokens after it; take a decoder (`is_decoder: true`)"
            )
        for path in PATHS:
            yield _try(model, path, batch, truth, dtype)


def _try(model: PreTrainedModel, path: Path, batch: Batch, truth: list[Tensor], dtype: torch.dtype) -> Trial:
    """In float32 twice, for randomness; then in bf16, whose error must be like the model's own in bf16."""
    try:
        difference = max(_difference(_path_logprobs(model, path, batch), truth) for _ in range(2))
        if difference <= TOLERANCE and dtype != torch.float32:
            low: Any = copy.deepcopy(model)
            low.to(dtype)
            own = _mean_error(_own_logprobs(low, batch)[0], truth)
            found = _mean_error(_path_logprobs(low, path, batch), truth)
            if not found <= 2 * own + 0.02:
                return Trial(
                    path, found, f"off by {found:.2g} nats in {dtype}, the model itself by {own:.2g}"
                )
    except Exception as error:  # of any model's code: a path that fails is not taken
        return Trial(path, math.inf, one_line(error))
    return Trial(path, difference if math.isfinite(difference) else math.inf)


def _difference(found: list[Tensor], truth: list[Tensor]) -> float:
    largest = torch.stack([(f - t).abs().max() for f, t in zip(found, truth, strict=True)]).max()
    return math.inf if largest.isnan() else float(largest)


def _mean_error(found: list[Tensor], truth: list[Tensor]) -> float:
    return float((torch.cat(found) - torch.cat(truth)).abs().mean())


def _few_rows() -> Batch:
    """Two groups of ragged responses, one with a beginning in common that is computed once."""
    pick = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(8, VOCABULARY, (count,), generator=pick).tolist()

    beginning = tokens(17)
    groups = [
        Group(Problem((), "0", ""), prompt, [Rollout(tokens(n), "", False, reward=0.0) for n in lengths])
        for prompt, lengths in ((beginning + tokens(1), (9, 2)), (beginning + tokens(6), (1, 13)))
    ]
    batch = collate(groups, overlong_filtering=False)
    batch.advantages = torch.zeros(len(batch))
    return batch


@torch.no_grad()
def _own_logprobs(model: PreTrainedModel, batch: Batch) -> tuple[list[Tensor], float]:
    """log π of each response by the model's forward of its row alone; how much a row cut short differs."""
    found: list[Tensor] = []
    seen_ahead = 0.0
    for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True):
        ids = torch.tensor([prompt + response])
        logits = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(dim=-1)
        if model.dtype == torch.float32 and not found and not positions_change(model.config):
            cut = model(input_ids=ids[:, :-4], use_cache=False).logits[0].float().log_softmax(dim=-1)
            seen_ahead = float((cut - logits[:-4]).abs().max())
        found.append(logits[len(prompt) - 1 : -1].gather(1, torch.tensor(response)[:, None])[:, 0])
    return found, seen_ahead


@torch.no_grad()
def _path_logprobs(model: PreTrainedModel, path: Path, batch: Batch) -> list[Tensor]:
    """The same by a path, in train mode, as the loop does it."""
    policy = Policy(copy.deepcopy(model), path.packed, path.own_head)
    policy.train()
    found: list[Tensor] = [torch.empty(0)] * len(batch)
    for micro in microbatches(batch, range(len(batch)), 4096, 1, 0, packed=path.packed):
        logprobs, _ = policy(micro, 1.0)
        for row, values in zip(micro.rows, logprobs, strict=True):
            found[row] = values[: len(batch.response_ids[row])]
    return found


def _rope_hint(hf_config: Any, num_positions: int) -> str:
    text = hf_config.get_text_config(decoder=True)
    if not positions_change(hf_config) or num_positions <= original_positions(text):
        return ""
    return (
        f"; its rotary factors change beyond {original_positions(text)} positions: keep max_prompt_length + "
        f"max_response_length ({num_positions}) within them"
    )


def _say_what_it_costs(trial: Trial, hf_config: Any) -> None:
    kind = hf_config.model_type
    if trial.path.own_head:
        log.warning(
            "model type %r changes its logits after its head: its own forward is used, which holds all "
            "logits of a micro-batch (tokens_per_microbatch × vocabulary × 4 bytes, several times); lower "
            "tokens_per_microbatch if memory runs out",
            kind,
        )
    if not trial.path.packed:
        log.info("model type %r is computed with padded rows, each prompt once a response", kind)
