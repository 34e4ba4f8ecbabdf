"""Kernels that only some backends have, in plain MLX operations: what they compute, for machines that have none."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from anllm.core.step import Slot
from anllm.runner.attention import StockKernels, target_rows
from anllm.runner.fusion import Rotation
from anllm.runner.kv_store import LayerSlabs
from anllm.runner.ragged import RaggedRows


class SlowRaggedKernels(StockKernels):
    """Has the face of anllm.runner.ragged.RaggedKernels. `calls` counts its calls."""

    writes_kv = False
    new_slab = None
    is_compiled = True

    def __init__(self) -> None:
        self.calls = 0

    def ragged(
        self,
        q: mx.array,
        layer: LayerSlabs,
        rows: RaggedRows,
        *,
        scale: float,
        sinks: mx.array | None,
        kv: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array:
        self.calls += 1
        outs = []
        for i, (size_class, slot, position, capacity) in enumerate(np.array(rows.table).tolist()):
            assert rows.capacities[size_class] == capacity
            assert position < rows.longest
            first = 0 if layer.shape.window is None else max(position + 1 - layer.shape.window, 0)
            k, v = (slab(capacity)[slot, :, None, first : position + 1] for slab in (layer.keys, layer.values))
            scores = (q[i] * scale).reshape(k.shape[0], -1, 1, q.shape[-1]) @ k.swapaxes(-1, -2)
            if sinks is not None:
                column = sinks.reshape(*scores.shape[:2], 1, 1).astype(scores.dtype)
                scores = mx.concatenate([column, scores], axis=-1)
            weights = mx.softmax(scores, axis=-1)
            outs.append(((weights if sinks is None else weights[..., 1:]) @ v).reshape(1, -1, 1, v.shape[-1]))
        return mx.concatenate(outs)


class SlowFusedKernels(SlowRaggedKernels):
    """Has the face of anllm.runner.fusion.FusedKernels besides."""

    writes_in_place = False
    resize_bytes = 0

    def attend_rotated(
        self, projected: mx.array, layer: LayerSlabs, rows: RaggedRows, rotation: Rotation, *, scale: float
    ) -> tuple[mx.array, mx.array]:
        """See FusedKernels."""
        q, written = self.write_rotated(projected, layer, rows, rotation)
        return self.ragged(q, layer, rows, scale=scale, sinks=None), written

    def write_rotated(
        self, projected: mx.array, layer: LayerSlabs, rows: RaggedRows, rotation: Rotation
    ) -> tuple[mx.array, mx.array]:
        shape = rotation.shape
        heads = projected.reshape(rows.size, -1, 1, shape.head_dim)
        q, k, v = mx.split(heads, [shape.num_heads, shape.num_heads + shape.num_kv_heads], axis=1)
        if rotation.norm is not None:
            q = mx.fast.rms_norm(q, rotation.norm.q_weight, rotation.norm.eps)
            k = mx.fast.rms_norm(k, rotation.norm.k_weight, rotation.norm.eps)
        table = np.array(rows.table)
        q, k = (self._turned(a, mx.array(table[:, 2]), rotation) for a in (q, k))
        for size_class, capacity in enumerate(rows.capacities):
            mine = np.flatnonzero(table[:, 0] == size_class)
            index = mx.array(target_rows(table[mine, 1], table[mine, 2], capacity, shape.num_kv_heads))
            layer.write(capacity, index, k[mx.array(mine)], v[mx.array(mine)])
        return q, mx.zeros(1)

    def copy_rows(self, layer: LayerSlabs, source: Slot, targets: Sequence[Slot], num_tokens: int) -> mx.array:
        layer.fill(targets, layer.read(source, num_tokens))
        return mx.zeros(1)

    def _turned(self, x: mx.array, positions: mx.array, rotation: Rotation) -> mx.array:
        """x: [n, heads, 1, dim]"""
        pairs = rotation.shape.num_pairs
        angles = positions.astype(mx.float32)[:, None, None, None] * rotation.frequencies
        if rotation.shape.is_traditional:
            first, second = x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
        else:
            first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
        turned = first * mx.cos(angles) - second * mx.sin(angles), first * mx.sin(angles) + second * mx.cos(angles)
        if rotation.shape.is_traditional:
            both = mx.stack(turned, axis=-1).reshape(*x.shape[:-1], 2 * pairs)
        else:
            both = mx.concatenate(turned, axis=-1)
        return mx.concatenate([both.astype(x.dtype), x[..., 2 * pairs :]], axis=-1)

    def swiglu(self, projected: mx.array) -> mx.array:
        gate, up = mx.split(projected, 2, axis=-1)
        return nn.silu(gate) * up
