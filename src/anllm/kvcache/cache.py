"""KVCache: rows for sequences, and what earlier ones left in theirs.

A row whose sequence has ended stays as it is, *warm*, until its memory is needed. A radix tree knows what warm rows
hold, and the prompts of the running ones. A prompt that begins as one of them does is not computed again from its
start: the row is taken over where nobody misses what else it holds, and copied from otherwise.

Only what steps have computed that were read is ever used again; while a step is under way it may still fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from anllm.core.row import Row
from anllm.core.step import Slot, SlotCopy
from anllm.kvcache.pool import KVPool
from anllm.kvcache.radix import RadixTree, token_key

LEAST_REUSED_TOKENS = 16  # fewer are computed as quickly as they are found and copied
LEAST_KEPT_TOKENS = 16
# A row is taken over, although what it holds behind the common part is lost with that, if that is no more than this.
MOST_LOST_TOKENS = 64
# Who shares so many tokens with a prompt that is being computed waits for them.
AWAITED_TOKENS = 256


class Room(NamedTuple):
    """How many tokens a row is to hold: so many at least, and rather so many."""

    num_tokens: int
    roomy_tokens: int


class Placement(NamedTuple):
    """A row for a sequence, in which the first num_cached_tokens tokens need not be computed. copy: what has to be done
    for that first."""

    row: Row
    num_cached_tokens: int = 0
    copy: SlotCopy | None = None


class Awaited(NamedTuple):
    """This row is going to hold so many tokens that it is better to wait for them."""

    row: Row
    num_tokens: int


@dataclass(slots=True, eq=False)
class _Prefix:
    """What the cache knows of a row. salt: only prompts with the same one find it."""

    salt: str
    is_warm: bool = False
    idle_after: int = 0  # of a warm row: the number of the last plan that may have it in it


@dataclass(slots=True)
class CacheStats:
    """Counted since the start. Prompts that may not use the cache are not among them."""

    num_queried_tokens: int = 0  # of prompts that were looked up
    num_hit_tokens: int = 0  # of those, the ones that were not computed again
    num_evicted_rows: int = 0


class KVCache:
    """Rows out of a pool. A plan is made by any number of place(), grow() and release(), and ends with end_plan(); each
    plan is read, or fails, once, in their order."""

    def __init__(self, pool: KVPool, *, reuses_prefixes: bool = True, grown_slab_bytes: int | None = None) -> None:
        """reuses_prefixes: keep warm rows at all. grown_slab_bytes: slabs larger than that don't grow as long as there
        are warm rows in them, since growing copies them; None is no limit."""
        self._pool = pool
        self._reuses_prefixes = reuses_prefixes
        self._grown_slab_bytes = grown_slab_bytes
        self._trees: dict[str, RadixTree] = {}  # by salt
        self._prefixes: dict[Row, _Prefix] = {}
        self._warm: dict[Row, None] = {}  # the least recently used first
        self._warm_bytes = 0
        self._leaving: list[Slot] = []  # to be freed with end_plan()
        self._in_use: dict[Row, None] = {}  # warm rows that the plan copies from
        self._num_plans = self._num_read = 0
        self.stats = CacheStats()

    @property
    def num_warm_rows(self) -> int:
        return len(self._warm)

    @property
    def warm_bytes(self) -> int:
        """Bytes of the rows that are kept for what is in them."""
        return self._warm_bytes

    # -- plans ---------------------------------------------------------------------------------------------------------

    def end_plan(self) -> None:
        """The plan is made: what it copies from may go now."""
        self._num_plans += 1
        for slot in self._leaving:
            self._pool.free(slot)
        self._leaving.clear()
        self._in_use.clear()

    def plan_was_read(self) -> None:
        """The oldest plan that had not been read has been, or has failed."""
        self._num_read += 1

    def computed(self, row: Row, num_tokens: int) -> None:
        """The plan that was read last computed the row's tokens up to here, or those of one that its sequence had
        before."""
        if row.first_plan <= self._num_read:
            row.num_tokens = num_tokens

    def plan_failed(self, slots: Iterable[Slot]) -> None:
        """What is in these slots is undefined; the rows that sequences own are their business."""
        gone = set(slots)
        for row in [row for row in self._warm if row.slot in gone]:
            self._evict(row)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def place(self, token_ids: Iterable[int], salt: str, room: Room, *, reusable: int) -> Placement | Awaited | None:
        """A row for a sequence with this prompt. reusable: of its tokens, as many may come from elsewhere. None if
        there is no memory."""
        key = token_key(token_ids) if self._reuses_prefixes else b""
        found: Row | None = None
        num_found = 0
        if self._reuses_prefixes and reusable >= LEAST_REUSED_TOKENS:
            found, num_found, awaited = self._find(key, salt, reusable)
            if awaited is not None and awaited.num_tokens >= num_found + AWAITED_TOKENS:
                return awaited
        placement = None if found is None else self._reuse(found, num_found, room)
        if placement is None:
            slot = self._allocate(room)
            placement = None if slot is None else self._place_in(slot)
        if placement is not None and self._reuses_prefixes:
            self.stats.num_queried_tokens += reusable
            self.stats.num_hit_tokens += placement.num_cached_tokens
            self._remember(placement.row, key, _Prefix(salt))
        return placement

    def is_coming(self, awaited: Awaited) -> bool:
        """Whether it is still worth waiting for."""
        row, prefix = awaited.row, self._prefixes.get(awaited.row)
        if prefix is None:
            return False
        return self._is_busy(prefix) if prefix.is_warm else row.num_tokens < awaited.num_tokens

    def grow(self, row: Row, num_computed: int, room: Room) -> SlotCopy | None:
        """Move a row, whose first num_computed tokens are computed, to a larger slot; None if there is no memory for
        one."""
        slot = self._allocate(room)
        if slot is None:
            return None
        copy = SlotCopy(row.slot, slot, num_computed)
        self._leaving.append(row.slot)
        row.slot = slot
        return copy

    def release(self, row: Row, token_ids: Iterable[int]) -> None:
        """The row's sequence does not need it any more. token_ids: the first row.num_tokens tokens in it."""
        prefix = self._prefixes.get(row)
        if prefix is None or row.num_tokens < LEAST_KEPT_TOKENS:
            self.discard(row)
            return
        key = token_key(token_ids)
        if self._is_held_elsewhere(row, key, prefix.salt):
            self.discard(row)
            return
        prefix.is_warm, prefix.idle_after = True, self._num_plans
        self._trees[prefix.salt].insert(row, key)
        self._warm[row] = None
        self._warm_bytes += self._pool.slot_bytes(row.slot)

    def discard(self, row: Row) -> None:
        """The row's sequence does not need it any more, and what it holds is not to be used."""
        self._forget(row)
        self._pool.free(row.slot)

    def reset(self) -> None:
        """Forget what all rows hold. Running sequences keep theirs."""
        for row in list(self._warm):
            self._evict(row)
        for row in list(self._prefixes):
            self._forget(row)

    def check_integrity(self, rows: Iterable[Row]) -> None:
        """rows: those of all running sequences. Assert that they and the warm ones own all slots that are owned, each
        one, and that the trees know what they should."""
        owned = list(rows)
        slots = [row.slot for row in (*owned, *self._warm)]
        assert len(slots) == len(set(slots)) == self._pool.num_owned_slots
        assert not self._leaving and not self._in_use
        assert self._warm_bytes == sum(self._pool.slot_bytes(row.slot) for row in self._warm)
        assert self._warm.keys() == {row for row, prefix in self._prefixes.items() if prefix.is_warm}
        assert self._prefixes.keys() <= {*owned, *self._warm}
        for row, prefix in self._prefixes.items():
            assert row.num_tokens <= row.slot.capacity
            assert row in self._trees[prefix.salt]
        assert sum(len(tree) for tree in self._trees.values()) == len(self._prefixes)
        assert all(len(tree) for tree in self._trees.values())
        self._pool.check_integrity()

    # -- finding -------------------------------------------------------------------------------------------------------

    def _find(self, key: bytes, salt: str, reusable: int) -> tuple[Row | None, int, Awaited | None]:
        """The row with the most tokens that can be used now, how many these are, and the one that will have more."""
        best: Row | None = None
        best_rank = (0, False, 0)
        awaited: Awaited | None = None
        tree = self._trees.get(salt)
        for match in tree.matches(key) if tree else ():
            length = min(match.num_tokens, reusable)
            if length <= best_rank[0]:
                break
            for row in match.rows:
                prefix = self._prefixes[row]
                usable = 0 if self._is_busy(prefix) else min(length, row.num_tokens)
                # Of those that hold as much, one that can be taken over, and loses little by that.
                rank = (usable, prefix.is_warm, -row.num_tokens)
                if usable and rank > best_rank:
                    best, best_rank = row, rank
                if usable < length and (awaited is None or length > awaited.num_tokens):
                    awaited = Awaited(row, length)
        if best_rank[0] < LEAST_REUSED_TOKENS:
            return None, 0, awaited
        return best, best_rank[0], awaited

    def _is_busy(self, prefix: _Prefix) -> bool:
        """Whether a plan that has not been read may still write to the row, though its sequence has ended."""
        return prefix.idle_after > self._num_read

    def _is_held_elsewhere(self, row: Row, key: bytes, salt: str) -> bool:
        """Whether another row has all that this one has; if so, that one counts as used."""
        for match in self._trees[salt].matches(key):
            if match.num_tokens < row.num_tokens:
                break
            for other in match.rows:
                if other is not row and other.num_tokens >= row.num_tokens:
                    self._touch(other)
                    return True
        return False

    # -- taking --------------------------------------------------------------------------------------------------------

    def _reuse(self, row: Row, length: int, room: Room) -> Placement | None:
        """The first `length` tokens of a row for another sequence. None if there is no memory for that."""
        is_warm = self._prefixes[row].is_warm
        is_copied = row in self._in_use
        is_spent = is_warm and not is_copied and row.num_tokens - length <= MOST_LOST_TOKENS
        if is_spent and row.slot.capacity >= room.num_tokens:
            return self._take_over(row, length)
        self._touch(row)
        if is_warm:
            self._in_use[row] = None
        slot = self._allocate(room)
        if slot is None:
            if not is_copied:
                self._in_use.pop(row, None)
            fits = is_warm and not is_copied and row.slot.capacity >= room.num_tokens
            return self._take_over(row, length) if fits else None
        copy = SlotCopy(row.slot, slot, length)
        if is_spent:  # it had to move to a larger slot
            self._forget(row)
            self._in_use.pop(row)
            self._leaving.append(row.slot)
        return self._place_in(slot, length, copy)

    def _take_over(self, row: Row, length: int) -> Placement:
        self._forget(row)
        return self._place_in(row.slot, length)

    def _place_in(self, slot: Slot, num_cached_tokens: int = 0, copy: SlotCopy | None = None) -> Placement:
        """What is in the row already, or will be by the plan's copies, others may use at once: if the plan fails, they
        fail with it (Scheduler.fail)."""
        return Placement(Row(slot, self._num_plans + 1, num_cached_tokens), num_cached_tokens, copy)

    def _allocate(self, room: Room) -> Slot | None:
        """A roomy slot, or else one that is just long enough, or else None. Warm rows make way for either."""
        return self._allocate_exactly(room.roomy_tokens) or self._allocate_exactly(room.num_tokens)

    def _allocate_exactly(self, num_tokens: int) -> Slot | None:
        capacity = self._pool.capacity_for(num_tokens)
        if not self._may_grow(capacity):
            oldest = next((row for row in self._evictable() if row.slot.capacity == capacity), None)
            if oldest is not None:
                self._evict(oldest)
        slot = self._pool.allocate(num_tokens)
        if slot is None and self._pool.could_allocate(num_tokens, {row.slot for row in self._evictable()}):
            while (slot := self._pool.allocate(num_tokens)) is None:
                self._evict(self._next_to_go(capacity))
        return slot

    def _may_grow(self, capacity: int) -> bool:
        """Whether a new row of this capacity is free, or the slab may grow for it without need."""
        limit = self._grown_slab_bytes
        return limit is None or self._pool.has_free_slot(capacity) or self._pool.slab_bytes(capacity) < limit

    def _evictable(self) -> Iterator[Row]:
        """The least recently used first."""
        return (row for row in self._warm if row not in self._in_use)

    def _next_to_go(self, capacity: int) -> Row:
        """The least recently used row. Or the least recently used one of that capacity, which is enough by itself, if
        it is not among the newer half."""
        rows = list(self._evictable())
        older = rows[: (len(rows) + 1) // 2]
        return next((row for row in older if row.slot.capacity == capacity), rows[0])

    def _touch(self, row: Row) -> None:
        if row in self._warm:
            del self._warm[row]
            self._warm[row] = None

    def _evict(self, row: Row) -> None:
        self.discard(row)
        self.stats.num_evicted_rows += 1

    def _remember(self, row: Row, key: bytes, prefix: _Prefix) -> None:
        self._prefixes[row] = prefix
        self._trees.setdefault(prefix.salt, RadixTree()).insert(row, key)

    def _forget(self, row: Row) -> None:
        """What the row holds is not known any more."""
        prefix = self._prefixes.pop(row, None)
        if row in self._warm:
            del self._warm[row]
            self._warm_bytes -= self._pool.slot_bytes(row.slot)
        if prefix is not None:
            tree = self._trees[prefix.salt]
            tree.remove(row)
            if not len(tree):
                del self._trees[prefix.salt]
