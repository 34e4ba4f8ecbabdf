"""Attention over slabs: who looks at what in a flattened step, and the hook through which mlx-lm's models call it.

The layout of a step is worked out once, for all layers. Its arrays are small and made with NumPy on the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, cast

import mlx.core as mx
import numpy as np

from anllm.core.step import ScheduledSequence, Slot, StepPlan
from anllm.runner.hook import Function, replace_in_models
from anllm.runner.kv_store import LayerSlabs
from anllm.runner.ragged import RaggedRows

# Where a step's K/V goes in one size class: its capacity, the tokens that go there (None: all), their flat slab rows.
Target = tuple[int, mx.array | None, mx.array]

# A group of decode rows whose slots fill at least this share of their range is computed over the whole range, in place;
# sparser ones are gathered first.
DENSE_SHARE = 0.6


class Kernels(Protocol):
    """The attention arithmetic of a backend."""

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
        """q: [b, q_heads, n, dim]; k, v: [b, kv_heads, length, dim]; mask: bool, broadcast to [b, q_heads, n, length],
        or "causal" (the last query sees all keys). Returns [b, q_heads, n, value_dim]."""
        ...


class StockKernels:
    """MLX's own."""

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
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask, sinks=sinks)


class DecodeGroup:
    """Decode rows of one size class: tokens [first, first + n) of the step, in slots that ascend.

    With `packed`, what view() gives has exactly the group's rows, for callers that attend themselves.
    """

    def __init__(
        self, first: int, capacity: int, slots: np.ndarray, lengths: np.ndarray, *, packed: bool = False
    ) -> None:
        """slots, lengths: [n] int32; a row's length is its K/V tokens, the new one included."""
        self.first = first
        self.capacity = capacity
        self.slots = slots
        self.lengths = lengths
        self._lay_out(1.0 if packed else DENSE_SHARE)

    def _lay_out(self, dense_share: float) -> None:
        """Decide whether to read the range of slots in place, and how queries and outputs map to it."""
        low, high = int(self.slots[0]), int(self.slots[-1]) + 1
        self._longest = int(self.lengths.max())
        self._in_place = len(self.slots) >= dense_share * (high - low)
        self._rows = slice(low, high)
        self._masks: dict[int | None, mx.array | None] = {}
        self._spread: mx.array | None = None  # rows of the range -> tokens of the group
        self._collect: mx.array | None = None  # and back
        self._seen = self.lengths
        if not self._in_place:
            self._picked = mx.array(self.slots)
        elif len(self.slots) < high - low:
            spread = np.zeros(high - low, np.int32)
            spread[self.slots - low] = np.arange(len(self.slots))
            self._spread, self._collect = mx.array(spread), mx.array(self.slots - low)
            self._seen = np.ones(high - low, np.int32)
            self._seen[self.slots - low] = self.lengths

    @property
    def span(self) -> slice:
        """The tokens of the step that this reads for."""
        return slice(self.first, self.first + len(self.slots))

    def attend(
        self, kernels: Kernels, q: mx.array, layer: LayerSlabs, scale: float, sinks: mx.array | None
    ) -> mx.array:
        """q: [n, q_heads, 1, dim] -> [n, q_heads, 1, value_dim]"""
        keys, values = self.view(layer.keys(self.capacity)), self.view(layer.values(self.capacity))
        if self._spread is not None:
            q = q[self._spread]
        out = kernels.attend(q, keys, values, scale=scale, mask=self.mask(layer.shape.window), sinks=sinks)
        return out if self._collect is None else out[self._collect]

    def view(self, slab: mx.array) -> mx.array:
        """The part of a slab [num_slots, heads, capacity, dim] that the group reads: [rows, heads, longest, dim]."""
        part = slab[self._rows] if self._in_place else slab[self._picked]
        return part[:, :, : self._longest]

    def mask(self, window: int | None) -> mx.array | None:
        """Bool [rows, 1, 1, longest], or None where all rows see all of it. Made once per step and window."""
        if window not in self._masks:
            positions = np.arange(self._longest)[None]
            lengths = self._seen[:, None]
            seen = positions < lengths
            if window is not None:
                seen &= positions >= lengths - window
            self._masks[window] = None if seen.all() else mx.array(seen[:, None, None])
        return self._masks[window]


