"""Attention for the CPU backend, built around an exp that is quick there.

MLX's CPU exp takes 19 ns an element, which is more than all matrix work of a small model; the one below takes about 0.6
when mx.compile makes one vectorised loop of it. It does so under conditions (measured, docs/log.md):

- no more than 11 operations, constants counted, between a kernel's result and any of its inputs: a longer chain is cut
- operands of one shape and order: broadcast ones get a loop with strides. MLX's plain operations do well there
- no minimum, maximum or where: their care for NaN keeps the compiler from vectorising

Stock kernels stand beside these and are what they are tested against.
"""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx

QUERY_BLOCK = 128  # queries at a time: keys behind the block's end are not looked at, and scores stay in the cache
STRIP_KEYS = 2048
MASKED = -1e30
SQUARINGS = 4
EXP_UNIT = 2.0**SQUARINGS  # fast_exp takes its argument in sixteenths


@mx.compile
def fast_exp(y: mx.array) -> mx.array:
    """exp(-16 y) for y >= 0, float32, to an absolute 3e-6; 0 where y is large or infinite.

    The inverse of exp(y)'s series, squared four times. All terms are positive, so nothing needs a limit: what grows too
    large has the inverse 0.
    """
    square = y * y
    p = ((1 + y) + square * (1 / 2 + y * (1 / 6))) + (square * square) * ((1 / 24 + y * (1 / 120)) + square * (1 / 720))
    for _ in range(SQUARINGS):
        p = p * p
    return 1 / p


class FastExpKernels:
    """Kernels (runner/attention.py) for float32 on the CPU."""

    def attend(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None,
    ) -> mx.array:
        if q.dtype != mx.float32 or sinks is not None:
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)
        q = q * (scale / EXP_UNIT)
        if isinstance(mask, str):
            return _causal(q, k, v)
        return _attend(q, k, v, None if mask is None else mx.where(mask, 0.0, MASKED))


def _causal(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """Block by block of queries, each over the keys that its last query may see."""
    n, length = q.shape[2], k.shape[2]
    num_blocks = max(round(n / QUERY_BLOCK), 1)  # of nearly equal size, at most 1.5 times as large
    outs = []
    for block in range(num_blocks):
        first, last = n * block // num_blocks, n * (block + 1) // num_blocks
        end = length - n + last
        bias = _causal_bias(last - first, end - (last - first))
        outs.append(_attend(q[:, :, first:last], k[:, :, :end], v[:, :, :end], bias))
    return outs[0] if len(outs) == 1 else mx.concatenate(outs, axis=2)


def _causal_bias(n: int, num_before: int) -> mx.array:
    """What n queries after `num_before` keys that all of them see add to their scores: float32 [n, num_before + n]."""
    taken = min(num_before, STRIP_KEYS)
    bias = _causal_strip()[:n, STRIP_KEYS - taken : STRIP_KEYS + n]
    return bias if taken == num_before else mx.concatenate([mx.zeros((n, num_before - taken)), bias], axis=1)


@lru_cache(maxsize=1)
def _causal_strip() -> mx.array:
    """The bias of the largest block: float32 [queries, STRIP_KEYS + queries]. Made once; all layers and steps take
    their parts of it."""
    queries = 2 * QUERY_BLOCK
    seen = mx.arange(-STRIP_KEYS, queries)[None] <= mx.arange(queries)[:, None]
    strip = mx.where(seen, 0.0, MASKED)
    mx.eval(strip)
    return strip


def _attend(q: mx.array, k: mx.array, v: mx.array, bias: mx.array | None) -> mx.array:
    """q: [b, q_heads, n, dim], scaled; k, v: [b, kv_heads, length, dim]; bias: float32, for [b, q_heads, n, length].

    The queries that share a K/V head are the rows of one matrix product.
    """
    b, heads, n, _ = q.shape
    kv_heads, length = k.shape[1:3]
    scores = q.reshape(b, kv_heads, -1, q.shape[-1]) @ k.swapaxes(-1, -2)  # [b, kv_heads, group * n, length]
    if bias is not None:
        scores = (scores.reshape(b, heads, n, length) + bias).reshape(scores.shape)
    weights = fast_exp(scores.max(axis=-1, keepdims=True) - scores)
    out = (weights @ v) / weights.sum(axis=-1, keepdims=True)
    return out.reshape(b, heads, n, v.shape[-1])
