"""Decode steps recorded and submitted again: what goes in, when a record is made, and what can't be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from anllm.core.request import SamplingParams
from anllm.core.step import ScheduledSequence, SlabResize, Slot, StepPlan
from anllm.runner import replay
from anllm.runner.attention import StepLayout
from anllm.runner.flattened import FlattenedForward
from anllm.runner.kv_store import KVStore, LayerShape
from anllm.runner.replay import StepReplay, can_be_recorded, recorded_size
from runner.ragged import SlowRaggedKernels

pytestmark = pytest.mark.mlx
CAPACITIES = (256, 512)


@pytest.fixture(autouse=True)
def _compile() -> Iterator[None]:
    """Here it matters, and nothing here needs the C++ compiler."""
    mx.enable_compile()
    yield
    mx.disable_compile()


def store() -> KVStore:
    made = KVStore([LayerShape(1, 4, 4, mx.float32) for _ in range(2)])
    made.apply([SlabResize(capacity, 4) for capacity in CAPACITIES], [])
    for number, layer in enumerate(made.layers):
        for capacity in CAPACITIES:
            for array in layer.flat(capacity):
                array[:] = capacity + number
    return made


def layout(*places: tuple[int, int, int], is_ragged: bool = True) -> StepLayout:
    """Of decode rows at (capacity, slot, position)."""
    rows = [
        ScheduledSequence(i, Slot(capacity, slot), position, (7,), True, 1, SamplingParams())
        for i, (capacity, slot, position) in enumerate(places)
    ]
    return StepLayout(StepPlan(tuple(rows)), is_ragged=is_ragged)


class Model:
    """Puts out, for each token, itself, its position, its place, its group and what the slabs begin with."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        self.calls += 1
        size = tokens.shape[0]
        rows = cache[0].layout.ragged_rows
        begins = [a[0, 0] for one in cache for capacity in rows.capacities for a in one.layer.flat(capacity)]
        columns = [tokens, cache[0].offset[:, None], rows.table, rows.groups(16)]
        columns.append(mx.broadcast_to(mx.stack(begins)[None], (size, len(begins))))
        cache[0].layout.written = tokens.sum()
        return mx.concatenate([column.astype(mx.float32) for column in columns], axis=1)[:, None]


def expected(tokens: list[int], step: StepLayout, begins: list[int]) -> list[list[float]]:
    assert step.ragged_rows is not None
    places = step.ragged_rows.table.tolist()
    return [
        [token, place[2], *place, *place, i, 1, *begins]
        for i, (token, place) in enumerate(zip(tokens, places, strict=True))  # type: ignore[arg-type]
    ]


def test_the_second_step_of_a_kind_is_recorded_and_later_ones_do_without_the_model() -> None:
    model, slabs = Model(), store()
    steps = StepReplay(model, None)
    assert steps.logits(mx.array([5, 6]), layout((256, 0, 9), (256, 3, 20)), slabs) is None
    assert model.calls == 0
    for i, tokens in enumerate(([5, 6], [8, 9], [1, 2])):
        step = layout((256, i, 10 + i), (256, 3, 21 + i))
        found = steps.logits(mx.array(tokens), step, slabs)
        assert found is not None
        assert found.tolist() == expected(tokens, step, [256, 256, 257, 257])
        assert step.written is not None
        assert step.written.item() == sum(tokens)
    assert model.calls == 1


def test_a_record_reads_the_slabs_that_are_there_now() -> None:
    model, slabs = Model(), store()
    steps = StepReplay(model, None)
    for _ in range(2):
        steps.logits(mx.array([5]), layout((256, 0, 9)), slabs)
    slabs.layers[0].resize(256, 2)
    slabs.layers[0].resize(256, 8)
    slabs.layers[0].flat(256)[0][:] = 3
    found = steps.logits(mx.array([5]), layout((256, 0, 9)), slabs)
    assert found is not None
    assert found[0, -4:].tolist() == [3, 256, 257, 257]
    assert model.calls == 1  # the height is nothing that a record knows of


@pytest.mark.parametrize(
    "other",
    [
        [(256, 0, 9)],  # fewer rows
        [(256, 0, 9), (512, 1, 9)],  # another size class
        [(512, 0, 300), (512, 1, 9)],
        [(256, 0, 9), (256, 1, 16)],  # farther than a power of two
    ],
)
def test_a_step_of_another_kind_has_a_record_of_its_own(other: list[tuple[int, int, int]]) -> None:
    model, slabs = Model(), store()
    steps = StepReplay(model, None)
    for _ in range(2):
        steps.logits(mx.array([5, 6]), layout((256, 0, 9), (256, 1, 9)), slabs)
    tokens = [4] * len(other)
    assert steps.logits(mx.array(tokens), layout(*other), slabs) is None
    found = steps.logits(mx.array(tokens), layout(*other), slabs)
    assert model.calls == 2
    capacities = sorted({capacity for capacity, _, _ in other})
    begins = [capacity + number for number in range(2) for capacity in capacities for _ in "kv"]
    assert found is not None
    assert found.tolist() == expected(tokens, layout(*other), begins)


