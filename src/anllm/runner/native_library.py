"""The library that stands between MLX and a BLAS on a Linux CPU: native/library.c, built once for the processor.

MLX finds cblas_sgemm by name when it is loaded. This library has that name, shares large products out among its own
threads, and computes by kernels of its own where a matrix is none: a packed weight (backends/cpu_weights.py), or
attention (backends/cpu_attention.py).
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

COMPILERS = ("cc", "gcc", "clang")
SOURCES = Path(__file__).with_name("native")
FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
LIBRARIES = ("-lm",)
NATIVE = "-march=native"
PROCESSOR_KEYS = ("flags", "features", "model name", "cpu part")  # of /proc/cpuinfo


@dataclass(frozen=True, slots=True)
class BlasFunctions:
    """The functions of a BLAS for plain matrices, as addresses. has_64_bits: its integers have. is_single: it was told
    to use one thread, so that ours may call it side by side."""

    sgemm: int
    sgemv: int | None
    has_64_bits: bool
    is_single: bool


class NativeLibrary:
    """Loaded in the place of a BLAS.

    panel: columns of a packed weight that lie together; lanes: numbers in a vector; max_queries, max_dim: of attention,
    how many queries a unit has and how long a head is, at most; magic: what a matrix begins with that is none.
    """

    def __init__(self, file: Path, blas: BlasFunctions) -> None:
        """Raises OSError if the file is no library."""
        self.library = ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
        self.library.anllm_set_blas(
            ctypes.c_void_p(blas.sgemm), ctypes.c_void_p(blas.sgemv), int(blas.has_64_bits), int(blas.is_single)
        )
        self.panel: int = self.library.anllm_panel()
        self.lanes: int = self.library.anllm_lanes()
        self.max_queries: int = self.library.anllm_max_queries()
        self.max_dim: int = self.library.anllm_max_dim()
        self.library.anllm_magic.restype = ctypes.POINTER(ctypes.c_uint32)
        self.magic: tuple[int, ...] = tuple(self.library.anllm_magic()[:4])

    def set_threads(self, number: int) -> None:
        """How many threads compute from now on, the caller's own among them."""
        self.library.anllm_set_threads(number)


def build_library(cache_folder: Path) -> Path | None:
    """The library for this processor, from the cache or by the C compiler; None where it can't be built or kept."""
    sources = b"".join(file.read_bytes() for file in sorted(SOURCES.iterdir()))
    key = hashlib.sha256(sources + repr(FLAGS).encode() + processor_key().encode()).hexdigest()[:16]
    target = cache_folder / "blas" / f"native-{key}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    try:
        return _build(compiler, target)
    except OSError as error:
        logger.warning("the native library can't be kept in %s (%s)", target.parent, error.strerror or error)
        return None


def _build(compiler: str, target: Path) -> Path | None:
    """Raises OSError where target can't be written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder, "native.so")
        for native in ([NATIVE], []):  # not every compiler knows every processor
            command: list[str | Path] = [compiler, *FLAGS, *native, "-o", built, SOURCES / "library.c", *LIBRARIES]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                os.replace(built, target)
                return target
    logger.warning("the native library did not compile: %s", done.stderr.strip()[-300:])
    return None


def processor_key() -> str:
    """What tells this processor from others that run the same programs; a home folder may be that of many machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.machine()
    found = {line.strip() for line in lines if line.split(":")[0].strip().lower() in PROCESSOR_KEYS}
    return "\n".join([platform.machine(), *sorted(found)])
