"""Makes small model files: a Llama-shaped GGUF with random weights, and folders that look like models."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, HEADS, KV_HEADS, LAYERS, FFN = 64, 4, 2, 2, 96
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"]
BYTE_TOKENS = sorted(ByteLevel.alphabet())


@dataclass
class GGUFModel:
    """What make_gguf writes. weights: in the order of rows that Hugging Face and MLX have, float32."""

    architecture: str = "llama"
    matrix_type: Kind = Kind.Q4_0
    embedding_type: Kind = Kind.Q8_0
    vector_type: Kind = Kind.F32
    is_tied: bool = True
    metadata: dict[str, object] = field(default_factory=dict)  # beside the usual; None takes a usual one away
    extra_tensors: dict[str, np.ndarray] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    tokens: list[str] = field(default_factory=lambda: [*SPECIAL_TOKENS, *BYTE_TOKENS, *_merged(MERGES)])
    token_types: list[int] | None = None
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def usual_metadata(self) -> dict[str, object]:
        arch = self.architecture
        special = [3] * len(SPECIAL_TOKENS)
        return {
            f"{arch}.block_count": LAYERS,
            f"{arch}.context_length": 512,
            f"{arch}.embedding_length": HIDDEN,
            f"{arch}.feed_forward_length": FFN,
            f"{arch}.attention.head_count": HEADS,
            f"{arch}.attention.head_count_kv": KV_HEADS,
            f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{arch}.rope.freq_base": 100000.0,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.token_type": self.token_types or special + [1] * (len(self.tokens) - len(special)),
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.chat_template": "{{ messages[0].content }}",
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        kv = HIDDEN // HEADS * KV_HEADS
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(self.tokens), HIDDEN)}
        shapes["output_norm.weight"] = (HIDDEN,)
        if not self.is_tied:
            shapes["output.weight"] = (len(self.tokens), HIDDEN)
        for i in range(LAYERS):
            layer = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (kv, HIDDEN)}
            layer |= {"attn_v": (kv, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (FFN, HIDDEN)}
            layer |= {"ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN)}
            shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
            if self.architecture == "qwen2":
                shapes |= {f"blk.{i}.attn_{x}.bias": (n,) for x, n in (("q", HIDDEN), ("k", kv), ("v", kv))}
        return {name: shape for name, shape in shapes.items() if name not in self.without}

    def kind_of(self, name: str, shape: tuple[int, ...]) -> Kind:
        if len(shape) == 1:
            return self.vector_type
        return self.embedding_type if name in ("token_embd.weight", "output.weight") else self.matrix_type


def _merged(merges: list[str]) -> list[str]:
    return [merge.replace(" ", "") for merge in merges]


def permute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py."""
    return rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path: Path, model: GGUFModel) -> None:
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, model.architecture)
    for key, value in (model.usual_metadata() | model.metadata).items():
        _add_value(writer, key, value)
    for name, shape in model.shapes().items():
        values = (rng.standard_normal(shape) * 0.25).astype(np.float16).astype(np.float32)
        model.weights[name] = values
        if model.architecture == "llama" and ("attn_q." in name or "attn_k." in name):
            values = permute(values, HEADS if "attn_q." in name else KV_HEADS)
        kind = model.kind_of(name, shape)
        if kind in (Kind.F32, Kind.F16):
            writer.add_tensor(name, gguf.quants.quantize(values, kind))
        elif kind == Kind.Q2_K:  # gguf can't quantise to it; any bytes do
            writer.add_tensor(name, np.zeros((shape[0], 84), dtype=np.uint8), raw_dtype=kind)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name, values in model.extra_tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., tuple[Path, GGUFModel]]:
    """make_gguf(matrix_type=..., ...) -> the file and what is in it; the keywords are GGUFModel's fields."""

    def make(name: str = "tiny.gguf", **fields: object) -> tuple[Path, GGUFModel]:
        model = GGUFModel(**fields)
        write_gguf(tmp_path / name, model)
        return tmp_path / name, model

    return make


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """make_folder() -> a folder that looks like a whole model."""

    def make(name: str = "tiny-model") -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(safetensors_bytes())
        return folder

    return make


def safetensors_bytes() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


class RecordingProgress:
    """Keeps what it is told: [label, total, sum of the amounts] for each stage."""

    def __init__(self) -> None:
        self.stages: list[list[object]] = []
        self.is_done = False

    def stage(self, label: str, total: int | None) -> None:
        self.stages.append([label, total, 0])

    def advance(self, amount: int) -> None:
        assert amount > 0
        self.stages[-1][2] += amount

    def done(self) -> None:
        self.is_done = True


@pytest.fixture
def progress() -> RecordingProgress:
    return RecordingProgress()
