"""Weights in the order in which a CPU's products read them best.

Packed ones keep the type in which the checkpoint has them, so that a step reads no more bytes than it must, and are
widened to float32 inside of a product (runner/native/weights.h, which describes their form). So they compute what
float32 weights would, to the rounding of sums. Without that library weights are float32, and laid out by columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from anllm.runner.backends.cpu_native import SEVERAL, Hidden, header, matrix
from anllm.runner.native_library import NativeLibrary

FORMATS = {mx.float32: 0, mx.bfloat16: 1, mx.float16: 2}
AFFINE_FORMATS = {4: 3, 8: 4}  # by bits
GROUPS = (32, 64, 128)  # of quantised weights
HEADER_WORDS = 16
# Quantised forms of a few values each, all of which bfloat16 has.
NARROW_MODES = ("mxfp4", "nvfp4", "mxfp8")


@dataclass(frozen=True, slots=True)
class _Quantized:
    """bits: 4 or 8, in groups that share a scale and a bias."""

    bits: int
    group: int

    def dequantize(self, words: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
        return mx.dequantize(words, scales, biases, group_size=self.group, bits=self.bits)


@dataclass(frozen=True, slots=True)
class _Packed:
    """Where the parts of a packed weight [num_outputs, num_inputs] are."""

    num_outputs: int
    num_inputs: int
    stored: mx.Dtype | _Quantized
    panel: int

    @property
    def num_panels(self) -> int:
        return -(-self.num_outputs // self.panel)

    @property
    def is_whole(self) -> bool:
        """Whether its last panel is full."""
        return self.num_outputs % self.panel == 0

    @property
    def words(self) -> int:
        """Words of 32 bits in a column."""
        bits = self.stored.bits if isinstance(self.stored, _Quantized) else 8 * self.stored.size
        return self.num_inputs * bits // 32

    @property
    def form(self) -> str:
        """Like "4-bit" or "bfloat16"."""
        stored = self.stored
        return f"{stored.bits}-bit" if isinstance(stored, _Quantized) else str(stored).removeprefix("mlx.core.")

    def rows(self, packed: mx.array, ids: mx.array) -> mx.array:
        """The weights of these outputs: float32 [*ids.shape, num_inputs]."""
        size, stored = self.num_panels * self.panel, self.stored
        words = self._columns(packed[HEADER_WORDS:], self.words, ids)
        if not isinstance(stored, _Quantized):
            return words.view(stored).astype(mx.float32)
        groups = self.num_inputs // stored.group
        scales, biases = packed[HEADER_WORDS + size * self.words :].view(mx.float32).reshape(2, -1)
        return stored.dequantize(words, self._columns(scales, groups, ids), self._columns(biases, groups, ids))

    def _columns(self, panels: mx.array, height: int, ids: mx.array) -> mx.array:
        size = self.num_panels * self.panel * height
        return panels[:size].reshape(self.num_panels, height, self.panel)[ids // self.panel, :, ids % self.panel]


def _pack(words: mx.array, others: list[mx.array], shape: _Packed, native: NativeLibrary) -> mx.array:
    """words: uint32 [outputs, words]; others: float32 [outputs, groups] each. uint32, not evaluated yet."""
    stored = shape.stored
    kind, group = (
        (AFFINE_FORMATS[stored.bits], stored.group) if isinstance(stored, _Quantized) else (FORMATS[stored], 1)
    )
    width = shape.num_panels * shape.panel
    begin = mx.array(header(native, kind, group, shape.num_inputs, width, shape.panel))
    return mx.concatenate([begin, *(_panels(part.view(mx.uint32), shape) for part in (words, *others))])


def _panels(columns: mx.array, shape: _Packed) -> mx.array:
    """[outputs, height], a column in each row -> [num_panels * height * panel]"""
    missing = shape.num_panels * shape.panel - columns.shape[0]
    if missing:
        columns = mx.pad(columns, [(0, missing), (0, 0)])
    return columns.reshape(shape.num_panels, shape.panel, -1).swapaxes(1, 2).flatten()


class PackedLinear(nn.Module):
    """nn.Linear and nn.QuantizedLinear over a packed weight. A module becomes one by its __class__."""

    packed_shape: _Packed
    hidden: Hidden
    native: NativeLibrary

    @property
    def weight_form(self) -> str:
        return self.packed_shape.form

    def __call__(self, x: mx.array) -> mx.array:
        return self.multiply(x)

    def multiply(self, x: mx.array) -> mx.array:
        """x: [..., inputs]. float32 [..., outputs]"""
        if self.packed_shape.is_whole:
            return _multiply(x, self.hidden, self.get("bias"))
        out = _multiply(x, self.hidden, None)[..., : self.packed_shape.num_outputs]
        return out + self["bias"] if "bias" in self else out

    def can_merge(self, parts: list[Any]) -> bool:
        """See MergeableLinear (fusion.py): where all are of whole panels."""
        are_whole = all(part.packed_shape.is_whole for part in parts)
        return are_whole and len({(part.packed_shape.num_inputs, "bias" in part) for part in parts}) == 1

    def merge(self, parts: list[Any]) -> SeveralLinears:
        """See MergeableLinear."""
        return SeveralLinears(parts, self.native)

    @property
    def weight(self) -> mx.array:
        """float32 [outputs, inputs], unpacked for whoever looks inside."""
        return self.packed_shape.rows(self["packed"], mx.arange(self.packed_shape.num_outputs))


class SeveralLinears(nn.Module):
    """Packed layers with one input as one product; they stay what they are, and their weights where they are."""

    def __init__(self, parts: list[PackedLinear], native: NativeLibrary) -> None:
        super().__init__()
        arrays = tuple(part["packed"] for part in parts)
        addresses = [np.array(array, copy=False).ctypes.data for array in arrays]
        several = header(native, SEVERAL, len(parts))
        told = mx.array(np.concatenate([several, np.array(addresses, np.uint64).view(np.uint32)]))
        height, width = parts[0].packed_shape.num_inputs, sum(part.packed_shape.num_outputs for part in parts)
        self._hidden = Hidden(matrix(told, height, width), arrays)
        if "bias" in parts[0]:
            self.bias = mx.concatenate([part["bias"] for part in parts])

    def __call__(self, x: mx.array) -> mx.array:
        return _multiply(x, self._hidden, self.get("bias"))


def _multiply(x: mx.array, hidden: Hidden, bias: mx.array | None) -> mx.array:
    x = x.astype(mx.float32)
    return x @ hidden.matrix if bias is None else mx.addmm(bias, x, hidden.matrix)


class PackedEmbedding(PackedLinear):
    """nn.Embedding and nn.QuantizedEmbedding likewise: rows are picked out of the packed weight."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.packed_shape.rows(self["packed"], x)

    def as_linear(self, x: mx.array) -> mx.array:
        return self.multiply(x)


