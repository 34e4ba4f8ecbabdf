"""The built chat in the package is that of web/: `make web` writes it, `make web-check` builds it a second time."""

import hashlib
import json
from pathlib import Path

from anllm.server.webui.bundle import DIST

WEB = Path(__file__).parents[3] / "web"
SOURCES = (
    "build",
    "src",
    "index.html",
    "package.json",
    "package-lock.json",
    "vite.config.ts",
)  # as source-digest.ts has


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_below(path: Path) -> list[Path]:
    return [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")]


def test_it_was_built_from_the_sources_as_they_are() -> None:
    files = [path for name in SOURCES for path in files_below(WEB / name)]
    lines = sorted(f"{path.relative_to(WEB).as_posix()}\n{sha256(path)}" for path in files)
    text = "".join(f"{line.partition(chr(10))[2]}  {line.partition(chr(10))[0]}\n" for line in lines)
    built_from = json.loads((DIST / "build.json").read_text())["sources"]
    assert hashlib.sha256(text.encode()).hexdigest() == built_from, (
        "web/ has changed: run make web, and commit src/ too"
    )


def test_its_files_are_as_they_were_built() -> None:
    files = json.loads((DIST / "build.json").read_text())["files"]
    there = {path.relative_to(DIST).as_posix(): sha256(path) for path in files_below(DIST)}
    assert there.pop("build.json")
    assert there == files
