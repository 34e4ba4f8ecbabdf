from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file

from anllm.errors import ModelError
from anllm.store.gguf_convert import convert
from anllm.store.gguf_weights import repack

QUANTISED = [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0]
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "blk.1.attn_q.weight": "model.layers.1.self_attn.q_proj.weight",
    "blk.1.attn_k.weight": "model.layers.1.self_attn.k_proj.weight",
    "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
    "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
    "blk.1.ffn_gate.weight": "model.layers.1.mlp.gate_proj.weight",
    "blk.1.ffn_up.weight": "model.layers.1.mlp.up_proj.weight",
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
    "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    "blk.1.ffn_norm.weight": "model.layers.1.post_attention_layernorm.weight",
}


def converted(path, folder: Path, progress) -> dict[str, np.ndarray]:
    folder.mkdir()
    convert(path, folder, progress)
    return load_file(folder / "model.safetensors")


def values_of(tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    """The float32 values that MLX reads: the obvious way, element by element of each word."""
    weight = tensors[name]
    if weight.dtype != np.uint32:
        return weight.astype(np.float32)
    module = name.removesuffix(".weight")
    scales, biases = (tensors[f"{module}.{part}"].astype(np.float32) for part in ("scales", "biases"))
    bits = weight.shape[1] * 32 // (scales.shape[1] * 32)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    elements = (weight[..., None] >> shifts & (2**bits - 1)).reshape(weight.shape[0], -1, 32)
    values = elements.astype(np.float32) * scales[..., None] + biases[..., None]
    return values.reshape(weight.shape[0], -1)


def expected_values(model, name: str) -> np.ndarray:
    weights = model.weights[name]
    kind = model.kind_of(name, weights.shape)
    return gguf.quants.dequantize(gguf.quants.quantize(weights, kind), kind)


@pytest.mark.parametrize("kind", [*QUANTISED, Kind.F32, Kind.F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_every_value_is_what_gguf_dequantises_to(make_gguf, tmp_path, progress, kind, architecture):
    path, model = make_gguf(matrix_type=kind, embedding_type=kind, architecture=architecture)
    tensors = converted(path, tmp_path / "out", progress)
    for theirs, ours in NAMES.items():
        np.testing.assert_array_equal(values_of(tensors, ours), expected_values(model, theirs), err_msg=ours)


def test_bfloat16_keeps_its_bits(make_gguf, tmp_path, progress):
    path, model = make_gguf(matrix_type=Kind.BF16, embedding_type=Kind.BF16, vector_type=Kind.BF16)
    (tmp_path / "out").mkdir()
    convert(path, tmp_path / "out", progress)
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    for theirs in ("blk.1.attn_q.weight", "blk.0.ffn_down.weight", "output_norm.weight"):
        entry = json.loads(data[8 : 8 + size])[NAMES[theirs]]
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        upper_halves = np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16
        assert entry["dtype"] == "BF16"
        np.testing.assert_array_equal(
            upper_halves.view(np.float32).reshape(entry["shape"]), expected_values(model, theirs)
        )


def test_quantised_matrices_stay_packed(make_gguf, tmp_path, progress):
    path, _ = make_gguf(matrix_type=Kind.Q4_1, embedding_type=Kind.Q8_0)
    tensors = converted(path, tmp_path / "out", progress)
    down, embedding = "model.layers.0.mlp.down_proj", "model.embed_tokens"
    assert tensors[f"{down}.weight"].shape == (64, 96 * 4 // 32)
    assert tensors[f"{down}.scales"].shape == tensors[f"{down}.biases"].shape == (64, 96 // 32)
    assert tensors[f"{embedding}.weight"].shape[1] == 64 * 8 // 32
    assert {tensors[f"{down}.weight"].dtype, tensors[f"{embedding}.weight"].dtype} == {np.dtype(np.uint32)}
    assert tensors[f"{down}.scales"].dtype == tensors[f"{down}.biases"].dtype == np.float16


def test_a_bias_too_large_for_float16_makes_scales_and_biases_float32(tmp_path):
    values = np.linspace(-127 * 600, 127 * 600, 32, dtype=np.float32)[None]
    data = gguf.quants.quantize(values, Kind.Q8_0)
    tensor = gguf.ReaderTensor("w", Kind.Q8_0, np.array([32, 1]), 32, data.nbytes, 0, data, None)
    tensors = {name: t.array for name, t in repack(tensor, "w.weight", Kind.F32, None).items()}
    assert tensors["w.scales"].dtype == tensors["w.biases"].dtype == np.float32
    np.testing.assert_array_equal(values_of(tensors, "w.weight"), gguf.quants.dequantize(data, Kind.Q8_0))


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K], ids=lambda kind: kind.name)
def test_k_quants_become_float16(kind):
    tensor = k_quantised(kind, scale=2**-6)
    values = gguf.quants.dequantize(tensor.data, kind)
    made = repack(tensor, "w.weight", Kind.F16, None)
    assert made.keys() == {"w.weight"} and made["w.weight"].dtype == "F16"
    np.testing.assert_array_equal(made["w.weight"].array, values.astype(np.float16))
    in_order = repack(tensor, "w.weight", Kind.F16, 2)["w.weight"].array  # (2 heads, 2 halves, 2 rows)
    np.testing.assert_array_equal(in_order, values.astype(np.float16)[[0, 2, 1, 3, 4, 6, 5, 7]])


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K], ids=lambda kind: kind.name)
def test_k_quants_too_large_for_float16_become_float32(kind):
    tensor = k_quantised(kind, scale=2**12)
    made = repack(tensor, "w.weight", Kind.F16, None)["w.weight"]
    assert made.dtype == "F32"
    np.testing.assert_array_equal(made.array, gguf.quants.dequantize(tensor.data, kind))


def k_quantised(kind: Kind, scale: float) -> gguf.ReaderTensor:
    """8 rows of 2 blocks: random bytes with `scale` as each block's float16 scale (and scale of minima)."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = np.random.default_rng(3).integers(0, 256, (16, size), dtype=np.uint8)
    starts = [size - 2] if kind == Kind.Q6_K else [0, 2]
    for start in starts:
        data[:, start : start + 2] = np.array([scale], np.float16).view(np.uint8)
    data = data.reshape(8, 2 * size)
    return gguf.ReaderTensor("w", kind, np.array([512, 8]), 8 * 512, data.nbytes, 0, data, None)


def test_norms_take_the_type_of_the_scales_when_they_lose_nothing(make_gguf, tmp_path, progress):
    path, _ = make_gguf()
    assert converted(path, tmp_path / "out", progress)["model.norm.weight"].dtype == np.float16


def test_norms_stay_float32_when_float16_would_round_one(make_gguf, tmp_path, progress):
    norm = np.full(64, 1 + 2**-20, dtype=np.float32)
    path, _ = make_gguf(without=("output_norm.weight",), extra_tensors={"output_norm.weight": norm})
    tensors = converted(path, tmp_path / "out", progress)
    np.testing.assert_array_equal(tensors["model.norm.weight"], norm)
    assert tensors["model.layers.0.input_layernorm.weight"].dtype == np.float32


def test_qwen2_keeps_its_biases(make_gguf, tmp_path, progress):
    path, model = make_gguf(architecture="qwen2")
    tensors = converted(path, tmp_path / "out", progress)
    np.testing.assert_array_equal(
        tensors["model.layers.1.self_attn.k_proj.bias"].astype(np.float32), model.weights["blk.1.attn_k.bias"]
    )


def test_an_own_output_matrix_becomes_lm_head(make_gguf, tmp_path, progress):
    path, model = make_gguf(is_tied=False)
    tensors = converted(path, tmp_path / "out", progress)
    np.testing.assert_array_equal(values_of(tensors, "lm_head.weight"), expected_values(model, "output.weight"))


def test_progress_counts_every_byte_of_the_tensors(make_gguf, tmp_path, progress):
    path, _ = make_gguf()
    converted(path, tmp_path / "out", progress)
    label, total, advanced = progress.stages[-1]
    assert "weights" in label
    assert total == advanced > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architecture": "gemma3"}, ["'gemma3'", "llama and qwen2"]),
        ({"matrix_type": Kind.Q5_0}, ["Q5_0", "Q4_0, Q4_1, Q8_0"]),
        ({"matrix_type": Kind.Q2_K, "embedding_type": Kind.Q5_1}, ["Q2_K, Q5_1"]),
        ({"extra_tensors": {"blk.0.attn_q.bias": np.zeros(64, np.float32)}}, ["blk.0.attn_q.bias", "plain llama"]),
        ({"without": ("blk.1.ffn_up.weight",)}, ["lacks 1", "blk.1.ffn_up.weight"]),
        ({"metadata": {"split.count": 3}}, ["one part of several"]),
    ],
)
def test_what_cannot_be_converted_is_refused_before_anything_is_written(make_gguf, tmp_path, progress, fields, words):
    path, _ = make_gguf(**fields)
    with pytest.raises(ModelError) as caught:
        converted(path, tmp_path / "out", progress)
    assert all(word in caught.value.message for word in ["tiny.gguf", *words])
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("keep", [0, 3, 100, 4000, -1])
def test_a_truncated_gguf_is_refused(make_gguf, tmp_path, progress, keep):
    path, _ = make_gguf()
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match="not a whole GGUF file"):
        converted(path, tmp_path / "out", progress)
