"""Which kernels of ours work on this GPU: each is compared with MLX's own operations before use."""

from __future__ import annotations

import logging
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from anllm.core.step import Slot
from anllm.runner.attention import Kernels, StockKernels
from anllm.runner.backends.cuda_fused import FusedCudaKernels
from anllm.runner.backends.cuda_ragged import RaggedCudaKernels
from anllm.runner.fusion import Rotation, RotationShape
from anllm.runner.kv_store import LayerShape, LayerSlabs
from anllm.runner.ragged import RaggedRows

logger = logging.getLogger(__name__)

TOLERANCE = 1e-2  # relative, of bfloat16 results against float32 ones
# No compiler, another architecture, another MLX.
FAILURES = (RuntimeError, ValueError, AttributeError, TypeError)
DIM, HEADS, KV_HEADS = 128, 32, 8


def make_kernels() -> Kernels:
    """All of our kernels if they work here, else those that do, with a line in the log."""
    on_tensor_cores = _works("attention on tensor cores", lambda: check_ragged(RaggedCudaKernels()))
    if not on_tensor_cores:
        by_lanes = RaggedCudaKernels(may_use_tensor_cores=False)
        if not _works("ragged attention", lambda: check_ragged(by_lanes)):
            return StockKernels()
    fused = FusedCudaKernels(may_use_tensor_cores=on_tensor_cores)
    if not _works("fused layers", lambda: max(check(fused) for check in FUSED_CHECKS)):
        return RaggedCudaKernels(may_use_tensor_cores=on_tensor_cores)
    return fused


def _works(name: str, difference: Callable[[], float]) -> bool:
    try:
        found = difference()
    except FAILURES as error:
        logger.warning("%s does not work here (%s); a slower way is taken", name, error)
        return False
    if not found <= TOLERANCE:
        logger.warning("%s is off by %.1e here; a slower way is taken", name, found)
        return False
    return True


Place = tuple[int, int, int]  # capacity, slot, position
PLACES: list[Place] = [
    *((256, 3, position) for position in range(6)),  # a prompt's beginning
    *((1024, 2, position) for position in range(597, 600)),  # and one's continuation
    *((256, 0, 6), (256, 1, 199), (1024, 0, 1023)),
]


def noisy_layer(window: int | None = None) -> LayerSlabs:
    """A layer with two size classes of four slots, full of noise."""
    layer = LayerSlabs(LayerShape(KV_HEADS, DIM, DIM, mx.bfloat16, window))
    for capacity in (256, 1024):
        layer.resize(capacity, 4)
        index = mx.arange(4 * KV_HEADS * capacity)
        layer.write(capacity, index, *(mx.random.normal((index.size, DIM)) for _ in range(2)))
    return layer


def rows_at(places: list[Place]) -> RaggedRows:
    capacities, slots, positions = np.array(places).T
    return RaggedRows(slots, positions, capacities)


def relative(found: mx.array, expected: mx.array) -> float:
    """Norm of the difference, as a share of the norm of what is expected."""
    error = mx.linalg.norm(found.astype(mx.float32) - expected) / mx.linalg.norm(expected)
    return float(error)


def check_ragged(kernels: RaggedCudaKernels) -> float:
    """The largest relative difference from MLX's attention in float32, over plain, windowed and split rows."""
    mx.random.seed(0)
    worst = 0.0
    q = mx.random.normal((len(PLACES), HEADS, 1, DIM)).astype(mx.bfloat16)
    for window in (None, 50):
        layer = noisy_layer(window)
        expected = []
        for i, (capacity, slot, position) in enumerate(PLACES):
            first = 0 if window is None else max(position + 1 - window, 0)
            k, v = (slab(capacity)[slot : slot + 1, :, first : position + 1] for slab in (layer.keys, layer.values))
            expected.append(
                mx.fast.scaled_dot_product_attention(
                    *(a.astype(mx.float32) for a in (q[i : i + 1], k, v)), scale=DIM**-0.5, mask=None
                )
            )
        for longest in (256, 4096):  # told to split or not
            rows = rows_at(PLACES)
            rows.longest = longest
            found = kernels.ragged(q, layer, rows, scale=DIM**-0.5, sinks=None)
            worst = max(worst, relative(found, mx.concatenate(expected)))
    return worst


def check_write_rotated(kernels: FusedCudaKernels) -> float:
    """The largest relative difference from MLX's rope, of q and of what is in the slots afterwards."""
    mx.random.seed(0)
    layer, number = noisy_layer(), len(PLACES)
    frequencies = (10000.0 ** (-np.arange(DIM // 2) / (DIM // 2))).astype(np.float32)
    rotation = Rotation(RotationShape(HEADS, KV_HEADS, DIM, DIM // 2, False, False), mx.array(frequencies), None)
    projected = mx.random.normal((number, 1, (HEADS + 2 * KV_HEADS) * DIM)).astype(mx.bfloat16)
    found, written = kernels.write_rotated(projected, layer, rows_at(PLACES), rotation)
    mx.eval(written)
    heads = projected.reshape(number, -1, 1, DIM).astype(mx.float32)
    q, k, v = mx.split(heads, [HEADS, HEADS + KV_HEADS], axis=1)
    offset = mx.array([position for _, _, position in PLACES])
    q, k = (mx.fast.rope(a, DIM, traditional=False, base=10000.0, scale=1.0, offset=offset) for a in (q, k))
    worst = relative(found, q)
    for i, (capacity, slot, position) in enumerate(PLACES):
        worst = max(worst, relative(layer.keys(capacity)[slot, :, position], k[i, :, 0]))
        worst = max(worst, relative(layer.values(capacity)[slot, :, position], v[i, :, 0]))
    return worst


def check_copy_rows(kernels: FusedCudaKernels) -> float:
    """0 if a row's beginning arrives in other rows, of its own capacity and of another, and nothing else changes."""
    mx.random.seed(0)
    layer, source, number = noisy_layer(), Slot(256, 2), 100
    for targets in ([Slot(256, 0), Slot(256, 3)], [Slot(1024, 1)]):
        (capacity,) = {slot.capacity for slot in targets}
        expected = [mx.array(view(capacity)) for view in (layer.keys, layer.values)]
        for array, view in zip(expected, (layer.keys, layer.values), strict=True):
            for slot in targets:
                array[slot.index, :, :number] = view(source.capacity)[source.index, :, :number]
        mx.eval(expected)
        mx.eval(kernels.copy_rows(layer, source, targets, number))
        for array, view in zip(expected, (layer.keys, layer.values), strict=True):
            if not mx.array_equal(view(capacity), array):
                return float("inf")
    return 0.0


def check_swiglu(kernels: FusedCudaKernels) -> float:
    """Relative difference from MLX's own operations in float32."""
    mx.random.seed(0)
    projected = mx.random.normal((5, 1, 2 * 264)).astype(mx.bfloat16)
    gate, up = mx.split(projected.astype(mx.float32), 2, axis=-1)
    return relative(kernels.swiglu(projected), nn.silu(gate) * up)


FUSED_CHECKS = (check_write_rotated, check_copy_rows, check_swiglu)
