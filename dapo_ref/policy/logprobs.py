"""Token log-probabilities and entropy without ever holding the logits of a batch.

At a vocabulary of 150k the logits of 8k tokens are 5 GB in fp32, and a plain backward pass holds several
copies. Here the vocabulary projection runs over chunks of tokens inside an autograd function that keeps two
numbers a token, and the backward pass computes each chunk again.

The function runs *inside the forward of the output head*, because ZeRO-3 gathers the weights of a module
around its forward and its backward; called from outside, the weight would be an empty shard.

Temperature is divided out here exactly as the sampler does it, log softmax(z / temperature), so that π_θ is
the policy that was sampled (Eq. 9).

Dimension key: n tokens, H hidden size, V vocabulary; b responses of T tokens.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from dapo_ref.policy.attention import ATTENTION
from dapo_ref.policy.batching import MicroBatch

CHUNK_ELEMENTS = 2**25
"""Logits held at once: 128 MB in fp32."""
GPU_CHUNK_ELEMENTS = 2**28
"""On a GPU, which small products leave idle: 1 GB in fp32."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    num_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """log π(target) and the entropy of π at each token, π = softmax((hidden · weightᵀ + bias) / temperature).

    Args:
        hidden: [n, H] last hidden states.
        weight, bias: [V, H], [V] of the output head.
        targets: [n] token ids.
        temperature: of the sampler, above 0.
        num_tokens: π is over the first so many tokens, which the tokenizer knows; all V where None.

    Returns:
        ([n], [n]) float32, in nats: log-probabilities, which carry the gradient, and entropies over the full
        vocabulary, which do not.
    """
    return _ChunkedLogprobs.apply(hidden, weight, bias, targets, temperature, num_tokens or len(weight))


class _ChunkedLogprobs(torch.autograd.Function):
    """d log π(y) / d zᵥ = ([v = y] − πᵥ) / temperature, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        num_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(targets), dtype=torch.float32)
        entropy = torch.empty_like(logprobs)
        log_norm = torch.empty_like(logprobs)
        for rows in _chunks(len(targets), weight):
            logits = _scaled_logits(hidden[rows], weight, bias, temperature, num_tokens)
            log_norm[rows] = logits.logsumexp(dim=1)
            logprobs[rows] = logits.gather(1, targets[rows, None]).squeeze(1) - log_norm[rows]
            # −Σ p·log p, not log Z − Σ p·z: Σ p is 1 only to a rounding, which z would multiply.
            log_probs = logits.sub_(log_norm[rows, None])
            entropy[rows] = -log_probs.exp().mul_(log_probs).sum(dim=1)
        ctx.save_for_backward(hidden, weight, bias, targets, log_norm)
        ctx.temperature, ctx.num_tokens = temperature, num_tokens
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprobs: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_norm = ctx.saved_tensors
        known = ctx.num_tokens
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        for rows in _chunks(len(targets), weight):
            logits = _scaled_logits(hidden[rows], weight, bias, ctx.temperature, known)
            probs = logits.sub_(log_norm[rows, None]).exp_()
            scale = grad_logprobs[rows, None] / ctx.temperature
            grad_logits = probs.mul_(-scale).scatter_add_(1, targets[rows, None], scale)
            if grad_bias is not None:
                grad_bias[:known] += grad_logits.sum(dim=0)
            grad_logits = grad_logits.to(weight.dtype)
            grad_hidden[rows] = grad_logits @ weight[:known]
            if grad_weight is not None and grad_weight.dtype == grad_logits.dtype:
                grad_weight[:known].addmm_(grad_logits.T, hidden[rows])
            elif grad_weight is not None:
                grad_weight[:known] += grad_logits.T @ hidden[rows]
        grad_weight = grad_weight.to(weight.dtype) if grad_weight is not None else None
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _chunks(num_tokens: int, weight: Tensor) -> list[slice]:
    elements = GPU_CHUNK_ELEMENTS if weight.is_cuda else CHUNK_ELEMENTS
    size = max(1, elements // weight.shape[0])
    return [slice(start, start + size) for start in range(0, num_tokens, size)]


def _scaled_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, num_tokens: int
) -> Tensor:
    """In the model's precision first and float32 after, as `generate` does it."""
    bias = bias if bias is None else bias[:num_tokens]
    logits = F.linear(hidden, weight[:num_tokens], bias).float()
    return logits if temperature == 1.0 else logits / temperature


