"""Who looks at what in a step: the layouts of decode groups, windows, and chunks, against the slow obvious way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from anllm.core.request import SamplingParams
from anllm.core.step import ScheduledSequence, Slot, StepPlan
from anllm.runner.attention import DecodeGroup, FlatCache, PrefillChunk, StepLayout, StockKernels, hook_attention
from anllm.runner.compatible import RowCache, RowsCache
from anllm.runner.kv_store import LayerShape, LayerSlabs

pytestmark = pytest.mark.mlx

KV_HEADS, Q_HEADS, DIM, VALUE_DIM, CAPACITY = 2, 4, 8, 6, 256
SCALE = 0.3
WINDOWS = [None, 1, 5, 16, 300]
# dense, with gaps but read in place, and so sparse that rows are gathered
LAYOUTS = {"dense": [2, 3, 4, 5], "spread": [1, 2, 4], "gathered": [0, 7], "single": [6]}


def filled_layer(window: int | None = None, num_slots: int = 8) -> LayerSlabs:
    """Every place holds something, so that reading too far shows."""
    layer = LayerSlabs(LayerShape(KV_HEADS, DIM, VALUE_DIM, mx.float32, window))
    layer.resize(CAPACITY, num_slots)
    count = num_slots * KV_HEADS * CAPACITY
    layer.write(CAPACITY, mx.arange(count), mx.random.normal((count, DIM)), mx.random.normal((count, VALUE_DIM)))
    return layer


def slow_attention(
    layer: LayerSlabs, slot: int, q: np.ndarray, position: int, sinks: np.ndarray | None = None
) -> np.ndarray:
    """One token's attention, head by head. q: [q_heads, dim]; returns [q_heads, value_dim]."""
    window = layer.shape.window
    first = 0 if window is None else max(0, position + 1 - window)
    keys, values = (
        np.array(slab)[slot, :, first : position + 1] for slab in (layer.keys(CAPACITY), layer.values(CAPACITY))
    )
    out = []
    for head in range(Q_HEADS):
        kv_head = head * KV_HEADS // Q_HEADS
        scores = keys[kv_head] @ q[head] * SCALE
        if sinks is not None:
            scores = np.append(scores, sinks[head])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        out.append(weights[: len(values[kv_head])] @ values[kv_head])
    return np.stack(out)


def group_of(slots: Sequence[int], lengths: Sequence[int], **options: bool) -> DecodeGroup:
    return DecodeGroup(0, CAPACITY, np.array(slots, np.int32), np.array(lengths, np.int32), **options)


def entry(slot: Slot, start: int, length: int, sample: bool = True) -> ScheduledSequence:
    return ScheduledSequence(slot.index, slot, start, (1,) * length, sample, 0, SamplingParams())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("slots", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_decode_groups_of_every_layout_attend_as_each_row_would_alone(
    slots: list[int], window: int | None, has_sinks: bool
) -> None:
    layer = filled_layer(window)
    lengths = [1 + 37 * i % 256 for i in slots]
    q = mx.random.normal((len(slots), Q_HEADS, 1, DIM))
    sinks = mx.random.normal((Q_HEADS,)) if has_sinks else None
    host_sinks = None if sinks is None else np.array(sinks)
    out = np.array(group_of(slots, lengths).attend(StockKernels(), q, layer, SCALE, sinks))
    for i, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        expected = slow_attention(layer, slot, np.array(q)[i, :, 0], length - 1, host_sinks)
        np.testing.assert_allclose(out[i, :, 0], expected, atol=1e-5)


def test_the_layouts_are_those_that_their_names_say() -> None:
    """Rows that a group reads of the slab: the range with its gaps in place, or the picked rows only."""
    slab = mx.zeros((8, KV_HEADS, CAPACITY, DIM))
    rows = {name: group_of(slots, [9] * len(slots)).view(slab).shape[0] for name, slots in LAYOUTS.items()}
    assert rows == {"dense": 4, "spread": 4, "gathered": 2, "single": 1}
    packed = {name: group_of(s, [9] * len(s), packed=True).view(slab).shape[0] for name, s in LAYOUTS.items()}
    assert packed == {name: len(slots) for name, slots in LAYOUTS.items()}


@pytest.mark.parametrize("window", WINDOWS)
def test_decode_masks_are_those_of_the_slow_way(window: int | None) -> None:
    lengths = [1, 5, 6, 17, 200]
    mask = group_of(range(5), lengths).mask(window)
    slow = [[p < n and (window is None or p >= n - window) for p in range(200)] for n in lengths]
    assert np.array(mask)[:, 0, 0].tolist() == slow


def test_rows_of_one_length_need_no_mask() -> None:
    assert group_of([0, 1, 2], [7, 7, 7]).mask(None) is None
    assert group_of([0, 1, 2], [7, 7, 7]).mask(7) is None
    assert group_of([0, 1, 2], [7, 7, 7]).mask(6) is not None


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 40), (30, 1), (30, 20), (250, 6)])
def test_prefill_chunks_attend_as_each_token_would_alone(start: int, count: int, window: int | None) -> None:
    layer = filled_layer(window)
    q = mx.random.normal((count, Q_HEADS, 1, DIM))
    out = np.array(PrefillChunk(0, count, Slot(CAPACITY, 3), start).attend(StockKernels(), q, layer, SCALE, None))
    for i in range(count):
        expected = slow_attention(layer, 3, np.array(q)[i, :, 0], start + i)
        np.testing.assert_allclose(out[i, :, 0], expected, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_whole_step_attends_as_each_token_would_alone(window: int | None) -> None:
    """Decode rows of two sizes with a gap, and two chunks, in the order of the plan."""
    layer = filled_layer(window)
    layer.resize(512, 2)
    scheduled = (
        entry(Slot(CAPACITY, 0), 9, 1),
        entry(Slot(CAPACITY, 4), 30, 1),
        entry(Slot(CAPACITY, 2), 0, 25, sample=False),
        entry(Slot(CAPACITY, 5), 11, 14),
    )
    layout = StepLayout(StepPlan(scheduled))
    cache = FlatCache(layer, layout, StockKernels())
    num_tokens = sum(len(s.token_ids) for s in scheduled)
    assert cache.offset.tolist() == [p for s in scheduled for p in range(s.start, s.end)]
    cache.update_and_fetch(
        mx.random.normal((num_tokens, KV_HEADS, 1, DIM)), mx.random.normal((num_tokens, KV_HEADS, 1, VALUE_DIM))
    )
    q = mx.random.normal((num_tokens, Q_HEADS, 1, DIM))
    out = np.array(cache.attend(q, SCALE, None))
    token = 0
    for part in scheduled:
        for position in range(part.start, part.end):
            expected = slow_attention(layer, part.slot.index, np.array(q)[token, :, 0], position)
            np.testing.assert_allclose(out[token, :, 0], expected, atol=1e-5)
            token += 1
    assert layout.wanted == [0, 1, num_tokens - 1]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("start", "n"), [(0, 1), (0, 40), (30, 1), (30, 20)])