class PrefillChunk:
    """Tokens [first, first + count) of the step are positions [start, start + count) of the sequence in `slot`."""

    def __init__(self, first: int, count: int, slot: Slot, start: int) -> None:
        self.first = first
        self.count = count
        self.slot = slot
        self.start = start
        self._masks: dict[int | None, mx.array | str | None] = {}

    @property
    def span(self) -> slice:
        return slice(self.first, self.first + self.count)

    def attend(
        self, kernels: Kernels, q: mx.array, layer: LayerSlabs, scale: float, sinks: mx.array | None
    ) -> mx.array:
        """q: [count, q_heads, 1, dim] -> [count, q_heads, 1, value_dim]"""
        row, end = slice(self.slot.index, self.slot.index + 1), self.start + self.count
        keys, values = (slab(self.slot.capacity)[row, :, :end] for slab in (layer.keys, layer.values))
        mask = self.mask(layer.shape.window)
        out = kernels.attend(q.transpose(2, 1, 0, 3), keys, values, scale=scale, mask=mask, sinks=sinks)
        return out.transpose(2, 1, 0, 3)

    def mask(self, window: int | None) -> mx.array | str | None:
        if window is None or self.start + self.count <= window:
            return "causal" if self.count > 1 else None
        if window not in self._masks:
            mine = np.arange(self.start, self.start + self.count)[:, None]
            positions = np.arange(self.start + self.count)[None]
            self._masks[window] = mx.array((positions <= mine) & (positions > mine - window))
        return self._masks[window]


class Reader(Protocol):
    """A part of a step's attention."""

    @property
    def span(self) -> slice:
        """The tokens of the step that it reads for."""
        ...

    def attend(
        self, kernels: Kernels, q: mx.array, layer: LayerSlabs, scale: float, sinks: mx.array | None
    ) -> mx.array:
        """q: [n, q_heads, 1, dim] of its tokens -> [n, q_heads, 1, value_dim]"""
        ...


class StepLayout:
    """Where every token of a flattened step stands, is written, and looks."""

    def __init__(self, plan: StepPlan, *, is_ragged: bool = False, writes_kv: bool = False) -> None:
        """is_ragged: everything is for the ragged kernel; writes_kv: which writes K/V too."""
        self.writes_kv = writes_kv
        scheduled = plan.scheduled
        counts = np.array([len(s.token_ids) for s in scheduled])
        ends = np.cumsum(counts)
        self._slots = np.repeat([s.slot.index for s in scheduled], counts).astype(np.int32)
        self._capacities = np.repeat([s.slot.capacity for s in scheduled], counts)
        self._positions = np.concatenate([np.arange(s.start, s.end, dtype=np.int32) for s in scheduled])
        self.tokens = np.concatenate([s.token_ids for s in scheduled]).astype(np.int32)
        self.positions = mx.array(self._positions)
        self.is_decode = all(s.is_decode for s in scheduled)
        # Of all tokens, those after which logits are wanted (ScheduledSequence.logit_positions).
        self.wanted = list(range(len(scheduled)))
        if not self.is_decode:
            firsts = (ends - counts).tolist()
            self.wanted = [first + i for first, s in zip(firsts, scheduled, strict=True) for i in s.logit_positions]
        self.capacities = sorted({s.slot.capacity for s in scheduled})
        self.ragged_rows: RaggedRows | None = None  # of all tokens
        self.readers: list[Reader] = []  # of all tokens too, in their order, where those are none
        if is_ragged:
            self.ragged_rows = RaggedRows(self._slots, self._positions, self._capacities)
        else:
            self.readers = [*_decode_groups(scheduled), *_prefill_chunks(scheduled, ends - counts)]
        self._targets: dict[int, list[Target]] = {}
        # Set where a kernel writes K/V behind MLX's back: whoever evaluates this has made all layers' writes happen.
        self.written: mx.array | None = None

    def targets(self, num_heads: int) -> list[Target]:
        """One for each size class in use."""
        if num_heads not in self._targets:
            self._targets[num_heads] = [self._target(capacity, num_heads) for capacity in self.capacities]
        return self._targets[num_heads]

    def _target(self, capacity: int, num_heads: int) -> Target:
        mine = np.flatnonzero(self._capacities == capacity)
        rows = target_rows(self._slots[mine], self._positions[mine], capacity, num_heads)
        tokens = None if len(mine) == len(self._capacities) else mx.array(mine.astype(np.int32))
        return capacity, tokens, mx.array(rows)


