"""KVPool: slots in size classes, inside a memory budget.

A slot is a row of K/V for one sequence. Rows come in classes of 256 * 2^k tokens; the rows of one class are one slab,
which grows and shrinks by whole rows. The pool decides with integers; what it decided is carried out by the runner
(SlabResize in the next plan).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush

from anllm.core.step import SlabResize, Slot

SMALLEST_CAPACITY = 256
# Slabs grow in steps of about a half or a third, so that the copying that growth costs stays a small share of the work.
# Beyond these by half: each height is also a kind of step that a GPU has to be told of anew (runner/replay.py).
SLAB_HEIGHTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


class KVPool:
    """Slots of several capacities. Modified by allocate, free, take_resizes and repeat_resizes only."""

    def __init__(self, *, budget_bytes: int, bytes_per_token: int, max_model_len: int, row_bytes: int = 0) -> None:
        """bytes_per_token: K and V of all layers; row_bytes: what a row takes whatever its length (recurrent state).

        Raises ValueError if the budget does not hold one row of max_model_len tokens.
        """
        self._budget_bytes = budget_bytes
        self._bytes_per_token = bytes_per_token
        self._row_bytes = row_bytes
        self._capacities = size_classes(max_model_len)
        self._num_slots = dict.fromkeys(self._capacities, 0)
        self._free: dict[int, list[int]] = {capacity: [] for capacity in self._capacities}  # heaps: lowest index first
        self._owned: set[Slot] = set()
        self._owned_bytes = 0
        self._told = dict(self._num_slots)  # the heights that take_resizes() gave last
        self._untold: dict[int, None] = {}  # capacities to tell again, whatever their height
        if self._slab_bytes(self._capacities[-1], 1) > budget_bytes:
            raise ValueError(f"a budget of {budget_bytes} bytes does not hold one sequence of {max_model_len} tokens")

    @property
    def budget_bytes(self) -> int:
        return self._budget_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all slabs, whether their slots are owned or free."""
        return sum(self._slab_bytes(capacity, number) for capacity, number in self._num_slots.items())

    @property
    def owned_bytes(self) -> int:
        """Bytes of the slots that are owned."""
        return self._owned_bytes

    @property
    def num_owned_slots(self) -> int:
        return len(self._owned)

    def slot_bytes(self, slot: Slot) -> int:
        return self._slab_bytes(slot.capacity, 1)

    def capacity_for(self, num_tokens: int) -> int:
        """Of the smallest slots that hold so many tokens; at most max_model_len."""
        return self._capacities[bisect_left(self._capacities, num_tokens)]

    def has_free_slot(self, capacity: int) -> bool:
        return bool(self._free[capacity])

    def slab_bytes(self, capacity: int) -> int:
        """Of all rows of this capacity."""
        return self._slab_bytes(capacity, self._num_slots[capacity])

    def could_allocate(self, num_tokens: int, freed: Collection[Slot]) -> bool:
        """Whether allocate() would find a slot if these slots were freed before."""
        capacity = self.capacity_for(num_tokens)
        if self._free[capacity] or any(slot.capacity == capacity for slot in freed):
            return True
        heights = dict.fromkeys(self._capacities, 0)
        heights[capacity] = self._num_slots[capacity]
        for slot in self._owned.difference(freed):
            heights[slot.capacity] = max(heights[slot.capacity], slot.index + 1)
        needed = sum(self._slab_bytes(c, height) for c, height in heights.items()) + self._slab_bytes(capacity, 1)
        return needed <= self._budget_bytes

    def allocate(self, num_tokens: int) -> Slot | None:
        """A slot for at least num_tokens tokens, or None if the budget does not allow one now.

        num_tokens must be at most max_model_len. The lowest free index is taken, so that slabs stay dense and can
        shrink from their end.
        """
        capacity = self.capacity_for(num_tokens)
        if not self._free[capacity] and not self._grow(capacity):
            return None
        slot = Slot(capacity, heappop(self._free[capacity]))
        self._owned.add(slot)
        self._owned_bytes += self.slot_bytes(slot)
        return slot

    def free(self, slot: Slot) -> None:
        """Give a slot back. Its contents may be overwritten from now on."""
        self._owned.remove(slot)
        self._owned_bytes -= self.slot_bytes(slot)
        heappush(self._free[slot.capacity], slot.index)

    def take_resizes(self) -> tuple[SlabResize, ...]:
        """The slabs whose height changed since the last call, shrinking ones first (they make the room)."""
        now = self._num_slots
        changed = [c for c in now if now[c] != self._told[c] and c not in self._untold]
        ordered = sorted([*self._untold, *changed], key=lambda c: now[c] > self._told[c])
        self._told = dict(now)
        self._untold.clear()
        return tuple(SlabResize(capacity, now[capacity]) for capacity in ordered)

    def repeat_resizes(self, resizes: Iterable[SlabResize]) -> None:
        """These may not have been carried out: have take_resizes() tell the heights of their slabs again."""
        self._untold.update(dict.fromkeys(resize.capacity for resize in resizes))

    def check_integrity(self) -> None:
        """Assert that every slot is either owned or free, once, and that the budget holds."""
        for capacity, number in self._num_slots.items():
            owned = {slot.index for slot in self._owned if slot.capacity == capacity}
            free = self._free[capacity]
            assert len(free) == len(set(free)), f"slots of capacity {capacity} twice free: {free}"
            assert owned.isdisjoint(free), f"slots of capacity {capacity} owned and free: {owned} {free}"
            assert owned | set(free) == set(range(number)), f"slots of capacity {capacity} lost: {owned} {free}"
        assert self._owned_bytes == sum(map(self.slot_bytes, self._owned))
        assert self._owned_bytes <= self.allocated_bytes <= self._budget_bytes

    def _slab_bytes(self, capacity: int, num_slots: int) -> int:
        return num_slots * (capacity * self._bytes_per_token + self._row_bytes)

    def _grow(self, capacity: int) -> bool:
        """Add free slots to a class: up to the next height if the budget allows it, else as many as fit."""
        height = self._num_slots[capacity]
        room = self._room(capacity)
        if room < 1:
            self._shrink_others(capacity)
            room = self._room(capacity)
        if room < 1:
            return False
        self._set_height(capacity, min(next_height(height), height + room))
        return True

    def _room(self, capacity: int) -> int:
        """Rows of this capacity that still fit in the budget."""
        return (self._budget_bytes - self.allocated_bytes) // self._slab_bytes(capacity, 1)

    def _shrink_others(self, capacity: int) -> None:
        """Cut the free slots off the end of every other slab."""
        for other in self._capacities:
            if other != capacity:
                owned = [slot.index for slot in self._owned if slot.capacity == other]
                self._set_height(other, max(owned, default=-1) + 1)

    def _set_height(self, capacity: int, height: int) -> None:
        before = self._num_slots[capacity]
        if height == before:
            return
        free = [index for index in self._free[capacity] if index < height]
        free.extend(range(before, height))
        heapify(free)
        self._free[capacity] = free
        self._num_slots[capacity] = height


def size_classes(max_model_len: int) -> list[int]:
    """256 * 2^k up to max_model_len; the last class is max_model_len itself, rounded up to 64 tokens."""
    longest = -(-max_model_len // 64) * 64
    classes = []
    capacity = SMALLEST_CAPACITY
    while capacity < longest:
        classes.append(capacity)
        capacity *= 2
    return [*classes, longest]


def next_height(height: int) -> int:
    """The next slab height above this one."""
    higher = [h for h in SLAB_HEIGHTS if h > height]
    return higher[0] if higher else height + height // 2
