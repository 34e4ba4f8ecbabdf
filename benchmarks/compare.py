"""anllm beside its rivals, on the same weights, one after the other and back again in one run; prints ratios.

    python benchmarks/compare.py --model FOLDER --streams 1,8,32 --prompt 100 --output 48 --rivals mlx_lm,mlx_lm_blas
    python benchmarks/compare.py --model FOLDER --rivals llama_cpp --gguf FILE

Rivals: mlx_lm (mlx_lm.server as it is installed), mlx_lm_blas (the same with NumPy's OpenBLAS preloaded, and float32
weights: FOLDER or --float32-model must then hold those), llama_cpp (llama-server, if it is on the PATH). The JSON has
all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from environment import describe
from load import Load, add_load_arguments, closed_loops, run
from preloaded import numpy_blas
from servers import Running, Server, anllm, gpu_memory_bytes, llama_cpp, mlx_lm, started

from anllm.store.cache import cache_folder


def servers(options: argparse.Namespace) -> list[Server]:
    found: list[Server | None] = [anllm(options.model)]
    for rival in filter(None, options.rivals.split(",")):
        if rival == "mlx_lm":
            found.append(mlx_lm(options.rival_model or options.model))
        elif rival == "mlx_lm_blas":
            blas = options.blas or numpy_blas(cache_folder(None) / "blas")
            found.append(mlx_lm(options.float32_model or options.model, blas=blas))
        elif rival == "llama_cpp":
            found.append(llama_cpp(options.gguf, max(map(int, options.streams.split(","))), os.cpu_count() or 1))
        else:
            raise SystemExit(f"unknown rival {rival!r}")
    return [server for server in found if server is not None]


def measure(running: Running, loads: list[Load], clients: int) -> list[dict[str, Any]]:
    """Warm up, then all loads."""
    warm_up = Load("warm-up", loads[0].prompt, 4, 2, streams=2, seed=99)
    run(warm_up, running.url, running.server.model)
    rows = []
    for load in loads:
        outcome = run(load, running.url, running.server.model, clients)
        memory = {"memory_bytes": running.memory_bytes(), "gpu_memory_bytes": gpu_memory_bytes()}
        rows.append({"load": load.name, "streams": load.streams, **outcome.figures(), **memory})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rival-model", type=Path, help="other folder of the same weights for mlx_lm")
    parser.add_argument("--float32-model", type=Path, help="float32 folder of the same weights for mlx_lm_blas")
    parser.add_argument("--blas", type=Path, help="another library for mlx_lm_blas")
    parser.add_argument("--gguf", type=Path, help="file of the same weights for llama_cpp")
    parser.add_argument("--rivals", default="mlx_lm")
    parser.add_argument("--repeats", type=int, default=2, help="times that each server is started, alternately")
    add_load_arguments(parser)
    options = parser.parse_args()
    loads = closed_loops(options)
    contestants = servers(options)
    rates: dict[tuple[str, str], list[float]] = {}
    runs = []
    for repeat in range(options.repeats):
        for server in contestants if repeat % 2 == 0 else contestants[::-1]:
            with started(server) as running:
                rows = measure(running, loads, options.clients)
            for row in rows:
                rates.setdefault((server.name, row["load"]), []).append(row["output_tok_s"])
                runs.append({"server": server.name, **row})
                print(json.dumps(runs[-1]), flush=True)
    for load in loads:
        ours = statistics.mean(rates["anllm", load.name])
        for server in contestants[1:]:
            theirs = statistics.mean(rates[server.name, load.name])
            print(f"{load.name}: anllm {ours:.1f} tok/s, {server.name} {theirs:.1f} tok/s: {ours / theirs:.2f} x")
    print(json.dumps({"runs": runs, **describe()}))


if __name__ == "__main__":
    main()
