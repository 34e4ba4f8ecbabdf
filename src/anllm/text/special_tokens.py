"""The special tokens that a model's JSON files name: their texts and the ids that end a turn.

Reads tokenizer_config.json, special_tokens_map.json, config.json and generation_config.json of one folder. Knows
nothing of tokenizers or templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from anllm.errors import ModelError


def read_json_object(folder: Path, name: str) -> dict[str, object]:
    """The object in folder/name, or {} if there is no such file. Raises ModelError where it is no JSON object."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{name} of the model {folder.name} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{name} of the model {folder.name} must hold a JSON object, got {type(value).__name__}.")
    return value


def special_token_texts(folder: Path) -> dict[str, str]:
    """bos_token, eos_token and so on -> text; tokenizer_config.json wins over the older special_tokens_map.json."""
    tokenizer_config = read_json_object(folder, "tokenizer_config.json")
    return {
        **_texts(read_json_object(folder, "special_tokens_map.json")),
        **_texts(tokenizer_config),
        **_texts(tokenizer_config.get("extra_special_tokens")),
        **_texts(tokenizer_config.get("model_specific_special_tokens")),
    }


def configured_ids(folder: Path, key: str) -> list[int]:
    """All ids that config.json (its text_config too) and generation_config.json give for `key`, the first first."""
    config = read_json_object(folder, "config.json")
    generation_config = read_json_object(folder, "generation_config.json")
    return [*_ids(config, key), *_ids(config.get("text_config"), key), *_ids(generation_config, key)]


def _texts(section: object) -> dict[str, str]:
    if not isinstance(section, Mapping):
        return {}
    found = {name: _text(value) for name, value in section.items() if name.endswith("_token")}
    return {name: text for name, text in found.items() if text is not None}


def _text(value: object) -> str | None:
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _ids(section: object, key: str) -> list[int]:
    value = section.get(key) if isinstance(section, Mapping) else None
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]
