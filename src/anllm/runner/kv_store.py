"""The arrays behind the slots of kvcache/pool.py: per layer and size class one K and one V slab.

A slab is one flat array [num_slots * num_heads * capacity, head_dim], so that writing the new tokens of a whole step is
one scatter along its first axis, in place (MLX donates the buffer as long as nobody else holds the array). For
attention it is seen as [num_slots, num_heads, capacity, head_dim], the order that needs no copy. What lies behind a
row's length is garbage and never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import mlx.core as mx
import numpy as np

from anllm.core.step import SlabResize, Slot, SlotCopy

# Copies the first tokens of a row to other rows of one capacity, in place: what is to be evaluated for that to happen.
CopyRows = Callable[["LayerSlabs", Slot, Sequence[Slot], int], mx.array]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """K/V of one layer. window: how many of the newest tokens a token may look at (itself included), None for all."""

    num_heads: int
    key_dim: int
    value_dim: int
    dtype: mx.Dtype
    window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        return self.num_heads * (self.key_dim + self.value_dim) * self.dtype.size


# Height and width to an array of that shape, for slabs whose garbage is never read, whatever it is.
NewSlab = Callable[[int, int], mx.array]


class LayerSlabs:
    """The slabs of one layer, by capacity. Changed by resize, fill and write."""

    def __init__(self, shape: LayerShape, new_slab: NewSlab | None = None) -> None:
        self.shape = shape
        self._new_slab = new_slab
        self._keys: dict[int, mx.array] = {}
        self._values: dict[int, mx.array] = {}
        self._beginnings: dict[int, list[mx.array]] = {}
        self._addresses: dict[int, list[int]] = {}

    def keys(self, capacity: int) -> mx.array:
        """[num_slots, num_heads, capacity, key_dim]"""
        return self._keys[capacity].reshape(-1, self.shape.num_heads, capacity, self.shape.key_dim)

    def values(self, capacity: int) -> mx.array:
        """[num_slots, num_heads, capacity, value_dim]"""
        return self._values[capacity].reshape(-1, self.shape.num_heads, capacity, self.shape.value_dim)

    def write(self, capacity: int, index: mx.array, keys: mx.array, values: mx.array) -> None:
        """Scatter new tokens. index: flat rows [n * num_heads]; keys, values: [n, num_heads, ..., dim], ordered so."""
        self._addresses.pop(capacity, None)
        self._keys[capacity][index] = keys.reshape(-1, self.shape.key_dim).astype(self.shape.dtype)
        self._values[capacity][index] = values.reshape(-1, self.shape.value_dim).astype(self.shape.dtype)

    def flat(self, capacity: int) -> tuple[mx.array, mx.array]:
        """K and V as they are stored: [num_slots * num_heads * capacity, dim]"""
        return self._keys[capacity], self._values[capacity]

    def arrays(self, capacities: Iterable[int]) -> list[mx.array]:
        """The slabs of these capacities, to be evaluated."""
        return [slabs[c] for c in capacities for slabs in (self._keys, self._values)]

    def beginnings(self, capacity: int) -> list[mx.array]:
        """The first line of K and that of V, [1, dim] each, submitted: the same memory as the slabs, for kernels that
        find their rows by themselves, and of one shape whatever the height. Whoever has asked for them writes to the
        slabs in place, behind MLX's back, or not at all."""
        if capacity not in self._beginnings:
            self._beginnings[capacity] = [slab[:1] for slab in self.flat(capacity)]
            mx.async_eval(self._beginnings[capacity])
        return self._beginnings[capacity]

    def addresses(self, capacity: int) -> list[int]:
        """Where K and V begin in the memory of the host, for kernels that run there and write in place, behind MLX's
        back."""
        if capacity not in self._addresses:
            slabs = self.flat(capacity)
            self._addresses[capacity] = [np.array(slab, copy=False).ctypes.data for slab in slabs]
        return self._addresses[capacity]

    def resize(self, capacity: int, num_slots: int) -> None:
        """Cut or extend, at once."""
        resized = self.resized(capacity, num_slots)
        mx.eval(resized)
        self.replace(capacity, resized)

    def resized(self, capacity: int, num_slots: int) -> list[mx.array]:
        """K and V of another height, not evaluated; what is here stays as it is."""
        rows = num_slots * self.shape.num_heads * capacity
        slabs = []
        for now, dim in ((self._keys, self.shape.key_dim), (self._values, self.shape.value_dim)):
            old = now.get(capacity, mx.zeros((0, dim), self.shape.dtype))
            kept = min(old.shape[0], rows)
            if self._new_slab is not None:
                slab = self._new_slab(rows, dim)
                if kept:
                    slab[:kept] = old[:kept]
                slabs.append(slab)
                continue
            slabs.append(mx.concatenate([old[:kept], mx.zeros((rows - kept, dim), self.shape.dtype)]))
        return slabs

    def replace(self, capacity: int, resized: Sequence[mx.array]) -> None:
        """Take what resized() gave."""
        self._keys[capacity], self._values[capacity] = resized
        self._beginnings.pop(capacity, None)
        self._addresses.pop(capacity, None)

    def read(self, slot: Slot, num_tokens: int) -> list[mx.array]:
        """Keys and values of the first tokens of a row, each [num_heads, num_tokens, dim], in memory of their own."""
        views = (self.keys(slot.capacity), self.values(slot.capacity))
        return [mx.contiguous(view[slot.index, :, :num_tokens]) for view in views]

    def fill(self, slots: Sequence[Slot], arrays: Sequence[mx.array]) -> None:
        """Write what read() gave into rows of one capacity, in place as long as nobody else holds the slab; what was
        read must have been evaluated."""
        (capacity,) = {slot.capacity for slot in slots}
        self._addresses.pop(capacity, None)
        for slabs, array in zip((self._keys, self._values), arrays, strict=True):
            num_heads, num_tokens, dim = array.shape
            whole = slabs.pop(capacity).reshape(-1, num_heads, capacity, dim)
            for slot in slots:
                whole[slot.index, :, :num_tokens] = array
            slabs[capacity] = whole.reshape(-1, dim)