def test_masks_for_one_sequence_are_those_of_the_slow_way(start: int, n: int, window: int | None) -> None:
    layer = filled_layer(window)
    cache = RowCache(layer, entry(Slot(CAPACITY, 1), start, n))
    slow = np.array(
        [[p <= m and (window is None or p > m - window) for p in range(start + n)] for m in range(start, start + n)]
    )
    mask = cache.make_mask(n)
    if mask is None:
        assert n == 1
        assert slow.all()
    elif isinstance(mask, str):
        assert mask == "causal"
        assert (slow == np.tril(np.ones((n, start + n), bool), k=start)).all()
    else:
        assert (np.array(mask) == slow).all()
    assert (np.array(cache.make_mask(n, return_array=True)) == slow).all() or n == 1


def test_a_window_that_the_model_names_narrows_the_mask() -> None:
    cache = RowCache(filled_layer(), entry(Slot(CAPACITY, 1), 10, 2))
    assert np.array(cache.make_mask(2, window_size=3)).sum(axis=-1).tolist() == [3, 3]
    rows = RowsCache(filled_layer(), group_of([0, 1], [4, 9], packed=True))
    assert np.array(rows.make_mask(1, window_size=3)).sum(axis=-1).reshape(-1).tolist() == [3, 3]


def test_rows_fetch_what_they_wrote() -> None:
    layer = filled_layer()
    cache = RowsCache(layer, group_of([1, 6], [4, 9], packed=True))
    assert cache.offset.tolist() == [3, 8]
    keys, values = mx.random.normal((2, KV_HEADS, 1, DIM)), mx.random.normal((2, KV_HEADS, 1, VALUE_DIM))
    k, v = cache.update_and_fetch(keys, values)
    assert k.shape == (2, KV_HEADS, 9, DIM)
    assert mx.array_equal(k[0, :, 3], keys[0, :, 0])
    assert mx.array_equal(v[1, :, 8], values[1, :, 0])


def test_indexes_beyond_31_bits_are_not_cut() -> None:
    """A slab of more than 2^31 rows of heads, as long contexts on large machines have."""
    layout = StepLayout(StepPlan((entry(Slot(1 << 20, 300), 5, 1),)))
    ((_, _, rows),) = layout.targets(8)
    assert rows.tolist() == [(300 * 8 + head) * (1 << 20) + 5 for head in range(8)]


def test_hooking_twice_leaves_one_hook_and_the_stock_way_for_other_caches() -> None:
    from mlx_lm.models import base, llama

    hook_attention()
    once = base.scaled_dot_product_attention
    hook_attention()
    assert base.scaled_dot_product_attention.stock is once.stock
    assert llama.scaled_dot_product_attention.stock is once.stock
    q = mx.random.normal((1, 2, 3, 8))
    out = base.scaled_dot_product_attention(q, q, q, cache=None, scale=1 / math.sqrt(8), mask="causal")
    expected = mx.fast.scaled_dot_product_attention(q, q, q, scale=1 / math.sqrt(8), mask="causal")
    assert mx.array_equal(out, expected)
