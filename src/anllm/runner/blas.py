"""Which BLAS does MLX's matrix work on a Linux CPU.

The mlx[cpu] wheel is linked with the reference BLAS, which is 30 to 80 times slower than a good one. MLX finds
cblas_sgemm by name when it is loaded, so a better library that was loaded globally before takes its place. This module
must therefore run before `import mlx.core`, and imports nothing of it.

Order: the path given by the user; the OpenBLAS inside NumPy, through a shim of one function that the C compiler makes
once (measured: as quick as any, nothing to install); the system's OpenBLAS; MKL if it is installed; the stock one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anllm.errors import ConfigError

logger = logging.getLogger(__name__)

COMPILERS = ("cc", "gcc", "clang")
STOCK = "reference BLAS (slow)"
STOCK_WARNING = (
    "No fast BLAS found: matrix work will be 30 to 80 times slower than it could be. Install a C compiler (gcc), or "
    "the system's OpenBLAS (Debian, Ubuntu: libopenblas0; Fedora: openblas), or `pip install mkl`, and start again."
)
# OpenBLAS exports its functions under these names: (prefix, suffix); suffix 64_ has 64-bit integers.
OPENBLAS_NAMES = (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", ""))
KERNELS_VARIABLE = "OPENBLAS_CORETYPE"


@dataclass(frozen=True)
class Blas:
    """What was loaded. set_threads is None where the number of threads is not ours to set."""

    name: str
    set_threads: Callable[[int], None] | None = None


_loaded: dict[str | None, Blas] = {}  # by the path that was given; a process gets one


def load_blas(path: str | None, cache_folder: Path) -> Blas:
    """Load a BLAS globally. No-op but for the answer where MLX brings a good one itself (macOS). Called again, what was
    loaded.

    Raises ConfigError if the path given can't be loaded.
    """
    for given, blas in _loaded.items():
        if path in (None, given):
            return blas
    if "mlx.core" in sys.modules:
        logger.warning("mlx is loaded already; its BLAS can't be changed any more")
        return Blas("as loaded")
    _loaded[path] = blas = _load_given(path) if path is not None else _load_best(cache_folder)
    return blas


def _load_best(cache_folder: Path) -> Blas:
    if platform.system() != "Linux":
        return Blas("Accelerate" if platform.system() == "Darwin" else "as installed")
    for find in (lambda: _numpy_openblas(cache_folder), _system_openblas, _mkl):
        blas = find()
        if blas is not None:
            return blas
    logger.warning(STOCK_WARNING)
    return Blas(STOCK)


def _load_given(path: str) -> Blas:
    try:
        library = _load_global(path)
    except OSError as error:
        raise ConfigError(f"blas: {path!r} can't be loaded as a library ({error}).") from None
    if not hasattr(library, "cblas_sgemm"):
        raise ConfigError(f"blas: {path!r} is no BLAS: it has no cblas_sgemm.")
    return Blas(Path(path).name, _openblas_threads(library) or _mkl_threads(library))


def _load_global(path: str | Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


# -- NumPy's OpenBLAS --------------------------------------------------------------------------------------------------


def _numpy_openblas(cache_folder: Path) -> Blas | None:
    """The OpenBLAS that NumPy's wheel carries, under the name that MLX looks for."""
    library_file = next(numpy_libraries(), None)
    if library_file is None:
        return None
    with _kernels_of_this_processor():
        library = ctypes.CDLL(str(library_file))
    names = next((n for n in OPENBLAS_NAMES if hasattr(library, f"{n[0]}cblas_sgemm{n[1]}")), None)
    if names is None:
        return None
    shim = _build_shim(library_file, names, cache_folder)
    if shim is not None:
        _load_global(shim)
    elif names == ("", ""):
        _load_global(library_file)
    else:
        return None
    return Blas("OpenBLAS of NumPy", _openblas_threads(library))


