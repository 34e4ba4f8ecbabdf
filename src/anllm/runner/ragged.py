"""Ragged attention: many tokens, each over its own slot and length, read in place by one kernel of a backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx
import numpy as np

from anllm.runner.kv_store import LayerSlabs


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """Where tokens of a step stand and how far they see: each sees its slot up to its own position.

    table: int32 [n, 4], of each token: its size class (an index into capacities), slot, position and capacity.
    longest: no less than any position + 1.
    """

    table: mx.array
    capacities: tuple[int, ...]
    longest: int

    @property
    def size(self) -> int:
        return int(self.table.shape[0])


@runtime_checkable
class RaggedKernels(Protocol):
    """What a backend with such a kernel has besides the Kernels of attention.py."""

    def ragged(
        self, q: mx.array, layer: LayerSlabs, rows: RaggedRows, *, scale: float, sinks: mx.array | None
    ) -> mx.array:
        """q: [n, q_heads, 1, dim], of the tokens in rows. Each attends over what its slot holds up to its position, or
        the newest layer.shape.window of that. Returns [n, q_heads, 1, dim]. Raises ValueError for heads that the kernel
        can't take."""
        ...


class RaggedGroup:
    """A Reader (attention.py): the tokens of a step that the ragged kernel takes, of all size classes."""

    def __init__(self, tokens: np.ndarray, rows: RaggedRows) -> None:
        """tokens: which of the step's tokens the rows are."""
        self.tokens = tokens
        self.rows = rows

    def attend(
        self, kernels: RaggedKernels, q: mx.array, layer: LayerSlabs, scale: float, sinks: mx.array | None
    ) -> mx.array:
        """q: [n, q_heads, 1, dim] -> [n, q_heads, 1, dim]"""
        return kernels.ragged(q, layer, self.rows, scale=scale, sinks=sinks)
