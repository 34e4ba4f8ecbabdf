"""Ragged attention for CUDA: many tokens, each over its own slot and length, in one kernel that reads the slabs in
place, of all size classes.

MLX's own attention needs a mask for rows of unequal length, and with a mask it leaves its fused kernel. Here a block
takes a few tokens of one sequence and one K/V head, with an online softmax (Milakov and Gimelshein, arXiv:1805.02867).
Tokens that are few and see far are split over several blocks, whose parts a second kernel joins (flash-decoding, Dao et
al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx

from anllm.runner.attention import StockKernels
from anllm.runner.backends.cuda_ragged_code import BY_LANES, BY_TENSOR_CORES, JOIN, MERGE, PLACE, TENSOR_CORES
from anllm.runner.kv_store import LayerSlabs
from anllm.runner.ragged import RaggedRows

WARPS = (8, 4, 2)  # of a block; fewer where shared memory would not hold the parts of all of them
SHARED_BYTES = 48 * 1024
LANE_ELEMENTS = 8  # 16 bytes of a half type: the widest load
HEAD_DIMS = (64, 96, 128, 192, 256)
TENSOR_CORE_HEAD_DIMS = (64, 128)
TENSOR_CORE_ROWS = 16  # of a product: queries to a K/V head, times tokens of a sequence
TENSOR_CORE_WARPS = 4
HALF_TYPES = (mx.bfloat16, mx.float16)
TARGET_BLOCKS = 528  # four for each multiprocessor of an H200; with fewer, long rows are split
SPLIT_TOKENS = 256  # no part of a row is shorter than this
MAX_SPLITS = 32
# Size classes that a kernel is made for. Each number is a kernel to compile, so there are few.
NUM_CLASSES = (1, 4, 8, 16)


def choose_slab(num_classes: int) -> str:
    """CUDA: k and v become those of the token's size class."""
    lines = [f"  if (size_class == {i}) {{ k = k{i}; v = v{i}; }}" for i in range(1, num_classes)]
    return "\n".join(lines)


def slab_names(num_classes: int) -> list[str]:
    return [f"{kind}{i}" for i in range(num_classes) for kind in "kv"]


def slabs(layer: LayerSlabs, rows: RaggedRows) -> list[mx.array]:
    """Flat K and V of each of the rows' size classes; the last ones again until there is a kernel for that number.

    Raises ValueError for more classes than any kernel takes.
    """
    arrays = [array for capacity in rows.capacities for array in layer.flat(capacity)]
    number = next((n for n in NUM_CLASSES if n >= len(rows.capacities)), None)
    if number is None:
        raise ValueError(f"at most {NUM_CLASSES[-1]} size classes in a step, got {len(rows.capacities)}")
    return arrays + arrays[-2:] * (number - len(rows.capacities))


@cache
def _attention(num_classes: int, is_split: bool, on_tensor_cores: bool) -> Any:
    way = BY_TENSOR_CORES if on_tensor_cores else BY_LANES
    return mx.fast.cuda_kernel(
        name=f"ragged_{num_classes}_{'parts' if is_split else 'one'}_{'tensor' if on_tensor_cores else 'lanes'}",
        input_names=["q", *slab_names(num_classes), "groups", "scale", "sinks"],
        output_names=["out"],
        header=TENSOR_CORES if on_tensor_cores else "",
        source=PLACE.replace("CHOOSE", choose_slab(num_classes)) + way + MERGE,
    )


@cache
def _join() -> Any:
    return mx.fast.cuda_kernel(
        name="ragged_attention_join", input_names=["parts", "sinks"], output_names=["out"], source=JOIN
    )


@dataclass(frozen=True, slots=True)
class Way:
    """How heads of one kind are computed. group_tokens: tokens of a sequence that a block takes, at most."""

    on_tensor_cores: bool
    num_warps: int
    group_tokens: int