@contextmanager
def _kernels_of_this_processor() -> Iterator[None]:
    """OpenBLAS reads once, when it is loaded, for which processor it shall take its kernels. Machine images set that
    to something that runs everywhere, at a third of the speed of prompts; OpenBLAS knows better. Who wants other
    kernels can give the library by its path: then the variable holds."""
    wanted = os.environ.pop(KERNELS_VARIABLE, None)
    if wanted is not None:
        logger.info("%s=%s is not followed: OpenBLAS chooses by the processor", KERNELS_VARIABLE, wanted)
    try:
        yield
    finally:
        if wanted is not None:
            os.environ[KERNELS_VARIABLE] = wanted


def numpy_libraries() -> Iterator[Path]:
    for folder in dict.fromkeys(sysconfig.get_path(kind) for kind in ("platlib", "purelib")):
        yield from sorted(Path(folder, "numpy.libs").glob("*openblas*.so*"))


def _build_shim(library: Path, names: tuple[str, str], cache_folder: Path) -> Path | None:
    """A library with the one function cblas_sgemm, which calls OpenBLAS; None without a compiler."""
    source = _shim_source(*names)
    key = hashlib.sha256(f"{library} {library.stat().st_size} {source}".encode()).hexdigest()[:16]
    target = cache_folder / "blas" / f"shim-{key}.so"
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        code, built = Path(folder, "shim.c"), Path(folder, "shim.so")
        code.write_text(source)
        flags = ["-O2", "-shared", "-fPIC", f"-Wl,-rpath,{library.parent}"]
        command: list[str | Path] = [compiler, *flags, "-o", built, code, library]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            logger.warning("the BLAS shim did not compile: %s", done.stderr.strip()[-300:])
            return None
        os.replace(built, target)
    return target


def _shim_source(prefix: str, suffix: str) -> str:
    """One row (order 101: row-major; 111: not transposed, 112: transposed) goes to the matrix-vector product, which
    reads a matrix at twice the speed: it does not pack it first."""
    integer = "int64_t" if suffix else "int"
    sgemm, sgemv = f"{prefix}cblas_sgemm{suffix}", f"{prefix}cblas_sgemv{suffix}"
    return f"""#include <stdint.h>
typedef {integer} integer;
void {sgemm}(int, int, int, integer, integer, integer, float, const float *, integer, const float *, integer, float,
             float *, integer);
void {sgemv}(int, int, integer, integer, float, const float *, integer, const float *, integer, float, float *,
             integer);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc) {{
  if (order == 101 && m == 1) {{
    int step = ta == 111 ? 1 : lda;
    if (tb == 111) {sgemv}(order, 112, k, n, alpha, b, ldb, a, step, beta, c, 1);
    else {sgemv}(order, 111, n, k, alpha, b, ldb, a, step, beta, c, 1);
    return;
  }}
  {sgemm}(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}}
"""


def _openblas_threads(library: ctypes.CDLL) -> Callable[[int], None] | None:
    for prefix, suffix in OPENBLAS_NAMES:
        setter = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
        if setter is not None:
            return lambda number: setter(ctypes.c_int(number))
    return None


# -- others ------------------------------------------------------------------------------------------------------------


def _system_openblas() -> Blas | None:
    found = ctypes.util.find_library("openblas")
    if found is None:
        return None
    try:
        library = _load_global(found)
    except OSError:
        return None
    return Blas("OpenBLAS of the system", _openblas_threads(library)) if hasattr(library, "cblas_sgemm") else None


def _mkl() -> Blas | None:
    folder = Path(sysconfig.get_path("data"), "lib")
    library_file = next(iter(sorted(folder.glob("libmkl_rt.so*"))), None)
    if library_file is None:
        return None
    try:
        library = _load_global(library_file)
    except OSError:
        return None
    return Blas("MKL", _mkl_threads(library))


def _mkl_threads(library: ctypes.CDLL) -> Callable[[int], None] | None:
    setter = getattr(library, "MKL_Set_Num_Threads", None)
    return None if setter is None else lambda number: setter(ctypes.c_int(number))
