"""Model folders for tests: tiny models, saved as users have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from runner.families import DENSE, Family, build

LLAMA = {**DENSE, "model_type": "llama", "tie_word_embeddings": False}


def save(
    folder: Path,
    *,
    bits: int | None = None,
    dtype: mx.Dtype = mx.float32,
    shards: int = 1,
    drop: tuple[str, ...] = (),
    add: dict[str, mx.array] | None = None,
    **config: Any,
) -> nn.Module:
    """Write a tiny Llama into `folder`; returns the model as it was written. `config` changes what config.json says and
    is built; `drop` and `add` change what the weight files hold."""
    config = {**LLAMA, **config}
    model = build(Family("llama", "", config), seed=1)
    model.set_dtype(dtype)
    if bits is not None:
        nn.quantize(model, group_size=32, bits=bits)
        config["quantization"] = {"group_size": 32, "bits": bits}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {**dict(tree_flatten(model.parameters())), **(add or {})}
    names = [name for name in weights if not any(name.startswith(prefix) for prefix in drop)]
    for shard in range(shards):
        suffix = "" if shards == 1 else f"-{shard + 1:05}-of-{shards:05}"
        part = {name: weights[name] for name in names[shard::shards]}
        mx.save_safetensors(str(folder / f"model{suffix}.safetensors"), part)
    return model


def edit_config(folder: Path, **changes: Any) -> None:
    """Change what config.json says after the fact; None removes."""
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
