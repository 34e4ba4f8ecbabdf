"""The CPU backend's own arithmetic against MLX's."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from anllm.runner.attention import StockKernels
from anllm.runner.backends.cpu_kernels import QUERY_BLOCK, FastExpKernels, fast_exp
from anllm.runner.backends.cpu_layers import FlatRoPE, quicken_layers, swiglu
from runner.families import DENSE, Family, build

pytestmark = pytest.mark.mlx

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 16, 8


def attend_both(b: int, n: int, length: int, mask: mx.array | str | None) -> tuple[np.ndarray, np.ndarray]:
    q = mx.random.normal((b, HEADS, n, DIM)) * 3
    k, v = mx.random.normal((b, KV_HEADS, length, DIM)), mx.random.normal((b, KV_HEADS, length, VALUE_DIM))
    fast, stock = (
        kernels.attend(q, k, v, scale=0.4, mask=mask, sinks=None) for kernels in (FastExpKernels(), StockKernels())
    )
    return np.array(fast), np.array(stock)


def test_fast_exp_is_exp_where_it_counts_and_nothing_beyond() -> None:
    x = np.linspace(0, 80, 20001, dtype=np.float32)
    found = np.array(fast_exp(mx.array(x / 16)))
    np.testing.assert_allclose(found, np.exp(-x.astype(np.float64)), atol=3e-6, rtol=0)
    assert fast_exp(mx.array([0.0])).item() == 1
    assert fast_exp(mx.array([1e4, 1e30, float("inf")])).tolist() == [0, 0, 0]
    assert np.isnan(fast_exp(mx.array([float("nan")])).item())


@pytest.mark.parametrize("extra", [0, 1, 70, 300, 2500])
@pytest.mark.parametrize("n", [2, 40, QUERY_BLOCK, QUERY_BLOCK + 2, 191, 192, 257, 400])
def test_causal_attention_in_blocks_is_that_of_mlx(n: int, extra: int) -> None:
    fast, stock = attend_both(1, n, n + extra, "causal")
    np.testing.assert_allclose(fast, stock, atol=2e-5)


def test_masked_and_plain_attention_are_those_of_mlx() -> None:
    lengths = np.array([1, 7, 20, 33])
    mask = mx.array((np.arange(33)[None] < lengths[:, None])[:, None, None])
    for one in (mask, None):
        fast, stock = attend_both(4, 1, 33, one)
        np.testing.assert_allclose(fast, stock, atol=2e-5)
    window = mx.array(np.tril(np.ones((50, 50), bool)) & ~np.tril(np.ones((50, 50), bool), k=-5))
    fast, stock = attend_both(1, 50, 50, window)
    np.testing.assert_allclose(fast, stock, atol=2e-5)


def test_what_is_not_a_number_stays_so() -> None:
    q = mx.full((1, HEADS, 1, DIM), float("nan"))
    k = mx.random.normal((1, KV_HEADS, 5, DIM))
    assert np.isnan(np.array(FastExpKernels().attend(q, k, k, scale=1.0, mask=None, sinks=None))).all()
    assert np.isnan(swiglu(mx.array([float("nan")]), mx.array([1.0])).item())


def test_swiglu_is_that_of_mlx_for_gates_of_any_size() -> None:
    gate = mx.concatenate([mx.linspace(-30, 30, 6001), mx.array([-1e6, -1e3, -1e-6, 0, 1e-6, 1e3, 1e6])])
    exact = np.array(gate, np.float64) / (1 + np.exp(-np.array(gate, np.float64).clip(-700)))
    error = np.abs(np.array(swiglu(gate, mx.ones_like(gate))) - exact)
    assert (error <= 3e-7 * np.abs(np.array(gate))).all()


@pytest.mark.parametrize("num_heads", [1, 3])
def test_rope_of_a_flattened_step_is_that_of_mlx(num_heads: int) -> None:
    model = nn.Sequential(nn.RoPE(DIM, base=5e5, scale=0.5), nn.RoPE(DIM, base=5e5, scale=0.5))
    stock = nn.RoPE(DIM, base=5e5, scale=0.5)
    quicken_layers(model)
    first, second = model.layers
    assert isinstance(first, FlatRoPE)
    assert first.rotation is second.rotation
    for positions in ([0, 1, 5000], [3, 3, 100]):
        x = mx.random.normal((3, 1, num_heads, DIM)).transpose(0, 2, 1, 3)
        offset = mx.array(positions)
        for layer in (first, second):
            np.testing.assert_allclose(np.array(layer(x, offset=offset)), np.array(stock(x, offset=offset)), atol=1e-5)


def test_rope_of_other_shapes_is_left_to_mlx() -> None:
    model = nn.Sequential(nn.RoPE(DIM), nn.RoPE(DIM, traditional=True), nn.RoPE(DIM // 2))
    quicken_layers(model)
    x = mx.random.normal((3, 2, 4, DIM))
    for layer in model.layers:
        stock = nn.RoPE(layer.dims, traditional=layer.traditional)
        for one, offset in ((x, 7), (x, mx.array([1, 2, 3])), (x[:, :, :1], mx.array([1, 2, 3])), (x[:, :, :1], 2)):
            assert mx.allclose(layer(one, offset=offset), stock(one, offset=offset), atol=1e-6)


def test_a_quickened_model_says_the_same_and_keeps_its_weights() -> None:
    model = build(Family("llama", "", {**DENSE, "model_type": "llama"}), seed=1)
    tokens = mx.array([[1, 2, 3, 4]])
    before, names = model(tokens), sorted(model.parameters())
    quicken_layers(model)
    np.testing.assert_allclose(np.array(model(tokens)), np.array(before), atol=1e-5)
    assert sorted(model.parameters()) == names
