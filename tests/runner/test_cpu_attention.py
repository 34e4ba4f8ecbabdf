"""Attention by the native library, held against NumPy and against the models' own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from anllm.config import Execution
from anllm.runner.attention import StockKernels
from anllm.runner.backends import cpu
from anllm.runner.backends.cpu import CpuBackend
from anllm.runner.backends.cpu_attention import NativeKernels
from anllm.runner.backends.cpu_checks import TOLERANCE, check_attention, check_layers, check_turns, check_weights
from anllm.runner.backends.cpu_layers import NativeRMSNorm, quicken_norms
from anllm.runner.backends.cpu_weights import PackedLinear, pack_weights
from anllm.runner.blas import Blas, load_blas
from anllm.runner.contract import choose_forward
from anllm.runner.flattened import FlattenedForward
from anllm.runner.fusion import FusedAttention, FusedKernels, FusedMLP, HeadNorm, Rotation, RotationShape
from anllm.runner.kv_store import LayerShape, LayerSlabs
from anllm.runner.native_library import NativeLibrary
from anllm.runner.ragged import RaggedKernels, RaggedRows
from anllm.scheduler import scheduler as scheduler_module
from runner.attention_reference import Case, attend
from runner.families import FAMILIES, VOCAB, WINDOW, Family, build
from runner.greedy import check_greedy, random_tokens, run_greedy
from runner.ragged import SlowFusedKernels

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


ROTATIONS = [
    RotationShape(6, 2, 64, num_pairs, is_traditional, has_norm)
    for num_pairs, is_traditional, has_norm in itertools.product((32, 20), (False, True), (False, True))
]


@pytest.mark.parametrize("shape", ROTATIONS, ids=str)
def test_norms_and_positions_of_queries_and_keys(native: NativeLibrary, shape: RotationShape) -> None:
    case = Case(6, 2, 64, 64)
    mine, theirs = case.step(), case.step()
    projected = mx.concatenate([mx.array(part.reshape(len(part), 1, -1)) for part in (mine.q, mine.k, mine.v)], axis=-1)
    frequencies = 10000.0 ** (-mx.arange(shape.num_pairs) / shape.num_pairs)
    weights = [mx.random.normal((64,)) for _ in range(2)]
    rotation = Rotation(shape, frequencies, HeadNorm(*weights, 1e-3) if shape.has_norm else None)
    kernels = NativeKernels(native, StockKernels())
    assert isinstance(kernels, FusedKernels)
    found, written = kernels.attend_rotated(projected, mine.layer, mine.rows, rotation, scale=case.scale)
    mx.eval(written)
    expected, _ = SlowFusedKernels().attend_rotated(projected, theirs.layer, theirs.rows, rotation, scale=case.scale)
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-4)
    for capacity in mine.capacities:
        for kind in ("keys", "values"):
            ours, others = (np.array(getattr(step.layer, kind)(capacity)) for step in (mine, theirs))
            np.testing.assert_allclose(ours, others, atol=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 24), (40, 1536), (700, 64), (5, 7)])
def test_swiglu_and_norms_are_those_of_mlx(native: NativeLibrary, rows: int, width: int) -> None:
    projected = 20 * mx.random.normal((rows, 1, 2 * width))
    gate, up = mx.split(projected, 2, axis=-1)
    found = NativeKernels(native, StockKernels()).swiglu(projected)
    np.testing.assert_allclose(np.array(found), np.array(nn.silu(gate) * up), rtol=1e-5, atol=1e-6)
    norm = nn.RMSNorm(width, eps=1e-3)
    norm.weight = mx.random.normal((width,))
    expected, names = norm(gate), set(norm.parameters())
    half = norm(gate.astype(mx.bfloat16))
    quicken_norms(norm, native)
    assert isinstance(norm, NativeRMSNorm)
    np.testing.assert_allclose(np.array(norm(gate)), np.array(expected), atol=1e-5)
    assert mx.array_equal(norm(gate.astype(mx.bfloat16)), half)
    assert set(norm.parameters()) == names


def test_swiglu_of_gates_of_any_size(native: NativeLibrary) -> None:
    gate = mx.concatenate([mx.linspace(-30, 30, 6001), mx.array([-1e30, -1e6, -88, -1e-6, 0, 1e-6, 88, 1e6, 1e30])])
    exact = np.array(gate, np.float64) / (1 + np.exp(-np.array(gate, np.float64).clip(-700)))
    found = NativeKernels(native, StockKernels()).swiglu(mx.concatenate([gate, mx.ones_like(gate)])[None])
    np.testing.assert_allclose(np.array(found)[0], exact, rtol=5e-7, atol=1e-36)
    none = NativeKernels(native, StockKernels()).swiglu(mx.array([[float("nan"), 1.0]]))
    assert np.isnan(none.item())


def test_a_new_slab_is_memory_of_its_own(native: NativeLibrary) -> None:
    kernels = NativeKernels(native, StockKernels())
    slabs = [kernels.new_slab(48, 64) for _ in range(3)]
    for i, slab in enumerate(slabs):
        assert (slab.shape, slab.dtype) == ((48, 64), mx.float32)
        slab[:] = i
    assert [float(slab.min()) for slab in slabs] == [float(slab.max()) for slab in slabs] == [0, 1, 2]
    assert kernels.new_slab(0, 64).shape == (0, 64)


FLATTENED = [f for f in FAMILIES if f.execution == "flattened"]
UNFIT = {"minicpm3"}  # whose heads are no whole vectors


@pytest.mark.parametrize("family", FLATTENED, ids=str)
def test_greedy_tokens_are_the_models_own(
    native: NativeLibrary, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in pieces, rows that outgrow their size class, and steps that sample nothing, whose K/V counts too."""
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 1)
    model = build(family)
    pack_weights(model, native)
    quicken_norms(model, native)
    chosen = choose_forward(model, NativeKernels(native, StockKernels()), Execution.AUTO, VOCAB)
    assert isinstance(chosen.forward, FlattenedForward)
    assert chosen.forward.is_ragged == (family.name not in UNFIT)
    assert not chosen.forward.is_compiled
    prompts = [random_tokens(length, seed=length) for length in (5, 2 * WINDOW + 1, 250, 77)]
    run = run_greedy(chosen, prompts, max_tokens=12)
    assert any(plan.copies for plan in run.plans)
    assert sum(check_greedy(model, prompt, run.tokens[i]) for i, prompt in enumerate(prompts)) <= 2


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_greedy_tokens_of_fused_layers_are_the_models_own(native: NativeLibrary, name: str) -> None:
    wide = {"num_key_value_heads": 4, "tie_word_embeddings": True}  # whole panels, also of keys
    model, own = (build(Family(name, "flattened", wide)) for _ in range(2))
    pack_weights(model, native)
    quicken_norms(model, native)
    chosen = choose_forward(model, NativeKernels(native, StockKernels()), Execution.AUTO, VOCAB)
    fused = [part for part in model.modules() if isinstance(part, FusedAttention | FusedMLP)]
    assert len(fused) == 8, "attention and MLP of four layers"
    prompts = [random_tokens(length, seed=length) for length in (1, 40, 250, 77)]
    run = run_greedy(chosen, prompts, max_tokens=12)
    assert sum(check_greedy(own, prompt, run.tokens[i]) for i, prompt in enumerate(prompts)) <= 2