def test_records_are_bounded_and_the_least_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_RECORDS", 2)
    model, slabs = Model(), store()
    steps = StepReplay(model, None)

    def step(num_rows: int) -> mx.array | None:
        return steps.logits(mx.array([5] * num_rows), layout(*[(256, i, 9) for i in range(num_rows)]), slabs)

    assert [step(1), step(2)] == [None, None]
    assert step(1) is not None
    assert step(3) is None  # in the place of 2
    assert step(1) is not None
    assert step(2) is None


def test_a_layer_that_scatters_its_kv_is_not_recorded() -> None:
    def scatters(tokens: mx.array, cache: list[Any]) -> mx.array:
        ones = mx.ones((tokens.shape[0], 1, 1, 4))
        for one in cache:
            one.update_and_fetch(ones, ones)
        return ones

    slabs = store()
    steps = StepReplay(scatters, None)
    steps.logits(mx.array([5]), layout((256, 0, 9)), slabs)
    with pytest.raises(RuntimeError, match="in place"):
        steps.logits(mx.array([5]), layout((256, 0, 9)), slabs)
    assert slabs.layers[0].flat(256)[0][0, 0].item() == 256


def test_only_steps_of_decode_rows_count_as_such() -> None:
    row = ScheduledSequence(0, Slot(256, 0), 9, (7,), True, 1, SamplingParams())
    prompt = ScheduledSequence(1, Slot(256, 1), 0, (7, 8), True, 0, SamplingParams())
    assert StepLayout(StepPlan((row,))).is_decode
    assert not StepLayout(StepPlan((row, prompt))).is_decode


class FakeHead:
    """Of a model that puts out each token and its position."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def everywhere(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        self.sizes.append(tokens.shape[0])
        cache[0].layout.written = tokens.sum()
        return mx.concatenate([tokens, cache[0].offset[:, None]], axis=1).astype(mx.float32)[:, None]

    def skip(self, tokens: mx.array, cache: list[Any]) -> None:
        self.everywhere(tokens, cache)

    def __call__(self, tokens: mx.array, cache: list[Any], batch: list[int], time: list[int]) -> mx.array:
        return self.everywhere(tokens, cache)[mx.array(batch), mx.array(time)]


def test_steps_are_filled_up_to_sizes_that_are_recorded_and_nobody_sees_it() -> None:
    head = FakeHead()
    forward = FlattenedForward(head, store(), SlowRaggedKernels(), is_ragged=True, is_replayed=True)
    for num_rows in (6, 5, 7, 8, 5):
        places = [(256, i, 10 + i) for i in range(4)] + [(512, i, 20 + i) for i in range(num_rows - 4)]
        rows = [
            ScheduledSequence(i, Slot(capacity, slot), position, (50 + i,), True, 1, SamplingParams(), 3)
            for i, (capacity, slot, position) in enumerate(places)
        ]
        logits, _ = forward.begin(StepPlan(tuple(rows)))
        assert logits is not None
        assert logits.tolist() == [[50 + i, position] for i, (_, _, position) in enumerate(places)]
    assert head.sizes == [8, 8]  # plain, recorded, and then done without


@pytest.mark.parametrize("does_sample", [True, False])
def test_short_pieces_of_prompts_are_recorded_like_decode_rows(does_sample: bool) -> None:
    head = FakeHead()
    forward = FlattenedForward(head, store(), SlowRaggedKernels(), is_ragged=True, is_replayed=True)
    row = ScheduledSequence(0, Slot(512, 0), 17, (50,), True, 1, SamplingParams(), 3)
    for number, length in enumerate((6, 5, 7, 6)):
        piece = ScheduledSequence(1, Slot(256, 2), 100, tuple(range(60, 60 + length)), does_sample, 0, SamplingParams())
        logits, touched = forward.begin(StepPlan((row, piece)))
        assert logits is not None
        assert logits.tolist() == [[50, 17], *([[59 + length, 99 + length]] if does_sample else [])]
        assert len(touched) == 2 * 4 + 1, "slabs of both layers and classes, and what says that they are written"
        assert head.sizes == [8] * min(number + 1, 2), "plain, recorded, and then done without"


def test_a_piece_alone_that_samples_nothing_still_writes() -> None:
    head = FakeHead()
    forward = FlattenedForward(head, store(), SlowRaggedKernels(), is_ragged=True, is_replayed=True)
    piece = ScheduledSequence(1, Slot(256, 2), 100, (60, 61, 62), False, 0, SamplingParams())
    for _ in range(3):
        logits, touched = forward.begin(StepPlan((piece,)))
        assert logits is None
        assert touched[-1].item() == 60 + 61 + 62
    assert head.sizes == [3, 3]


@pytest.mark.parametrize(
    ("tokens", "longest", "expected"),
    [(1, 65_536, True), (32, 2048, True), (33, 2048, False), (192, 300, True), (193, 10, False), (2, 65_536, False)],
)
def test_long_pieces_and_far_ones_are_not(tokens: int, longest: int, expected: bool) -> None:
    assert can_be_recorded(tokens, longest) is expected


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 8), (8, 8), (29, 32), (33, 40), (65, 72), (129, 144)]
)
def test_sizes_that_are_recorded_are_few_and_not_much_larger(rows: int, size: int) -> None:
    assert recorded_size(rows) == size
    assert len({recorded_size(n) for n in range(1, 257)}) < 40
