"""Quantised layers as the CUDA backend calls them, on whatever device is here."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from anllm.runner.backends.cuda_quantized import (
    MANY_ROWS,
    dequantized_product,
    find_crossover,
    measure_products,
    quick_quantized,
)

pytestmark = pytest.mark.mlx

TOLERANCE = 1e-4 if mx.default_device() == mx.Device(mx.cpu) else 2e-3  # GPUs multiply float32 as TF32


def layer_of(kind: str) -> Any:
    if kind == "head":
        return nn.QuantizedEmbedding(96, 64, group_size=32, bits=4)
    return nn.QuantizedLinear(64, 96, bias=kind == "bias", group_size=32, bits=4)


def stock(layer: Any, x: mx.array) -> mx.array:
    return layer.as_linear(x) if isinstance(layer, nn.QuantizedEmbedding) else layer(x)


@pytest.mark.parametrize("kind", ["plain", "bias", "head"])
@pytest.mark.parametrize("shape", [(1, 1, 64), (3, 1, 64), (7, 64), (2, 4, 64), (9, 1, 64), (40, 1, 64)])
def test_the_same_comes_out(shape: tuple[int, ...], kind: str) -> None:
    layer, seen = layer_of(kind), []
    if kind == "bias":
        layer.bias = mx.random.normal((96,))

    def linear(self: Any, x: mx.array) -> mx.array:
        seen.append(x.shape)
        return stock(self, x)

    x = mx.random.normal(shape)
    assert mx.allclose(quick_quantized(linear, 32)(layer, x), stock(layer, x), atol=TOLERANCE)
    num_rows = x.size // 64
    assert seen == ([] if num_rows >= 32 else [(1 if num_rows == 1 else max(num_rows, 8), 64)])


def test_half_types_stay_what_they_are() -> None:
    layer = layer_of("plain")
    layer.set_dtype(mx.bfloat16)
    assert dequantized_product(layer, mx.zeros((2, 64), mx.bfloat16)).dtype == mx.bfloat16


def test_dequantising_begins_where_it_is_quicker() -> None:
    assert find_crossover(lambda rows: (rows * 1.0, 10.0)) == 32
    assert find_crossover(lambda rows: (2.0, 1.0)) == 2
    assert find_crossover(lambda rows: (1.0, 2.0)) == MANY_ROWS


def test_where_mlx_can_not_compile_its_product_layers_are_dequantised(caplog: pytest.LogCaptureFixture) -> None:
    """As with nvidia-cuda-runtime 13.5 alone: "cannot open source file crt/mma.h"."""

    def measure(rows: int) -> tuple[float, float]:
        raise RuntimeError("Failed to compile kernel: \n\n no crt/mma.h")

    assert find_crossover(measure) == 2
    assert "'anllm doctor' says what is missing (Failed to compile kernel: no crt/mma.h)" in caplog.text


def test_both_are_measured() -> None:
    assert all(seconds > 0 for seconds in measure_products(2, width=64, num_layers=2))
