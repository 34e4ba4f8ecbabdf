"""Decode steps as compiled functions: the graph is built once for each shape of step and replayed from then on.

On a GPU a decode step costs the host more than the device: some twenty operations a layer are made in Python, one by
one, whatever the number of rows. A compiled function makes them all in one call, and fuses the small ones. Steps whose
rows are all in one size class and all decode take this way; rows are padded to a bucket, so that few shapes occur.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from anllm.core.step import StepPlan
from anllm.runner.attention import FlatCache, RaggedGroup, RaggedKernels, Reader, Target, target_rows
from anllm.runner.forward import Head
from anllm.runner.kv_store import KVStore, LayerSlabs

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
LENGTH_STEP = 256  # lengths are rounded up to this where they only choose among variants of a kernel

Program = Callable[..., list[mx.array]]


class CompiledDecode:
    """One compiled function for each size class, number of rows and rounded length; traced again when slabs grow."""

    def __init__(self, head: Head, store: KVStore, kernels: RaggedKernels) -> None:
        self._head = head
        self._store = store
        self._kernels = kernels
        self._programs: dict[tuple[int, int, int], Program] = {}
        self._head_counts = sorted({layer.shape.num_heads for layer in store.layers})

    def can_run(self, plan: StepPlan) -> bool:
        """Whether all rows decode, in one size class, and a bucket is large enough."""
        first = plan.scheduled[0].slot.capacity
        return len(plan.scheduled) <= BUCKETS[-1] and all(
            s.is_decode and s.slot.capacity == first for s in plan.scheduled
        )

    def begin(self, plan: StepPlan, tokens: mx.array) -> tuple[mx.array, list[mx.array]]:
        """tokens: [rows]. Logits [rows, vocab] and the slabs that were written, nothing of it evaluated."""
        scheduled = plan.scheduled
        capacity, num_rows = scheduled[0].slot.capacity, len(scheduled)
        bucket = next(size for size in BUCKETS if size >= num_rows)
        # Rows of padding repeat the first one: what they write is what it writes.
        index = np.arange(bucket) * (np.arange(bucket) < num_rows)
        slots = np.array([s.slot.index for s in scheduled], np.int32)[index]
        positions = np.array([s.start for s in scheduled], np.int32)[index]
        longest = -(-(int(positions.max()) + 1) // LENGTH_STEP) * LENGTH_STEP
        rows = [mx.array(target_rows(slots, positions, capacity, heads)) for heads in self._head_counts]
        layers = self._store.layers
        padded = tokens if bucket == num_rows else tokens[mx.array(index)]
        slabs = [layer.take_slabs(capacity) for layer in layers]
        try:
            program = self._program(capacity, bucket, longest)
            logits, *written = program(padded, mx.array(positions), mx.array(slots), rows, slabs)
            slabs = list(zip(written[::2], written[1::2], strict=True))
        finally:  # also after an exception, with the slabs as they were
            for layer, (keys, values) in zip(layers, slabs, strict=True):
                layer.put_slabs(capacity, keys, values)
        return logits[:num_rows], self._store.arrays([capacity])

    def _program(self, capacity: int, bucket: int, longest: int) -> Program:
        key = (capacity, bucket, longest)
        if key not in self._programs:
            self._programs[key] = mx.compile(self._trace(capacity, longest))
        return self._programs[key]

    def _trace(self, capacity: int, longest: int) -> Program:
        """The step as a function of arrays alone: logits, then keys and values of each layer."""

        def step(
            tokens: mx.array,
            positions: mx.array,
            slots: mx.array,
            rows: list[mx.array],
            slabs: list[tuple[mx.array, mx.array]],
        ) -> list[mx.array]:
            layers = [LayerSlabs(layer.shape) for layer in self._store.layers]
            for layer, (keys, values) in zip(layers, slabs, strict=True):
                layer.put_slabs(capacity, keys, values)
            targets: dict[int, list[Target]] = {
                heads: [(capacity, None, r)] for heads, r in zip(self._head_counts, rows, strict=True)
            }
            layout = _DecodeLayout(positions, RaggedGroup(capacity, slots, positions + 1, longest=longest), targets)
            cache = [FlatCache(layer, layout, self._kernels) for layer in layers]
            logits = self._head.all(tokens[:, None], cache)[:, 0]
            return [logits, *(array for layer in layers for array in layer.take_slabs(capacity))]

        return step


class _DecodeLayout:
    """What FlatCache needs to know of a step (see StepLayout), where one ragged group reads for all tokens."""

    def __init__(self, positions: mx.array, group: RaggedGroup, targets: dict[int, list[Target]]) -> None:
        self.positions = positions
        self.readers: list[Reader] = [group]
        self.picks: list[slice | mx.array] = [slice(None)]
        self.order: mx.array | None = None
        self._targets = targets

    def targets(self, num_heads: int) -> list[Target]:
        return self._targets[num_heads]