def target_rows(slots: np.ndarray, positions: np.ndarray, capacity: int, num_heads: int) -> np.ndarray:
    """Flat slab rows [n * num_heads] of n tokens: where their K/V is written. int64 only where it must be."""
    heads = slots[:, None].astype(np.int64) * num_heads + np.arange(num_heads)[None]
    rows = (heads * capacity + positions[:, None]).reshape(-1)
    return rows.astype(np.int32) if rows.max(initial=0) < 2**31 else rows


def _decode_groups(scheduled: Iterable[ScheduledSequence]) -> list[DecodeGroup]:
    """The decode rows, which stand first in the plan and ascend by slot, by size class."""
    by_capacity: dict[int, list[ScheduledSequence]] = {}
    for entry in scheduled:
        if entry.is_decode:
            by_capacity.setdefault(entry.slot.capacity, []).append(entry)
    groups, first = [], 0
    for capacity, rows in by_capacity.items():
        slots = np.array([row.slot.index for row in rows], np.int32)
        groups.append(DecodeGroup(first, capacity, slots, np.array([row.end for row in rows], np.int32)))
        first += len(rows)
    return groups


def _prefill_chunks(scheduled: Iterable[ScheduledSequence], firsts: np.ndarray) -> list[PrefillChunk]:
    return [
        PrefillChunk(int(first), len(s.token_ids), s.slot, s.start)
        for s, first in zip(scheduled, firsts, strict=True)
        if not s.is_decode
    ]


class FlatCache:
    """What a layer of an mlx-lm model gets as its cache in a flattened step: T tokens as a batch of T.

    `offset` is a vector, so RoPE turns each token by its own position.
    """

    def __init__(self, layer: LayerSlabs, layout: StepLayout, kernels: Any) -> None:
        self.offset = layout.positions
        self.layer = layer
        self.layout = layout
        self._kernels = kernels
        self._kv: tuple[mx.array, mx.array] | None = None  # to be written by the kernel that attends

    def make_mask(self, *args: Any, **kwargs: Any) -> None:
        """Masks are attend()'s business."""
        return None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """keys, values: [T, kv_heads, 1, dim]. What is returned is not used: attend() reads the slabs."""
        if self.layout.writes_kv:
            self._kv = (keys, values)
            return keys, values
        for capacity, tokens, rows in self.layout.targets(self.layer.shape.num_heads):
            k, v = (keys, values) if tokens is None else (keys[tokens], values[tokens])
            self.layer.write(capacity, rows, k, v)
        return keys, values

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        """queries: [T, q_heads, 1, dim] -> [T, q_heads, 1, value_dim]"""
        kernels, layer, readers = self._kernels, self.layer, self.layout.readers
        if self.layout.ragged_rows is not None:
            kv, self._kv = self._kv, None
            out = kernels.ragged(queries, layer, self.layout.ragged_rows, scale=scale, sinks=sinks, kv=kv)
            if kv is not None:
                self.layout.written = out  # of the last layer in the end, which can't be without the others
            return cast("mx.array", out)
        if len(readers) == 1:
            return readers[0].attend(kernels, queries, layer, scale, sinks)
        return mx.concatenate([reader.attend(kernels, queries[reader.span], layer, scale, sinks) for reader in readers])


def hook_attention() -> None:
    """Route mlx_lm's scaled_dot_product_attention through FlatCache.attend where the cache is one."""
    from mlx_lm.models import base

    replace_in_models(base, "scaled_dot_product_attention", _dispatch)


def _dispatch(stock: Function) -> Function:
    def attention(
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any = None,
        scale: float = 1.0,
        mask: Any = None,
        sinks: mx.array | None = None,
        **other: Any,
    ) -> mx.array:
        if isinstance(cache, FlatCache):
            return cache.attend(queries, scale, sinks)
        return stock(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks, **other)

    return attention
