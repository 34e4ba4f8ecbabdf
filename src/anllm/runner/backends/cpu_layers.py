"""SwiGLU, RoPE and RMSNorm for the CPU backend: the same functions in fewer and longer loops, or in none of MLX.

MLX's CPU backend composes each of them from small operations, RoPE from thirty. Where an input is not what these are
made for, the stock layer computes it.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from anllm.runner.backends.cpu_native import RMS_NORM, Hidden, header, matrix
from anllm.runner.hook import Function, replace_in_models
from anllm.runner.native_library import NativeLibrary

# Coefficients of tanh as x * above(x^2) / below(x^2), lowest power first, up to the limit, beyond which float32 has
# only 1: the rational function of Eigen (its Core/MathFunctionsImpl.h).
TANH_LIMIT = 7.90531110763549805
TANH_ABOVE = (
    4.89352455891786e-03,
    6.37261928875436e-04,
    1.48572235717979e-05,
    5.12229709037114e-08,
    -8.60467152213735e-11,
    2.00018790482477e-13,
    -2.76076847742355e-16,
)
TANH_BELOW = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
# sigmoid(x) = 1/2 + tanh(x/2)/2, and swiglu() has 4 * (x/2), so the powers of 4 and the half go into the coefficients.
ABOVE = [0.5 * coefficient / 4 ** (2 * i + 1) for i, coefficient in enumerate(TANH_ABOVE)]
BELOW = [coefficient / 4 ** (2 * i) for i, coefficient in enumerate(TANH_BELOW)]
GATE_LIMIT = 2 * TANH_LIMIT


@mx.compile
def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """float32, to a relative 3e-7 of gate * x. Written so that it becomes one loop (cpu_kernels.py says when)."""
    t = mx.abs(gate + GATE_LIMIT) - mx.abs(gate - GATE_LIMIT)  # twice the gate, kept inside the limits
    s = t * t
    s2 = s * s
    above = (ABOVE[0] + ABOVE[1] * s) + (ABOVE[2] + ABOVE[3] * s) * s2
    above = above + ((ABOVE[4] + ABOVE[5] * s) + ABOVE[6] * s2) * (s2 * s2)
    below = (BELOW[0] + BELOW[1] * s) + (BELOW[2] + BELOW[3] * s) * s2
    return (0.5 + t * above / below) * (gate * x)


@mx.compile
def _turn(x: mx.array, other: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    return x * cos + other * sin


class Rotation:
    """Cosines and sines of a step's positions, worked out once for all layers that turn alike."""

    def __init__(self, dims: int, base: float, scale: float) -> None:
        half = dims // 2
        self._scale = scale
        self._frequencies = mx.exp(mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(base) / half))
        self._offset: mx.array | None = None  # whose tables these are
        self._tables: dict[int, tuple[mx.array, mx.array]] = {}

    def tables(self, offset: mx.array, num_heads: int) -> tuple[mx.array, mx.array]:
        """offset: int [T]. cos and sin, each [T, num_heads, 1, dims]: as large as what they turn, so that no operand is
        broadcast. sin is negative for the first half."""
        if self._offset is not offset:
            self._offset, self._tables = offset, {}
        if num_heads not in self._tables:
            angles = (offset.astype(mx.float32) * self._scale)[:, None] * self._frequencies
            cos, sin = mx.cos(angles), mx.sin(angles)
            whole = (mx.concatenate([cos, cos], axis=-1), mx.concatenate([-sin, sin], axis=-1))
            shape = (offset.size, num_heads, 1, whole[0].shape[-1])
            first, second = (mx.contiguous(mx.broadcast_to(part[:, None, None], shape)) for part in whole)
            self._tables[num_heads] = (first, second)
        return self._tables[num_heads]


class FlatRoPE(nn.RoPE):
    """RoPE that knows the shape of a flattened step: [T, heads, 1, dims], and a position for each T."""

    rotation: Rotation

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        is_flat = isinstance(offset, mx.array) and offset.ndim == 1 and x.shape[2:] == (1, self.dims)
        if not is_flat or x.dtype != mx.float32 or self.traditional:
            stock: Any = super()
            return stock.__call__(x, offset)
        half = self.dims // 2
        cos, sin = self.rotation.tables(offset, x.shape[1])
        return _turn(x, mx.concatenate([x[..., half:], x[..., :half]], axis=-1), cos, sin)


class NativeRMSNorm(nn.RMSNorm):
    """RMSNorm by the native library (native/layers.h). A module becomes one by its __class__."""

    hidden: Hidden

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.hidden.matrix if x.dtype == mx.float32 else super().__call__(x)


def quicken_norms(model: nn.Module, native: NativeLibrary) -> None:
    """Those of float32; their weights must stay what they are."""
    for module in model.modules():
        if isinstance(module, nn.RMSNorm) and module["weight"].dtype == mx.float32:
            weight = module["weight"]
            begin = header(native, RMS_NORM, weight.size)
            begin[6:7].view(np.float32)[0] = module.eps
            told = mx.concatenate([mx.array(begin), weight.view(mx.uint32)])
            module.__class__ = NativeRMSNorm
            module.hidden = Hidden(matrix(told, weight.size, weight.size))


def quicken_layers(model: nn.Module) -> None:
    """Put these in the place of the stock ones: SwiGLU in mlx_lm, for float32, and RoPE in this model."""
    rotations: dict[tuple[int, float, float], Rotation] = {}
    for module in model.modules():
        if type(module) is nn.RoPE:
            module.__class__ = FlatRoPE
            key = (module.dims, module.base, module.scale)
            module.rotation = rotations.setdefault(key, Rotation(*key))
    hook_swiglu()


def hook_swiglu() -> None:
    from mlx_lm.models import activations

    def make(stock: Function) -> Function:
        return lambda gate, x: swiglu(gate, x) if gate.dtype == mx.float32 else stock(gate, x)

    replace_in_models(activations, "swiglu", make)
