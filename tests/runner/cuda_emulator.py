"""Runs the CUDA code of kernels on a CPU, block by block and lane by lane, so that it is tested where there is no GPU.

The code is wrapped as MLX wraps it for mx.fast.cuda_kernel and compiled as C++. Each lane of a block is a coroutine; it
gives way where lanes meet: at __syncthreads, and with its warp at a shuffle or a tensor-core product. What assembly
does in cuda_ragged_code.TENSOR_CORES is written out here by the PTX ISA's definition of m16n8k16's fragments; all else
runs as it stands.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

PRELUDE = r"""
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
using std::min; using std::max;
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define alignas(bytes)  // MLX's memory on a CPU is aligned to 8 bytes only
struct dim { unsigned x, y, z; };
static dim gridDim, blockDim, blockIdx, threadIdx;
static inline float from_bits(uint32_t b) { float f; memcpy(&f, &b, 4); return f; }
static inline uint32_t to_bits(float f) { uint32_t b; memcpy(&b, &f, 4); return b; }
struct bfloat {
  uint16_t bits;
  bfloat() = default;
  bfloat(float f) { uint32_t b = to_bits(f); bits = (b + 0x7fff + ((b >> 16) & 1)) >> 16; }
  operator float() const { return from_bits((uint32_t)bits << 16); }
};
struct Shape { int at[4]; int operator[](int i) const { return at[i]; } };
struct uint4 { uint32_t x, y, z, w; };
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
#define __expf std::exp
static inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t s) {
  uint64_t both = ((uint64_t)y << 32) | x; uint32_t r = 0;
  for (int i = 0; i < 4; i++) r |= (uint32_t)((both >> (((s >> (4 * i)) & 7) * 8)) & 0xff) << (8 * i);
  return r;
}

