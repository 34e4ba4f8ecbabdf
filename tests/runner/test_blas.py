"""Which BLAS is loaded. In processes of their own, since a library is loaded for the whole process and for good."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anllm.runner.blas import STOCK, load_blas, numpy_libraries
from anllm.runner.build import runs_on_cpu

pytestmark = [pytest.mark.mlx, pytest.mark.skipif(not runs_on_cpu(), reason="for MLX's CPU build on Linux")]

COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
needs_numpys_openblas = pytest.mark.skipif(
    COMPILER is None or not list(Path(sys.prefix).glob("lib/*/site-packages/numpy.libs/*openblas*")),
    reason="no compiler, or no such NumPy",
)

LOAD = """
import logging, sys
from pathlib import Path
logging.basicConfig(level=logging.WARNING)
from anllm.errors import AnllmError
from anllm.runner.blas import load_blas
try:
    blas = load_blas(sys.argv[1] or None, Path(sys.argv[2]))
except AnllmError as error:
    print(type(error).__name__, error.message, sep="|")
    sys.exit()
assert "mlx.core" not in sys.modules
print("loaded", blas.name, blas.set_threads is not None, sep="|")
"""
MULTIPLY = """
import mlx.core as mx, numpy as np
random = np.random.default_rng(0)
for rows, inner, columns in ((1, 64, 64), (1, 300, 7), (64, 300, 1), (5, 300, 7), (33, 200, 65), (256, 512, 128)):
    a, b = (random.standard_normal(shape, np.float32) for shape in ((3, rows, inner), (3, inner, columns)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    swapped = mx.array(np.ascontiguousarray(b.swapaxes(1, 2))).swapaxes(1, 2)
    turned = mx.array(np.ascontiguousarray(a.swapaxes(1, 2))).swapaxes(1, 2)
    ways = [left @ right for left in (mx.array(a), turned) for right in (mx.array(b), swapped)]
    for found in (*ways, mx.array(a[0])[None] @ mx.array(b[:1])):
        np.testing.assert_allclose(np.array(found), exact[: found.shape[0]], atol=1e-3)
from anllm.runner.backends.cpu import decode_product, tune
try:
    print(tune(blas, decode_product(blas.native)))
except AnllmError as error:
    print(type(error).__name__, error.message, sep="|")
"""


def run(
    path: str, cache: Path, *, then: str = "", search_path: str | None = None, **variables: str
) -> tuple[list[list[str]], str]:
    """What a process that loads a BLAS prints, as lists of fields, and its log."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), **variables)
    if search_path is not None:
        environment["PATH"] = search_path
    done = subprocess.run(
        [sys.executable, "-c", LOAD + then, path, str(cache)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.split("|") for line in done.stdout.splitlines()], done.stderr


def build_library(folder: Path, code: str) -> str:
    (folder / "made.c").write_text(code)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "made.so", folder / "made.c"], check=True)
    return str(folder / "made.so")


@needs_numpys_openblas
def test_a_second_model_in_a_process_has_the_blas_of_the_first(tmp_path: Path) -> None:
    then = """
import mlx.core
again = load_blas(None, Path(sys.argv[2]))
print("again", again.name, again is blas, sep="|")
print("other", load_blas("/no/such/libblas.so", Path(sys.argv[2])).name, sep="|")
"""
    lines, log = run("", tmp_path, then=then)
    assert lines[1:] == [["again", "OpenBLAS of NumPy", "True"], ["other", "as loaded"]]
    assert log.count("its BLAS can't be changed any more") == 1


@pytest.mark.parametrize("path", ["/no/such/libblas.so", "/etc/hostname", "/"])
def test_a_path_that_is_no_library_is_refused_in_one_sentence(tmp_path: Path, path: str) -> None:
    ((kind, message),), log = run(path, tmp_path)
    assert kind == "ConfigError"
    assert message.startswith(f"blas: '{path}' can't be loaded as a library (")
    assert message.endswith(").")
    assert "Traceback" not in log


def test_a_library_that_is_no_blas_is_refused(tmp_path: Path) -> None:
    library = ctypes.util.find_library("m") or "libm.so.6"
    ((kind, message),), _ = run(library, tmp_path)
    assert (kind, message) == ("ConfigError", f"blas: '{library}' is no BLAS: it has no cblas_sgemm.")


@needs_compiler
def test_a_blas_that_computes_wrong_is_found_out(tmp_path: Path) -> None:
    library = build_library(tmp_path, "void cblas_sgemm(void) {}")
    then = "import mlx.core\n" + MULTIPLY[MULTIPLY.index("from anllm") :]
    lines, _ = run(library, tmp_path, then=then)
    assert lines[0] == ["loaded", "made.so", "True"]
    assert lines[1][0] == "ModelError"
    assert lines[1][1].startswith("The BLAS in use (made.so) computes wrong products")


@needs_compiler
def test_a_native_library_that_can_not_be_loaded_is_left_out(tmp_path: Path) -> None:
    """Half a file, or a cache that nothing may be executed from."""
    run("", tmp_path)
    (library,) = (tmp_path / "blas").glob("*.so")
    library.write_text("half")
    ((_, name, _),), log = run("", tmp_path)
    assert name != "OpenBLAS of NumPy"  # which only our library can reach
    assert "the native library can't be loaded" in log


@needs_numpys_openblas
def test_numpys_openblas_is_built_once_and_reused_without_a_compiler(tmp_path: Path) -> None:
    first, log = run("", tmp_path, then=MULTIPLY)
    assert log == ""
    assert first[0] == ["loaded", "OpenBLAS of NumPy", "True"]
    assert "GFLOP/s on " in first[1][0]
    libraries = list((tmp_path / "blas").iterdir())
    assert [library.suffix for library in libraries] == [".so"]
    built_ns = libraries[0].stat().st_mtime_ns
    again, _ = run("", tmp_path, search_path="")
    assert again == first[:1]
    assert [library.stat().st_mtime_ns for library in (tmp_path / "blas").iterdir()] == [built_ns]


KERNELS = """
import ctypes, os
from anllm.runner.blas import numpy_libraries
library = ctypes.CDLL(str(next(numpy_libraries())))
name = next(getattr(library, n) for n in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename"))
name.restype = ctypes.c_char_p
print(name().decode(), os.environ.get("OPENBLAS_CORETYPE"), sep="|")
"""


@needs_numpys_openblas
def test_kernels_are_those_of_the_processor_whatever_the_environment_says(tmp_path: Path) -> None:
    (_, (kernels, kept)), _ = run("", tmp_path, then=KERNELS, OPENBLAS_CORETYPE="Nehalem")
    assert kernels != "Nehalem"
    assert kept == "Nehalem"


@needs_numpys_openblas
def test_a_library_given_by_its_path_follows_the_environment(tmp_path: Path) -> None:
    library = next(numpy_libraries())
    (found, (kernels, _)), _ = run(str(library), tmp_path, then=KERNELS, OPENBLAS_CORETYPE="Nehalem")
    assert found == ["loaded", library.name, "True"]
    assert kernels == "Nehalem"


@needs_numpys_openblas
def test_a_library_with_names_of_its_own_takes_a_compiler(tmp_path: Path) -> None:
    library = next(numpy_libraries())
    ((kind, message),), _ = run(str(library), tmp_path, search_path="")
    assert kind == "ConfigError"
    assert message.startswith(f"blas: '{library}' calls its functions scipy_cblas_")
    assert message.endswith("which takes a C compiler (gcc).")


@pytest.mark.skipif(
    ctypes.util.find_library("openblas") is not None or bool(list(Path(sys.prefix, "lib").glob("libmkl_rt*"))),
    reason="there is another BLAS here",
)
def test_without_a_compiler_and_without_others_the_stock_one_is_taken_with_a_warning(tmp_path: Path) -> None:
    lines, log = run("", tmp_path, search_path="", then=MULTIPLY)
    assert lines[0] == ["loaded", STOCK, "False"]
    assert "No fast BLAS found" in log
    assert "gcc" in log
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_a_compiler_that_fails_is_as_good_as_none(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cc").write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    (tools / "cc").chmod(0o755)
    lines, log = run("", tmp_path / "cache", search_path=str(tools))
    assert lines[0][0] == "loaded"
    assert lines[0][1] != "OpenBLAS of NumPy"
    assert "no such header" in log


def test_once_mlx_is_loaded_it_is_too_late(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import mlx.core  # noqa: F401

    assert load_blas("/another/libblas.so", tmp_path).name == "as loaded"
    assert "can't be changed any more" in caplog.text
    assert platform.system() == "Linux"
