"""Quantised linear layers for CUDA, in the form in which they are quick.

MLX's quantised product reads the weights again for each row of [rows, 1, width]: measured on an H200, 128 rows of a
layer of 4096 by 4096 take 3,263 µs so, and 136 µs as [rows, width]. With 2 to 7 rows it takes its kernel for one row,
several times; 8 rows, some of them padding, take a third of that. And with few rows more than that, it is quicker to
dequantise the layer, which takes no more than writing and reading it once, and to multiply as if it had never been
quantised. From how many rows on is measured at start. MLX compiles its kernel for many rows when it is first used. That
needs headers of CUDA that not every installation has; without them all but single rows go the other way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

logger = logging.getLogger(__name__)

FEWEST_ROWS = 8  # that get MLX's kernel for many rows
TRIED_ROWS = (2, 8, 32, 128, 256)
MANY_ROWS = 512  # MLX's product takes twice as long then on an H200, and four times with 2,048 (docs/log.md)
NEVER = 1 << 30

Linear = Callable[[Any, mx.array], mx.array]


def quick_quantized(linear: Linear, dequantize_from: int) -> Linear:
    """The same layer, called with [rows, width], never with 2 to 7 rows, and dequantised from so many rows on."""

    def call(self: Any, x: mx.array) -> mx.array:
        rows = x.reshape(-1, x.shape[-1])
        number = rows.shape[0]
        if number >= dequantize_from:
            out = dequantized_product(self, rows)
        elif 1 < number < FEWEST_ROWS:
            out = linear(self, mx.pad(rows, [(0, FEWEST_ROWS - number), (0, 0)]))[:number]
        else:
            out = linear(self, rows)
        return out.reshape(*x.shape[:-1], out.shape[-1])

    call.stock = linear  # type: ignore[attr-defined]
    return call


def dequantized_product(layer: Any, rows: mx.array) -> mx.array:
    """rows: [n, width]. What a QuantizedLinear, or a QuantizedEmbedding as the output head, gives for them."""
    weight = mx.dequantize(
        layer["weight"],
        scales=layer["scales"],
        biases=layer.get("biases"),
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
    )
    out = rows @ weight.astype(rows.dtype).T
    return out + layer["bias"] if "bias" in layer else out


def hook_quantized_layers() -> None:
    """For all quantised linear layers and output heads of this process; calling again does no harm."""
    kinds = ((nn.QuantizedLinear, "__call__"), (nn.QuantizedEmbedding, "as_linear"))
    if all(hasattr(getattr(kind, name), "stock") for kind, name in kinds):
        return
    dequantize_from = find_crossover(measure_products)
    for kind, name in kinds:
        setattr(kind, name, quick_quantized(getattr(kind, name), dequantize_from))


def find_crossover(measure: Callable[[int], tuple[float, float]]) -> int:
    """Rows from which dequantising is quicker: one of those tried, or MANY_ROWS; the fewest if MLX's product can't be
    compiled. measure: of a number of rows, the seconds that both take, quantised first."""
    for rows in TRIED_ROWS:
        try:
            quantized_s, dequantized_s = measure(rows)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            logger.warning("quantised layers are slower than need be; 'anllm doctor' says what is missing (%s)", reason)
            return TRIED_ROWS[0]
        if dequantized_s < quantized_s:
            return rows
    return MANY_ROWS


def measure_products(num_rows: int, width: int = 4096, num_layers: int = 8) -> tuple[float, float]:
    """Seconds for layers of [width, width] in 4 bits, quantised and dequantised; more of them than a cache holds."""
    layers = [nn.QuantizedLinear(width, width, bias=False, group_size=64, bits=4) for _ in range(num_layers)]
    for layer in layers:
        layer.set_dtype(mx.bfloat16)
    rows = mx.random.normal((num_rows, width)).astype(mx.bfloat16)
    stock: Linear = getattr(nn.QuantizedLinear.__call__, "stock", nn.QuantizedLinear.__call__)
    quantized = quick_quantized(stock, NEVER)
    mx.eval(rows, [layer.parameters() for layer in layers])

    def seconds(product: Linear) -> float:
        best = float("inf")
        for _ in range(4):  # the first compiles
            started = time.perf_counter()
            mx.eval([product(layer, rows) for layer in layers])
            best = min(best, time.perf_counter() - started)
        return best

    return seconds(quantized), seconds(dequantized_product)
