"""The slabs: what is written lands where it should, and stays there."""

from __future__ import annotations

import ctypes

import mlx.core as mx
import numpy as np
import pytest

from anllm.config import Execution
from anllm.core.request import SamplingParams
from anllm.core.step import ScheduledSequence, SlabResize, Slot, SlotCopy, StepPlan
from anllm.runner.attention import StepLayout, StockKernels
from anllm.runner.contract import choose_forward
from anllm.runner.kv_store import KVStore, LayerShape, LayerSlabs
from runner.families import VOCAB, tiny

pytestmark = pytest.mark.mlx

HEADS, KEY_DIM, VALUE_DIM = 2, 4, 3


def make_shape(**changes: object) -> LayerShape:
    return LayerShape(
        **{"num_heads": HEADS, "key_dim": KEY_DIM, "value_dim": VALUE_DIM, "dtype": mx.float32, **changes}
    )


def entry(slot: Slot, start: int, length: int, request_id: int = 0, sample: bool = False) -> ScheduledSequence:
    return ScheduledSequence(request_id, slot, start, (1,) * length, sample, 0, SamplingParams())


def numbers(*shape: int) -> mx.array:
    return mx.random.normal(shape)


def write(layer: LayerSlabs, plan: StepPlan) -> tuple[np.ndarray, np.ndarray]:
    """As a flattened step writes; returns keys and values [T, heads, dim]."""
    keys, values = (numbers(plan.num_tokens, HEADS, dim) for dim in (KEY_DIM, VALUE_DIM))
    for capacity, tokens, rows in StepLayout(plan).targets(HEADS):
        k, v = (keys, values) if tokens is None else (keys[tokens], values[tokens])
        layer.write(capacity, rows, k, v)
    return np.array(keys), np.array(values)


