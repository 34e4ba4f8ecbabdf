"""The noise that decides draws: a hash of (seed, token index, token id), the same on host and device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from anllm.core.step import ScheduledSequence

MASK_64, MASK_32 = 2**64 - 1, 2**32 - 1
STRIDE = 0x9E3779B1  # between the hashed words of neighbouring tokens; odd, so that all words differ


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
