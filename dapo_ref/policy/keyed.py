"""Sampling in which a response follows from its own key: the same alone, in any batch, on any process.

`torch.multinomial` gives each row the random numbers that are next, so that a response depends on the rows
beside it. Here the noise of row, position and token is a hash of the three, and the draw is a largest score
(Gumbel-max): argmax over v of log p(v) + g(v), with independent g = −log(−log u), is a sample of p. Two
computations whose scores differ by ε in their last bits pick another token with a chance of about ε. Noise
that two models share also makes their comparison sharper. Evaluation samples like this; training does not.

Dimension key: b rows in the batch, V vocabulary.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, TopPLogitsWarper

_WORD = 2**64
_STEP = 0x9E3779B97F4A7C15  # of splitmix64: odd, so that every counter meets another word
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def key_of(*parts: int | str) -> int:
    """A key of 64 bits, as a signed integer: a hash of seed, problem and sample, say."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def gumbel_noise(keys: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Standard Gumbel noise, a pure function of key, position and token.

    Args:
        keys: [b] int64.
        positions: [b] int64, of the token in its response.
        vocabulary: V.

    Returns:
        [b, V] float64.
    """
    rows = _mixed(keys + positions * _signed(_STEP))
    tokens = torch.arange(vocabulary, device=keys.device) * _signed(_STEP)
    bits = _shifted(_mixed(rows[:, None] + tokens), 12)
    uniform = (bits.double() + 0.5) * 2.0**-52  # never 0, never 1
    return -torch.log(-torch.log(uniform))


class KeyedSampling(LogitsProcessor):
    """Turns scores into ones whose largest is a draw from softmax(z / temperature), cut to the nucleus.

    For `generate` without sampling of its own. Rows and their order stay the same for as long as it lives.
    """

    def __init__(self, keys: Tensor, starts: Tensor, temperature: float, top_p: float) -> None:
        """Args:
        keys: [b] int64.
        starts: [b] the column at which each response begins.
        temperature, top_p: of sampling.
        """
        self._keys = keys
        self._starts = starts
        self._temperature = temperature
        self._nucleus = TopPLogitsWarper(top_p) if top_p < 1 else None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores = scores / self._temperature
        if self._nucleus is not None:
            scores = self._nucleus(input_ids, scores)
        noise = gumbel_noise(self._keys, input_ids.shape[1] - self._starts, scores.shape[1])
        return scores.double() + noise


def _mixed(x: Tensor) -> Tensor:
    """The finalizer of splitmix64 on each 64-bit word: every input bit changes about half of the output's."""
    x = (x ^ _shifted(x, 30)) * _signed(_MIX[0])
    x = (x ^ _shifted(x, 27)) * _signed(_MIX[1])
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A right shift that brings in zeros; torch's own brings in the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD // 2 else word
