"""Attention by the native library, held against NumPy and against the models' own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from anllm.config import Execution
from anllm.runner.attention import StockKernels
from anllm.runner.backends import cpu
from anllm.runner.backends.cpu import CpuBackend
from anllm.runner.backends.cpu_attention import NativeKernels, attends_right
from anllm.runner.blas import Blas, load_blas
from anllm.runner.contract import choose_forward
from anllm.runner.flattened import FlattenedForward
from anllm.runner.kv_store import LayerShape, LayerSlabs
from anllm.runner.native_library import NativeLibrary
from anllm.runner.ragged import RaggedKernels, RaggedRows
from anllm.scheduler import scheduler as scheduler_module
from runner.attention_reference import Case, attend
from runner.families import FAMILIES, VOCAB, WINDOW, Family, build
from runner.greedy import check_greedy, random_tokens, run_greedy

pytestmark = pytest.mark.mlx


@pytest.fixture(params=[1, 3])
def native(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NativeLibrary]:
    """With that many threads."""
    found = load_blas(None, tmp_path).native
    if found is None:
        pytest.skip("no C compiler here")
    found.set_threads(request.param)
    yield found
    found.set_threads(1)


def heads_of(native: NativeLibrary) -> list[Case]:
    lanes = native.lanes
    return [
        Case(9, 3, 64, 64),
        Case(4, 4, lanes, 3 * lanes),
        Case(8, 2, 5 * lanes, 2 * lanes, window=7, scale=0.3),
        Case(8, 8, 128, 128, has_sinks=True),
        Case(71, 1, 64, 64, window=100, has_sinks=True),
        Case(2, 1, 256, 256),
    ]


@pytest.mark.parametrize("number", range(6))
def test_it_attends_and_writes_as_numpy_does(native: NativeLibrary, number: int) -> None:
    case = heads_of(native)[number]
    step, kernels = case.step(), NativeKernels(native, StockKernels())
    assert isinstance(kernels, RaggedKernels)
    expected = attend(case, step)
    q, k, v = (mx.array(part) for part in (step.q, step.k, step.v))
    sinks = None if step.sinks is None else mx.array(step.sinks)
    for kv in ((k, v), None):  # the second time they are there
        found = kernels.ragged(q, step.layer, step.rows, scale=case.scale, sinks=sinks, kv=kv)
        np.testing.assert_allclose(np.array(found), expected, atol=2e-5)
    for capacity in step.capacities:
        keys, values = (np.array(slab(capacity)) for slab in (step.layer.keys, step.layer.values))
        np.testing.assert_array_equal(keys, step.keys_after[capacity])
        np.testing.assert_array_equal(values, step.values_after[capacity])


def test_what_is_no_number_stays_where_it_is(native: NativeLibrary) -> None:
    """In a query it makes that token's answer none; in slots of others and behind the end of a row it is not read."""
    case = Case(4, 2, 32, 32)
    step, kernels = case.step(), NativeKernels(native, StockKernels())
    expected = attend(case, step)
    for capacity in step.capacities:
        keys, values = (np.array(slab, copy=False) for slab in step.layer.flat(capacity))
        unseen = ~step.seen(capacity, case)
        keys[unseen] = values[unseen] = np.nan
    step.q[3, 1] = np.nan
    q, k, v = (mx.array(part) for part in (step.q, step.k, step.v))
    found = np.array(kernels.ragged(q, step.layer, step.rows, scale=case.scale, sinks=None, kv=(k, v)))
    assert np.isnan(found[3, 1]).all()
    found[3, 1] = expected[3, 1] = 0
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize(
    ("heads", "shape", "reason"),
    [
        (4, LayerShape(4, 10, 10, mx.float32), "heads of a multiple of"),
        (4, LayerShape(4, 64, 10, mx.float32), "heads of a multiple of"),
        (4, LayerShape(4, 512, 512, mx.float32), "at most 256, got 512"),
        (97, LayerShape(1, 64, 64, mx.float32), "at most 96 queries"),
        (4, LayerShape(4, 64, 64, mx.bfloat16), "K/V of mlx.core.bfloat16"),
    ],
)
def test_heads_that_it_cant_take_are_refused(native: NativeLibrary, heads: int, shape: LayerShape, reason: str) -> None:
    layer = LayerSlabs(shape)
    layer.resize(256, 1)
    rows = RaggedRows(np.array([0]), np.array([0]), np.array([256]))
    q = mx.zeros((1, heads, 1, shape.key_dim))
    with pytest.raises(ValueError, match=reason):
        NativeKernels(native, StockKernels()).ragged(q, layer, rows, scale=1.0, sinks=None)
    with pytest.raises(ValueError, match="takes float32, got"):
        NativeKernels(native, StockKernels()).ragged(q.astype(mx.float16), layer, rows, scale=1.0, sinks=None)


FLATTENED = [f for f in FAMILIES if f.execution == "flattened"]
UNFIT = {"minicpm3"}  # whose heads are no whole vectors


@pytest.mark.parametrize("family", FLATTENED, ids=str)
def test_greedy_tokens_are_the_models_own(
    native: NativeLibrary, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in pieces, rows that outgrow their size class, and steps that sample nothing, whose K/V counts too."""
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 1)
    model = build(family)
    chosen = choose_forward(model, NativeKernels(native, StockKernels()), Execution.AUTO, VOCAB)
    assert isinstance(chosen.forward, FlattenedForward)
    assert chosen.forward.is_ragged == (family.name not in UNFIT)
    assert not chosen.forward.is_compiled
    prompts = [random_tokens(length, seed=length) for length in (5, 2 * WINDOW + 1, 250, 77)]
    run = run_greedy(chosen, prompts, max_tokens=12)
    assert any(plan.copies for plan in run.plans)
    assert sum(check_greedy(model, prompt, run.tokens[i]) for i, prompt in enumerate(prompts)) <= 2


def test_a_library_that_attends_right_is_taken_and_another_is_not(
    native: NativeLibrary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu, "tune", lambda blas, multiply: "")
    assert attends_right(NativeKernels(native, StockKernels()))
    assert isinstance(CpuBackend(Blas("", None, native)).kernels, NativeKernels)
    assert not isinstance(CpuBackend(Blas("")).kernels, NativeKernels)

    class WrongKernels(NativeKernels):
        def ragged(self, q: mx.array, *args: object, **kwargs: object) -> mx.array:
            return 1.01 * super().ragged(q, *args, **kwargs)  # type: ignore[arg-type]

    assert not attends_right(WrongKernels(native, StockKernels()))
    monkeypatch.setattr(cpu, "attends_right", lambda kernels: False)
    assert not isinstance(CpuBackend(Blas("", None, native)).kernels, NativeKernels)
    assert "native attention is wrong on this processor" in caplog.text
