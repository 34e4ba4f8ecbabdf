"""How fast are float32 products with the BLAS that anllm loads, and with the one that MLX's CPU wheel is linked with?

    python benchmarks/blas.py [--rows 1 8 32 256]

Each in a process of its own, with 1 thread up to all processors. Prints JSON. Linux CPU only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from environment import describe

MEASURE = """
import json, sys
kind, rows = sys.argv[1], [int(r) for r in sys.argv[2:]]
from anllm.runner.blas import Blas, load_blas
from anllm.store.cache import cache_folder
blas = load_blas(None, cache_folder(None)) if kind == "anllm" else Blas("stock")
import mlx.core as mx
from anllm.runner.backends.cpu import measure, thread_counts
mx.random.seed(0)
threads = thread_counts() if blas.set_threads else [None]
found = {}
for number in threads:
    if number is not None:
        blas.set_threads(number)
    found[str(number or "as is")] = {r: round(max(measure(rows=r, seconds=0.3) for _ in range(3)), 1) for r in rows}
print(json.dumps({"blas": blas.name, "gflops_by_threads_and_rows": found}))
"""


def measure(kind: str, rows: list[int]) -> Any:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    command = [sys.executable, "-c", MEASURE, kind, *map(str, rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256], help="rows of the product")
    rows = parser.parse_args().rows
    results = {kind: measure(kind, rows) for kind in ("stock", "anllm")}
    print(json.dumps({"benchmark": "blas", "shape": "[rows, 576] x [576, 1536]", **results, **describe()}, indent=2))


if __name__ == "__main__":
    main()
