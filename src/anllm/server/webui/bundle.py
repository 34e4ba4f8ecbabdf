"""The built files of the page, in memory. `make web` writes them into dist/."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

DIST = Path(__file__).parent / "dist"
INDEX = "index.html"
# Not by the mimetypes module, which asks the machine.
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True)
class WebFile:
    name: str
    content: bytes

    @property
    def media_type(self) -> str:
        return _TYPES[Path(self.name).suffix]

    @property
    def is_hashed(self) -> bool:
        """Whether another content would have another name."""
        return self.name.startswith("assets/") and not self.name.endswith(".txt")

    @cached_property
    def etag(self) -> str:
        """Weak: the compressed form has the same."""
        return f'W/"{hashlib.sha256(self.content).hexdigest()[:20]}"'

    @cached_property
    def compressed(self) -> bytes | None:
        """With gzip; None where that saves nothing, as with fonts."""
        packed = gzip.compress(self.content, mtime=0)
        return packed if len(packed) < 0.9 * len(self.content) else None


@cache
def web_files() -> Mapping[str, WebFile]:
    """By name, `index.html` and `assets/...`. Read and compressed once, at the first call: some 30 ms."""
    paths = [path for path in sorted(DIST.rglob("*")) if path.suffix in _TYPES]
    files = {name: WebFile(name, path.read_bytes()) for path in paths for name in [path.relative_to(DIST).as_posix()]}
    for file in files.values():
        _ = file.compressed
    return files
