"""NVIDIA GPUs, through mlx[cuda12] or mlx[cuda13]."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import dequantize_model, get_total_parameters

from anllm.config import Weights
from anllm.runner.backends.cuda_kernels import make_kernels
from anllm.runner.backends.cuda_quantized import hook_quantized_layers
from anllm.runner.sampler import DeviceSampler

HALF_SHARE = 0.6  # of the device that dequantised weights may take; the rest is for K/V and work


class CudaBackend:
    """See Backend."""

    name = "cuda"
    blas = ""
    prefill_tokens = 8192  # a burst of 64 requests: 6,300 tokens/s, with 2,048 it is 5,800 (docs/log.md)
    grown_slab_bytes = None  # copied at terabytes a second

    def __init__(self) -> None:
        self.kernels = make_kernels()
        self.sampler = DeviceSampler()

    def prepare(self, model: nn.Module, weights: Weights) -> None:
        """Dequantised where that fits: it is the faster form here, at every batch size (docs/architecture.md)."""
        fits = 2 * get_total_parameters(model) < HALF_SHARE * self.memory_bytes()
        if weights is Weights.DEQUANTIZE or (weights is Weights.AUTO and fits):
            dequantize_model(model)
        if any(isinstance(module, nn.QuantizedLinear) for module in model.modules()):
            hook_quantized_layers()

    def memory_bytes(self) -> int:
        return int(mx.device_info()["free_memory"])
