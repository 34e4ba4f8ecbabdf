"""Where MLX keeps the kernels that it compiles: a folder of this process's own, filled from the cache.

MLX takes a folder below /tmp, of a name that everybody can know. What another user has put there would be loaded as
code, and where another one was first it can't be written to. A /tmp that is read-only or may not be executed from is no
use, and a container's is gone with it. Two processes that write one kernel at once, or one that is ended while it
writes, leave half a file, at which every later start fails. So each process writes where nobody else does, and what it
has loaded joins the cache whole.

Does not know what MLX compiles. For processes of anllm's own, since TMPDIR is set for all of the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from anllm.runner.native_library import processor_key

logger = logging.getLogger(__name__)

GPUS = Path("/proc/driver/nvidia")  # version, and information about each GPU
LOCK = "in-use"


@contextmanager
def kernels_kept(cache_folder: Path) -> Iterator[Callable[[], None]]:
    """MLX compiles into a folder of this process's inside. What is given puts what has been compiled into the cache;
    call it where nothing is being compiled. Where the cache can't be written to, MLX's own place stays."""
    if platform.system() != "Linux":  # Metal's kernels come compiled
        yield lambda: None
        return
    folder = cache_folder / "kernels"
    kept = folder / machine_key()
    try:
        own, lock = _make_own(folder)
    except OSError as error:
        logger.warning("compiled kernels can't be kept in %s (%s)", folder, error.strerror or error)
        yield lambda: None
        return
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(own)
    try:
        _copy(kept, own)
        yield lambda: _copy(own / "mlx", kept / "mlx")
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        shutil.rmtree(own, ignore_errors=True)
        os.close(lock)


def machine_key() -> str:
    """Of what kernels are made for: a home folder may be that of many machines."""
    parts = [processor_key(), *platform.libc_ver()]
    for file in (GPUS / "version", *sorted(GPUS.glob("gpus/*/information"))):
        try:
            parts += [line for line in file.read_text().splitlines() if line.startswith(("NVRM", "Model"))]
        except OSError:  # no GPU
            continue
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _make_own(folder: Path) -> tuple[Path, int]:
    """A new folder, and a descriptor that marks it as in use until it is closed, or the process ends. Removes those of
    processes that have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        for other in folder.glob("process-*"):
            _remove_if_left(other)
        own = Path(tempfile.mkdtemp(prefix="process-", dir=folder))
        lock = os.open(own / LOCK, os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return own, lock


def _remove_if_left(folder: Path) -> None:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except OSError:  # of another user, or half removed
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:  # its process lives
        pass
    finally:
        os.close(lock)


def _copy(source: Path, target: Path) -> None:
    """All files of `source` that `target` does not have, each whole from the moment it is there. What does not fit is
    left out: MLX compiles it again."""
    try:
        _copy_new(source, target)
    except OSError as error:
        logger.warning("not all compiled kernels were kept in the cache (%s)", error.strerror or error)


def _copy_new(source: Path, target: Path) -> None:
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        there = target / file.relative_to(source)
        if there.exists():
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=there.parent, delete=False) as part:
            part.write(file.read_bytes())
        os.replace(part.name, there)
