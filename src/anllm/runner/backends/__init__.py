"""What is special to a backend, one file each behind one face."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx
import mlx.nn as nn

from anllm.config import Weights
from anllm.runner.attention import Kernels
from anllm.runner.blas import Blas
from anllm.runner.sampler import Sampler


class Backend(Protocol):
    """The machine's side of running a model."""

    @property
    def name(self) -> str: ...

    @property
    def blas(self) -> str:
        """Which BLAS does the matrix work; "" where that is no question."""
        ...

    @property
    def kernels(self) -> Kernels: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts in one step where nobody decodes: more make it slower to notice who comes in meanwhile,
        and no more quickly done."""
        ...

    @property
    def grown_slab_bytes(self) -> int | None:
        """As in EngineInfo: growing a slab copies it, and all rows wait for that."""
        ...

    def prepare(self, model: nn.Module, weights: Weights) -> None:
        """Bring a lazily loaded model's weights into the form in which they stay."""
        ...

    def memory_bytes(self) -> int:
        """Memory that weights, K/V and working memory could take together, if they took all."""
        ...


def select_backend(blas: Blas) -> Backend:
    """The backend of MLX's default device. `blas` is what was loaded for a CPU."""
    if mx.default_device() == mx.Device(mx.cpu):
        from anllm.runner.backends.cpu import CpuBackend

        return CpuBackend(blas)
    if mx.metal.is_available():
        from anllm.runner.backends.metal import MetalBackend

        return MetalBackend()
    from anllm.runner.backends.cuda import CudaBackend

    return CudaBackend()
