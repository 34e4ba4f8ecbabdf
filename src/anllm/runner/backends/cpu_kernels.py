"""Attention and SwiGLU for the CPU backend, built around an exp that is quick there.

MLX's CPU exp takes 19 ns an element, which is more than all matrix work of a small model; the polynomial below takes
about 3 when mx.compile fuses it (measured on AVX-512 machines, docs/log.md). Stock kernels stand beside these and are
what they are tested against.
"""

from __future__ import annotations

import mlx.core as mx

from anllm.runner.hook import Function, replace_in_models

QUERY_BLOCK = 128  # queries at a time: keys behind the block's end are not looked at, and scores stay in the cache
LOWEST = -80.0  # exp of less is taken for exp of this, 2e-35: nothing, beside the 1 of the largest
MASKED = -1e30
# Coefficients of tanh as x * above(x^2) / below(x^2), highest power first; beyond the limit float32 has only 1.
TANH_LIMIT = 7.90531110763549805
TANH_ABOVE = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


def fast_exp(x: mx.array) -> mx.array:
    """exp of x <= 0, float32, to a relative 1e-6: exp(x / 256) by its series, squared eight times."""
    y = mx.maximum(x, LOWEST) * (1 / 256)
    p = 1 + y * (1 + y * (1 / 2 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120 + y * (1 / 720 + y * (1 / 5040)))))))
    for _ in range(8):
        p = p * p
    return p


def fast_tanh(x: mx.array) -> mx.array:
    """tanh of float32 to a relative 1e-6: the rational function of Eigen (its Core/MathFunctionsImpl.h)."""
    x = mx.minimum(mx.maximum(x, -TANH_LIMIT), TANH_LIMIT)
    square = x * x
    above = square * TANH_ABOVE[0] + TANH_ABOVE[1]
    for coefficient in TANH_ABOVE[2:]:
        above = above * square + coefficient
    below = square * TANH_BELOW[0] + TANH_BELOW[1]
    for coefficient in TANH_BELOW[2:]:
        below = below * square + coefficient
    return x * above / below


@mx.compile
def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """The sigmoid by tanh: a third of the time that it takes by exp, with its two cases and two divisions."""
    return gate * (0.5 + 0.5 * fast_tanh(0.5 * gate)) * x


def _exp_difference(scores: mx.array, top: mx.array) -> mx.array:
    return fast_exp(scores - top)


def _masked(scores: mx.array, mask: mx.array) -> mx.array:
    return mx.where(mask, scores, MASKED)


_exp_difference = mx.compile(_exp_difference, shapeless=True)
_masked = mx.compile(_masked, shapeless=True)


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
        q = q * scale
        if isinstance(mask, str):
            return _causal(q, k, v)
        return _attend(q, k, v, mask)


def _causal(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """Block by block, each over the keys that its last query may see."""
    n, length = q.shape[2], k.shape[2]
    outs = []
    for first in range(0, n, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, n)
        end = length - n + last
        mask = mx.arange(end)[None] <= mx.arange(end - (last - first), end)[:, None]
        outs.append(_attend(q[:, :, first:last], k[:, :, :end], v[:, :, :end], mask))
    return outs[0] if len(outs) == 1 else mx.concatenate(outs, axis=2)


def _attend(q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None) -> mx.array:
    """q: [b, q_heads, n, dim], scaled; k, v: [b, kv_heads, length, dim]; mask: bool, for [b, q_heads, n, length].

    The queries that share a K/V head are the rows of one matrix product.
    """
    b, heads, n, _ = q.shape
    kv_heads, length = k.shape[1:3]
    scores = q.reshape(b, kv_heads, -1, q.shape[-1]) @ k.swapaxes(-1, -2)  # [b, kv_heads, group * n, length]
    if mask is not None:
        scores = _masked(scores.reshape(b, heads, n, length), mask).reshape(scores.shape)
    weights = _exp_difference(scores, scores.max(axis=-1, keepdims=True))
    out = (weights @ v) / weights.sum(axis=-1, keepdims=True)
    return out.reshape(b, heads, n, v.shape[-1])


def hook_swiglu() -> None:
    """Put the quick SwiGLU in the place of mlx_lm's, for float32."""
    from mlx_lm.models import activations

    def make(stock: Function) -> Function:
        return lambda gate, x: _swiglu(gate, x) if gate.dtype == mx.float32 else stock(gate, x)

    replace_in_models(activations, "swiglu", make)
