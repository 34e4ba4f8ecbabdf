"""A .gguf file -> a model folder in mlx-lm's form. Without MLX.

Knows the order of the work; what a tensor, a setting or a token becomes is in gguf_weights, gguf_config and
gguf_tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path

from anllm.errors import ModelError
from anllm.store import safetensors_file
from anllm.store.gguf_config import generation_config, head_counts, model_config
from anllm.store.gguf_file import GGUFFile
from anllm.store.gguf_tokenizer import build_tokenizer, tokenizer_config
from anllm.store.gguf_weights import module_names, repack, rotary_heads, vector_dtype
from anllm.store.progress import Progress


def convert(path: Path, folder: Path, progress: Progress) -> None:
    """Write config, weights and tokenizer of the GGUF file `path` into `folder`, which exists.

    Everything is checked before the first weight is converted. Raises ModelError for what can't be converted.
    """
    gguf_file = GGUFFile(path)
    if (gguf_file.integer("split.count") or 1) > 1:
        raise ModelError(f"'{gguf_file.name}' is one part of several; join them with llama-gguf-split --merge first.")
    names = module_names(gguf_file)
    config = model_config(gguf_file, names)
    progress.stage("Converting the model: tokenizer", None)
    # Not by its own save(), which raises a bare Exception where the disk is full.
    (folder / "tokenizer.json").write_text(build_tokenizer(gguf_file).to_str(pretty=True), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", tokenizer_config(gguf_file))
    if generation := generation_config(gguf_file):
        _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "config.json", config)
    _write_weights(gguf_file, names, folder / "model.safetensors", progress)


def _write_weights(gguf_file: GGUFFile, names: dict[str, str], path: Path, progress: Progress) -> None:
    progress.stage("Converting the model: weights", sum(gguf_file.tensors[name].n_bytes for name in names))
    vectors = vector_dtype({name: gguf_file.tensors[name] for name in names})
    num_heads, num_kv_heads = head_counts(gguf_file)
    tensors = {}
    for theirs, ours in names.items():
        heads = rotary_heads(theirs, gguf_file.architecture, num_heads, num_kv_heads)
        tensors.update(repack(gguf_file.tensors[theirs], ours, vectors, heads))
        progress.advance(gguf_file.tensors[theirs].n_bytes)
    safetensors_file.write(path, tensors)


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
