"""Which BLAS does MLX's matrix work on a Linux CPU.

The mlx[cpu] wheel is linked with the reference BLAS, which is 30 to 80 times slower than a good one. MLX finds
cblas_sgemm by name when it is loaded, so what was loaded globally before takes its place: our own library
(native_library.py), with a good one behind it for plain matrices; or, without a C compiler, that one itself. This
module must therefore run before `import mlx.core`, and imports nothing of it.

Order: the path given by the user; the OpenBLAS inside NumPy (measured: as quick as any, nothing to install); the
system's OpenBLAS; MKL if it is installed; the stock one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anllm.errors import ConfigError
from anllm.runner.native_library import BlasFunctions, NativeLibrary, build_library

logger = logging.getLogger(__name__)

STOCK = "reference BLAS (slow)"
STOCK_WARNING = (
    "No fast BLAS found: matrix work will be 30 to 80 times slower than it could be. Install a C compiler (gcc), or "
    "the system's OpenBLAS (Debian, Ubuntu: libopenblas0; Fedora: openblas), or `pip install mkl`, and start again."
)
# OpenBLAS exports its functions under these names: (prefix, suffix); suffix 64_ has 64-bit integers.
OPENBLAS_NAMES = (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", ""))
PLAIN_NAMES = ("", "")
KERNELS_VARIABLE = "OPENBLAS_CORETYPE"

SetThreads = Callable[[int], None]


@dataclass(frozen=True)
class Blas:
    """What was loaded. set_threads is None where the number of threads is not ours to set; native, where our library
    stands before it."""

    name: str
    set_threads: SetThreads | None = None
    native: NativeLibrary | None = None


@dataclass(frozen=True)
class _Library:
    """A BLAS that was loaded for this process alone, so that nothing finds its names yet."""

    name: str
    file: str | Path
    handle: ctypes.CDLL
    names: tuple[str, str]
    set_threads: SetThreads | None


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
    _loaded[path] = blas = _load_given(path, cache_folder) if path is not None else _load_best(cache_folder)
    return blas


def _load_best(cache_folder: Path) -> Blas:
    if platform.system() != "Linux":
        return Blas("Accelerate" if platform.system() == "Darwin" else "as installed")
    native = _native(cache_folder)
    for find in (_numpy_openblas, _system_openblas, _mkl):
        library = find()
        if library is not None and (native is not None or library.names == PLAIN_NAMES):
            return _put_before_mlx(library, native)
    logger.warning(STOCK_WARNING)
    return Blas(STOCK)


def _load_given(path: str, cache_folder: Path) -> Blas:
    try:
        handle = ctypes.CDLL(path)
    except OSError as error:
        raise ConfigError(f"blas: {path!r} can't be loaded as a library ({error}).") from None
    names = _names(handle)
    if names is None:
        raise ConfigError(f"blas: {path!r} is no BLAS: it has no cblas_sgemm.")
    native = _native(cache_folder) if platform.system() == "Linux" else None
    if native is None and names != PLAIN_NAMES:
        raise ConfigError(
            f"blas: {path!r} calls its functions {names[0]}cblas_…{names[1]}, which takes a C compiler (gcc)."
        )
    threads = _openblas_threads(handle) or _mkl_threads(handle)
    return _put_before_mlx(_Library(Path(path).name, path, handle, names, threads), native)


def _native(cache_folder: Path) -> Path | None:
    """Our library, if it can be built and loaded here."""
    file = build_library(cache_folder)
    try:
        if file is not None:
            ctypes.CDLL(str(file))
    except OSError as error:  # half of a file; a file system that nothing may be executed from
        logger.warning("the native library can't be loaded (%s)", error)
        return None
    return file


def _put_before_mlx(library: _Library, native: Path | None) -> Blas:
    """Load globally what MLX shall find: our library with the BLAS behind it, or else the BLAS itself."""
    if native is None:
        ctypes.CDLL(str(library.file), mode=ctypes.RTLD_GLOBAL)
        return Blas(library.name, library.set_threads)
    prefix, suffix = library.names
    functions = BlasFunctions(
        _address(library.handle, f"{prefix}cblas_sgemm{suffix}"),
        _address(library.handle, f"{prefix}cblas_sgemv{suffix}") or None,
        has_64_bits=bool(suffix),
        is_single=library.set_threads is not None,
    )
    if library.set_threads is not None:
        library.set_threads(1)
    loaded = NativeLibrary(native, functions)
    return Blas(library.name, loaded.set_threads, loaded)


def _names(library: ctypes.CDLL) -> tuple[str, str] | None:
    return next((n for n in OPENBLAS_NAMES if hasattr(library, f"{n[0]}cblas_sgemm{n[1]}")), None)


def _address(library: ctypes.CDLL, name: str) -> int:
    """0 if it has no such function."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


# -- NumPy's OpenBLAS --------------------------------------------------------------------------------------------------


def _numpy_openblas() -> _Library | None:
    """The OpenBLAS that NumPy's wheel carries."""
    file = next(numpy_libraries(), None)
    if file is None:
        return None
    with _kernels_of_this_processor():
        handle = ctypes.CDLL(str(file))
    names = _names(handle)
    return None if names is None else _Library("OpenBLAS of NumPy", file, handle, names, _openblas_threads(handle))


@contextmanager
def _kernels_of_this_processor() -> Iterator[None]:
    """OpenBLAS reads once, when it is loaded, for which processor it shall take its kernels. Machine images set that
    to something that runs everywhere, at a third of the speed of prompts; OpenBLAS knows better. Who wants other
    kernels can give the library by its path: then the variable holds."""
    wanted = os.environ.pop(KERNELS_VARIABLE, None)
    if wanted is not None:
        logger.debug("%s=%s is not followed: OpenBLAS chooses by the processor", KERNELS_VARIABLE, wanted)
    try:
        yield
    finally:
        if wanted is not None:
            os.environ[KERNELS_VARIABLE] = wanted


def numpy_libraries() -> Iterator[Path]:
    for folder in dict.fromkeys(sysconfig.get_path(kind) for kind in ("platlib", "purelib")):
        yield from sorted(Path(folder, "numpy.libs").glob("*openblas*.so*"))


def _openblas_threads(library: ctypes.CDLL) -> SetThreads | None:
    for prefix, suffix in OPENBLAS_NAMES:
        setter = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
        if setter is not None:
            return lambda number: setter(ctypes.c_int(number))
    return None


# -- others ------------------------------------------------------------------------------------------------------------


def _system_openblas() -> _Library | None:
    return _plain_library("OpenBLAS of the system", ctypes.util.find_library("openblas"), _openblas_threads)


def _mkl() -> _Library | None:
    folder = Path(sysconfig.get_path("data"), "lib")
    return _plain_library("MKL", next(iter(sorted(folder.glob("libmkl_rt.so*"))), None), _mkl_threads)


def _plain_library(
    name: str, file: str | Path | None, threads: Callable[[ctypes.CDLL], SetThreads | None]
) -> _Library | None:
    try:
        handle = None if file is None else ctypes.CDLL(str(file))
    except OSError:
        return None
    if file is None or handle is None or not hasattr(handle, "cblas_sgemm"):
        return None
    return _Library(name, file, handle, PLAIN_NAMES, threads(handle))


def _mkl_threads(library: ctypes.CDLL) -> SetThreads | None:
    setter = getattr(library, "MKL_Set_Num_Threads", None)
    return None if setter is None else lambda number: setter(ctypes.c_int(number))