def pack_weights(model: nn.Module, native: NativeLibrary) -> None:
    """Pack the model's linear layers and embeddings that are stored in a form which the library multiplies."""
    for module in model.modules():
        kind = PackedEmbedding if isinstance(module, nn.Embedding | nn.QuantizedEmbedding) else PackedLinear
        if type(module) in (nn.QuantizedLinear, nn.QuantizedEmbedding):
            _pack_quantized(module, kind, native)
        elif type(module) in (nn.Linear, nn.Embedding):
            _pack_plain(module, module["weight"], kind, native)


def _pack_quantized(module: Any, kind: type[PackedLinear], native: NativeLibrary) -> None:
    weight, scales, biases = (module.get(name) for name in ("weight", "scales", "biases"))
    if module.mode in NARROW_MODES:
        settings = {"group_size": module.group_size, "bits": module.bits, "mode": module.mode}
        _pack_plain(module, mx.dequantize(weight, scales, dtype=mx.bfloat16, **settings), kind, native)
    elif module.mode == "affine" and module.bits in AFFINE_FORMATS and module.group_size in GROUPS:
        stored = _Quantized(module.bits, module.group_size)
        shape = _Packed(weight.shape[0], scales.shape[1] * module.group_size, stored, native.panel)
        others = [scales.astype(mx.float32), biases.astype(mx.float32)]
        _become(module, kind, shape, _pack(weight, others, shape, native), native)


def _pack_plain(module: Any, weight: mx.array, kind: type[PackedLinear], native: NativeLibrary) -> None:
    outputs, inputs = weight.shape
    if weight.dtype in FORMATS and inputs * weight.dtype.size % 4 == 0:
        shape = _Packed(outputs, inputs, weight.dtype, native.panel)
        _become(module, kind, shape, _pack(weight.view(mx.uint32), [], shape, native), native)


def _become(module: Any, kind: type[PackedLinear], shape: _Packed, packed: mx.array, native: NativeLibrary) -> None:
    for name in ("weight", "scales", "biases"):
        module.pop(name, None)
    module.__class__ = kind
    module.packed_shape = shape
    module.hidden = Hidden(matrix(packed, shape.num_inputs, shape.num_panels * shape.panel))
    module.native = native
    module.packed = packed


def transpose_linears(model: nn.Module) -> None:
    """Lay every linear layer's weight [out, in] out by columns; it stays [out, in] to whoever uses it.

    A product x @ weight.T then reads [in, out] row by row. OpenBLAS copies the weights piece by piece into its own
    order in each product, and that takes less time from rows: 15 to 25 % of products of up to 32 rows, 10 % of large
    ones (docs/log.md). Embeddings stay as they are, since rows of them are picked.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            module.weight = mx.contiguous(module.weight.T).T
