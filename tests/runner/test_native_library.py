"""The library that stands in the place of a BLAS, called as MLX calls it but with every argument it may be given."""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from anllm.runner import blas
from anllm.runner import native_library as module
from anllm.runner.attention import StockKernels
from anllm.runner.backends.cpu_attention import NativeKernels
from anllm.runner.backends.cpu_weights import pack_weights
from anllm.runner.native_library import COMPILERS, NativeLibrary, build_library
from runner.attention_reference import Case, attend

pytestmark = pytest.mark.mlx

ROW_MAJOR, COLUMN_MAJOR, NO_TRANS, TRANS = 101, 102, 111, 112


# The same source for processors of three generations; on others only what is built for them is tried.
FLAGS: dict[str, list[str]] = {"native": ["-march=native"], "any": []}
if platform.machine() == "x86_64" and " avx2 " in Path("/proc/cpuinfo").read_text():
    FLAGS["avx2"] = ["-mavx2", "-mfma"]


@pytest.fixture(scope="module", params=FLAGS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeLibrary:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    found = blas._numpy_openblas()
    if compiler is None or found is None:
        pytest.skip("no C compiler, or no OpenBLAS of NumPy")
    built = tmp_path_factory.mktemp("native") / "native.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-psabi"]
    command = [
        compiler,
        *module.FLAGS,
        *FLAGS[request.param],
        *warnings,
        "-o",
        str(built),
        str(module.SOURCES / "library.c"),
    ]
    subprocess.run(command, check=True)
    loaded = blas._put_before_mlx(found, built).native
    assert loaded is not None
    return loaded


@pytest.fixture(params=[1, 3])
def native(request: pytest.FixtureRequest, library: NativeLibrary) -> Iterator[NativeLibrary]:
    """With that many threads."""
    library.set_threads(request.param)
    yield library
    library.set_threads(1)


