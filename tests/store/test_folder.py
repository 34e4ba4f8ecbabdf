from __future__ import annotations

import json

import pytest

from anllm.errors import ModelError
from anllm.store.folder import check_folder


def test_a_whole_folder_passes(make_folder):
    check_folder(make_folder())


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(make_folder, missing):
    folder = make_folder()
    (folder / missing).unlink()
    with pytest.raises(ModelError, match="'tiny-model' has no") as caught:
        check_folder(folder)
    assert missing.split(".")[0] in caught.value.message
    assert str(folder) not in caught.value.message


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": 1}', '{"hidden_size": 64}', ""])
def test_a_config_that_names_no_model_type_is_refused(make_folder, text):
    folder = make_folder()
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json of model folder 'tiny-model'"):
        check_folder(folder)


@pytest.mark.parametrize("change", [-1, -16, 1])
def test_weights_of_another_size_than_their_header_says_are_half_downloaded(make_folder, change):
    folder = make_folder()
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(ModelError, match=r"model\.safetensors of model folder 'tiny-model' is damaged or half downl"):
        check_folder(folder)


@pytest.mark.parametrize("data", [b"", b"1234567", b"version https://git-lfs", bytes(8), b"\x05" + bytes(7) + b"[1,2]"])
def test_weights_without_a_readable_header_are_refused(make_folder, data):
    folder = make_folder()
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="is not a safetensors file"):
        check_folder(folder)


def test_a_shard_that_the_index_names_must_be_there(make_folder):
    folder = make_folder()
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ModelError, match=r"lacks 1 of its weight files, first model-00002-of-00002\.safetensors"):
        check_folder(folder)
    (folder / shards["b"]).write_bytes((folder / shards["a"]).read_bytes())
    check_folder(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no model folder 'nothing'"):
        check_folder(tmp_path / "nothing")
