"""Attention for the CPU backend by the native library: all tokens of a step at once, each over its own slot and length,
read in place (native/attention.h, which has the form of what it is told)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from anllm.runner.attention import Kernels
from anllm.runner.backends.cpu_native import ATTENTION, NOTHING, SWIGLU, header, matrix
from anllm.runner.fusion import Rotation
from anllm.runner.kv_store import LayerShape, LayerSlabs
from anllm.runner.native_library import NativeLibrary
from anllm.runner.ragged import RaggedRows

HEADER_WORDS = 24
# Rows of a unit, at most: many, since its keys are turned once for all; few, so that its sums stay in the cache.
GROUP_QUERIES = 48


class NativeKernels:
    """Kernels (runner/attention.py), those of `plain`; RaggedKernels (runner/ragged.py); FusedKernels (fusion.py)."""

    writes_kv = True
    is_compiled = False

    def __init__(self, native: NativeLibrary, plain: Kernels) -> None:
        self._native = native
        self._plain = plain
        self._rotations: dict[int, _HostRotation] = {}  # by the identity of what they are of, which they hold
        self._turns: dict[bytes, _Turns] = {}  # by frequencies, which most layers share
        self._swiglu: dict[int, mx.array] = {}  # by width

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
        told = self.tell(layer, rows, heads, dim, scale=scale, sinks=values, has_kv=kv is not None)
        given = [part.reshape(number, -1) for part in (q, *(kv or ()))]
        return self._call(given[0] if len(given) == 1 else mx.concatenate(given, axis=1), told, heads, layer)

    def attend_rotated(
        self, projected: mx.array, layer: LayerSlabs, rows: RaggedRows, rotation: Rotation, *, scale: float
    ) -> tuple[mx.array, mx.array]:
        """See FusedKernels."""
        if projected.dtype != mx.float32 or layer.shape.value_dim != rotation.shape.head_dim:
            raise ValueError(f"native attention takes float32, and values as long as keys, got {projected.dtype}")
        turn = self._host_rotation(rotation)
        heads, dim = rotation.shape.num_heads, rotation.shape.head_dim
        told = self.tell(layer, rows, heads, dim, scale=scale, sinks=None, has_kv=True, turn=turn)
        out = self._call(projected.reshape(rows.size, -1), told, heads, layer)
        return out, out

    def swiglu(self, projected: mx.array) -> mx.array:
        """See FusedKernels."""
        width = projected.shape[-1] // 2
        if width not in self._swiglu:
            told = mx.array(header(self._native, SWIGLU, width))
            self._swiglu[width] = matrix(told, 2 * width, width)
        return projected @ self._swiglu[width]

    def new_slab(self, height: int, width: int) -> mx.array:
        """float32 of whatever is in memory that nobody has touched yet. Filling it with zeros takes a third of a
        millisecond a megabyte, as the system finds page after page, while all streams wait."""
        size = height * width
        if not 0 < size < 2**31:  # an sgemm counts in 32 bits
            return mx.zeros((height, width))
        told = mx.array(header(self._native, NOTHING))
        return (mx.zeros((1, 1)) @ matrix(told, 1, size)).reshape(height, width)

    def _call(self, a: mx.array, told: np.ndarray, heads: int, layer: LayerSlabs) -> mx.array:
        """a: [n, …]. [n, heads, 1, value_dim], submitted: what is computed need not wait for 2 ms of Python."""
        dim = layer.shape.value_dim
        out = (a @ matrix(mx.array(told), a.shape[1], heads * dim)).reshape(a.shape[0], heads, 1, dim)
        mx.async_eval(out)
        return out

    def _host_rotation(self, rotation: Rotation) -> _HostRotation:
        key = id(rotation)
        if key not in self._rotations:
            frequencies = np.array(rotation.frequencies.astype(mx.float32))
            turns = self._turns.setdefault(frequencies.tobytes(), _Turns(frequencies))
            self._rotations[key] = _HostRotation(rotation, turns)
        return self._rotations[key]

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
        turn: _HostRotation | None = None,
    ) -> np.ndarray:
        """What the library is told, as native/attention.h has it: uint32. sinks: float32 [heads]. Raises ValueError for
        heads that it can't take."""
        shape = layer.shape
        self._check(heads, shape)
        groups = rows.host_groups(max(GROUP_QUERIES * shape.num_heads // heads, 1))
        addresses = [address for capacity in rows.capacities for address in layer.addresses(capacity)]
        words = header(self._native, ATTENTION, heads, shape.num_heads, dim, shape.value_dim, size=HEADER_WORDS)
        words[9:14] = (len(groups), len(rows.capacities), shape.window or 0, has_kv, sinks is not None)
        words[14:15].view(np.float32)[0] = scale
        words[15] = rows.size
        parts = [words, np.array(addresses, np.uint64).view(np.uint32), groups.view(np.uint32).ravel()]
        if sinks is not None:
            parts.append(sinks.view(np.uint32))
        if turn is not None:
            words[16:19] = (turn.num_pairs, turn.is_traditional, turn.norms is not None)
            if turn.norms is not None:
                words[19:20].view(np.float32)[0] = turn.eps
                parts.append(turn.norms)
            parts.append(turn.turns.of(rows))
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


class _HostRotation:
    """A Rotation as the library is told it."""

    def __init__(self, rotation: Rotation, turns: _Turns) -> None:
        self._rotation = rotation  # so that its identity stays its own
        self.turns = turns
        self.num_pairs = rotation.shape.num_pairs
        self.is_traditional = rotation.shape.is_traditional
        self.norms: np.ndarray | None = None
        self.eps = 0.0
        if (norm := rotation.norm) is not None:
            weights = [np.array(weight.astype(mx.float32)) for weight in (norm.q_weight, norm.k_weight)]
            self.norms, self.eps = np.concatenate(weights).view(np.uint32), norm.eps


class _Turns:
    """Cosines and sines of a step's tokens, worked out once for all layers that turn alike."""

    def __init__(self, frequencies: np.ndarray) -> None:
        """float32 [num_pairs]"""
        self._frequencies = frequencies
        self._rows: RaggedRows | None = None  # whose words these are
        self._words = np.zeros(0, np.uint32)

    def of(self, rows: RaggedRows) -> np.ndarray:
        """float32 [n, 2, num_pairs], as flat words."""
        if self._rows is not rows:
            angles = rows.host_table[:, 2, None].astype(np.float32) * self._frequencies  # as rounded as the model's own
            self._rows, self._words = rows, np.stack([np.cos(angles), np.sin(angles)], axis=1).view(np.uint32).ravel()
        return self._words
