"""Slots in size classes: which are given, how slabs grow and shrink, and that the budget always holds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anllm.core.step import SlabResize, Slot
from anllm.kvcache.pool import SLAB_HEIGHTS, KVPool, next_height, size_classes


def make_pool(
    budget: int = 1 << 20, *, max_model_len: int = 2048, bytes_per_token: int = 1, row_bytes: int = 0
) -> KVPool:
    return KVPool(
        budget_bytes=budget, bytes_per_token=bytes_per_token, max_model_len=max_model_len, row_bytes=row_bytes
    )


def allocate(pool: KVPool, num_tokens: int, count: int = 1) -> list[Slot]:
    slots = [pool.allocate(num_tokens) for _ in range(count)]
    assert None not in slots
    return slots  # type: ignore[return-value]


class Mirror:
    """The slabs as the runner has them: does what it is told, resize by resize."""

    def __init__(self, pool: KVPool, *, bytes_per_token: int = 1, row_bytes: int = 0) -> None:
        self.heights: dict[int, int] = {}
        self._pool = pool
        self._bytes_per_token = bytes_per_token
        self._row_bytes = row_bytes

    @property
    def size_bytes(self) -> int:
        return sum(n * (c * self._bytes_per_token + self._row_bytes) for c, n in self.heights.items())

    def apply(self, owned: list[Slot]) -> tuple[SlabResize, ...]:
        resizes = self._pool.take_resizes()
        assert len(resizes) == len({resize.capacity for resize in resizes})
        for resize in resizes:
            self.heights[resize.capacity] = resize.num_slots
            assert self.size_bytes <= self._pool.budget_bytes, "over the budget on the way"
        assert self.size_bytes == self._pool.allocated_bytes
        assert all(slot.index < self.heights[slot.capacity] for slot in owned)
        return resizes


@pytest.mark.parametrize(
    ("max_model_len", "classes"),
    [
        (1, [64]),
        (64, [64]),
        (65, [128]),
        (256, [256]),
        (257, [256, 320]),
        (512, [256, 512]),
        (1000, [256, 512, 1024]),
        (1100, [256, 512, 1024, 1152]),
        (4096, [256, 512, 1024, 2048, 4096]),
    ],
)
def test_classes_double_up_to_the_context_in_units_of_64(max_model_len: int, classes: list[int]) -> None:
    assert size_classes(max_model_len) == classes


@pytest.mark.parametrize("max_model_len", [1, 63, 255, 256, 300, 4095, 32768, 131072 + 1])
def test_the_last_class_holds_the_context(max_model_len: int) -> None:
    classes = size_classes(max_model_len)
    assert classes == sorted(set(classes))
    assert max_model_len <= classes[-1] < max_model_len + 64


@pytest.mark.parametrize(
    ("num_tokens", "capacity"), [(1, 256), (256, 256), (257, 512), (512, 512), (1024, 1024), (1025, 2048), (2048, 2048)]
)
def test_a_slot_is_of_the_smallest_class_that_holds_the_tokens(num_tokens: int, capacity: int) -> None:
    assert make_pool().allocate(num_tokens) == Slot(capacity, 0)


def test_the_lowest_free_index_is_taken() -> None:
    pool = make_pool()
    slots = allocate(pool, 10, 6)
    assert [slot.index for slot in slots] == [0, 1, 2, 3, 4, 5]
    for index in (4, 1, 3):
        pool.free(slots[index])
    assert [slot.index for slot in allocate(pool, 10, 4)] == [1, 3, 4, 6]


def test_next_height_goes_up_the_list_and_then_by_half() -> None:
    heights = [0]
    while len(heights) < 15:
        heights.append(next_height(heights[-1]))
    assert heights[1:12] == list(SLAB_HEIGHTS)
    assert heights[12:] == [192, 288, 432]


def test_a_slab_grows_along_the_heights() -> None:
    pool, seen = make_pool(), []
    for _ in range(40):
        pool.allocate(1)
        seen += [resize.num_slots for resize in pool.take_resizes()]
    assert seen == [1, 2, 4, 8, 16, 24, 32, 48]


def test_a_slab_grows_by_what_fits_where_the_next_height_does_not() -> None:
    pool = make_pool(256 * 11, max_model_len=256)
    allocate(pool, 1, 9)
    assert pool.take_resizes() == (SlabResize(256, 11),)
    allocate(pool, 1, 2)
    assert pool.allocate(1) is None
    assert pool.take_resizes() == ()


@pytest.mark.parametrize(("bytes_per_token", "row_bytes"), [(1, 0), (3, 0), (7, 1000), (1, 50_000)])
def test_the_budget_is_never_exceeded(bytes_per_token: int, row_bytes: int) -> None:
    longest = 2048 * bytes_per_token + row_bytes
    pool = make_pool(longest * 2 + 100, bytes_per_token=bytes_per_token, row_bytes=row_bytes)
    mirror, owned = Mirror(pool, bytes_per_token=bytes_per_token, row_bytes=row_bytes), []
    for num_tokens in (300, 10, 600, 10, 10, 2000, 1100, 1, 300, 300, 2000, 10, 10, 10):
        slot = pool.allocate(num_tokens)
        pool.check_integrity()
        if slot is not None:
            owned.append(slot)
        mirror.apply(owned)
    assert len(owned) < 14


def test_row_bytes_count_for_every_row() -> None:
    pool = make_pool(10_000, max_model_len=256, row_bytes=744)
    assert len([slot for _ in range(20) if (slot := pool.allocate(1))]) == 10
    assert pool.allocated_bytes == 10_000


@pytest.mark.parametrize("budget", [0, 2047])
def test_a_budget_below_one_longest_row_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match="does not hold one sequence of 2048 tokens"):
        make_pool(budget)


def test_a_budget_of_one_longest_row_is_enough() -> None:
    pool = make_pool(2048)
    assert pool.allocate(2048) == Slot(2048, 0)
    assert pool.allocate(1) is None


def test_free_rows_of_other_classes_make_room() -> None:
    pool = make_pool(2048)
    for slot in allocate(pool, 1, 8):
        pool.free(slot)
    pool.take_resizes()
    assert pool.allocate(2048) == Slot(2048, 0)
    assert pool.take_resizes() == (SlabResize(256, 0), SlabResize(2048, 1))


def test_an_owned_slot_is_never_cut_off_nor_are_those_below_it() -> None:
    pool = make_pool(2048)
    slots = allocate(pool, 1, 8)
    for slot in slots[:5] + slots[6:]:
        pool.free(slot)
    pool.take_resizes()
    assert pool.allocate(1000) is None  # row 5 stays, and 0 to 4 with it; 512 bytes are left
    pool.check_integrity()
    assert pool.allocate(512) == Slot(512, 0)
    assert pool.take_resizes() == (SlabResize(256, 6), SlabResize(512, 1))


def test_a_refused_allocation_owns_nothing() -> None:
    pool = make_pool(2048)
    allocate(pool, 1024)
    assert pool.allocate(2048) is None
    assert pool.num_owned_slots == 1
    pool.check_integrity()


def test_resizes_are_told_once_and_joined_per_class() -> None:
    pool = make_pool()
    allocate(pool, 1, 5)
    allocate(pool, 500, 3)
    assert pool.take_resizes() == (SlabResize(256, 8), SlabResize(512, 4))
    assert pool.take_resizes() == ()


def test_a_class_that_shrank_comes_before_one_that_grew() -> None:
    """The second class grows twice, the last time into the room that the first one leaves in between."""
    pool = make_pool(4096, max_model_len=2048)
    mirror = Mirror(pool)
    small = allocate(pool, 1, 8)
    mirror.apply(small)
    middle = allocate(pool, 512)
    for slot in small:
        pool.free(slot)
    middle += allocate(pool, 512, 7)
    resizes = mirror.apply(middle)
    assert resizes == (SlabResize(256, 0), SlabResize(512, 8))


def test_a_class_that_is_as_high_as_before_is_not_told() -> None:
    pool = make_pool(2048)
    (long,) = allocate(pool, 2048)
    pool.take_resizes()
    pool.free(long)
    (short,) = allocate(pool, 1)
    pool.free(short)
    allocate(pool, 2048)
    assert pool.take_resizes() == ()


def test_resizes_that_may_not_have_happened_are_told_again() -> None:
    pool = make_pool()
    (slot,) = allocate(pool, 1)
    resizes = pool.take_resizes()
    pool.repeat_resizes(resizes)
    pool.free(slot)
    assert pool.take_resizes() == resizes == (SlabResize(256, 1),)
    assert pool.take_resizes() == ()


def test_a_slot_is_freed_once() -> None:
    pool = make_pool()
    (slot,) = allocate(pool, 1)
    pool.free(slot)
    with pytest.raises(KeyError):
        pool.free(slot)
    pool.check_integrity()


@settings(max_examples=150, deadline=None)
@given(
    budget=st.integers(2048, 12_000),
    row_bytes=st.sampled_from([0, 100]),
    acts=st.lists(st.one_of(st.integers(1, 2000), st.integers(-30, -1), st.just(0)), max_size=60),
)
def test_any_order_of_allocating_and_freeing_keeps_the_books(budget: int, row_bytes: int, acts: list[int]) -> None:
    """A positive number allocates so many tokens, a negative one frees, 0 lets the runner resize."""
    pool = make_pool(budget + row_bytes, max_model_len=2000, row_bytes=row_bytes)
    mirror, owned = Mirror(pool, row_bytes=row_bytes), list[Slot]()
    for act in acts:
        if act > 0:
            slot = pool.allocate(act)
            if slot is not None:
                assert slot.capacity >= act
                assert slot not in owned
                owned.append(slot)
        elif act < 0 and owned:
            pool.free(owned.pop(act % len(owned)))
        elif act == 0:
            mirror.apply(owned)
        pool.check_integrity()
        assert pool.num_owned_slots == len(owned)
    for slot in owned:
        pool.free(slot)
        pool.check_integrity()
    assert pool.num_owned_slots == 0
    assert pool.allocate(2000) is not None  # all of it can be had again
    mirror.apply([])


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), budget=st.integers(1024, 6000))
def test_could_allocate_tells_what_freeing_these_would_bring(seed: int, budget: int) -> None:
    draw = random.Random(seed)
    pool = make_pool(budget, max_model_len=1024)
    owned = []
    for _ in range(draw.randrange(30)):
        slot = pool.allocate(draw.choice([100, 300, 1000]))
        if slot is not None:
            owned.append(slot)
        if owned and draw.random() < 0.4:
            pool.free(owned.pop(draw.randrange(len(owned))))
    freed = {slot for slot in owned if draw.random() < 0.5}
    wanted = draw.choice([100, 300, 1000])
    told = pool.could_allocate(wanted, freed)
    for slot in freed:
        pool.free(slot)
    assert told == (pool.allocate(wanted) is not None)
    pool.check_integrity()
