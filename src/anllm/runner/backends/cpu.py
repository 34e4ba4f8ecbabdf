"""Linux CPU: float32 arithmetic on weights as they are stored, and sampling in NumPy."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.utils import dequantize_model

from anllm import limits
from anllm.config import Weights
from anllm.errors import ModelError
from anllm.runner.arrays import flat_arrays
from anllm.runner.attention import Kernels, StockKernels
from anllm.runner.backends.cpu_attention import NativeKernels
from anllm.runner.backends.cpu_checks import (
    ROWS,
    TOLERANCE,
    check_attention,
    check_layers,
    check_turns,
    check_weights,
    plain_layer,
)
from anllm.runner.backends.cpu_kernels import FastExpKernels, fast_exp
from anllm.runner.backends.cpu_layers import quicken_layers, quicken_norms
from anllm.runner.backends.cpu_memory import keep_freed_memory
from anllm.runner.backends.cpu_weights import PackedLinear, pack_weights, transpose_linears
from anllm.runner.blas import Blas
from anllm.runner.native_library import NativeLibrary
from anllm.runner.sampler import HostSampler

logger = logging.getLogger(__name__)

FLOAT32_SHARE = 0.7  # of the memory that float32 weights may take; the rest is for K/V and work
LITTLE_MORE = 1.05  # what is nearly all packed grows by norms alone
CLEARLY_SLOWER = 0.6  # of the quickest speed
WIDTH, HEIGHT = 576, 1536  # of a layer that is measured


class CpuBackend:
    """See Backend."""

    name = "cpu"
    prefill_tokens = 1024
    grown_slab_bytes = 256 << 20  # 0.1 s

    def __init__(self, blas: Blas) -> None:
        keep_freed_memory()
        self.compile_fault = compile_fault()
        self._can_compile = shutil.which("g++") is not None and not self.compile_fault
        if not self._can_compile:
            mx.disable_compile()
        self._native = blas.native
        self.kernels: Kernels = FastExpKernels() if self._can_compile else StockKernels()
        if blas.native is not None:
            self._take(blas.native)
        self.blas = f"{blas.name}, {tune(blas, decode_product(self._native))}"
        self.sampler = HostSampler()

    def _take(self, native: NativeLibrary) -> None:
        """What of the library is right on this processor."""
        kernels = NativeKernels(native, self.kernels)
        if not all(found <= TOLERANCE for found in (check_weights(native), check_layers(kernels, native))):
            logger.warning("the native library computes wrong on this processor; weights will be float32 and plain")
            self._native = None
        elif not all(found <= TOLERANCE for found in (check_attention(kernels), check_turns(kernels))):
            logger.warning("native attention is wrong on this processor; a slower way is taken")
        else:
            self.kernels = kernels

    def prepare(self, model: nn.Module, weights: Weights) -> None:
        if weights is Weights.AS_IS:
            return
        if self._native is not None and weights is Weights.AUTO:
            pack_weights(model, self._native)
        if self._can_compile:
            quicken_layers(model)
        size, now = bytes_as_float32(model), sum(array.nbytes for _, array in flat_arrays(model.parameters()))
        if size > FLOAT32_SHARE * self.memory_bytes() and size > LITTLE_MORE * now:
            if weights is Weights.DEQUANTIZE:
                raise ModelError(
                    f"The weights need {size / 1e9:.1f} GB as float32, more than this machine has for them."
                )
            logger.warning("float32 weights (%.1f GB) don't fit; kept as stored, which is slow on a CPU", size / 1e9)
            return
        model.set_dtype(mx.float32)  # scales and biases too, so that dequantising rounds nothing
        dequantize_model(model)
        model.set_dtype(mx.float32)
        if self._native is not None:
            pack_weights(model, self._native)
            quicken_norms(model, self._native)
        else:
            transpose_linears(model)

    def memory_bytes(self) -> int:
        return available_memory()


def compile_fault() -> str:
    """Why mx.compile does not work although there is a compiler: it fails, or what it wrote can't be loaded."""
    if shutil.which("g++") is None:
        return ""
    try:
        mx.eval(fast_exp(mx.zeros((8,))))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        logger.warning("MLX can't compile kernels here; slower ones are taken (%s)", reason)
        return reason
    return ""


def bytes_as_float32(model: nn.Module) -> int:
    """Bytes of the model's weights once all that is not packed is float32."""
    size = 0
    for module in model.modules():
        for array in (value for value in module.values() if isinstance(value, mx.array)):
            if isinstance(module, PackedLinear) and array.dtype == mx.uint32:
                size += array.nbytes
            elif array.dtype == mx.uint32 and hasattr(module, "bits"):
                size += 4 * (array.size * 32 // module.bits)
            else:
                size += 4 * array.size
    return size


def available_memory() -> int:
    """Bytes that this process may take: what is free now, on the machine and in the container or service."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit = limits.memory_limit()
    return free if limit is None else min(free, limit.left_bytes)


def tune(blas: Blas, multiply: Callable[[mx.array], mx.array]) -> str:
    """Check that the BLAS computes right, and give it the number of threads that measured best for `multiply`, a
    product of decode's shape. A line about both.

    Raises ModelError if it computes wrong (older OpenBLAS builds do on newer processors).
    """
    if not all(is_right(rows) for rows in ROWS):
        raise ModelError(
            f"The BLAS in use ({blas.name}) computes wrong products on this processor; choose another one."
        )
    if blas.set_threads is None:
        return f"{measure(multiply):.0f} GFLOP/s"
    speeds = dict.fromkeys(thread_counts(), 0.0)
    for _ in range(3):  # the best of several, since others may be busy on this machine
        for number in speeds:
            blas.set_threads(number)
            speeds[number] = max(speeds[number], measure(multiply))
    best = best_thread_count(speeds)
    blas.set_threads(best)
    return f"{speeds[best]:.0f} GFLOP/s on {best} {'thread' if best == 1 else 'threads'}"


def is_right(rows: int) -> bool:
    """Whether products of so many rows, with a matrix stored either way, are those that NumPy finds without a BLAS."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((rows, 200), (200, 65)))
    expected = np.einsum("ik,kj->ij", a, b)
    stored = (mx.array(b), mx.array(np.ascontiguousarray(b.T)).T)
    return all(np.allclose(np.array(mx.array(a) @ right), expected, atol=1e-3) for right in stored)


def best_thread_count(speeds: Mapping[int, float]) -> int:
    """The most threads that are not clearly slower than the quickest: whoever is busy on this machine while it is
    measured, such as the API process at its start, takes the speed of many threads away, but not for good."""
    quickest = max(speeds.values())
    return max(number for number, speed in speeds.items() if speed >= CLEARLY_SLOWER * quickest)


def thread_counts() -> list[int]:
    """1, 2, 4 … up to the processors that this process may use."""
    most = limits.processors()
    return sorted({*(2**k for k in range(most.bit_length()) if 2**k <= most), most})


def measure(multiply: Callable[[mx.array], mx.array], seconds: float = 0.02, rows: int = 32) -> float:
    """GFLOP/s of it with so many rows of WIDTH."""
    x = mx.random.normal((rows, WIDTH))
    mx.eval(x, multiply(x))
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or count < 2:
        mx.eval(multiply(x))
        count += 1
    return 2 * rows * WIDTH * HEIGHT * count / elapsed / 1e9


def decode_product(native: NativeLibrary | None) -> Callable[[mx.array], mx.array]:
    """What is measured: a linear layer as the model will have them."""
    layer = plain_layer(WIDTH, HEIGHT, mx.float32)
    if native is not None:
        pack_weights(layer, native)
    return layer
