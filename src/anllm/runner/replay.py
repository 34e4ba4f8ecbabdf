"""Small steps without Python's share: the operations of a step are recorded once (mx.compile) and submitted again for
later steps that have as many tokens. On a GPU a step of few tokens is as long as the host needs to submit it, and of
that Python is a third (docs/log.md).

A record takes each token as a row of its own, as in decode steps. A short piece of a prompt goes the same way: its
tokens are rows that stand in the same slot, whose K/V is written before anyone looks.

What may differ between two steps with the same record are the arrays that go in: tokens, where they stand, and the
slabs, whatever their height. That needs kernels that write K/V in place (fusion.py): what a record puts out as new
arrays would be copies.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from anllm.runner.attention import FlatCache, StepLayout
from anllm.runner.kv_store import KVStore, LayerSlabs
from anllm.runner.ragged import RaggedRows

MAX_RECORDS = 256  # each some hundred kilobytes of the host's memory
SINGLE = 1  # tokens of a group: decode rows have the same groups whatever the most is that a kernel takes


# Tokens of one sequence that are rows of their own read the same K/V again, each for itself. So many tokens, times the
# most that one of them sees, are no dearer so than together; decode steps are always recorded.
MOST_TOKENS = 192
MOST_SEEN = 1 << 16


def can_be_recorded(num_tokens: int, longest: int) -> bool:
    """For a step with prompts in it: whether its tokens may be rows of their own. longest: what the farthest sees."""
    return num_tokens <= MOST_TOKENS and num_tokens * longest <= MOST_SEEN


def recorded_size(num_rows: int) -> int:
    """As many rows, or some more, so that steps are of few kinds: a record costs more than one step gains."""
    step = 1 if num_rows <= 4 else 4 if num_rows <= 32 else 8 if num_rows <= 128 else 16
    return -(-num_rows // step) * step


class RecordedRows(RaggedRows):
    """Rows whose places are arrays that are not known yet."""

    def __init__(self, like: RaggedRows, longest: int, table: mx.array, groups: mx.array) -> None:
        self.capacities = like.capacities
        self.size = like.size
        self.longest = longest
        self.table = table
        self._single = groups

    def groups(self, most: int) -> mx.array:
        return self._single


class RecordedSlabs(LayerSlabs):
    """A layer whose slabs are arrays that are not known yet, to be read by kernels and written by them in place."""

    def __init__(self, like: LayerSlabs, capacities: Sequence[int], slabs: Sequence[mx.array]) -> None:
        """slabs: of each capacity what like.beginnings gave."""
        super().__init__(like.shape)
        self._keys = dict(zip(capacities, slabs[::2], strict=True))
        self._values = dict(zip(capacities, slabs[1::2], strict=True))

    def write(self, capacity: int, index: mx.array, keys: mx.array, values: mx.array) -> None:
        raise RuntimeError("a layer that does not write its K/V in place can't be recorded")


class StepReplay:
    """Steps all of whose tokens are rows of their own."""

    def __init__(self, call: Callable[[mx.array, list[Any]], mx.array], kernels: Any) -> None:
        """call: the model, of tokens [n, 1] and a cache for each layer; logits [n, 1, vocab]."""
        self._call = call
        self._kernels = kernels
        self._records: OrderedDict[tuple[Any, ...], Callable[..., Any] | None] = OrderedDict()

    def logits(self, tokens: mx.array, layout: StepLayout, store: KVStore) -> mx.array | None:
        """tokens: [n]. Logits [n, vocab], with layout.written set; None the first time that a step of this kind is
        seen, since a record costs more than one step gains."""
        rows = layout.ragged_rows
        assert rows is not None
        # Rows that see up to the next power of two split in the same way (choose_splits of the CUDA kernels).
        longest = 1 << (rows.longest - 1).bit_length()
        slabs = store.beginnings(layout.capacities)
        key = (rows.size, longest, rows.capacities)
        if key not in self._records:
            self._remember(key, None)
            return None
        record = self._records[key] or mx.compile(self._step(layout, store, longest))
        self._remember(key, record)
        logits, layout.written = record(tokens, layout.positions, rows.table, rows.groups(SINGLE), *slabs)
        return logits

    def _remember(self, key: tuple[Any, ...], record: Callable[..., Any] | None) -> None:
        self._records[key] = record
        self._records.move_to_end(key)
        if len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)

    def _step(self, layout: StepLayout, store: KVStore, longest: int) -> Callable[..., tuple[mx.array, mx.array]]:
        """The step as a function of arrays alone."""
        layers, capacities, rows = store.layers, layout.capacities, layout.ragged_rows
        each = 2 * len(capacities)  # slabs of a layer
        assert rows is not None

        def step(
            tokens: mx.array, positions: mx.array, table: mx.array, groups: mx.array, *slabs: mx.array
        ) -> tuple[mx.array, mx.array]:
            mine = copy.copy(layout)
            mine.positions, mine.ragged_rows = positions, RecordedRows(rows, longest, table, groups)
            recorded = [
                RecordedSlabs(layer, capacities, slabs[i * each : (i + 1) * each]) for i, layer in enumerate(layers)
            ]
            logits = self._call(tokens[:, None], [FlatCache(layer, mine, self._kernels) for layer in recorded])[:, 0]
            assert mine.written is not None
            return logits, mine.written

        return step
