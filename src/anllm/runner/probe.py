"""`python -m anllm.runner.probe CACHE_FOLDER`: what MLX finds on this machine, and whether it computes right.

Prints one JSON object. Runs in a process of its own: a driver or a library that is broken may end it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anllm.config import ModelConfig
from anllm.errors import AnllmError
from anllm.runner.build import mlx_ready
from anllm.runner.kernel_cache import kernels_kept
from anllm.runner.native_library import NativeLibrary

if TYPE_CHECKING:
    from anllm.runner.backends import Backend


COMPILED = "compiled functions"


@dataclass(frozen=True, slots=True)
class SelfTest:
    """difference: from what is right, as a share of it; None where it could not be computed, and then reason says why.
    is_needed: nothing can be served without it; else a slower way is taken."""

    name: str
    difference: float | None
    tolerance: float
    is_needed: bool
    reason: str = ""

    @property
    def works(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance


def probe(cache_folder: Path) -> dict[str, Any]:
    """backend, device, blas, memory_bytes, and self_tests; or error, with one sentence."""
    try:
        with mlx_ready(ModelConfig(), cache_folder) as blas:
            import mlx.core as mx

            from anllm.runner.backends import select_backend

            backend = select_backend(blas)
            tests = self_tests(backend.name, blas.native)
            if backend.name == "cpu":
                tests = _with_compile_fault(tests, backend)
            info = mx.device_info() if backend.name != "cpu" else {}
            return {
                "backend": backend.name,
                "device": str(info.get("device_name", info.get("architecture", ""))),
                "blas": backend.blas,
                "memory_bytes": backend.memory_bytes(),
                "self_tests": [{**asdict(test), "works": test.works} for test in tests],
            }
    except AnllmError as error:
        return {"error": error.message}


def self_tests(backend: str, native: NativeLibrary | None = None) -> list[SelfTest]:
    """Products and attention on any backend; on CUDA and on CPUs, our own kernels too. native: the library, if there is
    one."""
    found = [
        _test("matrix products", _product_difference, 1e-2, is_needed=True),
        _test("attention", _attention_difference, 1e-2, is_needed=True),
        _test(COMPILED, _compiled_difference, 1e-3, is_needed=False),
    ]
    if backend == "cpu":
        return found + _cpu_tests(native)
    return found + (_cuda_tests() if backend == "cuda" else [])


def _with_compile_fault(tests: list[SelfTest], backend: Backend) -> list[SelfTest]:
    """Where compiling does not work, what should have been compiled ran plainly, and right."""
    from anllm.runner.backends.cpu import CpuBackend

    fault = backend.compile_fault if isinstance(backend, CpuBackend) else ""
    if not fault:
        return tests
    return [replace(test, difference=None, reason=fault) if test.name == COMPILED else test for test in tests]


def _test(name: str, difference: Callable[[], float], tolerance: float, *, is_needed: bool) -> SelfTest:
    try:
        return SelfTest(name, difference(), tolerance, is_needed)
    except Exception as error:  # noqa: BLE001 - whatever a backend raises that does not work
        return SelfTest(name, None, tolerance, is_needed, " ".join(str(error).split())[:200] or type(error).__name__)


def _product_difference() -> float:
    import mlx.core as mx
    import numpy as np

    random = np.random.default_rng(0)
    a, b = random.standard_normal((33, 200), np.float32), random.standard_normal((200, 65), np.float32)
    expected = np.einsum("ik,kj->ij", a, b)  # without a BLAS
    return _relative(np.array(mx.array(a) @ mx.array(b)), expected)


def _attention_difference() -> float:
    import mlx.core as mx
    import numpy as np

    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 4, 17, 64), np.float32) for _ in range(3))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), v)
    found = mx.fast.scaled_dot_product_attention(*map(mx.array, (q, k, v)), scale=1 / 8)
    return _relative(np.array(found), expected)


def _compiled_difference() -> float:
    import mlx.core as mx
    import numpy as np

    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    found = mx.compile(lambda y: y * mx.sigmoid(y) + 1)(mx.array(x))
    return _relative(np.array(found), x / (1 + np.exp(-x)) + 1)


def _cpu_tests(native: NativeLibrary | None) -> list[SelfTest]:
    from anllm.runner.attention import StockKernels
    from anllm.runner.backends import cpu_checks as checks
    from anllm.runner.backends.cpu_attention import NativeKernels

    if native is None:
        return [SelfTest("native library", None, checks.TOLERANCE, is_needed=False, reason="it could not be built")]
    kernels = NativeKernels(native, StockKernels())
    found: list[tuple[str, Callable[[], float]]] = [
        ("packed weights", lambda: checks.check_weights(native)),
        ("native layers", lambda: checks.check_layers(kernels, native)),
        ("native attention", lambda: max(checks.check_attention(kernels), checks.check_turns(kernels))),
    ]
    return [_test(name, check, checks.TOLERANCE, is_needed=False) for name, check in found]


def _cuda_tests() -> list[SelfTest]:
    from anllm.runner.backends import cuda_kernels as kernels
    from anllm.runner.backends.cuda_fused import FusedCudaKernels as fused
    from anllm.runner.backends.cuda_ragged import RaggedCudaKernels as ragged

    checks: list[tuple[str, Callable[[], float]]] = [
        ("attention on tensor cores", lambda: kernels.check_ragged(ragged())),
        ("ragged attention", lambda: kernels.check_ragged(ragged(may_use_tensor_cores=False))),
        ("fused layers", lambda: max(check(fused(may_use_tensor_cores=True)) for check in kernels.FUSED_CHECKS)),
    ]
    return [_test(name, check, kernels.TOLERANCE, is_needed=False) for name, check in checks]


def _relative(found: Any, expected: Any) -> float:
    return float(abs(found - expected).max() / abs(expected).max())


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what they warn of is in the object
    cache = Path(sys.argv[1])
    with kernels_kept(cache) as keep_kernels:
        found = probe(cache)
        keep_kernels()
    json.dump(found, sys.stdout)
