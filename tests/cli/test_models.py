"""`anllm list`, `rm` and `info`: what they print, and what they ask before they remove."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anllm.cli import main
from store.test_inventory import HUB_ID, make_hub, make_model


def run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(main, arguments, input=answer, prog_name="anllm")


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the caches are, both empty."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "hub").mkdir()
    return tmp_path


def test_an_empty_list_says_what_to_do(caches: Path) -> None:
    result = run("list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "anllm pull" in result.stderr
    assert json.loads(run("list", "--json").stdout) == []


def test_list_is_a_table_or_json(caches: Path) -> None:
    make_model(caches / "anllm" / "gguf" / "file-0123", quantization={"bits": 4})
    snapshot = make_hub(caches / "hub")
    lines = run("list").stdout.splitlines()
    assert lines[0].split() == ["model", "from", "type", "size", "used"]
    assert sorted(" ".join(line.split()) for line in lines[2:]) == [
        "file-0123 GGUF llama · 4-bit 382 B just now",
        f"{HUB_ID} hub llama · bfloat16 353 B just now",
    ]
    entries = {entry["name"]: entry for entry in json.loads(run("list", "--json").stdout)}
    assert entries[HUB_ID]["path"] == str(snapshot)
    assert entries[HUB_ID]["is_whole"] is True
    assert entries[HUB_ID]["size_bytes"] == 353


def test_rm_asks_and_removes(caches: Path) -> None:
    folder = make_model(caches / "anllm" / "gguf" / "file-0123")
    refused = run("rm", "file-0123", answer="n\n")
    assert refused.exit_code == 1
    assert str(folder) in refused.output
    assert folder.exists()
    assert run("rm", "file-0123", "--yes").stdout.startswith("Removed file-0123: ")
    assert not folder.exists()


def test_rm_of_an_unknown_name_is_an_error(caches: Path) -> None:
    result = run("rm", "what/ever", "--yes")
    assert result.exit_code == 1
    assert "There is no model 'what/ever' in the caches." in result.stderr
