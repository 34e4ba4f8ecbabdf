"""What is found on a disk, and what removing takes away. Folders of a few bytes, in the layout of the caches."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from anllm.errors import ModelError
from anllm.store.inventory import find_stored, remove, stored_models, stored_weights
from anllm.store.resolve import SourceKind
from anllm.store.safetensors_file import Tensor, dtype_sizes, write

HUB_ID = "org/name"


def make_model(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "tokenizer.json").write_text("{}")
    norm, weight = np.zeros(4, np.float32), np.zeros((8, 8), np.uint16)
    write(folder / "model.safetensors", {"norm": Tensor("F32", norm), "weight": Tensor("BF16", weight)})
    return folder


def make_hub(root: Path, hub_id: str = HUB_ID, **config: object) -> Path:
    """As the hub's library lays it out: blobs, and links to them for each revision."""
    repo = root / f"models--{hub_id.replace('/', '--')}"
    made = make_model(root / "made", **config)
    snapshot = repo / "snapshots" / "abc"
    for folder in (repo / "blobs", repo / "refs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    for i, file in enumerate(sorted(made.iterdir())):
        blob = repo / "blobs" / f"b{i}"
        file.rename(blob)
        os.symlink(os.path.relpath(blob, snapshot), snapshot / file.name)
    made.rmdir()
    return snapshot


def test_both_caches_are_listed_the_one_used_last_first(tmp_path: Path) -> None:
    root, hub = tmp_path / "own", tmp_path / "hub"
    default = make_model(root / "models" / "Default", quantization={"bits": 4, "group_size": 64})
    converted = make_model(root / "gguf" / "file-0123", model_type="qwen2")
    snapshot = make_hub(hub)
    for folder, time_s in ((default, 1000), (converted, 3000), (snapshot, 2000)):
        for file in folder.iterdir():
            os.utime(file, (time_s, time_s))
    found = stored_models(root, hub)
    assert [(m.name, m.kind, m.architecture, m.weights) for m in found] == [
        ("file-0123", SourceKind.GGUF, "qwen2", "bfloat16"),
        (HUB_ID, SourceKind.HUB, "llama", "bfloat16"),
        ("Default", SourceKind.EMBEDDED, "llama", "4-bit"),
    ]
    assert [m.folder for m in found] == [converted, snapshot, default]
    size = sum(file.stat().st_size for file in default.iterdir())
    assert found[2].size_bytes == size
    assert found[1].size_bytes == sum(file.stat().st_size for file in snapshot.iterdir())


def test_without_caches_there_is_nothing(tmp_path: Path) -> None:
    assert stored_models(tmp_path / "own", tmp_path / "hub") == []


def test_what_is_being_built_and_what_is_no_model_is_not_listed(tmp_path: Path) -> None:
    root, hub = tmp_path / "own", tmp_path / "hub"
    (root / "gguf" / "file.part").mkdir(parents=True)
    snapshot = make_hub(hub)
    (snapshot / "config.json").unlink()
    assert stored_models(root, hub) == []


def test_a_broken_download_is_listed_as_such_and_can_be_removed(tmp_path: Path) -> None:
    snapshot = make_hub(tmp_path / "hub")
    (snapshot / "model.safetensors").unlink()
    (model,) = stored_models(tmp_path, tmp_path / "hub")
    assert not model.is_whole
    remove(model)
    assert stored_models(tmp_path, tmp_path / "hub") == []


def test_removing_takes_one_model_and_its_lock(tmp_path: Path) -> None:
    make_model(tmp_path / "gguf" / "one")
    make_model(tmp_path / "gguf" / "other")
    (tmp_path / "gguf" / "one.lock").touch()
    models = stored_models(tmp_path, tmp_path / "hub")
    remove(find_stored("one", models))
    assert [path.name for path in (tmp_path / "gguf").iterdir()] == ["other"]


def test_an_unknown_name_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    make_model(tmp_path / "gguf" / "one")
    models = stored_models(tmp_path, tmp_path / "hub")
    with pytest.raises(ModelError, match=r"no model 'two' in the caches\. There are: one\."):
        find_stored("two", models)
    with pytest.raises(ModelError, match="of yours, not one of anllm's cache"):
        find_stored(str(tmp_path), models)


def test_the_form_of_weights_is_that_of_most_bytes(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    assert dtype_sizes(folder / "model.safetensors") == {"float32": 16, "bfloat16": 128}
    assert stored_weights(folder, {}) == "bfloat16"
    assert stored_weights(folder, {"quantization_config": {"quant_method": "mxfp4"}}) == "mxfp4"