def test_a_library_that_is_right_is_taken_and_another_is_not(
    native: NativeLibrary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu, "tune", lambda blas, multiply: "")
    kernels = NativeKernels(native, StockKernels())
    checks = [check_weights(native), check_layers(kernels, native), check_attention(kernels), check_turns(kernels)]
    assert max(checks) < TOLERANCE / 10
    assert isinstance(CpuBackend(Blas("", None, native)).kernels, NativeKernels)
    assert not isinstance(CpuBackend(Blas("")).kernels, NativeKernels)
    assert not caplog.text
    for check in ("check_attention", "check_turns"):
        with monkeypatch.context() as context:
            context.setattr(cpu, check, lambda kernels: float("nan"))
            assert not isinstance(CpuBackend(Blas("", None, native)).kernels, NativeKernels)
        assert "native attention is wrong on this processor" in caplog.text
        caplog.clear()


def test_the_checks_see_what_is_a_little_wrong(native: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongKernels(NativeKernels):
        def _call(self, *args: Any) -> mx.array:
            return 1.001 * super()._call(*args)

    kernels = WrongKernels(native, StockKernels())
    assert check_attention(kernels) > TOLERANCE
    right = NativeKernels(native, StockKernels())
    monkeypatch.setattr(kernels, "ragged", right.ragged)
    assert check_turns(kernels) > TOLERANCE
    monkeypatch.setattr(kernels, "swiglu", lambda x: 1.001 * right.swiglu(x))
    assert check_layers(kernels, native) > TOLERANCE
    multiply = PackedLinear.__call__
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: 1.001 * multiply(self, x))
    assert check_weights(native) > TOLERANCE