@cache
def choose_way(dtype: mx.Dtype, dim: int, group: int, may_use_tensor_cores: bool) -> Way:
    """group: queries to a K/V head. Raises ValueError for heads that no kernel takes."""
    fits = dtype in HALF_TYPES and dim in TENSOR_CORE_HEAD_DIMS and group <= TENSOR_CORE_ROWS
    if may_use_tensor_cores and fits:
        return Way(True, TENSOR_CORE_WARPS, TENSOR_CORE_ROWS // group)
    return Way(False, num_warps(dim, group), 1)


@cache
def _template(
    way: Way, dtype: mx.Dtype, dim: int, kv_heads: int, group: int, is_split: bool, window: int, has_sinks: bool
) -> list[tuple[str, Any]]:
    return [
        ("T", dtype),
        ("D", dim),
        ("HKV", kv_heads),
        ("G", group),
        ("SPLIT", is_split),
        ("WINDOW", window),
        ("SINKS", has_sinks),
        ("TOKENS", way.group_tokens),
        ("WARPS", way.num_warps),
        ("F16", dtype == mx.float16),
    ]


class RaggedCudaKernels(StockKernels):
    """Kernels (runner/attention.py) and RaggedKernels (runner/ragged.py)."""

    writes_kv = False
    new_slab = None
    is_compiled = True

    def __init__(self, *, may_use_tensor_cores: bool = True) -> None:
        self._may_use_tensor_cores = may_use_tensor_cores
        self._scalars: dict[float, mx.array] = {}

    def ragged(
        self,
        q: mx.array,
        layer: LayerSlabs,
        rows: RaggedRows,
        *,
        scale: float,
        sinks: mx.array | None,
        kv: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array:
        """See RaggedKernels."""
        number, heads, _, dim = q.shape
        kv_heads, window = layer.shape.num_heads, layer.shape.window
        if layer.shape.value_dim != dim:
            raise ValueError(f"ragged attention takes values as wide as keys, got {layer.shape.value_dim} and {dim}")
        group = heads // kv_heads
        way = choose_way(q.dtype, dim, group, self._may_use_tensor_cores)
        groups = rows.groups(way.group_tokens)
        num_blocks = groups.shape[0] * kv_heads
        splits = choose_splits(num_blocks, min(rows.longest, window or rows.longest))
        is_split = splits > 1
        arrays = slabs(layer, rows)
        sink_values = self.scalar(scale) if sinks is None else sinks
        first = _attention(len(arrays) // 2, is_split, way.on_tensor_cores)(
            inputs=[q, *arrays, groups, self.scalar(scale), sink_values],
            template=_template(way, q.dtype, dim, kv_heads, group, is_split, window or 0, sinks is not None),
            grid=(num_blocks * splits * way.num_warps * 32, 1, 1),
            threadgroup=(way.num_warps * 32, 1, 1),
            output_shapes=[(number * heads, splits, dim + 2) if is_split else q.shape],
            output_dtypes=[mx.float32 if is_split else q.dtype],
        )[0]
        if not is_split:
            return first
        return _join()(
            inputs=[first, sink_values],
            template=[("T", q.dtype), ("D", dim), ("HEADS", heads), ("SINKS", sinks is not None)],
            grid=(number * heads * dim, 1, 1),
            threadgroup=(dim, 1, 1),
            output_shapes=[q.shape],
            output_dtypes=[q.dtype],
        )[0]

    def scalar(self, value: float) -> mx.array:
        """A number as a kernel takes it: float32 [1]."""
        if value not in self._scalars:
            self._scalars[value] = mx.array([value], mx.float32)
        return self._scalars[value]


def num_warps(dim: int, group: int) -> int:
    """Warps of a block for heads of this size and so many queries to a K/V head. ValueError if none fit."""
    if dim not in HEAD_DIMS:
        raise ValueError(f"ragged attention takes heads of {HEAD_DIMS}, got {dim}")
    bytes_per_warp = 32 // (dim // LANE_ELEMENTS) * group * (dim + 2) * 4
    fitting = [warps for warps in WARPS if warps * bytes_per_warp <= SHARED_BYTES]
    if not fitting:
        raise ValueError(f"ragged attention takes no group of {group} queries to a K/V head of {dim}")
    return fitting[0]


def choose_splits(num_blocks: int, longest: int) -> int:
    """Parts that what each group sees is split into, a power of two."""
    splits = 1
    while splits < MAX_SPLITS and num_blocks * splits < TARGET_BLOCKS and longest > 2 * splits * SPLIT_TOKENS:
        splits *= 2
    return splits
