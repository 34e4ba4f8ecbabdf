"""How fast are products on a CPU: with the BLAS that MLX's wheel is linked with, with the one that anllm loads, and
with weights that anllm packed?

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
import itertools, json, sys
kind, form, rows = sys.argv[1], sys.argv[2], [int(r) for r in sys.argv[3:]]
from anllm.runner.blas import Blas, load_blas
from anllm.store.cache import cache_folder
blas = Blas("stock") if kind == "stock" else load_blas(None, cache_folder(None))
import mlx.core as mx
import mlx.nn as nn
from anllm.runner.backends.cpu import HEIGHT, WIDTH, measure, thread_counts
from anllm.runner.backends.cpu_checks import plain_layer
from anllm.runner.backends.cpu_weights import pack_weights
mx.random.seed(0)
layers = [
    nn.QuantizedLinear(WIDTH, HEIGHT, bias=False, bits=int(form[0]), group_size=32)
    if form.endswith("bit") else plain_layer(WIDTH, HEIGHT, getattr(mx, form))
    for _ in range(40)  # more than a cache holds, as in a model
]
if kind == "packed":
    for layer in layers:
        pack_weights(layer, blas.native)
mx.eval([layer.parameters() for layer in layers])
turn = itertools.cycle(layers)
multiply = lambda x: next(turn)(x)
threads = thread_counts() if blas.set_threads else [None]
found = {}
for number in threads:
    if number is not None:
        blas.set_threads(number)
    best = {r: max(measure(multiply, rows=r, seconds=0.3) for _ in range(3)) for r in rows}
    found[str(number or "as is")] = {r: round(speed, 1) for r, speed in best.items()}
print(json.dumps({"blas": blas.name, "gflops_by_threads_and_rows": found}))
"""


CASES = (
    ("stock", "float32"),
    ("plain", "float32"),
    *(("packed", f) for f in ("float32", "bfloat16", "8-bit", "4-bit")),
)


def measure(kind: str, form: str, rows: list[int]) -> Any:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    command = [sys.executable, "-c", MEASURE, kind, form, *map(str, rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256], help="rows of the product")
    rows = parser.parse_args().rows
    results = {f"{kind} {form}": measure(kind, form, rows) for kind, form in CASES}
    print(json.dumps({"benchmark": "blas", "shape": "[rows, 576] x [576, 1536]", **results, **describe()}, indent=2))


if __name__ == "__main__":
    main()
