"""The compatible way: prompts one by one as [1, length], decode rows together as [rows, 1], in the slots of the pool.

For models that do their own attention on what update_and_fetch returns (soft-capping, MLA), and for recurrent and
convolutional layers, whose state is kept by slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache

from anllm.core.step import ScheduledSequence, Slot, StepPlan
from anllm.runner.attention import DecodeGroup, target_rows
from anllm.runner.forward import Head
from anllm.runner.kv_store import KVStore, LayerSlabs

State = list[mx.array | None]
BuildPart = Callable[[Callable[[int], Any], Callable[[int], Any]], Any]
BuildCache = Callable[[Callable[[int], Any], Callable[[int], Any]], list[Any]]


class RowCache:
    """A layer's cache while one sequence computes n tokens, [1, n]."""

    def __init__(self, layer: LayerSlabs, entry: ScheduledSequence) -> None:
        self.offset = entry.start
        self._layer = layer
        self._slot = entry.slot

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | str | None:
        window = window_size or self._layer.shape.window
        beyond_window = window is not None and self.offset + n > window
        if n == 1 and not beyond_window:
            return None
        if not return_array and not beyond_window:
            return "causal"
        mine = mx.arange(self.offset, self.offset + n)[:, None]
        positions = mx.arange(self.offset + n)[None]
        mask = positions <= mine
        return mask & (positions > mine - window) if window is not None else mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """keys, values: [1, heads, n, dim]. All K/V of the sequence so far: [1, heads, offset + n, dim]."""
        start, n = self.offset, keys.shape[2]
        self.offset = start + n
        heads = self._layer.shape.num_heads
        flat = (self._slot.index * heads + np.arange(heads)[:, None]) * self._slot.capacity + start + np.arange(n)[None]
        self._layer.write(self._slot.capacity, mx.array(flat.reshape(-1)), keys, values)
        row = slice(self._slot.index, self._slot.index + 1)
        k, v = (slab(self._slot.capacity)[row, :, : self.offset] for slab in (self._layer.keys, self._layer.values))
        return k, v


