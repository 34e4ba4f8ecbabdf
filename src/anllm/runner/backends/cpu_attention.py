"""Attention for the CPU backend by the native library: all tokens of a step at once, each over its own slot and length,
read in place (native/attention.h, which has the form of what it is told)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from anllm.runner.attention import Kernels
from anllm.runner.kv_store import LayerShape, LayerSlabs
from anllm.runner.native_library import NativeLibrary
from anllm.runner.ragged import RaggedRows

ATTENTION = 64  # of native/task.h
HEADER_WORDS = 16
GROUP_QUERIES = (
    48  # rows of a unit: enough for its keys to be turned once, few enough for its sums to stay in the cache
)


class NativeKernels:
    """Kernels (runner/attention.py), those of `plain`, and RaggedKernels (runner/ragged.py)."""

    writes_kv = True
    is_compiled = False

    def __init__(self, native: NativeLibrary, plain: Kernels) -> None:
        self._native = native
        self._plain = plain

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
        """See Kernels."""
        return self._plain.attend(q, k, v, scale=scale, mask=mask, sinks=sinks)

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
        """See RaggedKernels. To MLX it is a product of the rows with a matrix, which is what the library is told."""
        number, heads, _, dim = q.shape
        if q.dtype != mx.float32:
            raise ValueError(f"native attention takes float32, got {q.dtype}")
        values = None if sinks is None else np.array(sinks.astype(mx.float32))
        told = mx.array(self.tell(layer, rows, heads, dim, scale=scale, sinks=values, has_kv=kv is not None))
        given = [part.reshape(number, -1) for part in (q, *(kv or ()))]
        a = given[0] if len(given) == 1 else mx.concatenate(given, axis=1)
        width = heads * layer.shape.value_dim
        matrix = mx.as_strided(told.view(mx.float32), (a.shape[1], width), (width, 1), 0)
        return (a @ matrix).reshape(number, heads, 1, layer.shape.value_dim)

    def tell(
        self,
        layer: LayerSlabs,
        rows: RaggedRows,
        heads: int,
        dim: int,
        *,
        scale: float,
        sinks: np.ndarray | None,
        has_kv: bool,
    ) -> np.ndarray:
        """What the library is told, as native/attention.h has it: uint32. sinks: float32 [heads]. Raises ValueError for
        heads that it can't take."""
        shape = layer.shape
        self._check(heads, shape)
        groups = rows.host_groups(max(GROUP_QUERIES * shape.num_heads // heads, 1))
        addresses = [address for capacity in rows.capacities for address in layer.addresses(capacity)]
        header = np.zeros(HEADER_WORDS, np.uint32)
        header[:4] = self._native.magic
        header[4:9] = (ATTENTION, heads, shape.num_heads, dim, shape.value_dim)
        header[9:14] = (len(groups), len(rows.capacities), shape.window or 0, has_kv, sinks is not None)
        header[14:15].view(np.float32)[0] = scale
        parts = [header, np.array(addresses, np.uint64).view(np.uint32), groups.view(np.uint32).ravel()]
        if sinks is not None:
            parts.append(sinks.view(np.uint32))
        return np.concatenate(parts)

    def _check(self, heads: int, shape: LayerShape) -> None:
        if shape.dtype != mx.float32:
            raise ValueError(f"native attention takes float32, got K/V of {shape.dtype}")
        for dim in (shape.key_dim, shape.value_dim):
            if dim % self._native.lanes or dim > self._native.max_dim:
                raise ValueError(
                    f"native attention takes heads of a multiple of {self._native.lanes}, at most "
                    f"{self._native.max_dim}, got {dim}"
                )
        if heads > self._native.max_queries * shape.num_heads:
            raise ValueError(f"native attention takes at most {self._native.max_queries} queries to a K/V head")


Place = tuple[int, int, int]  # capacity, slot, position
PLACES: list[Place] = [
    *((256, 3, position) for position in range(40)),  # a prompt's beginning
    *((512, 2, position) for position in range(297, 300)),  # and one's continuation
    *((256, 0, 6), (256, 1, 199), (512, 0, 511)),
]
DIM, HEADS, KV_HEADS = 64, 6, 2


def attends_right(kernels: NativeKernels) -> bool:
    """Whether it is what NumPy finds, over plain and windowed layers; and the K/V is where it belongs."""
    random = np.random.default_rng(0)
    capacities, slots, positions = np.array(PLACES).T
    rows = RaggedRows(slots, positions, capacities)
    for window in (None, 50):
        layer = LayerSlabs(LayerShape(KV_HEADS, DIM, DIM, mx.float32, window))
        for capacity in (256, 512):
            layer.resize(capacity, 4)
            index = mx.arange(4 * KV_HEADS * capacity)
            noise = [mx.array(random.standard_normal((index.size, DIM), np.float32)) for _ in range(2)]
            layer.write(capacity, index, *noise)
            mx.eval(layer.arrays([capacity]))
        q, k, v = (random.standard_normal((len(PLACES), n, 1, DIM), np.float32) for n in (HEADS, KV_HEADS, KV_HEADS))
        found = np.array(kernels.ragged(mx.array(q), layer, rows, scale=0.1, sinks=None, kv=(mx.array(k), mx.array(v))))
        for i, (capacity, slot, position) in enumerate(PLACES):
            first = 0 if window is None else max(position + 1 - window, 0)
            keys, values = (
                np.array(slab(capacity)[slot, :, first : position + 1]) for slab in (layer.keys, layer.values)
            )
            if not (np.array_equal(keys[:, -1], k[i, :, 0]) and np.array_equal(values[:, -1], v[i, :, 0])):
                return False
            scores = 0.1 * np.einsum("hgd,hkd->hgk", q[i].reshape(KV_HEADS, -1, DIM), keys)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            expected = np.einsum("hgk,hkd->hgd", weights / weights.sum(-1, keepdims=True), values)
            if not np.allclose(found[i].reshape(expected.shape), expected, atol=1e-4):
                return False
    return True
