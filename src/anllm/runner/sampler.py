"""From logits to tokens, for all rows of a step at once.

Randomness is one number per token of the vocabulary, a hash of (seed, token index, token id) and of nothing else. The
token drawn is that of the largest logit / temperature - log(noise), where the noise of each token is exponentially
distributed: the "exponential race", or Gumbel-max trick (Maddison et al., arXiv:1411.0030). So a seed gives the same
draws whatever else is in the batch, on every backend, and after a preemption. And it does so although batched
arithmetic differs in the last bits: a token changes only where two scores all but tie. (Inverting the cumulative
distribution instead, a difference of 1e-6 moves thousands of borders at once: measured, one seeded token in 250
changed.)

HostSampler (NumPy) and DeviceSampler (MLX) follow the same rule and are tested against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import mlx.core as mx
import numpy as np

from anllm.core.step import ScheduledSequence

MASK_64, MASK_32 = 2**64 - 1, 2**32 - 1
STRIDE = 0x9E3779B1  # between the hashed words of neighbouring tokens; odd, so that all words differ
NOT_A_NUMBER = -1  # the "token" of a row whose logits are not numbers
SMALLEST_TEMPERATURE = 1e-6  # below it nothing changes any more, but 1 / temperature would leave float32


class Sampler(Protocol):
    def sample(self, logits: mx.array, rows: Sequence[ScheduledSequence]) -> list[int]:
        """logits: [rows, vocab], evaluated. One token per row; NOT_A_NUMBER where the logits are broken."""
        ...


def row_keys(row: ScheduledSequence) -> tuple[int, int]:
    """Two 32-bit keys for draw `token_index` of the row's seed: SplitMix64 (Steele et al., OOPSLA 2014) of both."""
    z = ((row.params.seed or 0) * 0xD1342543DE82EF95 + (row.token_index + 1) * 0x9E3779B97F4A7C15) & MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    z ^= z >> 31
    return z >> 32, z & MASK_32


def mix(words: Any) -> Any:
    """A hash of 32-bit words, an array of NumPy or MLX: lowbias32 (Wellons, "Prospecting for Hash Functions")."""
    words = words ^ (words >> 16)
    words = words * 0x7FEB352D
    words = words ^ (words >> 15)
    words = words * 0x846CA68B
    return words ^ (words >> 16)


def host_noise(key: tuple[int, int], vocab_size: int) -> np.ndarray:
    """[vocab] float64, exponentially distributed with mean 1."""
    words = mix(mix(np.arange(vocab_size, dtype=np.uint32) * np.uint32(STRIDE) + np.uint32(key[0])) ^ np.uint32(key[1]))
    return -np.log1p(-(words + 0.5) * 2.0**-32)


def device_noise(keys: Sequence[tuple[int, int]], vocab_size: int) -> mx.array:
    """[rows, vocab] float32: as host_noise. Its small values, which decide, are as fine as float32 allows."""
    first, second = (mx.array([key[i] for key in keys], mx.uint32)[:, None] for i in (0, 1))
    words = mix(mix(mx.arange(vocab_size, dtype=mx.uint32)[None] * STRIDE + first) ^ second)
    return -mx.log1p(-(words.astype(mx.float32) + 0.5) * 2.0**-32)


class HostSampler:
    """In NumPy: the quickest on a CPU, where logits are in host memory anyway."""

    def sample(self, logits: mx.array, rows: Sequence[ScheduledSequence]) -> list[int]:
        host = np.array(logits.astype(mx.float32), copy=False)
        return [self._sample_row(row_logits, row) for row_logits, row in zip(host, rows, strict=True)]

    def _sample_row(self, logits: np.ndarray, row: ScheduledSequence) -> int:
        """logits: [vocab] float32"""
        best = int(logits.argmax())  # NaN wins any comparison, so it is found here
        if not np.isfinite(logits[best]):
            return NOT_A_NUMBER
        params = row.params
        if params.temperature == 0 or params.top_p == 0:
            return best
        scores = (logits.astype(np.float64) - logits[best]) / max(params.temperature, SMALLEST_TEMPERATURE)
        if params.top_p < 1:
            scores = np.where(keep_nucleus(np.exp(scores), params.top_p) > 0, scores, -np.inf)
        return int((scores - np.log(host_noise(row_keys(row), len(scores)))).argmax())


def keep_nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """Zero all but the smallest set of most likely tokens that holds top_p of the mass; ties at its edge stay.

    weights: [vocab], not normalised. Holtzman et al., arXiv:1904.09751. Tokens below (1 - top_p) / vocab of the mass
    are outside whatever the others are, so that only few are left to sort.
    """
    total = weights.sum()
    likely = weights[weights >= total * (1 - top_p) / len(weights)]
    likely = np.sort(likely)[::-1]
    edge = likely[min(int(np.searchsorted(likely.cumsum(), top_p * total)), len(likely) - 1)]
    return np.where(weights >= edge, weights, 0.0)


class DeviceSampler:
    """In MLX, on the device: logits stay there, only token ids come back."""

    BISECTIONS = 24  # halvings of the interval in which the nucleus' edge lies; float32 has as many bits

    def sample(self, logits: mx.array, rows: Sequence[ScheduledSequence]) -> list[int]:
        return cast("list[int]", self.draw(logits, rows).tolist())

    def draw(self, logits: mx.array, rows: Sequence[ScheduledSequence]) -> mx.array:
        """As sample(), int32 [rows], not evaluated."""
        logits = logits.astype(mx.float32)
        best = mx.argmax(logits, axis=-1)
        tokens = best
        if any(row.params.temperature > 0 and row.params.top_p > 0 for row in rows):
            tokens = mx.where(self._greedy(rows), best, self._drawn(logits, rows))
        top = mx.take_along_axis(logits, best[:, None], axis=-1)[:, 0]
        return mx.where(mx.isfinite(top), tokens.astype(mx.int32), NOT_A_NUMBER)

    def _greedy(self, rows: Sequence[ScheduledSequence]) -> mx.array:
        return mx.array([row.params.temperature == 0 or row.params.top_p == 0 for row in rows])

    def _drawn(self, logits: mx.array, rows: Sequence[ScheduledSequence]) -> mx.array:
        """[rows, vocab] -> [rows]"""
        temperature = mx.array([max(row.params.temperature, SMALLEST_TEMPERATURE) for row in rows])[:, None]
        scores = (logits - logits.max(axis=-1, keepdims=True)) / temperature
        if any(row.params.top_p < 1 for row in rows):
            kept = self._keep_nucleus(mx.exp(scores), mx.array([row.params.top_p for row in rows])[:, None])
            scores = mx.where(kept > 0, scores, -mx.inf)
        noise = device_noise([row_keys(row) for row in rows], logits.shape[-1])
        return mx.argmax(scores - mx.log(noise), axis=-1)

    def _keep_nucleus(self, weights: mx.array, top_p: mx.array) -> mx.array:
        """By search for the edge, not by sorting: the largest weight such that what is at least as heavy has top_p."""
        needed = weights.sum(axis=-1, keepdims=True) * top_p
        low, high = mx.zeros_like(needed), mx.ones_like(needed)  # the heaviest weighs exp(0) = 1
        for _ in range(self.BISECTIONS):
            middle = (low + high) / 2
            enough = mx.where(weights >= middle, weights, 0).sum(axis=-1, keepdims=True) >= needed
            low, high = mx.where(enough, middle, low), mx.where(enough, high, middle)
        return mx.where((weights >= low) | (top_p >= 1), weights, 0)
