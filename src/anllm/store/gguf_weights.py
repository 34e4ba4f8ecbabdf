"""The tensors of a GGUF file under the names and in the layout that MLX expects.

Quantised blocks are re-packed, not re-quantised: GGUF's Q4_0, Q4_1 and Q8_0 are MLX's affine quantisation with groups
of 32, w = scale * q + bias. No value changes. K-quants have scales of scales, which MLX has not: they become float16.
Block layouts: ggml-common.h of llama.cpp. Knows numpy only, not MLX.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, ReaderTensor
from gguf.quants import dequantize

from anllm.errors import ModelError
from anllm.store.gguf_file import GGUFFile
from anllm.store.safetensors_file import Tensor

Array = npt.NDArray[Any]

GROUP_SIZE = 32
BITS = {GGMLQuantizationType.Q4_0: 4, GGMLQuantizationType.Q4_1: 4, GGMLQuantizationType.Q8_0: 8}
K_QUANTS = (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K, GGMLQuantizationType.Q6_K)
FLOATS = {GGMLQuantizationType.F32: "F32", GGMLQuantizationType.F16: "F16", GGMLQuantizationType.BF16: "BF16"}
ARCHITECTURES = ("llama", "qwen2")
ROPE_FACTORS = "rope_freqs.weight"  # not a weight: gguf_config reads it

_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QKV = ("attn_q", "attn_k", "attn_v")


def module_names(gguf_file: GGUFFile) -> dict[str, str]:
    """GGUF tensor name -> MLX parameter name, for every tensor, in the file's order.

    Raises ModelError unless the architecture is known, every tensor has a known name and type, and none is missing.
    """
    architecture = gguf_file.architecture
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"'{gguf_file.name}' holds a model of architecture '{architecture}'; from GGUF only "
            f"{' and '.join(ARCHITECTURES)} can be read: give the model's safetensors instead."
        )
    known = _expected_names(architecture, gguf_file.required_integer(f"{architecture}.block_count"))
    present = gguf_file.tensors.keys() - {ROPE_FACTORS}
    if unknown := sorted(present - known.keys()):
        raise ModelError(
            f"'{gguf_file.name}' has {len(unknown)} tensors that a plain {architecture} model has not, first "
            f"{unknown[0]}: give the model's safetensors instead."
        )
    if missing := sorted(known.keys() - present - {"output.weight"}):
        raise ModelError(f"'{gguf_file.name}' lacks {len(missing)} tensors, first {missing[0]}; download it again.")
    _check_types(gguf_file)
    return {name: known[name] for name in gguf_file.tensors if name != ROPE_FACTORS}


def _expected_names(architecture: str, num_layers: int) -> dict[str, str]:
    names = {f"{theirs}.weight": f"{ours}.weight" for theirs, ours in _OUTER_NAMES.items()}
    for layer in range(num_layers):
        for theirs, ours in _LAYER_NAMES.items():
            names[f"blk.{layer}.{theirs}.weight"] = f"model.layers.{layer}.{ours}.weight"
            if architecture == "qwen2" and theirs in _QKV:
                names[f"blk.{layer}.{theirs}.bias"] = f"model.layers.{layer}.{ours}.bias"
    return names


def _check_types(gguf_file: GGUFFile) -> None:
    readable = (*FLOATS, *BITS, *K_QUANTS)
    unreadable = {t.tensor_type.name for t in gguf_file.tensors.values() if t.tensor_type not in readable}
    flat = {t.tensor_type.name for t in gguf_file.tensors.values() if t.data.ndim == 1 and t.tensor_type not in FLOATS}
    if unreadable or flat:
        raise ModelError(
            f"'{gguf_file.name}' has tensors of type {', '.join(sorted(unreadable | flat))}; only "
            f"{', '.join(kind.name for kind in readable)} can be read: take a file of one of these types."
        )


def vector_dtype(tensors: Mapping[str, ReaderTensor]) -> GGMLQuantizationType:
    """The type in which F32 vectors (norms, biases) are stored: that of the matrices, if all of them survive exactly.

    GGUF writers widen vectors to F32. Left so, one norm turns all activations and the KV cache into float32.
    """
    kinds = {tensor.tensor_type for tensor in tensors.values() if tensor.data.ndim > 1}
    if kinds & {*BITS, *K_QUANTS, GGMLQuantizationType.F16}:
        narrow = GGMLQuantizationType.F16
    elif GGMLQuantizationType.BF16 in kinds:
        narrow = GGMLQuantizationType.BF16
    else:
        return GGMLQuantizationType.F32
    wide = [tensor for tensor in tensors.values() if _is_wide_vector(tensor)]
    return narrow if all(_survives(tensor.data, narrow) for tensor in wide) else GGMLQuantizationType.F32


def _is_wide_vector(tensor: ReaderTensor) -> bool:
    return tensor.data.ndim == 1 and tensor.tensor_type == GGMLQuantizationType.F32


def _survives(values: Array, narrow: GGMLQuantizationType) -> bool:
    if narrow == GGMLQuantizationType.BF16:
        return bool((values.view(np.uint32) & 0xFFFF == 0).all())
    with np.errstate(over="ignore"):
        return bool((values.astype(np.float16).astype(np.float32) == values).all())


def repack(tensor: ReaderTensor, name: str, vectors: GGMLQuantizationType, num_heads: int | None) -> dict[str, Tensor]:
    """`tensor` as MLX parameters: `name` alone, or weight, scales and biases if it is quantised.

    name: MLX parameter name. vectors: see vector_dtype. num_heads: of a matrix whose rows GGUF has in rotary order
    (q and k of llama); None for others.
    """
    data = tensor.data if num_heads is None else _unpermute(tensor.data, num_heads)
    if tensor.tensor_type in K_QUANTS:
        return {name: _widened(data, tensor.tensor_type)}
    if tensor.tensor_type not in BITS:
        return {name: _float_tensor(tensor, data, vectors)}
    blocks = data.reshape(
        data.shape[0], -1, _BLOCK_BYTES[tensor.tensor_type]
    )  # (rows, groups, bytes of a block), uint8
    weight, scales, biases = _REPACK[tensor.tensor_type](blocks)
    module = name.removesuffix(".weight")
    return {
        f"{module}.weight": Tensor("U32", np.ascontiguousarray(weight).view("<u4").reshape(data.shape[0], -1)),
        f"{module}.scales": _scale_tensor(scales),
        f"{module}.biases": _scale_tensor(biases),
    }


def _unpermute(data: Array, num_heads: int) -> Array:
    """Rows (or elements) from GGUF's rotary order, pairs side by side, to MLX's, halves of a head one after the other.

    The inverse of LlamaModel.permute in llama.cpp's convert_hf_to_gguf.py. Quantised rows move whole.
    """
    pairs: Array = data.reshape(num_heads, data.shape[0] // num_heads // 2, 2, -1)
    rows: Array = pairs.swapaxes(1, 2).reshape(data.shape)
    return rows


def _float_tensor(tensor: ReaderTensor, data: Array, vectors: GGMLQuantizationType) -> Tensor:
    kind = vectors if _is_wide_vector(tensor) else tensor.tensor_type
    if kind == GGMLQuantizationType.BF16:
        if tensor.tensor_type == GGMLQuantizationType.F32:
            return Tensor("BF16", (data.view(np.uint32) >> 16).astype("<u2"))
        return Tensor("BF16", np.ascontiguousarray(data).view("<u2"))
    return Tensor(FLOATS[kind], data.astype("<f2" if kind == GGMLQuantizationType.F16 else "<f4", order="C"))


def _widened(data: Array, kind: GGMLQuantizationType) -> Tensor:
    """The values, rounded to float16; as float32 where one is too large for that."""
    values = dequantize(data, kind)  # (rows, columns), float32
    with np.errstate(over="ignore"):
        narrow = values.astype("<f2")
    return Tensor("F16", narrow) if np.isfinite(narrow).all() else Tensor("F32", values.astype("<f4"))


def _scale_tensor(values: Array) -> Tensor:
    return Tensor("F16" if values.dtype == np.float16 else "F32", np.ascontiguousarray(values))


def _scale_of(blocks: Array, start: int) -> Array:
    """The float16 that each block has at byte `start`: (rows, groups)."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view("<f2")[..., 0]


