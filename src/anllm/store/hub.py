"""A model of the Hugging Face hub -> its folder in the hub's own cache.

HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are honoured by the library. What is cached whole is used as it is: no network.
"""

from __future__ import annotations

import threading
from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub import errors as hub_errors
from tqdm import tqdm  # type: ignore[import-untyped] # it comes without types

from anllm.errors import DownloadError, ModelError
from anllm.store.cache import may_not_write
from anllm.store.folder import check_folder
from anllm.store.progress import Progress

# The base of all errors of the HTTP library below; which library that is depends on the hub library's version.
_HTTPError: type[Exception] = hub_errors.HTTPError  # type: ignore[attr-defined]
# RuntimeError: a transfer through hf_xet that breaks off.
_FETCH_ERRORS = (_HTTPError, hub_errors.HFValidationError, hub_errors.XetDownloadError, OSError, RuntimeError)

# mlx_lm.utils.DEFAULT_ALLOW_PATTERNS of mlx-lm 0.32: what its loader may read.
ALLOW_PATTERNS = [
    "*.json",
    "model*.safetensors",
    "*.py",
    "tokenizer.model",
    "*.tiktoken",
    "tiktoken.model",
    "*.txt",
    "*.jsonl",
    "*.jinja",
]


def fetch_from_hub(repo_id: str, progress: Progress) -> Path:
    """The folder of `repo_id`, downloaded if it is not cached whole. Raises DownloadError, or ModelError if the hub's
    own files are no model."""
    cached = _cached(repo_id)
    if cached is not None:
        return cached
    try:
        progress.stage(f"Downloading {repo_id}", _size_bytes(repo_id))
        folder = Path(snapshot_download(repo_id, allow_patterns=ALLOW_PATTERNS, tqdm_class=_bars_for(progress)))
    except _FETCH_ERRORS as error:
        raise DownloadError(_explain(repo_id, error)) from error
    check_folder(folder)
    return folder


def _cached(repo_id: str) -> Path | None:
    try:
        folder = Path(snapshot_download(repo_id, allow_patterns=ALLOW_PATTERNS, local_files_only=True))
        check_folder(folder)
    except (hub_errors.LocalEntryNotFoundError, hub_errors.HFValidationError, ModelError):
        return None
    return folder


def _size_bytes(repo_id: str) -> int:
    siblings = HfApi().model_info(repo_id, files_metadata=True).siblings or []
    return sum(sibling.size or 0 for sibling in siblings if _is_allowed(sibling.rfilename))


def _is_allowed(file_name: str) -> bool:
    return any(fnmatchcase(file_name, pattern) for pattern in ALLOW_PATTERNS)


def _bars_for(progress: Progress) -> type[tqdm]:
    """A bar class that draws nothing. The library keeps several bars over the same bytes (received, written) and one
    over files; what counts is the furthest byte bar. Its worker threads call update()."""
    lock = threading.RLock()
    furthest = 0

    class Bar(tqdm):  # type: ignore[misc] # untyped, as above
        monitor_interval = 0  # else tqdm starts a thread

        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **{**options, "disable": False})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            return True

        def close(self) -> None:  # the drawn bar would leave a line behind
            self.disable = True

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal furthest
            with lock:
                super().update(n)
                if self.unit == "B" and self.n > furthest:
                    progress.advance(int(self.n) - furthest)
                    furthest = int(self.n)
            return None

    Bar.set_lock(lock)  # else tqdm makes one for processes
    return Bar


def _explain(repo_id: str, error: Exception) -> str:
    if isinstance(error, hub_errors.GatedRepoError):
        return f"Model {repo_id} is gated: accept its terms on its page of the hub, then set HF_TOKEN to your token."
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        return f"The hub has no model {repo_id}, or it is private: check the name, or set HF_TOKEN to your token."
    if isinstance(error, hub_errors.HFValidationError):
        return f"'{repo_id}' can't be the name of a model on the hub; names look like org/name."
    if isinstance(error, hub_errors.OfflineModeIsEnabled):
        return f"Model {repo_id} is not in the cache and HF_HUB_OFFLINE is set: unset it, or give a folder."
    if isinstance(error, hub_errors.HfHubHTTPError):
        return f"The hub refused model {repo_id} with HTTP status {error.response.status_code}: try again later."
    if isinstance(error, hub_errors.LocalEntryNotFoundError | _HTTPError):
        return f"Model {repo_id} is not in the cache and the hub can't be reached: check the network, or give a folder."
    if isinstance(error, OSError) and may_not_write(error):
        folder = error.filename or constants.HF_HUB_CACHE
        return (
            f"Model {repo_id} can't be stored, since {folder} can't be written to ({error.strerror}). Give the folder "
            "to the user that anllm runs as, or set HF_HOME to another one."
        )
    if isinstance(error, OSError) and error.strerror:
        return f"Model {repo_id} can't be stored ({error.strerror}): make room, or set HF_HOME to another folder."
    return f"The download of model {repo_id} broke off ({type(error).__name__}): try again."
