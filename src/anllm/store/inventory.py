"""Which models lie on this disk: those that anllm built in its own cache, and those in the hub's cache.

Reads names, sizes, configs and headers only. Knows nothing of folders that the user keeps elsewhere: what anllm did not
put there, it does not list, and does not remove.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anllm.errors import ModelError
from anllm.store.cache import cache_folder
from anllm.store.folder import check_folder
from anllm.store.resolve import SourceKind
from anllm.store.safetensors_file import dtype_sizes


@dataclass(frozen=True, slots=True)
class StoredModel:
    """name: as `rm` takes it; for all but GGUF also as `serve` takes it. kind: EMBEDDED, GGUF (converted) or HUB.

    path: what is removed with it. folder: what a loader opens; None if it is not whole.
    architecture: config's model_type; weights: their form on disk, like "4-bit" or "bfloat16"; "" if nobody can tell.
    last_used_s: seconds since 1970; file systems tell it to about a day.
    """

    name: str
    kind: SourceKind
    path: Path
    folder: Path | None
    size_bytes: int
    architecture: str
    weights: str
    last_used_s: float

    @property
    def is_whole(self) -> bool:
        return self.folder is not None


def stored_models(root: Path | None = None, hub_root: Path | None = None) -> list[StoredModel]:
    """All of them, the one used last first. root, hub_root: None are the platform's, and the hub's by its variables."""
    found = [*_own(cache_folder(root)), *_of_hub(hub_root)]
    return sorted(found, key=lambda model: -model.last_used_s)


def find_stored(name: str, models: list[StoredModel]) -> StoredModel:
    """The one of that name. Raises ModelError, which names what there is."""
    for model in models:
        if model.name == name:
            return model
    known = ", ".join(model.name for model in models) or "none"
    if Path(name).exists():
        raise ModelError(f"'{name}' is a file or folder of yours, not one of anllm's cache; remove it yourself.")
    raise ModelError(f"There is no model '{name}' in the caches. There are: {known}.")


def remove(model: StoredModel) -> None:
    """Delete it from the disk. Raises ModelError if the disk refuses."""
    try:
        shutil.rmtree(model.path)
        for beside in (f"{model.path.name}.lock",):
            model.path.with_name(beside).unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"Model {model.name} can't be removed ({error.strerror}): check {model.path}.") from error


# -- the two caches ----------------------------------------------------------------------------------------------------


def _own(root: Path) -> Iterator[StoredModel]:
    for place, kind in (("models", SourceKind.EMBEDDED), ("gguf", SourceKind.GGUF)):
        for path in sorted((root / place).glob("*/")):
            if path.name.endswith(".part"):
                continue
            files = [file.stat() for file in path.rglob("*") if file.is_file()]
            size = sum(stat.st_size for stat in files)
            used = max((max(stat.st_atime, stat.st_mtime) for stat in files), default=0.0)
            yield _model(path.name, kind, path, path, size, used)


def _of_hub(hub_root: Path | None) -> Iterator[StoredModel]:
    """Repositories that hold a model, or what has come of one."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repos = scan_cache_dir(hub_root or Path(constants.HF_HUB_CACHE)).repos
    except CacheNotFound:
        return
    for repo in repos:
        revisions = sorted(repo.revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
        folder = revisions[-1].snapshot_path if revisions else repo.repo_path
        if repo.repo_type == "model" and (not revisions or (folder / "config.json").exists()):
            yield _model(repo.repo_id, SourceKind.HUB, repo.repo_path, folder, repo.size_on_disk, repo.last_accessed)


def _model(name: str, kind: SourceKind, path: Path, folder: Path, size: int, used_s: float) -> StoredModel:
    try:
        check_folder(folder)
    except ModelError:
        return StoredModel(name, kind, path, None, size, "", "", used_s)
    config = json.loads((folder / "config.json").read_bytes())
    return StoredModel(name, kind, path, folder, size, config["model_type"], stored_weights(folder, config), used_s)


def stored_weights(folder: Path, config: dict[str, object]) -> str:
    """The form of most of the weights on disk: "4-bit", or a dtype such as "bfloat16"."""
    quantization = config.get("quantization") or config.get("quantization_config")
    if isinstance(quantization, dict):
        bits = quantization.get("bits") or quantization.get("quant_method")
        return f"{bits}-bit" if isinstance(bits, int) else str(bits or "quantised")
    sizes: dict[str, int] = {}
    for file in folder.glob("model*.safetensors"):
        for dtype, num_bytes in dtype_sizes(file).items():
            sizes[dtype] = sizes.get(dtype, 0) + num_bytes
    return max(sizes, key=lambda dtype: sizes[dtype], default="")
