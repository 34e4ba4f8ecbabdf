"""Ragged attention: many tokens, each over its own slot and length, read in place by one kernel of a backend."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import mlx.core as mx
import numpy as np

from anllm.runner.kv_store import LayerSlabs, NewSlab


class RaggedRows:
    """Where tokens of a step stand and how far they see: each sees its slot up to its own position.

    table: int32 [n, 4], of each token its size class (an index into capacities), slot, position and capacity;
    host_table: the same for the host.
    longest: no less than any position + 1.
    """

    def __init__(self, slots: np.ndarray, positions: np.ndarray, capacities: np.ndarray) -> None:
        """int [n] each, of each token; those of a sequence stand side by side in their order."""
        classes, index = np.unique(capacities, return_inverse=True)
        self.capacities: tuple[int, ...] = tuple(classes.tolist())
        self.longest = int(positions.max()) + 1
        self.size = len(slots)
        self.host_table = np.stack([index, slots, positions, capacities], axis=1).astype(np.int32)
        self._groups: dict[int, mx.array] = {}
        self._host_groups: dict[int, np.ndarray] = {}
        self.table = mx.array(self.host_table)

    def groups(self, most: int) -> mx.array:
        """int32 [m, 6]: runs of at most so many tokens of one sequence. Of each the table's row of its first token,
        then which token that is, and how many there are."""
        if most not in self._groups:
            self._groups[most] = mx.array(self.host_groups(most))
        return self._groups[most]

    def host_groups(self, most: int) -> np.ndarray:
        """The same for kernels that run on the host."""
        if most not in self._host_groups:
            self._host_groups[most] = self._grouped(most)
        return self._host_groups[most]

    def _grouped(self, most: int) -> np.ndarray:
        tokens = np.arange(self.size)
        follows = np.zeros(self.size, bool)  # the token before it, in the same slot
        follows[1:] = (np.diff(self.host_table, axis=0) == (0, 0, 1, 0)).all(axis=1)
        run_starts = np.maximum.accumulate(np.where(follows, 0, tokens))
        firsts = np.flatnonzero((tokens - run_starts) % most == 0)
        counts = np.diff(np.append(firsts, self.size))
        return np.concatenate([self.host_table[firsts], np.stack([firsts, counts], axis=1)], axis=1).astype(np.int32)


@runtime_checkable
class RaggedKernels(Protocol):
    """What a backend with such a kernel has besides the Kernels of attention.py."""

    @property
    def writes_kv(self) -> bool:
        """Whether the kernel is to be given K/V, which it writes in place before anyone reads."""
        ...

    @property
    def new_slab(self) -> NewSlab | None:
        """The backend's own way of making slabs, where no other kernel than this reads them."""
        ...

    @property
    def is_compiled(self) -> bool:
        """Whether kinds of steps are compiled when they are first seen, so that a start should go through them."""
        ...

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
        """q: [n, q_heads, 1, dim], of the tokens in rows. Each attends over what its slot holds up to its position, or
        the newest layer.shape.window of that. kv: K and V of the tokens, [n, kv_heads, 1, dim] each, where writes_kv
        and they are not there yet. Returns [n, q_heads, 1, dim]. Raises ValueError for heads that the kernel can't
        take."""
        ...
