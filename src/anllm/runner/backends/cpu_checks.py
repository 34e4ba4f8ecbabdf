"""Whether the native library computes right on this processor: each check is the largest difference from what NumPy or
MLX finds, as a share of the largest number."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from anllm.runner.backends.cpu_attention import NativeKernels
from anllm.runner.backends.cpu_layers import quicken_norms
from anllm.runner.backends.cpu_weights import AFFINE_FORMATS, FORMATS, PackedLinear, pack_weights
from anllm.runner.fusion import HeadNorm, Rotation, RotationShape
from anllm.runner.kv_store import LayerShape, LayerSlabs
from anllm.runner.native_library import NativeLibrary
from anllm.runner.ragged import RaggedRows

TOLERANCE = 1e-4  # of sums of some hundred float32 numbers, in any order
ROWS = (1, 8, 33, 300)  # kernels differ by the number of rows

Place = tuple[int, int, int]  # capacity, slot, position
PLACES: list[Place] = [
    *((256, 3, position) for position in range(40)),  # a prompt's beginning
    *((512, 2, position) for position in range(297, 300)),  # and one's continuation
    *((256, 0, 6), (256, 1, 199), (512, 0, 511)),
]
DIM, HEADS, KV_HEADS = 64, 6, 2
SCALE = 0.1


def check_weights(native: NativeLibrary) -> float:
    """Products with weights of each form that can be packed."""
    random = np.random.default_rng(0)
    worst = 0.0
    layers: list[nn.Linear | nn.QuantizedLinear] = [
        *(plain_layer(200, 65, dtype) for dtype in FORMATS),
        *(nn.QuantizedLinear(320, 65, group_size=group, bits=bits) for bits in AFFINE_FORMATS for group in (32, 64)),
    ]
    for layer in layers:
        weight = _dequantized(layer)
        pack_weights(layer, native)
        if not isinstance(layer, PackedLinear):
            return float("inf")
        for rows in ROWS:
            x = random.standard_normal((rows, weight.shape[1]), np.float32)
            worst = max(worst, _difference(layer(mx.array(x)), np.einsum("ik,jk->ij", x, weight)))
    return worst


def check_layers(kernels: NativeKernels, native: NativeLibrary) -> float:
    """Norms and SwiGLU."""
    norm, x = nn.RMSNorm(200), mx.random.normal((33, 200))
    norm.weight = mx.random.normal((200,))
    expected = norm(x)
    quicken_norms(norm, native)
    gate, up = mx.split(x, 2, axis=-1)
    return max(_difference(norm(x), expected), _difference(kernels.swiglu(x), nn.silu(gate) * up))


def check_attention(kernels: NativeKernels) -> float:
    """Over plain and windowed layers; infinite where K/V is not written where it belongs."""
    random = np.random.default_rng(0)
    rows, worst = _rows(), 0.0
    for window in (None, 50):
        layer = _noisy_layer(random, window)
        q, k, v = (random.standard_normal((rows.size, n, 1, DIM), np.float32) for n in (HEADS, KV_HEADS, KV_HEADS))
        kv = (mx.array(k), mx.array(v))
        found = np.array(kernels.ragged(mx.array(q), layer, rows, scale=SCALE, sinks=None, kv=kv))
        for i, (capacity, slot, position) in enumerate(PLACES):
            first = 0 if window is None else max(position + 1 - window, 0)
            slabs = (layer.keys(capacity), layer.values(capacity))
            keys, values = (np.array(slab[slot, :, first : position + 1]) for slab in slabs)
            if not (np.array_equal(keys[:, -1], k[i, :, 0]) and np.array_equal(values[:, -1], v[i, :, 0])):
                return float("inf")
            scores = SCALE * np.einsum("hgd,hkd->hgk", q[i].reshape(KV_HEADS, -1, DIM), keys)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            expected = np.einsum("hgk,hkd->hgd", weights / weights.sum(-1, keepdims=True), values)
            worst = max(worst, _difference(found[i].reshape(expected.shape), expected))
    return worst


def check_turns(kernels: NativeKernels) -> float:
    """Norms and positions of queries and keys, in both orders of pairs."""
    random = np.random.default_rng(0)
    rows, offset, worst = _rows(), mx.array([position for _, _, position in PLACES]), 0.0
    projected = mx.array(random.standard_normal((rows.size, 1, (HEADS + 2 * KV_HEADS) * DIM), np.float32))
    q, k, v = mx.split(projected.reshape(rows.size, -1, 1, DIM), [HEADS, HEADS + KV_HEADS], axis=1)
    weights = [mx.array(random.standard_normal(DIM, np.float32)) for _ in range(2)]
    q, k = (mx.fast.rms_norm(x, weight, 1e-5) for x, weight in zip((q, k), weights, strict=True))
    pairs = DIM // 4
    frequencies = mx.array((10000.0 ** (-np.arange(pairs) / pairs)).astype(np.float32))
    for is_traditional in (False, True):
        shape = RotationShape(HEADS, KV_HEADS, DIM, pairs, is_traditional, has_norm=True)
        rope: Any = nn.RoPE(2 * pairs, traditional=is_traditional)  # takes an offset for each row too
        layer, same = (_noisy_layer(np.random.default_rng(1), None) for _ in range(2))
        kv = (rope(k, offset=offset), v)
        expected = kernels.ragged(rope(q, offset=offset), same, rows, scale=SCALE, sinks=None, kv=kv)
        rotation = Rotation(shape, frequencies, HeadNorm(weights[0], weights[1], 1e-5))
        found, _ = kernels.attend_rotated(projected, layer, rows, rotation, scale=SCALE)
        worst = max(worst, _difference(found, expected))
    return worst


def plain_layer(num_inputs: int, num_outputs: int, dtype: mx.Dtype) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs, bias=False)
    layer.weight = mx.random.normal((num_outputs, num_inputs)).astype(dtype)
    return layer


def _dequantized(layer: nn.Linear | nn.QuantizedLinear) -> np.ndarray:
    """Its weight, float32 [outputs, inputs]."""
    if isinstance(layer, nn.Linear):
        return np.array(layer.weight.astype(mx.float32))
    settings = {"group_size": layer.group_size, "bits": layer.bits}
    return np.array(mx.dequantize(layer.weight, layer.scales, layer.biases, **settings))


def _rows() -> RaggedRows:
    capacities, slots, positions = np.array(PLACES).T
    return RaggedRows(slots, positions, capacities)


def _noisy_layer(random: np.random.Generator, window: int | None) -> LayerSlabs:
    layer = LayerSlabs(LayerShape(KV_HEADS, DIM, DIM, mx.float32, window))
    for capacity in (256, 512):
        layer.resize(capacity, 4)
        index = mx.arange(4 * KV_HEADS * capacity)
        noise = [mx.array(random.standard_normal((index.size, DIM), np.float32)) for _ in range(2)]
        layer.write(capacity, index, *noise)
        mx.eval(layer.arrays([capacity]))
    return layer


def _difference(found: Any, expected: Any) -> float:
    """Infinite where something is not a number."""
    found, expected = np.array(found), np.array(expected)
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    return difference if difference == difference else float("inf")
