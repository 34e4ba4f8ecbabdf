"""The metadata of a GGUF file as the config.json and generation_config.json of mlx-lm.

A setting that changes the model's output is mapped or refused by name, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from anllm.errors import ModelError
from anllm.store.gguf_file import GGUFFile
from anllm.store.gguf_weights import BITS, GROUP_SIZE, ROPE_FACTORS

# Of every Llama 3.1 to 3.3 model; GGUF stores the resulting factors only.
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Tokens that end an answer whatever the file's eos says, which is often that of the base model: from llama.cpp's list.
END_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>")
CONTROL_TOKEN = 3


def model_config(gguf_file: GGUFFile, names: dict[str, str]) -> dict[str, object]:
    """config.json. names: as gguf_weights.module_names gives them."""
    arch = gguf_file.architecture
    num_heads, num_kv_heads = head_counts(gguf_file)
    hidden_size = gguf_file.required_integer(f"{arch}.embedding_length")
    head_dim = _head_dim(gguf_file, hidden_size // num_heads)
    theta = gguf_file.number(f"{arch}.rope.freq_base") or 10000.0
    config: dict[str, object] = {
        "model_type": arch,
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[arch]],
        "hidden_size": hidden_size,
        "num_hidden_layers": gguf_file.required_integer(f"{arch}.block_count"),
        "intermediate_size": gguf_file.required_integer(f"{arch}.feed_forward_length"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "rms_norm_eps": _rms_norm_eps(gguf_file),
        "vocab_size": int(gguf_file.tensors["token_embd.weight"].data.shape[0]),
        "max_position_embeddings": gguf_file.required_integer(f"{arch}.context_length"),
        "rope_theta": theta,
        "rope_traditional": False,
        "rope_scaling": _rope_scaling(gguf_file, head_dim, theta),
        "tie_word_embeddings": "output.weight" not in names,
        **_token_ids(gguf_file),
    }
    if arch == "llama":
        config["head_dim"] = head_dim
    elif head_dim * num_heads != hidden_size:
        raise _refusal(gguf_file, f"{arch}.attention.key_length = {head_dim}")
    quantization = _quantization(gguf_file, names)
    return config | ({"quantization": quantization} if quantization else {})


def generation_config(gguf_file: GGUFFile) -> dict[str, object]:
    """generation_config.json: with all tokens that end an answer. Empty where none is known."""
    ids = _token_ids(gguf_file)
    tokens, types = gguf_file.strings("tokenizer.ggml.tokens"), gguf_file.integers("tokenizer.ggml.token_type")
    named = [i for i, (token, kind) in enumerate(zip(tokens, types, strict=False)) if _ends_answer(token, kind)]
    known = [ids.get("eos_token_id"), gguf_file.integer("tokenizer.ggml.eot_token_id"), *named]
    eos = list(dict.fromkeys(token_id for token_id in known if token_id is not None))
    return ids | ({"eos_token_id": eos} if eos else {})


def head_counts(gguf_file: GGUFFile) -> tuple[int, int]:
    """Heads of q, and of k and v. Raises ModelError where they differ between layers."""
    arch = gguf_file.architecture
    num_heads = gguf_file.required_integer(f"{arch}.attention.head_count")
    return num_heads, gguf_file.integer(f"{arch}.attention.head_count_kv") or num_heads


def _rms_norm_eps(gguf_file: GGUFFile) -> float:
    key = f"{gguf_file.architecture}.attention.layer_norm_rms_epsilon"
    value = gguf_file.number(key)
    if value is None:
        raise ModelError(f"'{gguf_file.name}' has no {key}; it is no complete model.")
    return float(f"{value:.7g}")  # GGUF has a float32: 1e-05 reads as 9.999999747378752e-06


def _head_dim(gguf_file: GGUFFile, default: int) -> int:
    """The size of a head. Raises ModelError where keys and values, or the rotated part, have another one."""
    arch = gguf_file.architecture
    head_dim = gguf_file.integer(f"{arch}.attention.key_length") or default
    for key in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        if gguf_file.integer(key) not in (None, head_dim):
            raise _refusal(gguf_file, f"{key} = {gguf_file.integer(key)} with heads of {head_dim}")
    return head_dim


def _token_ids(gguf_file: GGUFFile) -> dict[str, object]:
    ids = {
        "bos_token_id": gguf_file.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf_file.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf_file.integer("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in ids.items() if value is not None}


def _ends_answer(token: str, kind: int) -> bool:
    return kind == CONTROL_TOKEN and token in END_TOKENS


def _rope_scaling(gguf_file: GGUFFile, head_dim: int, theta: float) -> dict[str, object] | None:
    arch = gguf_file.architecture
    factor = gguf_file.number(f"{arch}.rope.scaling.factor") or gguf_file.number(f"{arch}.rope.scale_linear") or 1.0
    # llama.cpp takes a factor without a type for linear scaling.
    kind = gguf_file.string(f"{arch}.rope.scaling.type") or "linear"
    if kind not in ("none", "linear"):
        raise _refusal(gguf_file, f"{arch}.rope.scaling.type = {kind}")
    linear = kind == "linear" and factor != 1.0
    if ROPE_FACTORS not in gguf_file.tensors:
        return {"rope_type": "linear", "type": "linear", "factor": factor} if linear else None
    factors = np.asarray(gguf_file.tensors[ROPE_FACTORS].data, dtype=np.float32)
    if linear:
        raise _refusal(gguf_file, f"{ROPE_FACTORS} and {arch}.rope.scaling.factor together")
    return _llama3_scaling(gguf_file, factors, head_dim, theta)


def _llama3_scaling(
    gguf_file: GGUFFile, factors: npt.NDArray[np.float32], head_dim: int, theta: float
) -> dict[str, object] | None:
    """The llama3 settings that give `factors`; None if they change nothing."""
    if (factors == 1.0).all():
        return None
    factor = float(factors.max())
    expected = llama3_factors(factor, head_dim, theta)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise _refusal(gguf_file, f"{ROPE_FACTORS} other than those of Llama 3")
    return {"rope_type": "llama3", "type": "llama3", "factor": factor, **LLAMA3_ROPE}


def llama3_factors(factor: float, head_dim: int, theta: float) -> npt.NDArray[np.float32]:
    """By what each rotary frequency is divided, (head_dim / 2,): LlamaModel.generate_extra_tensors of llama.cpp's
    convert_hf_to_gguf.py."""
    low, high = LLAMA3_ROPE["low_freq_factor"], LLAMA3_ROPE["high_freq_factor"]
    context = LLAMA3_ROPE["original_max_position_embeddings"]
    wavelens = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((context / wavelens - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _quantization(gguf_file: GGUFFile, names: dict[str, str]) -> dict[str, object] | None:
    """MLX's quantization section: the bits of most matrices, and an entry for each that has others."""
    bits = {
        ours.removesuffix(".weight"): BITS[gguf_file.tensors[theirs].tensor_type]
        for theirs, ours in names.items()
        if gguf_file.tensors[theirs].tensor_type in BITS
    }
    if not bits:
        return None
    usual = _most_common(bits.values())
    odd = {module: {"group_size": GROUP_SIZE, "bits": b} for module, b in bits.items() if b != usual}
    return {"group_size": GROUP_SIZE, "bits": usual, **odd}


def _most_common(values: Iterable[int]) -> int:
    counted = list(values)
    return max(sorted(set(counted)), key=counted.count)


def _refusal(gguf_file: GGUFFile, setting: str) -> ModelError:
    return ModelError(
        f"'{gguf_file.name}' has {setting}, which can't be read from GGUF: give the model's safetensors instead."
    )
