"""A BLAS for rivals: NumPy's OpenBLAS under the name that MLX looks for."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from anllm.runner.blas import OPENBLAS_NAMES, numpy_libraries

# One row goes to the matrix-vector product, which reads a matrix at twice the speed. Orders and transpositions as CBLAS
# numbers them: 101 row-major, 111 plain, 112 transposed.
SOURCE = """
#include <stdint.h>
typedef INTEGER integer;
void SGEMM(int, int, int, integer, integer, integer, float, const float *, integer, const float *, integer, float,
           float *, integer);
void SGEMV(int, int, integer, integer, float, const float *, integer, const float *, integer, float, float *, integer);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc) {
  if (order == 101 && m == 1 && tb == 111) SGEMV(101, 112, k, n, alpha, b, ldb, a, ta == 111 ? 1 : lda, beta, c, 1);
  else if (order == 101 && m == 1) SGEMV(101, 111, n, k, alpha, b, ldb, a, ta == 111 ? 1 : lda, beta, c, 1);
  else SGEMM(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
"""


def numpy_blas(folder: Path) -> Path:
    """The library to preload, built in the folder."""
    library = next(numpy_libraries())
    handle = ctypes.CDLL(str(library))
    prefix, suffix = next(n for n in OPENBLAS_NAMES if hasattr(handle, f"{n[0]}cblas_sgemm{n[1]}"))
    folder.mkdir(parents=True, exist_ok=True)
    code, built = folder / "preloaded.c", folder / "preloaded.so"
    code.write_text(SOURCE)
    names = {"INTEGER": "int64_t" if suffix else "int"}
    names |= {name.upper(): f"{prefix}cblas_{name}{suffix}" for name in ("sgemm", "sgemv")}
    flags = [*(f"-D{name}={value}" for name, value in names.items()), "-O2", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, f"-Wl,-rpath,{library.parent}", "-o", built, code, library], check=True)
    return built