class LogprobHead(nn.Linear):
    """An output head that returns logits, as before, or log-probabilities where targets are given."""

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor | None = None,
        temperature: float = 1.0,
        num_tokens: int | None = None,
    ) -> Any:
        """[n, H] → ([n], [n]) with targets [n], as `token_logprobs`; else logits [..., V]."""
        if targets is None:
            return F.linear(hidden, self.weight, self.bias)
        return token_logprobs(hidden, self.weight, self.bias, targets, temperature, num_tokens)


class Policy(nn.Module):
    """A causal language model whose forward gives log-probabilities of given responses.

    Attributes:
        num_tokens: the first so many tokens are sampled, all where None: a padded vocabulary has more.
    """

    num_tokens: int | None = None

    def __init__(self, model: PreTrainedModel, packed: bool = True, own_head: bool = False) -> None:
        """Turns the model's output head into a `LogprobHead` and its attention into the packed one, in place.

        Args:
            model: any causal language model of transformers.
            packed: micro-batches are packed; `paths.py` says for which models that is right.
            own_head: take the model's own logits, all at once, instead of the chunked head.

        Raises:
            ValueError: the chunked head is asked for, and the model's is not linear.
        """
        super().__init__()
        head = model.get_output_embeddings()
        if not own_head and type(head) not in (nn.Linear, LogprobHead):
            raise ValueError(f"{type(model).__name__} has no linear output head: {type(head).__name__}")
        if not own_head:
            head.__class__ = LogprobHead
        self.packed, self.own_head = packed, own_head
        self._attention = model.config._attn_implementation
        if packed:
            model.set_attn_implementation(ATTENTION)
        self.model = model
        self.config = model.config

    def train(self, mode: bool = True) -> "Policy":
        """All modules compute as in evaluation, the function that is sampled: no dropout, no skipped layers,
        no noise in a router. Only gradient checkpointing asks whether its layer is in train mode."""
        super().train(False)
        self.training = mode
        for module in self.modules():
            if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
                module.training = mode
        return self

    def forward(self, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """log π_θ(oᵢₜ | q, oᵢ,<ₜ) and the entropy there, for the response tokens that are trained.

        The state at a token predicts the next one. Only those states meet the vocabulary: not the prompt's,
        but for its last, and not the padding's.

        Args:
            micro: packed or not, as `self.packed` says.
            temperature: of the sampler.

        Returns:
            ([b, T], [b, T]) float32, 0 where the response mask is False.
        """
        mask = micro.response_mask
        layout: dict[str, Any] = {}
        if micro.packing is not None:
            layout = {"packing": micro.packing, "position_ids": micro.position_ids}
        targets, positions = micro.response_ids[mask], micro.predictors[mask]
        # A lookup and no index: the state at a prompt's end predicts the first token of all its responses,
        # and the backward pass of an index adds those up in any order.
        if self.own_head:
            output = self.model(input_ids=micro.input_ids, use_cache=False, **layout)
            logits = output.logits[..., : self.num_tokens].flatten(0, 1)
            logits = F.embedding(positions, logits).float() / temperature
            logprobs, entropy = _of_logits(logits, targets)
        else:
            output = self.model.base_model(input_ids=micro.input_ids, use_cache=False, **layout)
            predicting = F.embedding(positions, output.last_hidden_state.flatten(0, 1))
            logprobs, entropy = self.model.get_output_embeddings()(
                predicting, targets, temperature, self.num_tokens
            )
        empty = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
        return empty.masked_scatter(mask, logprobs), empty.masked_scatter(mask, entropy)

    @contextlib.contextmanager
    def generating(self) -> Iterator[PreTrainedModel]:
        """The model as others know it, in evaluation mode and with attention that takes a cache."""
        self.eval()
        if self.packed:
            self.model.set_attn_implementation(self._attention)
        try:
            yield self.model
        finally:
            if self.packed:
                self.model.set_attn_implementation(ATTENTION)
            self.train()


def _of_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """[n, V], [n] → log π(target) [n], which carries the gradient, and entropy [n], which does not."""
    log_probs = logits.log_softmax(dim=-1)
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
    return log_probs.gather(1, targets[:, None])[:, 0], entropy
