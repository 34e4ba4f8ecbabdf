"""CUDA code of ragged attention: the bodies of kernels, put together by cuda_ragged.py.

A block takes one group of tokens and one K/V head, or a part of what that group sees. PLACE finds out where that is.
Then its warps stride over the keys with an online softmax, each for itself, by one of two ways: on the tensor cores
(BY_TENSOR_CORES: half types) or, for all other heads, with every lane holding 8 elements (BY_LANES: one token to a
group). MERGE brings the warps' slices together. JOIN is the second kernel, for what was done in parts.

Row r of a group is query r % G of its token r / G.
"""

PLACE = r"""
  constexpr int ROWS = TOKENS * G;
  const int splits = SPLIT ? gridDim.x / (HKV * groups_shape[0]) : 1;
  const int part = blockIdx.x % splits, block = blockIdx.x / splits;
  const int head = block % HKV;
  const int* group = groups + block / HKV * 6;
  const int size_class = group[0], position = group[2], token = group[4], count = group[5];
  const T* k = k0;
  const T* v = v0;
CHOOSE
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int length = position + count;  // what the last token sees
  const int begin = WINDOW > 0 && position + 1 > WINDOW ? position + 1 - WINDOW : 0;
  const int share = (length - begin + splits - 1) / splits;
  const int first = begin + part * share, last = min(first + share, length);
  const size_t base = ((size_t)group[1] * HKV + head) * group[3] * D;
  auto query = [&](int r) { return ((size_t)(token + r / G) * HKV + head) * G + r % G; };
"""

BY_LANES = r"""
  constexpr int LANES = D / 8;      // that share a key
  constexpr int KEYS = 32 / LANES;  // that a warp takes at a time
  constexpr int SLICES = WARPS * KEYS;
  struct alignas(16) Part { T value[8]; };
  const int key = lane / LANES, at = lane % LANES * 8;
  const bool active = key < KEYS;
  float qs[G][8], top[G], sum[G], acc[G][8];
  for (int g = 0; g < G; g++) {
    top[g] = -1e30f; sum[g] = 0.f;
    for (int i = 0; i < 8; i++) {
      qs[g][i] = active ? static_cast<float>(q[query(g) * D + at + i]) * scale[0] : 0.f;
      acc[g][i] = 0.f;
    }
  }
  Part next_k, next_v;  // fetched while the lane computes with the ones before
  auto fetch = [&](int t) {
    next_k = next_v = Part{};
    if (active && t < last) {
      next_k = *reinterpret_cast<const Part*>(k + base + (size_t)t * D + at);
      next_v = *reinterpret_cast<const Part*>(v + base + (size_t)t * D + at);
    }
  };
  fetch(first + warp * KEYS + key);
  for (int t0 = first + warp * KEYS; t0 < last; t0 += SLICES) {
    const Part this_k = next_k, this_v = next_v;
    const bool seen = active && t0 + key < last;
    fetch(t0 + SLICES + key);
#pragma unroll
    for (int g = 0; g < G; g++) {
      float s = 0.f;
#pragma unroll
      for (int i = 0; i < 8; i++) s += qs[g][i] * static_cast<float>(this_k.value[i]);
      if constexpr ((LANES & (LANES - 1)) == 0) {
#pragma unroll
        for (int o = LANES / 2; o; o >>= 1) s += __shfl_xor_sync(0xffffffff, s, o);
      } else {
        float total = 0.f;
        for (int o = 0; o < LANES; o++) total += __shfl_sync(0xffffffff, s, min(key, KEYS - 1) * LANES + o);
        s = total;
      }
      if (!seen) s = -1e30f;
      const float higher = fmaxf(top[g], s), keep = __expf(top[g] - higher), p = seen ? __expf(s - higher) : 0.f;
      top[g] = higher;
      sum[g] = sum[g] * keep + p;
#pragma unroll
      for (int i = 0; i < 8; i++) acc[g][i] = acc[g][i] * keep + p * static_cast<float>(this_v.value[i]);
    }
  }
  __shared__ float tops[SLICES][ROWS], sums[SLICES][ROWS], accs[SLICES][ROWS][D];
  if (active) {
    const int slice = warp * KEYS + key;
    for (int g = 0; g < G; g++) {
      if (at == 0) { tops[slice][g] = top[g]; sums[slice][g] = sum[g]; }
      for (int i = 0; i < 8; i++) accs[slice][g][at + i] = acc[g][i];
    }
  }
"""

