"""Apple silicon: stock kernels, in the shapes and orders that Metal takes without a copy."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import dequantize_model

from anllm.config import Weights
from anllm.runner.attention import StockKernels
from anllm.runner.sampler import DeviceSampler


class MetalBackend:
    """See Backend."""

    name = "metal"
    blas = ""
    prefill_tokens = 2048
    grown_slab_bytes = 2 << 30

    def __init__(self) -> None:
        self.kernels = StockKernels()
        self.sampler = DeviceSampler()
        mx.set_wired_limit(self.memory_bytes())

    def prepare(self, model: nn.Module, weights: Weights) -> None:
        if weights is Weights.DEQUANTIZE:
            dequantize_model(model)

    def memory_bytes(self) -> int:
        return int(mx.device_info()["max_recommended_working_set_size"])
