"""Ragged attention for CUDA: many rows, each over its own slot and length, in one kernel that reads the slabs in place.

MLX's own attention needs a mask for rows of unequal length, and with a mask it leaves its fused kernel. Here a block
takes one row and one K/V head: its warps stride over the keys with an online softmax (Milakov and Gimelshein,
arXiv:1805.02867), every lane holding 8 elements, and merge in shared memory. Rows that are few and long are split over
several blocks, whose parts a second kernel joins (flash-decoding, Dao et al. 2023).

Before use the kernel is compared with MLX's attention (`self_test`); where it disagrees or does not compile, the stock
kernels stay.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import mlx.core as mx

from anllm.runner.attention import StockKernels

logger = logging.getLogger(__name__)

WARPS = (8, 4, 2)  # of a block; fewer where shared memory would not hold the parts of all of them
SHARED_BYTES = 48 * 1024
LANE_ELEMENTS = 8  # 16 bytes of a half type: the widest load
HEAD_DIMS = (64, 96, 128, 192, 256)
TARGET_BLOCKS = 528  # four for each multiprocessor of an H200; with fewer, long rows are split
SPLIT_TOKENS = 256  # no part of a row is shorter than this
MAX_SPLITS = 32
TOLERANCE = 1e-2

SOURCE = r"""
  constexpr int LANES = D / 8;                 // lanes that share a key
  constexpr int KEYS = 32 / LANES;             // keys that a warp takes at a time
  const int part = blockIdx.x % SPLITS, block = blockIdx.x / SPLITS;
  const int row = block / HKV, head = block % HKV;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = lane / LANES, at = lane % LANES * 8;
  const bool active = mine < KEYS;
  const int length = lengths[row];
  const int begin = WINDOW > 0 && length > WINDOW ? length - WINDOW : 0;
  const int share = (length - begin + SPLITS - 1) / SPLITS;
  const int first = begin + part * share, last = min(first + share, length);
  const size_t base = ((size_t)slots[row] * HKV + head) * CAPACITY * D;
  float qs[G][8], top[G], sum[G], acc[G][8];
  for (int g = 0; g < G; g++) {
    top[g] = -1e30f; sum[g] = 0.f;
    for (int i = 0; i < 8; i++) {
      qs[g][i] = active ? static_cast<float>(q[((size_t)row * HKV * G + head * G + g) * D + at + i]) * scale[0] : 0.f;
      acc[g][i] = 0.f;
    }
  }
  for (int t0 = first + warp * KEYS; t0 < last; t0 += WARPS * KEYS) {
    const int t = t0 + mine;
    const bool seen = active && t < last;
    float ks[8], vs[8];
    if (seen) {
      if constexpr (sizeof(T) == 2) {
        uint4 kw = *reinterpret_cast<const uint4*>(k + base + (size_t)t * D + at);
        uint4 vw = *reinterpret_cast<const uint4*>(v + base + (size_t)t * D + at);
        const T* kp = reinterpret_cast<const T*>(&kw);
        const T* vp = reinterpret_cast<const T*>(&vw);
        for (int i = 0; i < 8; i++) { ks[i] = static_cast<float>(kp[i]); vs[i] = static_cast<float>(vp[i]); }
      } else {
        for (int i = 0; i < 8; i++) {
          ks[i] = static_cast<float>(k[base + (size_t)t * D + at + i]);
          vs[i] = static_cast<float>(v[base + (size_t)t * D + at + i]);
        }
      }
    } else {
      for (int i = 0; i < 8; i++) { ks[i] = 0.f; vs[i] = 0.f; }
    }
    for (int g = 0; g < G; g++) {
      float s = 0.f;
      for (int i = 0; i < 8; i++) s += qs[g][i] * ks[i];
      if constexpr ((LANES & (LANES - 1)) == 0) {
        for (int o = LANES / 2; o; o >>= 1) s += __shfl_xor_sync(0xffffffff, s, o);
      } else {
        float total = 0.f;
        for (int o = 0; o < LANES; o++) total += __shfl_sync(0xffffffff, s, min(mine, KEYS - 1) * LANES + o);
        s = total;
      }
      if (!seen) s = -1e30f;
      const float higher = fmaxf(top[g], s), keep = __expf(top[g] - higher), p = seen ? __expf(s - higher) : 0.f;
      top[g] = higher; sum[g] = sum[g] * keep + p;
      for (int i = 0; i < 8; i++) acc[g][i] = acc[g][i] * keep + p * vs[i];
    }
  }
  __shared__ float tops[WARPS * KEYS][G], sums[WARPS * KEYS][G], accs[WARPS * KEYS][G][D];
  if (active) {
    const int slice = warp * KEYS + mine;
    for (int g = 0; g < G; g++) {
      if (at == 0) { tops[slice][g] = top[g]; sums[slice][g] = sum[g]; }
      for (int i = 0; i < 8; i++) accs[slice][g][at + i] = acc[g][i];
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < G * D; e += blockDim.x) {
    const int g = e / D, d = e % D;
    float m = -1e30f, l = 0.f, a = 0.f;
    for (int w = 0; w < WARPS * KEYS; w++) m = fmaxf(m, tops[w][g]);
    for (int w = 0; w < WARPS * KEYS; w++) {
      const float c = __expf(tops[w][g] - m);
      l += sums[w][g] * c; a += accs[w][g][d] * c;
    }
    const size_t query = (size_t)row * HKV * G + head * G + g;
    if constexpr (SPLITS == 1) {
      if constexpr (SINKS) {
        const float s = static_cast<float>(sinks[head * G + g]);
        const float c = __expf(fminf(m - s, 0.f));
        const float z = __expf(fminf(s - m, 0.f));
        l = l * c + z; a = a * c;
      }
      out[query * D + d] = static_cast<T>(l > 0.f ? a / l : 0.f);
    } else {
      out[(query * SPLITS + part) * (D + 2) + d] = a;
      if (d == 0) {
        out[(query * SPLITS + part) * (D + 2) + D] = m;
        out[(query * SPLITS + part) * (D + 2) + D + 1] = l;
      }
    }
  }
"""

JOIN = r"""
  const size_t query = blockIdx.x;
  const int d = threadIdx.x;
  float m = -1e30f, l = 0.f, a = 0.f;
  for (int p = 0; p < SPLITS; p++) m = fmaxf(m, parts[(query * SPLITS + p) * (D + 2) + D]);
  for (int p = 0; p < SPLITS; p++) {
    const float c = __expf(parts[(query * SPLITS + p) * (D + 2) + D] - m);
    l += parts[(query * SPLITS + p) * (D + 2) + D + 1] * c;
    a += parts[(query * SPLITS + p) * (D + 2) + d] * c;
  }
  if constexpr (SINKS) {
    const float s = static_cast<float>(sinks[query % HEADS]);
    const float c = __expf(fminf(m - s, 0.f));
    const float z = __expf(fminf(s - m, 0.f));
    l = l * c + z; a = a * c;
  }
  out[query * D + d] = static_cast<T>(l > 0.f ? a / l : 0.f);
"""


@cache
def _kernel(name: str, inputs: tuple[str, ...], output: str, source: str) -> Any:
    return mx.fast.cuda_kernel(name=name, input_names=list(inputs), output_names=[output], source=source)


class CudaKernels(StockKernels):
    """Kernels (runner/attention.py) with ragged attention."""

    def ragged(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        slots: mx.array,
        lengths: mx.array,
        longest: int,
        scale: mx.array,
        window: int | None,
        sinks: mx.array | None,
    ) -> mx.array:
        """q: [rows, q_heads, 1, dim]; k, v: slabs [slots, kv_heads, capacity, dim]; slots, lengths: int32 [rows];
        scale: float32 [1]. Row i attends over the newest `window` of the first lengths[i] tokens of slots[i].
        Returns [rows, q_heads, 1, dim]. Raises ValueError for heads that the kernel can't take."""
        rows, heads, _, dim = q.shape
        kv_heads, capacity = k.shape[1], k.shape[2]
        warps = num_warps(dim, v.shape[-1], heads // kv_heads)
        splits = choose_splits(rows * kv_heads, min(longest, window or longest))
        template = [
            ("T", q.dtype),
            ("D", dim),
            ("HKV", kv_heads),
            ("G", heads // kv_heads),
            ("CAPACITY", capacity),
            ("SPLITS", splits),
            ("WINDOW", window or 0),
            ("SINKS", sinks is not None),
            ("WARPS", warps),
        ]
        attend = _kernel(
            f"ragged_attention_{'one' if splits == 1 else 'parts'}",
            ("q", "k", "v", "slots", "lengths", "scale", "sinks"),
            "out",
            SOURCE,
        )
        sink_values = scale if sinks is None else sinks
        first = attend(
            inputs=[q, k, v, slots, lengths, scale, sink_values],
            template=template,
            grid=(rows * kv_heads * splits * warps * 32, 1, 1),
            threadgroup=(warps * 32, 1, 1),
            output_shapes=[q.shape if splits == 1 else (rows * heads * splits * (dim + 2),)],
            output_dtypes=[q.dtype if splits == 1 else mx.float32],
        )[0]
        if splits == 1:
            return first
        join = _kernel("ragged_attention_join", ("parts", "sinks"), "out", JOIN)
        return join(
            inputs=[first, sink_values],
            template=[("T", q.dtype), ("D", dim), ("SPLITS", splits), ("HEADS", heads), ("SINKS", sinks is not None)],
            grid=(rows * heads * dim, 1, 1),
            threadgroup=(dim, 1, 1),
            output_shapes=[q.shape],
            output_dtypes=[q.dtype],
        )[0]


def num_warps(key_dim: int, value_dim: int, group: int) -> int:
    """Warps of a block for heads of this size and so many queries to a K/V head. ValueError if none fit."""
    if key_dim != value_dim or key_dim not in HEAD_DIMS:
        raise ValueError(f"ragged attention takes heads of {HEAD_DIMS}, got {key_dim} and {value_dim}")
    bytes_per_warp = 32 // (key_dim // LANE_ELEMENTS) * group * (key_dim + 2) * 4
    fitting = [warps for warps in WARPS if warps * bytes_per_warp <= SHARED_BYTES]
    if not fitting:
        raise ValueError(f"ragged attention takes no group of {group} queries to a K/V head of {key_dim}")
    return fitting[0]


def choose_splits(num_blocks: int, longest: int) -> int:
    """Parts for each row: a power of two, so that few variants are compiled."""
    splits = 1
    while splits < MAX_SPLITS and num_blocks * splits < TARGET_BLOCKS and longest > 2 * splits * SPLIT_TOKENS:
        splits *= 2
    return splits


def make_kernels() -> StockKernels:
    """Ragged kernels if they work here, else the stock ones, with a line in the log."""
    kernels = CudaKernels()
    try:
        difference = self_test(kernels)
    except (RuntimeError, ValueError, AttributeError) as error:  # no compiler, another architecture, another MLX
        logger.warning("ragged attention does not work here (%s); stock attention is used", error)
        return StockKernels()
    if difference > TOLERANCE:
        logger.warning("ragged attention is off by %.1e here; stock attention is used", difference)
        return StockKernels()
    return kernels


def self_test(kernels: CudaKernels) -> float:
    """The largest relative difference from MLX's attention in float32, over plain, windowed and split rows."""
    mx.random.seed(0)
    worst = 0.0
    lengths = mx.array([1, 7, 600, 200, 1024], mx.int32)
    slots = mx.array([3, 0, 7, 1, 2], mx.int32)
    scale = mx.array([128**-0.5], mx.float32)
    q = mx.random.normal((5, 32, 1, 128)).astype(mx.bfloat16)
    k, v = (mx.random.normal((8, 8, 1024, 128)).astype(mx.bfloat16) for _ in range(2))
    positions = mx.arange(1024)[None]
    for window in (None, 50):
        seen = positions < lengths[:, None]
        if window is not None:
            seen &= positions >= lengths[:, None] - window
        expected = mx.fast.scaled_dot_product_attention(
            *(a.astype(mx.float32) for a in (q, k[slots], v[slots])), scale=128**-0.5, mask=seen[:, None, None]
        )
        for longest in (256, 4096):  # told to split or not
            found = kernels.ragged(
                q, k, v, slots=slots, lengths=lengths, longest=longest, scale=scale, window=window, sinks=None
            )
            error = mx.linalg.norm(found.astype(mx.float32) - expected) / mx.linalg.norm(expected)
            worst = max(worst, float(error))
    return worst