# Fragments of mma.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"): lane 4g + t has, of the left matrix, rows
# g and g + 8 at inner indices 2t, 2t + 1 and 2t + 8, 2t + 9; of the right one, column g at the same; of the result,
# rows g and g + 8 at columns 2t and 2t + 1. The order of the inner indices is free as long as both sides agree, so a
# lane takes elements that lie side by side in memory:
#   scores:  inner index = element of the head; lane t takes 8 in a row of each 32, enough for two products
#   values:  inner index = key; column g of product j is element g * D / 8 + j
BY_TENSOR_CORES = r"""
  constexpr int SLICES = WARPS, PIECES = D / 32, WIDE = D / 8, HALVES = ROWS > 8 ? 2 : 1;
  const int g = lane / 4, t = lane % 4;
  uint4 qs[HALVES][PIECES];
  int limit[HALVES], lowest[HALVES];  // the keys that rows g and g + 8 see are lowest to limit - 1
#pragma unroll
  for (int h = 0; h < HALVES; h++) {
    const int r = g + h * 8;
    const bool is_there = r < ROWS && r / G < count;
    limit[h] = is_there ? min(position + r / G + 1, last) : 0;
    lowest[h] = WINDOW > 0 ? position + r / G + 1 - WINDOW : 0;
#pragma unroll
    for (int c = 0; c < PIECES; c++)
      qs[h][c] = is_there ? *reinterpret_cast<const uint4*>(q + query(r) * D + c * 32 + t * 8) : make_uint4(0, 0, 0, 0);
  }
  float top[HALVES], sum[HALVES], acc[WIDE][4];
#pragma unroll
  for (int h = 0; h < HALVES; h++) { top[h] = -1e30f; sum[h] = 0.f; }
#pragma unroll
  for (int j = 0; j < WIDE; j++) acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0.f;
  for (int t0 = first + warp * 16; t0 < last; t0 += WARPS * 16) {
    uint4 ks[2][PIECES];
    uint32_t vs[4][WIDE / 2];
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
      for (int c = 0; c < PIECES; c++) {
        const int key = t0 + b * 8 + g;
        ks[b][c] = key < last ? *reinterpret_cast<const uint4*>(k + base + (size_t)key * D + c * 32 + t * 8)
                              : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
      for (int c = 0; c < WIDE / 8; c++) {
        const int key = t0 + r / 2 * 8 + 2 * t + r % 2;
        const uint4 four = key < last
            ? *reinterpret_cast<const uint4*>(v + base + (size_t)key * D + g * WIDE + c * 8) : make_uint4(0, 0, 0, 0);
        vs[r][c * 4] = four.x; vs[r][c * 4 + 1] = four.y; vs[r][c * 4 + 2] = four.z; vs[r][c * 4 + 3] = four.w;
      }
    float scores[2][4];
#pragma unroll
    for (int b = 0; b < 2; b++) {
      scores[b][0] = scores[b][1] = scores[b][2] = scores[b][3] = 0.f;
#pragma unroll
      for (int c = 0; c < PIECES; c++) {
        const uint4 near = qs[0][c], far = HALVES > 1 ? qs[HALVES - 1][c] : make_uint4(0, 0, 0, 0);
        multiply_add<F16>(scores[b], near.x, far.x, near.y, far.y, ks[b][c].x, ks[b][c].y);
        multiply_add<F16>(scores[b], near.z, far.z, near.w, far.w, ks[b][c].z, ks[b][c].w);
      }
    }
    uint32_t weights[2][2] = {{0, 0}, {0, 0}};  // [keys][rows]
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      float higher = top[h];
#pragma unroll
      for (int b = 0; b < 2; b++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int key = t0 + b * 8 + 2 * t + i;
          float& score = scores[b][h * 2 + i];
          score = key >= lowest[h] && key < limit[h] ? score * scale[0] : -2e30f;
          higher = fmaxf(higher, score);
        }
      higher = fmaxf(higher, __shfl_xor_sync(0xffffffff, higher, 1));
      higher = fmaxf(higher, __shfl_xor_sync(0xffffffff, higher, 2));
      const float keep = __expf(top[h] - higher);
      top[h] = higher;
      sum[h] *= keep;
#pragma unroll
      for (int b = 0; b < 2; b++) {
        const float one = __expf(scores[b][h * 2] - higher), two = __expf(scores[b][h * 2 + 1] - higher);
        sum[h] += one + two;
        weights[b][h] = in_one<F16>(one, two);
      }
#pragma unroll
      for (int j = 0; j < WIDE; j++) { acc[j][h * 2] *= keep; acc[j][h * 2 + 1] *= keep; }
    }
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
      const uint32_t which = j % 2 ? 0x7632 : 0x5410;
      multiply_add<F16>(acc[j], weights[0][0], weights[0][1], weights[1][0], weights[1][1],
                        __byte_perm(vs[0][j / 2], vs[1][j / 2], which), __byte_perm(vs[2][j / 2], vs[3][j / 2], which));
    }
  }
  __shared__ float tops[SLICES][ROWS], sums[SLICES][ROWS], accs[SLICES][ROWS][D];
#pragma unroll
  for (int h = 0; h < HALVES; h++) {
    const int r = g + h * 8;
    sum[h] += __shfl_xor_sync(0xffffffff, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffff, sum[h], 2);
    if (r >= ROWS) continue;
    if (t == 0) { tops[warp][r] = top[h]; sums[warp][r] = sum[h]; }
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
      accs[warp][r][2 * t * WIDE + j] = acc[j][h * 2];
      accs[warp][r][(2 * t + 1) * WIDE + j] = acc[j][h * 2 + 1];
    }
  }
"""

