"""Is a model folder whole? Reads names, sizes and headers only, so it is quick for any model.

Does not know which architectures can be loaded, nor whether the values in a file are right.
"""

from __future__ import annotations

import json
from pathlib import Path

from anllm.errors import ModelError
from anllm.store import safetensors_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
AGAIN = "download it again"


def check_folder(folder: Path) -> None:
    """Return if `folder` holds a config, whole weights and a tokenizer. Raises ModelError otherwise."""
    if not folder.is_dir():
        raise ModelError(f"There is no model folder '{folder.name}'; check the path.")
    _check_config(folder)
    _check_shards(folder)
    for weights in sorted(folder.glob("model*.safetensors")):
        _check_whole(folder, weights)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(f"Model folder '{folder.name}' has no tokenizer ({' or '.join(TOKENIZER_FILES)}); {AGAIN}.")


def _check_config(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"Folder '{folder.name}' has no config.json, so it is no model folder; give one with config.json, "
            "model*.safetensors and tokenizer files."
        )
    config = _read_json(folder, "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"config.json of model folder '{folder.name}' names no model_type; {AGAIN}.")


def _check_shards(folder: Path) -> None:
    if not any(folder.glob("model*.safetensors")):
        raise ModelError(
            f"Model folder '{folder.name}' has no model*.safetensors; give a folder with safetensors weights, or a "
            ".gguf file."
        )
    index = "model.safetensors.index.json"
    if not (folder / index).is_file():
        return
    weight_map = _read_json(folder, index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index} of model folder '{folder.name}' has no weight_map; {AGAIN}.")
    missing = sorted({str(shard) for shard in weight_map.values() if not (folder / str(shard)).is_file()})
    if missing:
        raise ModelError(
            f"Model folder '{folder.name}' lacks {len(missing)} of its weight files, first {missing[0]}; {AGAIN}."
        )


def _check_whole(folder: Path, weights: Path) -> None:
    expected = safetensors_file.expected_size(weights)
    if expected is None:
        raise ModelError(f"{weights.name} of model folder '{folder.name}' is not a safetensors file; {AGAIN}.")
    size = weights.stat().st_size
    if size != expected:
        raise ModelError(
            f"{weights.name} of model folder '{folder.name}' is damaged or half downloaded ({size} bytes, its header "
            f"says {expected}); {AGAIN}."
        )


def _read_json(folder: Path, name: str) -> dict[str, object]:
    try:
        value = json.loads((folder / name).read_bytes())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ModelError(f"{name} of model folder '{folder.name}' is not a JSON object; {AGAIN}.")
    return value
