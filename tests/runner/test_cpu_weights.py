"""Weights as the CPU backend keeps them: what is computed with them is what the plain ones compute."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.utils import dequantize_model

from anllm.config import Weights
from anllm.errors import ModelError
from anllm.runner.backends import cpu
from anllm.runner.backends.cpu import CpuBackend, bytes_as_float32
from anllm.runner.backends.cpu_weights import PackedEmbedding, PackedLinear, pack_weights, transpose_linears
from anllm.runner.blas import Blas, load_blas
from anllm.runner.fusion import MergeableLinear, merge
from anllm.runner.model import weights_form
from anllm.runner.native_library import NativeLibrary
from runner.families import FAMILIES, Family, build, tiny

pytestmark = pytest.mark.mlx

ROWS = (1, 2, 3, 5, 6, 7, 12, 13, 33, 300)


@pytest.fixture
def native(tmp_path: Path) -> NativeLibrary:
    found = load_blas(None, tmp_path).native
    if found is None:
        pytest.skip("no C compiler here")
    return found


def plain(inputs: int, outputs: int, dtype: mx.Dtype, *, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    layer.weight = mx.random.normal((outputs, inputs)).astype(dtype)
    return layer


def quantized(inputs: int, outputs: int, bits: int, group: int, mode: str = "affine") -> nn.QuantizedLinear:
    return nn.QuantizedLinear(inputs, outputs, bias=False, group_size=group, bits=bits, mode=mode)


def float_weight(layer: nn.Module) -> mx.array:
    if isinstance(layer, nn.Linear | nn.Embedding):
        return layer.weight.astype(mx.float32)
    scales, biases = layer.scales, layer.get("biases")
    if layer.mode == "affine":  # in the arithmetic of what it is compared with
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    return mx.dequantize(
        layer.weight, scales, biases, group_size=layer.group_size, bits=layer.bits, mode=layer.mode
    ).astype(mx.float32)


LAYERS = {
    # Blocks of 128 inputs, whole and not; panels of 16 or 64 outputs, whole and not.
    **{
        f"{dtype}".split(".")[-1]: (lambda d=dtype: plain(200, 65, d))
        for dtype in (mx.float32, mx.bfloat16, mx.float16)
    },
    "one pair": lambda: plain(2, 1, mx.bfloat16),
    "odd float32": lambda: plain(131, 128, mx.float32),
    "4-bit 32": lambda: quantized(320, 65, 4, 32),
    "4-bit 64": lambda: quantized(192, 192, 4, 64),
    "4-bit 128": lambda: quantized(384, 100, 4, 128),
    "8-bit 32": lambda: quantized(96, 65, 8, 32),
    "8-bit 64": lambda: quantized(640, 64, 8, 64),
    "8-bit 128": lambda: quantized(256, 31, 8, 128),
    "mxfp4": lambda: quantized(320, 65, 4, 32, "mxfp4"),
    "nvfp4": lambda: quantized(320, 65, 4, 16, "nvfp4"),
    "mxfp8": lambda: quantized(320, 65, 8, 32, "mxfp8"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_packed_layer_computes_what_its_float32_weight_does(native: NativeLibrary, name: str) -> None:
    layer = LAYERS[name]()
    weight = float_weight(layer)
    pack_weights(layer, native)
    assert isinstance(layer, PackedLinear)
    assert set(layer.parameters()) == {"packed"}
    assert mx.array_equal(layer.weight, weight), "all of it comes out as it went in"
    exact = np.array(weight, np.float64)
    for rows in ROWS:
        x = mx.random.normal((rows, weight.shape[1]))
        found, expected = np.array(layer(x)), np.array(x, np.float64) @ exact.T
        np.testing.assert_allclose(found, expected, atol=2e-6 * np.abs(exact).max() * weight.shape[1])


@pytest.mark.parametrize("outputs", [64, 65])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_biases_shapes_and_layouts_of_what_comes_in(native: NativeLibrary, outputs: int, dtype: mx.Dtype) -> None:
    layer = plain(160, outputs, dtype, bias=True)
    weight, bias = float_weight(layer), layer.bias
    pack_weights(layer, native)
    whole = mx.random.normal((4, 3, 2, 160))
    turned = mx.contiguous(mx.random.normal((160, 9))).T
    for x in (whole, whole[:, 1], whole[1:3, :, 1], turned, turned[2:3], whole[0, 0, 0], whole.astype(mx.bfloat16)):
        expected = x.astype(mx.float32) @ weight.T + bias
        found = layer(x)
        assert found.dtype == mx.float32
        assert found.shape == expected.shape
        np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_several_layers_become_one_product(native: NativeLibrary, bias: bool) -> None:
    kinds = (mx.float32, mx.bfloat16, mx.float16)
    parts: list[nn.Module] = [plain(160, (i + 1) * native.panel, kind, bias=bias) for i, kind in enumerate(kinds)]
    if not bias:
        parts.append(quantized(160, native.panel, 4, 32))
    for part in parts:
        pack_weights(part, native)
    assert isinstance(parts[0], MergeableLinear)
    assert parts[0].can_merge(parts)
    several = merge(parts)
    assert set(several.parameters()) == ({"bias"} if bias else set()), "nothing is there twice"
    x = mx.random.normal((7, 1, 160))
    assert mx.array_equal(several(x), mx.concatenate([part(x) for part in parts], axis=-1))
    del parts
    assert several(x).shape[-1] % native.panel == 0, "their memory is kept"


def test_layers_that_can_not_become_one_say_so(native: NativeLibrary) -> None:
    whole, part = plain(160, native.panel, mx.float32), plain(160, native.panel - 1, mx.float32)
    narrow, biased = plain(96, native.panel, mx.float32), plain(160, native.panel, mx.float32, bias=True)
    for layer in (whole, part, narrow, biased):
        pack_weights(layer, native)
    assert isinstance(whole, PackedLinear)
    assert not any(whole.can_merge([whole, other]) for other in (part, narrow, biased))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "4-bit", "8-bit"])
def test_rows_of_a_packed_embedding_are_those_that_went_in(native: NativeLibrary, kind: str) -> None:
    embedding: nn.Module = nn.Embedding(131, 96)
    if kind.endswith("bit"):
        embedding = nn.QuantizedEmbedding(131, 96, group_size=32, bits=int(kind[0]))
    else:
        embedding.weight = embedding.weight.astype(getattr(mx, kind))
    table = float_weight(embedding)
    pack_weights(embedding, native)
    assert isinstance(embedding, PackedEmbedding)
    for ids in (mx.array([[0], [130], [64], [63]]), mx.array([5]), mx.arange(131)[None]):
        assert mx.array_equal(embedding(ids), table[ids])
    x = mx.random.normal((3, 1, 96))
    np.testing.assert_allclose(np.array(embedding.as_linear(x)), np.array(x @ table.T), atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: plain(131, 64, mx.bfloat16),  # an odd number of 16 bits
        lambda: quantized(128, 64, 3, 32),
        lambda: quantized(128, 64, 6, 64),
    ],
)
def test_what_has_no_packed_form_stays_as_it_is(native: NativeLibrary, make: object) -> None:
    layer = make()  # type: ignore[operator]
    kind, names = type(layer), set(layer.parameters())
    pack_weights(layer, native)
    assert (type(layer), set(layer.parameters())) == (kind, names)


@pytest.mark.parametrize("form", ["float32", "bfloat16", "4-bit"])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_models_of_all_families_compute_the_same_packed(native: NativeLibrary, family: Family, form: str) -> None:
    model, same = build(family), build(family)
    for m in (model, same):
        if form == "4-bit":
            nn.quantize(m, 32, 4, class_predicate=lambda _, layer: can_be_quantized(layer))
        else:
            m.set_dtype(getattr(mx, form))
    expected_model = dequantize_model(same)
    expected_model.set_dtype(mx.float32)
    pack_weights(model, native)
    model.set_dtype(mx.float32)
    dequantize_model(model)  # layers of experts
    assert any(isinstance(module, PackedLinear) for module in model.modules())
    tokens = mx.array([[3, 1, 4, 1, 5]])
    np.testing.assert_allclose(np.array(model(tokens)), np.array(expected_model(tokens)), atol=2e-4, rtol=1e-3)


def can_be_quantized(layer: nn.Module) -> bool:
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0


def backend(monkeypatch: pytest.MonkeyPatch, native: NativeLibrary | None, memory: int = 1 << 40) -> CpuBackend:
    monkeypatch.setattr(cpu, "tune", lambda blas, multiply: "")
    monkeypatch.setattr(cpu, "quicken_layers", lambda model: None)
    monkeypatch.setattr(cpu, "available_memory", lambda: memory)
    return CpuBackend(Blas("", None, native))


@pytest.mark.parametrize(
    ("stored", "weights", "form"),
    [
        ("bfloat16", Weights.AUTO, "bfloat16"),
        ("bfloat16", Weights.AS_IS, "bfloat16"),
        ("bfloat16", Weights.DEQUANTIZE, "float32"),
        ("4-bit", Weights.AUTO, "4-bit"),
        ("4-bit", Weights.AS_IS, "4-bit"),
        ("4-bit", Weights.DEQUANTIZE, "float32"),
    ],
)
def test_the_form_of_weights_is_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, native: NativeLibrary, stored: str, weights: Weights, form: str
) -> None:
    model = tiny()
    if stored == "4-bit":
        nn.quantize(model, 32, 4)
    else:
        model.set_dtype(mx.bfloat16)
    backend(monkeypatch, native).prepare(model, weights)
    assert weights_form(model) == form
    is_packed = any(isinstance(module, PackedLinear) for module in model.modules())
    assert is_packed == (weights is not Weights.AS_IS)


def test_without_the_library_weights_are_float32_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    nn.quantize(model, 32, 4)
    backend(monkeypatch, None).prepare(model, Weights.AUTO)
    assert weights_form(model) == "float32"
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


def test_weights_that_fit_only_packed_are_served_packed(monkeypatch: pytest.MonkeyPatch, native: NativeLibrary) -> None:
    model, other = tiny(), tiny()
    for m in (model, other):
        nn.quantize(m, 32, 4)
    as_float32 = bytes_as_float32(model)
    scarce = backend(monkeypatch, native, memory=as_float32)
    scarce.prepare(model, Weights.AUTO)
    assert bytes_as_float32(model) < as_float32 / 4
    assert weights_form(model) == "4-bit"
    with pytest.raises(ModelError, match="as float32, more than this machine has"):
        scarce.prepare(other, Weights.DEQUANTIZE)


def test_what_is_packed_is_no_reason_to_warn_however_large(
    monkeypatch: pytest.MonkeyPatch, native: NativeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny()
    model.set_dtype(mx.float32)
    backend(monkeypatch, native, memory=1000).prepare(model, Weights.AUTO)
    assert not caplog.text
    experts = build(next(family for family in FAMILIES if family.name == "mixtral"))
    experts.set_dtype(mx.bfloat16)
    backend(monkeypatch, native, memory=1000).prepare(experts, Weights.AUTO)
    assert "don't fit; kept as stored" in caplog.text


def test_packing_that_is_wrong_are_not_used(
    monkeypatch: pytest.MonkeyPatch, native: NativeLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu, "check_weights", lambda native: 1.0)
    model = tiny()
    backend(monkeypatch, native).prepare(model, Weights.AUTO)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    assert "the native library computes wrong on this processor" in caplog.text


def test_transposed_weights_are_the_same_weights_laid_out_by_columns() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 6)
            self.layers = [nn.Linear(6, 4), nn.Linear(4, 6, bias=False)]

        def __call__(self, tokens: mx.array) -> mx.array:
            hidden = self.embed(tokens)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.embed.as_linear(hidden)

    model, tokens = Model(), mx.array([[1, 2, 3]])
    weight, expected = mx.array(model.layers[0].weight), model(tokens)
    transpose_linears(model)
    mx.eval(model.parameters())
    assert mx.array_equal(model.layers[0].weight, weight)
    assert np.array(model.layers[0].weight, copy=False).flags.f_contiguous
    assert np.array(model.embed.weight, copy=False).flags.c_contiguous
    np.testing.assert_allclose(np.array(model(tokens)), np.array(expected), atol=1e-6)
