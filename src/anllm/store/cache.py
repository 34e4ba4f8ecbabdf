"""The folder for what anllm itself builds, and building there so that nobody ever sees half a result.

Does not know what is built. Safe from several threads and processes at once.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cache_folder(root: Path | None) -> Path:
    """root, or the platform's place for caches. Creates nothing."""
    if root is not None:
        return root
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "anllm"
    # Read here and not in config.py: it is the platform's convention for where caches lie, like the home folder that
    # Path.home() reads, and no setting of anllm.
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "anllm"


def may_not_write(error: OSError) -> bool:
    """Whether it is for want of a right, or of the folder itself, and not of room."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)


def build_once(target: Path, build: Callable[[Path], None]) -> None:
    """Have `target` built, unless it is there. Whoever comes second waits for the first.

    build gets an empty sibling folder that becomes `target` when it returns. If it raises, or the process dies,
    `target` does not exist; leftovers of a dead process are removed by the next one that builds.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with FileLock(target.with_name(f"{target.name}.lock")):
        if target.exists():
            return
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            build(part)
            os.replace(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
