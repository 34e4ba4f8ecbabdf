"""What stands between the products of a layer, for CUDA: rotary positions and K/V writes in one kernel, and SwiGLU.

`write_rotated` writes into the slabs behind MLX's back, since MLX gives a kernel its inputs to read only. That is sound
because whoever reads what was written also reads q, which the same kernel puts out, and because MLX ends its command
buffer with every evaluation, so that steps follow one another on the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx

from anllm.core.step import Slot
from anllm.runner.backends.cuda_ragged import RaggedCudaKernels, choose_slab, slab_names, slabs
from anllm.runner.fusion import Rotation, RotationShape
from anllm.runner.kv_store import LayerSlabs
from anllm.runner.ragged import RaggedRows

ROTATE_WARPS = 4
SWIGLU_THREADS = 256
COPY_THREADS = 256

# A warp takes one head of one token; a lane takes the pairs i, i + 32 … of its elements.
ROTATE = r"""
  constexpr int HEADS = H + 2 * HKV, HALF = D / 2, PAIRS = (HALF + 31) / 32;
  const int item = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int token = item / HEADS, head = item % HEADS;
  if (token >= table_shape[0]) return;
  const int size_class = table[token * 4], slot = table[token * 4 + 1];
  const int position = table[token * 4 + 2], capacity = table[token * 4 + 3];
  const T* k = k0;
  const T* v = v0;
CHOOSE
  const T* from = projected + ((size_t)token * HEADS + head) * D;
  T* to = q + ((size_t)token * H + head) * D;
  if (head >= H) {
    T* slab = const_cast<T*>(head < H + HKV ? k : v);
    to = slab + (((size_t)slot * HKV + (head - H) % HKV) * capacity + position) * D;
  }
  auto first = [](int pair) { return pair < ROTATED && !TRADITIONAL ? pair : 2 * pair; };
  auto second = [](int pair) { return pair < ROTATED && !TRADITIONAL ? pair + ROTATED : 2 * pair + 1; };
  float x[PAIRS], y[PAIRS];
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const int pair = lane + i * 32;
    x[i] = pair < HALF ? static_cast<float>(from[first(pair)]) : 0.f;
    y[i] = pair < HALF ? static_cast<float>(from[second(pair)]) : 0.f;
  }
  if constexpr (NORM) {
    if (head < H + HKV) {
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < PAIRS; i++) sum += x[i] * x[i] + y[i] * y[i];
      for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, o);
      const float factor = rsqrtf(sum / D + eps[0]);
      const auto* weight = head < H ? q_weight : k_weight;
#pragma unroll
      for (int i = 0; i < PAIRS; i++) {
        const int pair = min(lane + i * 32, HALF - 1);
        x[i] = static_cast<float>(static_cast<T>(x[i] * factor * static_cast<float>(weight[first(pair)])));
        y[i] = static_cast<float>(static_cast<T>(y[i] * factor * static_cast<float>(weight[second(pair)])));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const int pair = lane + i * 32;
    if (pair >= HALF) continue;
    float sine = 0.f, cosine = 1.f;
    if (pair < ROTATED && head < H + HKV) sincosf(static_cast<float>(position) * frequencies[pair], &sine, &cosine);
    to[first(pair)] = static_cast<T>(x[i] * cosine - y[i] * sine);
    to[second(pair)] = static_cast<T>(x[i] * sine + y[i] * cosine);
  }
"""

SWIGLU = r"""
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  const size_t row = i / (WIDTH / EACH), at = i % (WIDTH / EACH) * EACH;
  if (row >= projected_shape[0]) return;
  struct alignas(sizeof(T) * EACH) Elements { T value[EACH]; };
  const Elements gate = *reinterpret_cast<const Elements*>(projected + row * 2 * WIDTH + at);
  const Elements up = *reinterpret_cast<const Elements*>(projected + row * 2 * WIDTH + WIDTH + at);
  Elements result;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    const float g = static_cast<float>(gate.value[e]);
    result.value[e] = static_cast<T>(g / (1.f + __expf(-g)) * static_cast<float>(up.value[e]));
  }
  *reinterpret_cast<Elements*>(out + row * WIDTH + at) = result;
"""


# A thread takes 16 bytes of one head of one row. places: the source's slot and capacity, the targets' capacity, the
# number of tokens, and the targets' slots.
COPY = r"""
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  const size_t words = (size_t)places[3] * (D / EACH);
  if (i == 0) done[0] = 1;
  const size_t word = i % words;
  i /= words;
  const int head = i % HKV, kind = i / HKV % 2, target = i / HKV / 2;
  if (target >= places_shape[0] - 4) return;
  struct alignas(sizeof(T) * EACH) Elements { T value[EACH]; };
  const T* from = (kind ? from_v : from_k) + ((size_t)places[0] * HKV + head) * places[1] * D;
  T* to = const_cast<T*>(kind ? to_v : to_k) + ((size_t)places[4 + target] * HKV + head) * places[2] * D;
  *reinterpret_cast<Elements*>(to + word * EACH) = *reinterpret_cast<const Elements*>(from + word * EACH);
