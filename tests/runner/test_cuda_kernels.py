"""The CUDA kernels' own code, on a CPU (cuda_emulator.py): against MLX's operations, in the checks that also run at
every start on a GPU, and in what those leave out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from anllm.config import Execution
from anllm.runner.backends import cuda_fused, cuda_kernels, cuda_ragged
from anllm.runner.backends.cuda_fused import FusedCudaKernels
from anllm.runner.backends.cuda_ragged import RaggedCudaKernels, choose_way
from anllm.runner.contract import choose_forward
from anllm.runner.fusion import FusedAttention, HeadNorm, Rotation, RotationShape
from anllm.runner.kv_store import LayerShape, LayerSlabs
from anllm.runner.ragged import RaggedRows
from anllm.scheduler import scheduler as scheduler_module
from runner import greedy
from runner.cuda_emulator import EmulatedKernel
from runner.families import VOCAB, Family, build
from runner.ragged import SlowFusedKernels

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs a C++ compiler"),
    pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="the emulator writes to memory of the CPU"),
]
CACHES = (cuda_ragged._attention, cuda_ragged._join, cuda_fused._rotate, cuda_fused._swiglu, cuda_fused._copy)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of compiled kernels, which the tests share."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def _emulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def make(*, name: str, input_names: list[str], output_names: list[str], source: str, header: str = "") -> Any:
        return EmulatedKernel(folder, input_names, output_names, source)

    monkeypatch.setattr(mx.fast, "cuda_kernel", make)
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks at start, with fewer heads."""
    monkeypatch.setattr(cuda_kernels, "HEADS", 4)
    monkeypatch.setattr(cuda_kernels, "KV_HEADS", 1)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("may_use_tensor_cores", [True, False])
def test_attention_passes_its_check(may_use_tensor_cores: bool) -> None:
    kernels = RaggedCudaKernels(may_use_tensor_cores=may_use_tensor_cores)
    assert cuda_kernels.check_ragged(kernels) < cuda_kernels.TOLERANCE


@pytest.mark.usefixtures("_small")
def test_fused_layers_pass_their_checks() -> None:
    kernels = FusedCudaKernels()
    assert cuda_kernels.check_write_rotated(kernels) < cuda_kernels.TOLERANCE
    assert cuda_kernels.check_swiglu(kernels) < cuda_kernels.TOLERANCE
    assert cuda_kernels.check_copy_rows(kernels) == 0


def layer_of(dtype: mx.Dtype, heads: int, dim: int, window: int | None = None) -> LayerSlabs:
    layer = LayerSlabs(LayerShape(heads, dim, dim, dtype, window))
    layer.resize(256, 3)
    index = mx.arange(3 * heads * 256)
    layer.write(256, index, *(mx.random.normal((index.size, dim)) for _ in range(2)))
    return layer


def rows_of(*runs: tuple[int, int, int]) -> RaggedRows:
    """(slot, first position, count) of each run of tokens, all of capacity 256."""
    slots = np.concatenate([[slot] * count for slot, _, count in runs])
    positions = np.concatenate([np.arange(first, first + count) for _, first, count in runs])
    return RaggedRows(slots, positions, np.full(len(slots), 256))


@pytest.mark.parametrize(
    ("dtype", "group", "dim", "on_tensor_cores"),
    [
        (mx.bfloat16, 1, 64, True),  # 16 tokens to a group
        (mx.bfloat16, 3, 64, True),  # 5, and a row to spare
        (mx.bfloat16, 8, 128, True),
        (mx.bfloat16, 16, 64, True),
        (mx.bfloat16, 2, 96, False),
        (mx.float32, 2, 64, False),
    ],
)
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 9])
def test_attention_of_all_kinds_of_heads(
    dtype: mx.Dtype, group: int, dim: int, on_tensor_cores: bool, has_sinks: bool, window: int | None
) -> None:
    assert choose_way(dtype, dim, group, True).on_tensor_cores == on_tensor_cores
    layer, rows = layer_of(dtype, 1, dim, window), rows_of((2, 0, 19), (0, 40, 1), (1, 100, 7))
    q = mx.random.normal((rows.size, group, 1, dim)).astype(dtype)
    sinks = mx.random.normal((group,)).astype(dtype) if has_sinks else None
    found = RaggedCudaKernels().ragged(q, layer, rows, scale=dim**-0.5, sinks=sinks)
    slow = LayerSlabs(LayerShape(1, dim, dim, mx.float32, window))
    slow.resize(256, 3)
    slow.write(256, mx.arange(3 * 256), *(a.astype(mx.float32) for a in layer.flat(256)))
    expected = SlowFusedKernels().ragged(q.astype(mx.float32), slow, rows, scale=dim**-0.5, sinks=sinks)
    assert cuda_kernels.relative(found, expected) < 1e-2