def row(layer: LayerSlabs, slot: Slot, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """What stands in a row: keys and values [tokens, heads, dim]."""
    keys = np.array(layer.keys(slot.capacity))[slot.index, :, start:end].swapaxes(0, 1)
    return keys, np.array(layer.values(slot.capacity))[slot.index, :, start:end].swapaxes(0, 1)


def test_a_new_slab_has_the_shape_that_attention_takes() -> None:
    layer = LayerSlabs(make_shape(dtype=mx.float16))
    layer.resize(256, 3)
    assert layer.keys(256).shape == (3, HEADS, 256, KEY_DIM)
    assert layer.values(256).shape == (3, HEADS, 256, VALUE_DIM)
    assert layer.keys(256).dtype == mx.float16
    assert make_shape(dtype=mx.float16).bytes_per_token == HEADS * (KEY_DIM + VALUE_DIM) * 2


def test_tokens_of_a_mixed_step_land_in_their_rows_and_nowhere_else() -> None:
    layer = LayerSlabs(make_shape())
    layer.resize(256, 4)
    layer.resize(512, 2)
    scheduled = (
        entry(Slot(256, 1), 17, 1, sample=True),
        entry(Slot(256, 3), 255, 1, sample=True),
        entry(Slot(512, 0), 511, 1, sample=True),
        entry(Slot(256, 0), 0, 5),
        entry(Slot(512, 1), 100, 7),
    )
    keys, values = write(layer, StepPlan(scheduled))
    first, written = 0, {256: 0, 512: 0}
    for part in scheduled:
        end = first + len(part.token_ids)
        k, v = row(layer, part.slot, part.start, part.end)
        np.testing.assert_array_equal(k, keys[first:end])
        np.testing.assert_array_equal(v, values[first:end])
        written[part.slot.capacity] += len(part.token_ids)
        first = end
    for capacity, count in written.items():
        assert np.count_nonzero(np.array(layer.keys(capacity))) == count * HEADS * KEY_DIM


def test_values_are_stored_in_the_slabs_type() -> None:
    layer = LayerSlabs(make_shape(dtype=mx.bfloat16))
    layer.resize(256, 1)
    write(layer, StepPlan((entry(Slot(256, 0), 0, 3),)))
    assert layer.keys(256).dtype == layer.values(256).dtype == mx.bfloat16


@pytest.mark.parametrize("heights", [(2, 4), (4, 2), (2, 2), (3, 1, 8), (2, 0, 2)])
def test_resizing_keeps_the_rows_that_stay(heights: tuple[int, ...]) -> None:
    layer = LayerSlabs(make_shape())
    layer.resize(256, heights[0])
    kept = min(heights)
    slots = [Slot(256, index) for index in range(heights[0])]
    before = [write(layer, StepPlan((entry(slot, 0, 9),))) for slot in slots]
    for height in heights[1:]:
        layer.resize(256, height)
    assert layer.keys(256).shape[0] == heights[-1]
    for slot, (keys, values) in list(zip(slots, before, strict=True))[:kept]:
        k, v = row(layer, slot, 0, 9)
        np.testing.assert_array_equal(k, keys)
        np.testing.assert_array_equal(v, values)


@pytest.mark.parametrize("layers_at_once", [0, 1, 2, 3, 10])
def test_layers_are_resized_together_as_far_as_memory_goes(layers_at_once: int) -> None:
    shape = make_shape()
    resize_bytes = layers_at_once * 5 * 256 * shape.bytes_per_token
    store = KVStore([shape] * 5, resize_bytes=resize_bytes)
    store.apply([SlabResize(256, 3)], [])
    before = [write(layer, StepPlan((entry(Slot(256, 2), 0, 9),))) for layer in store.layers]
    store.apply([SlabResize(256, 5)], [])
    for layer, (keys, values) in zip(store.layers, before, strict=True):
        assert layer.keys(256).shape[0] == 5
        k, v = row(layer, Slot(256, 2), 0, 9)
        np.testing.assert_array_equal(k, keys)
        np.testing.assert_array_equal(v, values)


def test_slabs_of_a_backends_own_making_keep_their_rows() -> None:
    """Whatever is in those that are new."""
    store = KVStore([make_shape()] * 2, new_slab=lambda height, width: mx.full((height, width), float("nan")))
    store.apply([SlabResize(256, 2)], [])
    before = [write(layer, StepPlan((entry(Slot(256, 1), 0, 9),))) for layer in store.layers]
    for num_slots in (5, 2):
        store.apply([SlabResize(256, num_slots)], [])
        for layer, (keys, values) in zip(store.layers, before, strict=True):
            assert layer.keys(256).shape[0] == num_slots
            k, v = row(layer, Slot(256, 1), 0, 9)
            np.testing.assert_array_equal(k, keys)
            np.testing.assert_array_equal(v, values)
            assert np.isnan(np.array(layer.keys(256)[0])).all()


def test_addresses_are_those_of_the_slabs_whatever_was_done_to_them() -> None:
    layer = LayerSlabs(LayerShape(2, 4, 6, mx.float32))
    layer.resize(256, 2)

    def check() -> None:
        for address, slab in zip(layer.addresses(256), layer.flat(256), strict=True):
            assert address == np.array(slab, copy=False).ctypes.data
            lines = np.ctypeslib.as_array((ctypes.c_float * slab.size).from_address(address)).reshape(slab.shape)
            np.testing.assert_array_equal(lines, np.array(slab))

    check()
    held = layer.flat(256)  # so that what follows goes to other memory
    layer.write(256, mx.array([3, 700]), mx.ones((1, 2, 1, 4)), mx.ones((1, 2, 1, 6)))
    check()
    layer.resize(256, 3)
    check()
    held = layer.flat(256)
    read = layer.read(Slot(256, 0), 5)
    mx.eval(read)
    layer.fill([Slot(256, 2)], read)
    check()
    del held


def test_beginnings_are_the_memory_of_the_slabs_whatever_their_height() -> None:
    store = KVStore([make_shape()] * 2)
    store.apply([SlabResize(256, 2), SlabResize(512, 1)], [])
    for layer, sign in zip(store.layers, (1, -1), strict=True):
        for capacity in (256, 512):
            for array in layer.flat(capacity):
                array[:] = sign * capacity
    found = store.beginnings([256, 512])
    assert [array.shape[0] for array in found] == [1] * 8
    assert [array[0, 0].item() for array in found] == [256, 256, 512, 512, -256, -256, -512, -512]
    assert all(a is b for a, b in zip(store.beginnings([256, 512]), found, strict=True))
    for array, slab in zip(found, store.arrays([256, 512]), strict=True):
        assert np.array(array, copy=False).ctypes.data == np.array(slab, copy=False).ctypes.data
    store.apply([SlabResize(256, 3)], [])
    again = store.beginnings([256, 512])
    assert np.array(again[0], copy=False).ctypes.data == np.array(store.layers[0].flat(256)[0], copy=False).ctypes.data
    assert again[2] is found[2]


@pytest.mark.parametrize(("source", "target"), [(Slot(256, 1), Slot(512, 0)), (Slot(256, 0), Slot(256, 2))])
def test_a_copied_row_has_the_same_tokens_and_others_are_untouched(source: Slot, target: Slot) -> None:
    store = KVStore([make_shape(), make_shape(window=8)])
    store.apply([SlabResize(256, 3), SlabResize(512, 2)], [])
    bystander = Slot(512, 1)
    written = [
        (write(layer, StepPlan((entry(source, 0, 200),))), write(layer, StepPlan((entry(bystander, 0, 200),))))
        for layer in store.layers
    ]
    store.apply([], [SlotCopy(source, target, 150)])
    for layer, (moved, stayed) in zip(store.layers, written, strict=True):
        for found, expected in zip(row(layer, target, 0, 150), moved, strict=True):
            np.testing.assert_array_equal(found, expected[:150])
        for found, expected in zip(row(layer, bystander, 0, 200), stayed, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_resizes_come_before_copies() -> None:
    store = KVStore([make_shape()])
    store.apply([SlabResize(256, 1)], [])
    keys, _ = write(store.layers[0], StepPlan((entry(Slot(256, 0), 0, 256),)))
    store.apply([SlabResize(512, 1)], [SlotCopy(Slot(256, 0), Slot(512, 0), 256)])
    np.testing.assert_array_equal(row(store.layers[0], Slot(512, 0), 0, 256)[0], keys)


@pytest.mark.parametrize("execution", [Execution.FLATTENED, Execution.COMPATIBLE])
def test_decoding_writes_in_place(execution: Execution) -> None:
    """Fifty decode steps need no more memory at their peak than the first few: no slab is ever copied."""
    num_slots, capacity = 8, 1024
    chosen = choose_forward(tiny(), StockKernels(), execution, VOCAB)
    slots = [Slot(capacity, index) for index in range(num_slots)]
    prompts = tuple(entry(slot, 0, 4, slot.index) for slot in slots)
    chosen.forward.logits(StepPlan(prompts, resizes=(SlabResize(capacity, num_slots),)))
    slab_bytes = num_slots * capacity * chosen.bytes_per_token // 8  # one of the K or V slabs of four layers

    def decode(position: int) -> None:
        chosen.forward.logits(StepPlan(tuple(entry(slot, position, 1, slot.index, sample=True) for slot in slots)))

    for position in range(4, 8):
        decode(position)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for position in range(8, 58):
        decode(position)
    assert mx.get_active_memory() - before < slab_bytes / 8
    assert mx.get_peak_memory() - before < slab_bytes / 2