def sgemm(
    native: NativeLibrary,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    *,
    alpha: float = 1,
    beta: float = 0,
    ta: int = NO_TRANS,
    tb: int = NO_TRANS,
    order: int = ROW_MAJOR,
) -> None:
    """c = alpha * a @ b + beta * c; arrays float32, as they lie in memory."""
    function = native.library.cblas_sgemm
    m, n = c.shape if order == ROW_MAJOR else c.T.shape
    k = a.shape[0] if (ta == TRANS) == (order == ROW_MAJOR) else a.shape[1]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]
    leading = [x.strides[0] // 4 for x in (a, b, c)]
    function(
        *(order, ta, tb, m, n, k, ctypes.c_float(alpha), pointers[0], leading[0]),
        *(pointers[1], leading[1], ctypes.c_float(beta), pointers[2], leading[2]),
    )


def inside(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A matrix that is part of a wider one."""
    return random.standard_normal((rows, columns + 5), np.float32)[:, :columns]


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 300, 40), (7, 5, 3), (130, 40, 300), (40, 700, 64), (257, 129, 65)]
)
def test_plain_matrices(native: NativeLibrary, m: int, n: int, k: int) -> None:
    random = np.random.default_rng(0)
    for ta, tb, (alpha, beta) in itertools.product((NO_TRANS, TRANS), (NO_TRANS, TRANS), ((1, 0), (0.5, 2))):
        a = inside(random, *((m, k) if ta == NO_TRANS else (k, m)))
        b = inside(random, *((k, n) if tb == NO_TRANS else (n, k)))
        c = inside(random, m, n)
        expected = alpha * (a if ta == NO_TRANS else a.T).astype(float) @ (b if tb == NO_TRANS else b.T) + beta * c
        if beta == 0:
            c[:] = np.nan  # which is not to be read
        sgemm(native, a, b, c, alpha=alpha, beta=beta, ta=ta, tb=tb)
        np.testing.assert_allclose(c, expected, atol=1e-3)


def test_the_other_order(native: NativeLibrary) -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((30, 200), np.float32), random.standard_normal((50, 30), np.float32)
    c = np.empty((50, 200), np.float32)
    sgemm(native, a, b, c, order=COLUMN_MAJOR)
    np.testing.assert_allclose(c, b @ a, atol=1e-3)


def packed(
    native: NativeLibrary, rows: int, panels: int, dtype: mx.Dtype = mx.bfloat16
) -> tuple[np.ndarray, np.ndarray]:
    """A packed weight as sgemm is given it, and its values [rows, columns]."""
    layer = nn.Linear(rows, panels * native.panel, bias=False)
    layer.weight = layer.weight.astype(dtype)
    values = np.array(layer.weight.astype(mx.float32).T)
    pack_weights(layer, native)
    words = np.array(layer.packed)
    return np.lib.stride_tricks.as_strided(words.view(np.float32), values.shape, (4 * values.shape[1], 4)), values


@pytest.mark.parametrize(("m", "panels", "k"), [(1, 1, 2), (5, 3, 300), (29, 2, 130), (200, 1, 128)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_packed_weights(native: NativeLibrary, m: int, panels: int, k: int, dtype: mx.Dtype) -> None:
    random = np.random.default_rng(0)
    b, values = packed(native, k, panels, dtype)
    for ta, (alpha, beta) in itertools.product((NO_TRANS, TRANS), ((1, 0), (1, 1), (0.5, 2))):
        a = inside(random, *((m, k) if ta == NO_TRANS else (k, m)))
        c = inside(random, m, b.shape[1])
        around = c.base.copy()
        expected = alpha * (a if ta == NO_TRANS else a.T).astype(float) @ values + beta * c
        if beta == 0:
            c[:] = np.nan
        sgemm(native, a, b, c, alpha=alpha, beta=beta, ta=ta, tb=NO_TRANS)
        np.testing.assert_allclose(c, expected, atol=1e-4)
        assert (c.base[:, b.shape[1] :] == around[:, b.shape[1] :]).all(), "nothing beside it was written"


@pytest.mark.parametrize("case", [Case(9, 3, 64, 64), Case(4, 2, 96, 80, window=7, has_sinks=True)], ids=str)
def test_attention(native: NativeLibrary, case: Case) -> None:
    step, kernels = case.step(), NativeKernels(native, StockKernels())
    told = kernels.tell(
        step.layer, step.rows, case.heads, case.dim, scale=case.scale, sinks=step.sinks, has_kv=True
    ).view(np.float32)
    a = np.concatenate([part.reshape(len(part), -1) for part in (step.q, step.k, step.v)], axis=1)
    c = np.full((len(a), case.heads * case.value_dim), np.nan, np.float32)
    sgemm(native, a, np.lib.stride_tricks.as_strided(told, (a.shape[1], c.shape[1]), (4 * c.shape[1], 4)), c)
    expected = attend(case, step)
    np.testing.assert_allclose(c.reshape(expected.shape), expected, atol=2e-5)
    for capacity in step.capacities:
        np.testing.assert_array_equal(np.array(step.layer.keys(capacity)), step.keys_after[capacity])
        np.testing.assert_array_equal(np.array(step.layer.values(capacity)), step.values_after[capacity])


def test_products_from_several_threads_at_once(native: NativeLibrary) -> None:
    """One of them has the pool, the others compute alone: all are right, to the last bit."""
    random = np.random.default_rng(0)
    weights = [packed(native, 260, panels)[0] for panels in (1, 5, 9)]
    inputs = [random.standard_normal((rows, 260), np.float32) for rows in (1, 30, 90)]
    jobs = list(itertools.product(inputs, weights))

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c = np.full((len(a), b.shape[1]), np.nan, np.float32)
        sgemm(native, a, b, c)
        return c

    native.set_threads(1)
    expected = [multiply(a, b) for a, b in jobs]
    native.set_threads(3)
    wrong: list[int] = []

    def run(first: int) -> None:
        for i in range(first, first + 200):
            (a, b), right = jobs[i % len(jobs)], expected[i % len(jobs)]
            if not np.array_equal(multiply(a, b), right):
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


FORKED = """
import os, sys
from pathlib import Path
from anllm.runner.blas import load_blas
native = load_blas(None, Path(sys.argv[1])).native
native.set_threads(3)
import numpy as np, ctypes
sgemm = ctypes.CDLL(None).cblas_sgemm
a = np.ones((300, 300), np.float32)
def multiply():
    c = np.zeros((300, 300), np.float32)
    at = lambda x: ctypes.c_void_p(x.ctypes.data)
    f = ctypes.c_float
    sgemm(101, 111, 111, 300, 300, 300, f(1), at(a), 300, at(a), 300, f(0), at(c), 300)
    return bool((c == 300).all())
assert multiply()
child = os.fork()
if child == 0:
    os._exit(0 if multiply() else 1)
print(os.waitpid(child, 0)[1], multiply())
"""


def test_a_forked_child_computes_without_the_threads_of_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["0", "True"]


def compiler(folder: Path, script: str) -> str:
    folder.mkdir()
    for name in COMPILERS:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_it_is_built_once_for_each_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    script = f'echo "$*" >> {log}\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"'
    monkeypatch.setenv("PATH", compiler(tmp_path / "bin", script) + os.pathsep + os.environ["PATH"])
    first = build_library(tmp_path / "cache")
    assert build_library(tmp_path / "cache") == first is not None
    assert len(log.read_text().splitlines()) == 1
    monkeypatch.setattr(module, "processor_key", lambda: "another one")
    assert build_library(tmp_path / "cache") not in (None, first)


def test_a_compiler_that_does_not_know_the_processor_builds_for_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'case "$*" in *-march=native*) exit 1;; esac\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"'
    monkeypatch.setenv("PATH", compiler(tmp_path / "bin", script) + os.pathsep + os.environ["PATH"])
    built = build_library(tmp_path / "cache")
    assert built is not None
    assert built.read_text() == "made\n"


def test_a_cache_that_can_not_be_written_to_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "blas").write_text("in the way")  # no folder, whoever asks: permissions are none to root
    assert build_library(tmp_path) is None
    assert "can't be kept in" in caplog.text