// -- lanes as coroutines
struct Lane { ucontext_t context; std::vector<char> stack; bool done; int waits; };  // waits: 1 for its warp, 2 for all
static std::vector<Lane> lanes; static ucontext_t home; static unsigned now;
static void give_way(int waits) { lanes[now].waits = waits; swapcontext(&lanes[now].context, &home); }
static inline void __syncthreads() { give_way(2); }
static uint32_t table_of[1024][8];
static inline int mine() { return (int)now; }
static inline float __shfl_xor_sync(unsigned, float v, int mask) {
  table_of[mine()][0] = to_bits(v); give_way(1);
  float r = from_bits(table_of[mine() ^ mask][0]); give_way(1); return r;
}
static inline float __shfl_sync(unsigned, float v, int from) {
  table_of[mine()][0] = to_bits(v); give_way(1);
  float r = from_bits(table_of[mine() / 32 * 32 + from][0]); give_way(1); return r;
}
static inline float half_of(uint32_t word, int i) { return from_bits((i ? word >> 16 : word & 0xffff) << 16); }
template <bool F16> static void multiply_add(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1) {
  static_assert(!F16, "bfloat16 alone is emulated");
  uint32_t* own = table_of[mine()];
  own[0] = a0; own[1] = a1; own[2] = a2; own[3] = a3; own[4] = b0; own[5] = b1; give_way(1);
  const int base = mine() / 32 * 32, g = mine() % 32 / 4, t = mine() % 4;
  auto left = [&](int row, int k) {
    return half_of(table_of[base + row % 8 * 4 + k % 8 / 2][(row >= 8) + 2 * (k >= 8)], k % 2);
  };
  auto right = [&](int k, int column) { return half_of(table_of[base + column * 4 + k % 8 / 2][4 + (k >= 8)], k % 2); };
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 16; k++) c[i] += left(g + i / 2 * 8, k) * right(k, 2 * t + i % 2);
  give_way(1);
}
template <bool F16> static uint32_t in_one(float low, float high) {
  return (uint32_t)bfloat(high).bits << 16 | bfloat(low).bits;
}
"""

MAIN = r"""
static void (*body)();
static void lane_main() { body(); lanes[now].done = true; swapcontext(&lanes[now].context, &home); }
static void enter(unsigned i) { now = i; threadIdx = {i, 0, 0}; swapcontext(&home, &lanes[i].context); }
static void run_block() {
  for (auto& lane : lanes) {
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.data(); lane.context.uc_stack.ss_size = lane.stack.size();
    lane.context.uc_link = nullptr; lane.done = false; lane.waits = 0;
    makecontext(&lane.context, lane_main, 0);
  }
  for (;;) {
    bool all_done = true, moved = false;
    for (unsigned warp = 0; warp < lanes.size(); warp += 32) {
      bool ready = true;  // nobody of the warp may go on alone
      for (unsigned i = warp; i < warp + 32; i++) ready = ready && (lanes[i].done || lanes[i].waits != 2);
      for (unsigned i = warp; i < warp + 32; i++) {
        all_done = all_done && lanes[i].done;
        if (ready && !lanes[i].done) { lanes[i].waits = 0; enter(i); moved = true; }
      }
    }
    if (all_done) return;
    if (!moved) for (auto& lane : lanes) lane.waits = 0;  // all have come to __syncthreads
  }
}
"""


class EmulatedKernel:
    """In the place of what mx.fast.cuda_kernel returns. Outputs are there when the call returns."""

    def __init__(self, folder: Path, input_names: list[str], output_names: list[str], source: str) -> None:
        self._folder = folder
        self._input_names = input_names
        self._output_names = output_names
        self._source = source

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        outputs = [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        mx.eval(*inputs, *outputs)
        shapes = [
            (ctypes.c_int * 4)(*array.shape[:4])
            for name, array in zip(self._input_names, inputs, strict=True)
            if f"{name}_shape" in self._source
        ]
        assert all(array.dtype != mx.bfloat16 or array.size for array in inputs)
        library = self._compiled(inputs, template, output_dtypes)
        threads = threadgroup[0]
        library.launch(
            grid[0] // threads,
            threads,
            *[ctypes.c_void_p(address(array)) for array in (*inputs, *outputs)],
            *shapes,
        )
        return outputs

    def _compiled(
        self, inputs: Sequence[mx.array], template: Sequence[tuple[str, Any]], output_dtypes: Sequence[mx.Dtype]
    ) -> ctypes.CDLL:
        code = self._code(inputs, template, output_dtypes)
        name = hashlib.sha256(code.encode()).hexdigest()[:16]
        target = self._folder / f"{name}.so"
        if not target.exists():
            file = self._folder / f"{name}.cpp"
            file.write_text(code)
            compiler = shutil.which("g++")
            assert compiler
            command = [compiler, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", str(target), str(file)]
            subprocess.run(command, check=True)
        return ctypes.CDLL(str(target))

    def _code(
        self, inputs: Sequence[mx.array], template: Sequence[tuple[str, Any]], output_dtypes: Sequence[mx.Dtype]
    ) -> str:
        pointers = [
            *(f"const {c_type(a.dtype)}* {name}" for name, a in zip(self._input_names, inputs, strict=True)),
            *(f"{c_type(dtype)}* {name}" for name, dtype in zip(self._output_names, output_dtypes, strict=True)),
        ]
        shapes = [f"{name}_shape" for name in self._input_names if f"{name}_shape" in self._source]
        constants = "".join(constant(*one) for one in template)
        globals_ = "".join(f"static {pointer};\n" for pointer in pointers) + "".join(
            f"static Shape {name};\n" for name in shapes
        )
        names = [pointer.split("* ")[-1] for pointer in pointers]
        parameters = [f"void* arg_{name}" for name in names] + [f"const int* arg_{name}" for name in shapes]
        assign = "".join(
            f"  {name} = ({pointer.rsplit(' ', 1)[0]})arg_{name};\n"
            for name, pointer in zip(names, pointers, strict=True)
        ) + "".join(f"  {name} = *(const Shape*)arg_{name};\n" for name in shapes)
        return (
            f"{PRELUDE}\n{constants}\n{globals_}\nstatic void kernel() {{\n{self._source}\n}}\n{MAIN}\n"
            f'extern "C" void launch(unsigned blocks, unsigned threads, {", ".join(parameters)}) {{\n{assign}'
            "  body = kernel; gridDim = {blocks, 1, 1}; blockDim = {threads, 1, 1};\n"
            "  lanes.resize(threads); for (auto& lane : lanes) lane.stack.resize(1 << 16);\n"
            "  for (unsigned b = 0; b < blocks; b++) { blockIdx = {b, 0, 0}; run_block(); }\n}\n"
        )


def c_type(dtype: mx.Dtype) -> str:
    return {mx.bfloat16: "bfloat", mx.float32: "float", mx.int32: "int"}[dtype]


def constant(name: str, value: Any) -> str:
    if isinstance(value, mx.Dtype):
        return f"using {name} = {c_type(value)};\n"
    return f"constexpr {'bool' if isinstance(value, bool) else 'int'} {name} = {str(value).lower()};\n"


def address(array: mx.array) -> int:
    """Of an evaluated array's own memory, so that what a kernel writes into its inputs stays there."""
    same = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    mx.eval(same)
    return int(np.array(same, copy=False).ctypes.data)