# Functions for BY_TENSOR_CORES. F16: the half type is float16, not bfloat16.
TENSOR_CORES = r"""
template <bool F16>
__device__ __forceinline__ void multiply_add(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
  if constexpr (F16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <bool F16>
__device__ __forceinline__ uint32_t in_one(float low, float high) {
  uint32_t both;
  if constexpr (F16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
"""

MERGE = r"""
  __syncthreads();
  for (int e = threadIdx.x; e < count * G * D; e += blockDim.x) {
    const int r = e / D, d = e % D;
    float m = -1e30f, l = 0.f, a = 0.f;
    for (int w = 0; w < SLICES; w++) m = fmaxf(m, tops[w][r]);
    for (int w = 0; w < SLICES; w++) {
      const float c = __expf(tops[w][r] - m);
      l += sums[w][r] * c; a += accs[w][r][d] * c;
    }
    const size_t at = query(r);
    if constexpr (!SPLIT) {
      if constexpr (SINKS) {
        const float s = static_cast<float>(sinks[head * G + r % G]);
        const float c = __expf(fminf(m - s, 0.f));
        const float z = __expf(fminf(s - m, 0.f));
        l = l * c + z; a = a * c;
      }
      out[at * D + d] = static_cast<T>(l > 0.f ? a / l : 0.f);
    } else {
      out[(at * splits + part) * (D + 2) + d] = a;
      if (d == 0) {
        out[(at * splits + part) * (D + 2) + D] = m;
        out[(at * splits + part) * (D + 2) + D + 1] = l;
      }
    }
  }
"""

JOIN = r"""
  const size_t query = blockIdx.x;
  const int d = threadIdx.x, splits = parts_shape[1];
  float m = -1e30f, l = 0.f, a = 0.f;
  for (int p = 0; p < splits; p++) m = fmaxf(m, parts[(query * splits + p) * (D + 2) + D]);
  for (int p = 0; p < splits; p++) {
    const float c = __expf(parts[(query * splits + p) * (D + 2) + D] - m);
    l += parts[(query * splits + p) * (D + 2) + D + 1] * c;
    a += parts[(query * splits + p) * (D + 2) + d] * c;
  }
  if constexpr (SINKS) {
    const float s = static_cast<float>(sinks[query % HEADS]);
    const float c = __expf(fminf(m - s, 0.f));
    const float z = __expf(fminf(s - m, 0.f));
    l = l * c + z; a = a * c;
  }
  out[query * D + d] = static_cast<T>(l > 0.f ? a / l : 0.f);
"""