@pytest.mark.parametrize("is_traditional", [False, True])
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("num_pairs", [16, 32])  # of heads of 64: half of them, or all
def test_rotation_of_all_kinds(is_traditional: bool, has_norm: bool, num_pairs: int) -> None:
    heads, kv_heads, dim = 3, 2, 64
    norm = HeadNorm(*(mx.random.uniform(shape=(dim,)).astype(mx.bfloat16) for _ in range(2)), 1e-5)
    frequencies = mx.array((100.0 ** (-np.arange(num_pairs) / num_pairs)).astype(np.float32))
    shape = RotationShape(heads, kv_heads, dim, num_pairs, is_traditional, has_norm)
    rotation = Rotation(shape, frequencies, norm if has_norm else None)
    rows = rows_of((1, 3, 5), (0, 200, 1))
    projected = mx.random.normal((rows.size, 1, (heads + 2 * kv_heads) * dim)).astype(mx.bfloat16)
    layers, found = [layer_of(mx.bfloat16, kv_heads, dim) for _ in range(2)], []
    for kernels, layer in zip((FusedCudaKernels(), SlowFusedKernels()), layers, strict=True):
        q, written = kernels.write_rotated(projected, layer, rows, rotation)
        mx.eval(q, written)
        found.append([q, layer.keys(256)[1, :, 3:8], layer.values(256)[1, :, 3:8], layer.keys(256)[0, :, 200]])
    for ours, expected in zip(*found, strict=True):
        assert cuda_kernels.relative(ours, expected.astype(mx.float32)) < 1e-2


def test_a_whole_engine_on_these_kernels_answers_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts in chunks beside decoding, rows that outgrow their slots, two size classes in a step; decode steps
    recorded, in so far as the emulator can: it computes at once."""
    records = []
    monkeypatch.setattr(mx, "compile", lambda function: records.append(function) or function)
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 1)
    monkeypatch.setattr(greedy, "CLOSE", 0.05)  # bfloat16
    model = build(Family("llama", "flattened", {"head_dim": 64, "num_hidden_layers": 2}), seed=0)
    model.set_dtype(mx.bfloat16)
    chosen = choose_forward(model, FusedCudaKernels(), Execution.AUTO, VOCAB)
    assert sum(type(module) is FusedAttention for module in model.modules()) == 2
    prompts = [greedy.random_tokens(length, seed=length) for length in (252, 5, 40)]
    recorded_at_start = len(records)
    run = greedy.run_greedy(chosen, prompts, max_tokens=14)
    assert 0 < recorded_at_start < len(records)
    assert any(plan.copies for plan in run.plans)
    assert any(len({s.slot.capacity for s in plan.scheduled}) == 2 for plan in run.plans)
    near = sum(greedy.check_greedy(model, prompt, run.tokens[i]) for i, prompt in enumerate(prompts))
    assert near <= 6


def test_a_model_whose_steps_cannot_be_recorded_is_called_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(function: Any) -> Any:
        raise RuntimeError("no records here")

    monkeypatch.setattr(mx, "compile", broken)
    model = build(Family("llama", "flattened", {"head_dim": 64, "num_hidden_layers": 2}), seed=0)
    model.set_dtype(mx.bfloat16)
    chosen = choose_forward(model, FusedCudaKernels(), Execution.AUTO, VOCAB)
    assert sum(type(module) is FusedAttention for module in model.modules()) == 2
    assert "no records here" in caplog.text
    prompt = greedy.random_tokens(40, seed=40)
    tokens = greedy.run_greedy(chosen, [prompt] * 2, max_tokens=6).tokens[0]
    assert tokens
    greedy.check_greedy(model, prompt, tokens)
