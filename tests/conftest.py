"""For all tests: a fast BLAS, loaded before anything imports MLX, as the runner does it.

Without one, a float32 product on a Linux CPU takes 40 times as long. Costs nothing where MLX is not installed.
"""

from __future__ import annotations

import importlib.util

from anllm.runner.blas import load_blas
from anllm.runner.build import runs_on_cpu
from anllm.store.cache import cache_folder

if importlib.util.find_spec("mlx") is not None and runs_on_cpu():
    _blas = load_blas(None, cache_folder(None))
    if _blas.set_threads is not None:
        _blas.set_threads(1)  # tiny models gain nothing by more, and threads that wait for each other lose much