"""


@cache
def _rotate(num_classes: int) -> Any:
    return mx.fast.cuda_kernel(
        name=f"write_rotated_{num_classes}",
        input_names=[
            *("projected", *slab_names(num_classes), "table"),
            *("frequencies", "q_weight", "k_weight", "eps"),
        ],
        output_names=["q"],
        source=ROTATE.replace("CHOOSE", choose_slab(num_classes)),
    )


@cache
def _swiglu() -> Any:
    return mx.fast.cuda_kernel(name="swiglu", input_names=["projected"], output_names=["out"], source=SWIGLU)


@cache
def _copy() -> Any:
    return mx.fast.cuda_kernel(
        name="copy_rows",
        input_names=["from_k", "from_v", "to_k", "to_v", "places"],
        output_names=["done"],
        source=COPY,
    )


def elements_each(width: int) -> int:
    """How many neighbours a thread takes of rows of this width: 16 bytes of a half type, if they divide it."""
    return next(each for each in (8, 4, 2, 1) if width % each == 0)


class FusedCudaKernels(RaggedCudaKernels):
    """FusedKernels (runner/fusion.py)."""

    writes_in_place = True
    resize_bytes = 1 << 30

    def attend_rotated(
        self, projected: mx.array, layer: LayerSlabs, rows: RaggedRows, rotation: Rotation, *, scale: float
    ) -> tuple[mx.array, mx.array]:
        """See FusedKernels."""
        q, written = self.write_rotated(projected, layer, rows, rotation)
        return self.ragged(q, layer, rows, scale=scale, sinks=None), written

    def write_rotated(
        self, projected: mx.array, layer: LayerSlabs, rows: RaggedRows, rotation: Rotation
    ) -> tuple[mx.array, mx.array]:
        """Turns q and k and writes k and v into the slots. Returns q [n, num_heads, 1, head_dim], and what must be
        evaluated for the writes to happen; a kernel that reads q finds them done."""
        arrays = slabs(layer, rows)
        norm = rotation.norm
        unused = rotation.frequencies
        norms = [unused] * 3 if norm is None else [norm.q_weight, norm.k_weight, self.scalar(norm.eps)]
        shape = rotation.shape
        num_blocks = -(-rows.size * (shape.num_heads + 2 * shape.num_kv_heads) // ROTATE_WARPS)
        q = _rotate(len(arrays) // 2)(
            inputs=[projected, *arrays, rows.table, rotation.frequencies, *norms],
            template=_rotate_template(shape, projected.dtype),
            grid=(num_blocks * ROTATE_WARPS * 32, 1, 1),
            threadgroup=(ROTATE_WARPS * 32, 1, 1),
            output_shapes=[(rows.size, shape.num_heads, 1, shape.head_dim)],
            output_dtypes=[projected.dtype],
        )[0]
        return q, q

    def copy_rows(self, layer: LayerSlabs, source: Slot, targets: Sequence[Slot], num_tokens: int) -> mx.array:
        """See FusedKernels. Behind MLX's back too: whoever reads the rows is to be submitted after this."""
        (capacity,) = {slot.capacity for slot in targets}
        num_heads, dim = layer.shape.num_heads, layer.shape.key_dim
        assert dim == layer.shape.value_dim
        each = elements_each(dim)
        number = len(targets) * 2 * num_heads * num_tokens * (dim // each)
        places = [source.index, source.capacity, capacity, num_tokens, *(slot.index for slot in targets)]
        done: mx.array = _copy()(
            inputs=[*layer.flat(source.capacity), *layer.flat(capacity), mx.array(places, mx.int32)],
            template=[("T", layer.shape.dtype), ("HKV", num_heads), ("D", dim), ("EACH", each)],
            grid=(-(-number // COPY_THREADS) * COPY_THREADS, 1, 1),
            threadgroup=(COPY_THREADS, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.int32],
        )[0]
        return done

    def swiglu(self, projected: mx.array) -> mx.array:
        """See FusedKernels."""
        *rows, double = projected.shape
        width = double // 2
        each = elements_each(width)
        number = projected.size // double * (width // each)
        return _swiglu()(
            inputs=[projected.reshape(-1, double)],
            template=[("T", projected.dtype), ("WIDTH", width), ("EACH", each)],
            grid=(-(-number // SWIGLU_THREADS) * SWIGLU_THREADS, 1, 1),
            threadgroup=(SWIGLU_THREADS, 1, 1),
            output_shapes=[(*rows, width)],
            output_dtypes=[projected.dtype],
        )[0]


@cache
def _rotate_template(shape: RotationShape, dtype: mx.Dtype) -> list[tuple[str, Any]]:
    return [
        ("T", dtype),
        ("H", shape.num_heads),
        ("HKV", shape.num_kv_heads),
        ("D", shape.head_dim),
        ("ROTATED", shape.num_pairs),
        ("TRADITIONAL", shape.is_traditional),
        ("NORM", shape.has_norm),
        ("WARPS", ROTATE_WARPS),
    ]