class KVStore:
    """All layers. The pool decides, this carries out."""

    def __init__(
        self,
        shapes: Iterable[LayerShape],
        copy_rows: CopyRows | None = None,
        *,
        resize_bytes: int = 0,
        new_slab: NewSlab | None = None,
    ) -> None:
        """copy_rows, new_slab: a backend's own ways. resize_bytes: memory that slabs may take besides while they are
        resized; those of a layer always do. With more of it, steps wait less for it."""
        self.layers = [LayerSlabs(shape, new_slab) for shape in shapes]
        self._copy_rows = copy_rows
        self._resize_bytes = resize_bytes

    def apply(self, resizes: Iterable[SlabResize], copies: Iterable[SlotCopy]) -> None:
        """What a plan wants done before its forward pass."""
        for resize in resizes:
            self._resize(resize)
        # Neighbours with the same source are one copy to several rows: a burst of prompts that begin alike.
        for (source, num_tokens, _), alike in groupby(copies, lambda c: (c.source, c.num_tokens, c.target.capacity)):
            targets = [copy.target for copy in alike]
            if self._copy_rows is not None:
                mx.async_eval([self._copy_rows(layer, source, targets, num_tokens) for layer in self.layers])
            else:
                self._copy(source, targets, num_tokens)

    def _resize(self, resize: SlabResize) -> None:
        """As many layers at a time as there is memory for; nobody waits for the last ones."""
        capacity, num_slots = resize.capacity, resize.num_slots
        if self._resize_bytes:
            # What MLX keeps of slabs that were replaced may fill a CUDA device, and then it keeps nothing any more:
            # each step allocates anew, 8.9 ms in place of 7.2 (docs/log.md). After this it keeps again.
            mx.clear_cache()
        token_bytes = max((layer.shape.bytes_per_token for layer in self.layers), default=0)
        each = max(self._resize_bytes // max(num_slots * capacity * token_bytes, 1), 1)
        for first in range(0, len(self.layers), each):
            layers = self.layers[first : first + each]
            resized = [layer.resized(capacity, num_slots) for layer in layers]
            is_last = first + each >= len(self.layers)
            # If this raises, the old slabs are still whole.
            (mx.async_eval if is_last and self._resize_bytes else mx.eval)(resized)
            for layer, slabs in zip(layers, resized, strict=True):
                layer.replace(capacity, slabs)

    def _copy(self, source: Slot, targets: list[Slot], num_tokens: int) -> None:
        """Layer by layer: should a slab be held by somebody else, so that it is not written in place but copied, this
        takes the memory of one layer besides."""
        for layer in self.layers:
            piece = layer.read(source, num_tokens)
            mx.eval(piece)
            layer.fill(targets, piece)
            mx.eval(layer.arrays([targets[0].capacity]))

    def beginnings(self, capacities: Sequence[int]) -> list[mx.array]:
        """LayerSlabs.beginnings of all layers, of each in the order of the capacities."""
        return [array for layer in self.layers for capacity in capacities for array in layer.beginnings(capacity)]

    def arrays(self, capacities: Iterable[int]) -> list[mx.array]:
        """All slabs of these capacities, to be evaluated with a step's results."""
        capacities = list(capacities)
        return [array for layer in self.layers for array in layer.arrays(capacities)]