def _nibbles(packed: Array) -> Array:
    """(rows, groups, 16) bytes, element k and k + 16 in byte k -> element 2k and 2k + 1 in byte k."""
    elements = np.concatenate([packed & 0x0F, packed >> 4], axis=-1)  # (rows, groups, 32)
    repacked: Array = elements[..., 0::2] | elements[..., 1::2] << 4
    return repacked


def _with_offset(scales: Array, offset: int) -> tuple[Array, Array]:
    """scales and biases = -offset * scales, in float16, or both in float32 where a bias is too large for float16."""
    wide = scales.astype(np.float32)
    biases = wide * np.float32(-offset)
    with np.errstate(over="ignore"):
        narrow = biases.astype(np.float16)
    return (scales, narrow) if (narrow == biases).all() else (wide, biases)


def _repack_q4_0(blocks: Array) -> tuple[Array, Array, Array]:
    scales, biases = _with_offset(_scale_of(blocks, 0), 8)
    return _nibbles(blocks[..., 2:]), scales, biases


def _repack_q4_1(blocks: Array) -> tuple[Array, Array, Array]:
    return _nibbles(blocks[..., 4:]), _scale_of(blocks, 0), _scale_of(blocks, 2)


def _repack_q8_0(blocks: Array) -> tuple[Array, Array, Array]:
    scales, biases = _with_offset(_scale_of(blocks, 0), 128)
    return blocks[..., 2:] ^ 0x80, scales, biases  # int8 + 128 as uint8 is the byte with its top bit flipped


_BLOCK_BYTES = {GGMLQuantizationType.Q4_0: 18, GGMLQuantizationType.Q4_1: 20, GGMLQuantizationType.Q8_0: 34}
_REPACK: dict[GGMLQuantizationType, Callable[[Array], tuple[Array, Array, Array]]] = {
    GGMLQuantizationType.Q4_0: _repack_q4_0,
    GGMLQuantizationType.Q4_1: _repack_q4_1,
    GGMLQuantizationType.Q8_0: _repack_q8_0,
}


def rotary_heads(gguf_name: str, architecture: str, num_heads: int, num_kv_heads: int) -> int | None:
    """The number of heads whose rows must be put back in order; None for tensors that are in order."""
    if architecture == "llama" and re.search(r"\.attn_[qk]\.", gguf_name):
        return num_heads if ".attn_q." in gguf_name else num_kv_heads
    return None
