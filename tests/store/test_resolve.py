from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from anllm.errors import ModelError
from anllm.store.folder import check_folder
from anllm.store.resolve import EMBEDDED_NAME, ModelSource, SourceKind, fetch, parse_source


def test_no_model_is_the_embedded_default():
    assert parse_source(None) == ModelSource("SmolLM2-135M-Instruct", SourceKind.EMBEDDED, "")


def test_org_and_name_are_a_hub_id():
    name = "mlx-community/Qwen2.5-0.5B-Instruct-4bit"
    assert parse_source(name) == ModelSource(name, SourceKind.HUB, name)


def test_a_gguf_file_is_named_after_itself(make_gguf):
    path, _ = make_gguf("Tiny-1B.Q4_0.gguf")
    assert parse_source(str(path)) == ModelSource("Tiny-1B.Q4_0", SourceKind.GGUF, str(path))


def test_a_folder_is_named_after_itself_however_it_is_written(make_folder, tmp_path, monkeypatch):
    folder = make_folder("org/name")
    source = ModelSource("name", SourceKind.FOLDER, str(folder.resolve()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for model in (str(folder), "org/name", "./org/name", "org/name/", "~/org/name"):
        assert parse_source(model) == source
    monkeypatch.chdir(folder)
    assert parse_source(".") == source


@pytest.mark.parametrize("model", ["./nothing", "/no/such/folder", "~/nothing", "a/b/c", "../x"])
def test_what_looks_like_a_path_must_be_there(model, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # whatever lies beside the tests' own folder
    with pytest.raises(ModelError, match="There is no model folder"):
        parse_source(model)


@pytest.mark.parametrize("model", ["nothing.gguf", "/no/such.GGUF", "org/name/file.gguf"])
def test_a_gguf_file_must_be_there(model):
    with pytest.raises(ModelError, match=f"There is no file '{model}'"):
        parse_source(model)


def test_a_folder_that_is_not_whole_is_refused_at_once(make_folder):
    folder = make_folder()
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        parse_source(str(folder))


@pytest.mark.parametrize("model", ["", "gpt-4", "org/", "/", "a b/c", "org/na:me", "é/x"])
def test_anything_else_is_refused_with_the_forms_that_are_allowed(model):
    with pytest.raises(ModelError) as caught:
        parse_source(model)
    if model != "/":
        assert caught.value.message.startswith(f"'{model}' is no model: give a hub id (org/name)")


def test_a_local_folder_is_fetched_as_it_is(make_folder, progress, tmp_path):
    folder = make_folder()
    assert fetch(parse_source(str(folder)), progress, root=tmp_path / "cache") == folder.resolve()
    assert not (tmp_path / "cache").exists()
    assert (progress.stages, progress.is_done) == ([], True)


def test_a_gguf_file_is_converted_once_until_it_changes(make_gguf, progress, tmp_path):
    path, _ = make_gguf()
    source, root = parse_source(str(path)), tmp_path / "cache"
    folder = fetch(source, progress, root=root)
    check_folder(folder)
    assert folder.parent == root / "gguf"
    num_stages = len(progress.stages)
    assert fetch(source, progress, root=root) == folder
    assert len(progress.stages) == num_stages
    os.utime(path, (1, 1))
    assert fetch(source, progress, root=root) != folder


def test_a_gguf_file_that_is_refused_leaves_nothing_in_the_cache(make_gguf, progress, tmp_path):
    path, _ = make_gguf(architecture="gemma3")
    with pytest.raises(ModelError, match="gemma3"):
        fetch(parse_source(str(path)), progress, root=tmp_path / "cache")
    assert not any(entry.is_dir() for entry in (tmp_path / "cache" / "gguf").iterdir())


def test_a_disk_that_is_full_is_one_clear_sentence_and_leaves_nothing(make_gguf, progress, tmp_path):
    path, _ = make_gguf()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # of each file: what a full disk does to a large one
    try:
        with pytest.raises(ModelError) as refusal:
            fetch(parse_source(str(path)), progress, root=tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refusal.value.message.startswith("Model tiny can't be stored in the cache (")
    assert "OSError" not in refusal.value.message
    assert refusal.value.message.endswith("GB are free there). Make room, or set XDG_CACHE_HOME to a folder with more.")
    assert not any(entry.is_dir() for entry in (tmp_path / "cache" / "gguf").iterdir())
    assert fetch(parse_source(str(path)), progress, root=tmp_path / "cache").is_dir()  # with room it works


def test_a_cache_that_cannot_be_written_is_one_clear_sentence(make_gguf, progress, tmp_path):
    path, _ = make_gguf()
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ModelError) as refusal:
        fetch(parse_source(str(path)), progress, root=tmp_path / "cache")
    assert refusal.value.message.startswith(f"Model tiny can't be stored, since {tmp_path / 'cache'}")
    assert "room" not in refusal.value.message


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_folder_that_belongs_to_somebody_else_is_not_called_full(make_gguf, progress, tmp_path, monkeypatch, number):
    def refuse(self, *arguments, **named):
        raise OSError(number, os.strerror(number), str(self))

    path, _ = make_gguf()
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ModelError) as refusal:
        fetch(parse_source(str(path)), progress, root=tmp_path / "cache")
    assert refusal.value.message == (
        f"Model tiny can't be stored, since {tmp_path / 'cache' / 'gguf'} can't be written to ({os.strerror(number)}). "
        "Give the folder to the user that anllm runs as, or set XDG_CACHE_HOME to another one."
    )


def test_parsing_a_name_imports_nothing_heavy():
    code = "import sys; from anllm.store.resolve import parse_source; parse_source('org/name'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "gguf", "tokenizers", "huggingface_hub", "mlx"} & set(modules)


def test_the_default_model_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_source(EMBEDDED_NAME) == parse_source(None)
    (tmp_path / EMBEDDED_NAME).mkdir()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        parse_source(EMBEDDED_NAME)  # a folder of that name is what is meant
