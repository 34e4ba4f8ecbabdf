"""From logits to tokens, for all rows of a step at once.

Randomness is one uniform per row, made on the host from (seed, token index) alone; a token is found by inverting the
cumulative distribution. So a seed gives the same draws whatever else is in the batch, on every backend, and after a
preemption. HostSampler (NumPy) and DeviceSampler (MLX) follow the same rule and are tested against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import mlx.core as mx
import numpy as np

from anllm.core.step import ScheduledSequence

MASK_64 = 2**64 - 1
NOT_A_NUMBER = -1  # the "token" of a row whose logits are not numbers
SMALLEST_TEMPERATURE = 1e-6  # below it nothing changes any more, but 1 / temperature would leave float32


class Sampler(Protocol):
    def sample(self, logits: mx.array, rows: Sequence[ScheduledSequence]) -> list[int]:
        """logits: [rows, vocab], evaluated. One token per row; NOT_A_NUMBER where the logits are broken."""
        ...


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) for draw `index` of a seed: SplitMix64 (Steele et al., OOPSLA 2014) of both."""
    z = (seed * 0xD1342543DE82EF95 + (index + 1) * 0x9E3779B97F4A7C15) & MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def draws(rows: Sequence[ScheduledSequence]) -> list[float]:
    """One uniform per row."""
    return [uniform(row.params.seed or 0, row.token_index) for row in rows]


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
        scale = np.float32(1 / max(params.temperature, SMALLEST_TEMPERATURE))
        with np.errstate(over="ignore"):  # to minus infinity, whose exp is 0
            weights = np.exp((logits - logits[best]) * scale).astype(np.float64)
        u = uniform(params.seed or 0, row.token_index)
        if params.top_p < 1:
            weights = keep_nucleus(weights, params.top_p)
        cumulative = weights.cumsum()
        last = np.searchsorted(cumulative, cumulative[-1])  # the last token that has any weight
        return int(min(np.searchsorted(cumulative, u * cumulative[-1], side="right"), last))


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
        weights = mx.exp((logits - logits.max(axis=-1, keepdims=True)) / temperature)
        if any(row.params.top_p < 1 for row in rows):
            weights = self._keep_nucleus(weights, mx.array([row.params.top_p for row in rows])[:, None])
        cumulative = weights.cumsum(axis=-1)
        total = cumulative[:, -1:]
        wanted = mx.array(draws(rows))[:, None] * total
        last = (cumulative < total).sum(axis=-1)  # the last token that has any weight: a draw may be rounded up to 1
        return mx.minimum((cumulative <= wanted).sum(axis=-1), last)

    def _keep_nucleus(self, weights: mx.array, top_p: mx.array) -> mx.array:
        """By search for the edge, not by sorting: the largest weight such that what is at least as heavy has top_p."""
        needed = weights.sum(axis=-1, keepdims=True) * top_p
        low, high = mx.zeros_like(needed), mx.ones_like(needed)  # the heaviest weighs exp(0) = 1
        for _ in range(self.BISECTIONS):
            middle = (low + high) / 2
            enough = mx.where(weights >= middle, weights, 0).sum(axis=-1, keepdims=True) >= needed
            low, high = mx.where(enough, middle, low), mx.where(enough, high, middle)
        return mx.where((weights >= low) | (top_p >= 1), weights, 0)
