"""Ragged attention in plain MLX operations: what a kernel of a backend computes, for machines that have none."""

from __future__ import annotations

import mlx.core as mx

from anllm.runner.attention import StockKernels


class SlowRaggedKernels(StockKernels):
    """Has the face of anllm.runner.attention.RaggedKernels. `calls` counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def ragged(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        slots: mx.array,
        lengths: mx.array,
        longest: int,
        scale: mx.array,
        window: int | None,
        sinks: mx.array | None,
    ) -> mx.array:
        self.calls += 1
        positions = mx.arange(k.shape[2])[None]
        seen = positions < lengths[:, None]
        if window is not None:
            seen &= positions >= lengths[:, None] - window
        scores = (q * scale).reshape(q.shape[0], k.shape[1], -1, q.shape[-1]) @ k[slots].swapaxes(-1, -2)
        scores = mx.where(seen[:, None, None], scores, -mx.inf)
        if sinks is not None:
            column = mx.broadcast_to(sinks.reshape(1, k.shape[1], -1, 1), (*scores.shape[:-1], 1))
            scores = mx.concatenate([column.astype(scores.dtype), scores], axis=-1)
        weights = mx.softmax(scores, axis=-1)
        if sinks is not None:
            weights = weights[..., 1:]
        return (weights @ v[slots]).reshape(*q.shape[:-1], v.shape[-1])