class RowsCache:
    """A layer's cache while the rows of one size class compute one token each, [rows, 1]."""

    def __init__(self, layer: LayerSlabs, group: DecodeGroup) -> None:
        self.offset = mx.array(group.lengths - 1)
        self._layer = layer
        self._group = group

    def make_mask(self, n: int, window_size: int | None = None, return_array: bool = False) -> mx.array | None:
        return self._group.mask(window_size or self._layer.shape.window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """keys, values: [rows, heads, 1, dim]. K/V of all rows up to the longest: [rows, heads, longest, dim]."""
        group = self._group
        rows = target_rows(group.slots, group.lengths - 1, group.capacity, self._layer.shape.num_heads)
        self._layer.write(group.capacity, mx.array(rows), keys, values)
        return group.view(self._layer.keys(group.capacity)), group.view(self._layer.values(group.capacity))


class StateStore:
    """State arrays of recurrent layers, by slot. `layouts`: number of arrays of each such layer."""

    def __init__(self, layouts: Sequence[int]) -> None:
        self._layouts = layouts
        self._rows: dict[Slot, list[State]] = {}

    def load(self, entries: Sequence[ScheduledSequence]) -> list[ArraysCache]:
        """One cache per recurrent layer, with the rows' states stacked; empty where a sequence begins."""
        fresh: list[State] = [[None] * size for size in self._layouts]
        states = [fresh if e.start == 0 else self._rows[e.slot] for e in entries]
        caches = []
        for layer, size in enumerate(self._layouts):
            cache = ArraysCache(size)
            for i in range(size):
                cache[i] = _stack([state[layer][i] for state in states])
            caches.append(cache)
        return caches

    def save(self, entries: Sequence[ScheduledSequence], caches: Sequence[ArraysCache]) -> None:
        """Keep each row's part of what the forward left."""
        for row, entry in enumerate(entries):
            self._rows[entry.slot] = [
                [None if array is None else array[row : row + 1] for array in cache.cache] for cache in caches
            ]

    def copy(self, source: Slot, target: Slot) -> None:
        self._rows[target] = self._rows[source]

    def arrays(self, entries: Sequence[ScheduledSequence]) -> list[mx.array]:
        return [a for e in entries for state in self._rows[e.slot] for a in state if a is not None]


def _stack(rows: list[mx.array | None]) -> mx.array | None:
    """Rows [1, ...] -> [rows, ...]. All rows or none are there: a row is decoded only after its prompt."""
    arrays = [row for row in rows if row is not None]
    return mx.concatenate(arrays) if len(arrays) > 1 else arrays[0] if arrays else None


class CompatibleForward:
    """Needs a model whose caches are plain K/V, rotating K/V, state arrays, or lists of these."""

    name = "compatible"

    def __init__(self, head: Head, store: KVStore, states: StateStore, build_cache: BuildCache) -> None:
        """build_cache(kv, state) gives the model's list of caches: kv(i) for its i-th K/V layer, state(i) likewise."""
        self._head = head
        self._store = store
        self._states = states
        self._build_cache = build_cache

    def logits(self, plan: StepPlan) -> mx.array | None:
        self._store.apply(plan.resizes, plan.copies)
        for copy in plan.copies:
            self._states.copy(copy.source, copy.target)
        rows = [s for s in plan.scheduled if s.is_decode and s.start > 0]
        sampled = self._decode(rows)
        sampled |= {e.request_id: self._row(e) for e in plan.scheduled if e.request_id not in sampled}
        found = [logits for s in plan.scheduled if (logits := sampled[s.request_id]) is not None]
        return mx.concatenate(found) if found else None

    def _decode(self, rows: list[ScheduledSequence]) -> dict[int, mx.array | None]:
        """Decode rows, one call for each size class."""
        sampled: dict[int, mx.array | None] = {}
        for capacity in dict.fromkeys(row.slot.capacity for row in rows):
            group_rows = [row for row in rows if row.slot.capacity == capacity]
            slots = np.array([row.slot.index for row in group_rows], np.int32)
            group = DecodeGroup(0, capacity, slots, np.array([row.end for row in group_rows], np.int32), packed=True)
            tokens = mx.array([row.token_ids for row in group_rows])

            def rows_cache(layer: int, group: DecodeGroup = group) -> RowsCache:
                return RowsCache(self._store.layers[layer], group)

            logits = self._call(group_rows, tokens, rows_cache, [(i, 0) for i in range(len(group_rows))])
            assert logits is not None
            sampled |= {row.request_id: logits[i : i + 1] for i, row in enumerate(group_rows)}
        return sampled

    def _row(self, entry: ScheduledSequence) -> mx.array | None:
        """A chunk of one sequence."""
        tokens = mx.array([entry.token_ids])
        wanted = [(0, position) for position in entry.logit_positions]
        return self._call([entry], tokens, lambda i: RowCache(self._store.layers[i], entry), wanted)

    def _call(
        self,
        entries: list[ScheduledSequence],
        tokens: mx.array,
        kv: Callable[[int], Any],
        wanted: list[tuple[int, int]],
    ) -> mx.array | None:
        """tokens: [rows, n]. Logits [len(wanted), vocab] at these rows and positions."""
        states = self._states.load(entries)
        cache = self._build_cache(kv, lambda i: states[i])
        logits = None
        if wanted:
            logits = self._head(tokens, cache, [row for row, _ in wanted], [position for _, position in wanted])
        else:
            self._head.skip(tokens, cache)
        self._states.save(entries, states)
        kept = self._store.arrays({e.slot.capacity for e in entries}) + self._states.arrays(entries)
        mx.eval(kept if logits is None else [logits, *kept])
        return logits
