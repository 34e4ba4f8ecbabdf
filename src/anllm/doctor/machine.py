"""What MLX finds: device, BLAS, memory, self-tests; and the compilers that it calls."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from anllm import limits
from anllm.config import CacheConfig
from anllm.doctor.check import Check, ok, problem, warning
from anllm.doctor.packages import CUDA_12, install_mlx, pip
from anllm.limits import MemoryLimit
from anllm.runner.blas import STOCK
from anllm.runner.build import runs_on_cpu
from anllm.runner.native_library import COMPILERS
from anllm.store.cache import cache_folder

PROBE_S = 300.0  # a GPU's kernels are compiled at first use
FEW_BYTES = 2 << 30
Which = Callable[[str], str | None]


def probe_command() -> list[str]:
    return [sys.executable, "-m", "anllm.runner.probe", str(cache_folder(None))]


def run_probe(command: Sequence[str]) -> dict[str, Any]:
    """The object of runner/probe.py; with "error" if there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        return {"error": f"MLX did not answer within {PROBE_S:g} seconds."}
    try:
        value = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": f"MLX ended with code {done.returncode}: {last}"}
    return value if isinstance(value, dict) else {"error": "MLX told nothing."}


def check_machine(probe: Mapping[str, Any], which: Which = shutil.which) -> Iterator[Check]:
    """probe: what run_probe() found."""
    if "error" in probe:
        yield problem(
            "MLX",
            str(probe["error"]),
            "mend the MLX backend above, or the driver: nvidia-smi must list the GPU, in a container too",
        )
    else:
        yield ok("MLX", " ".join(filter(None, (f"backend {probe['backend']}", probe["device"]))))
        limit = limits.memory_limit()
        yield check_memory(int(probe["memory_bytes"]), str(probe["backend"]), limit)
        if probe["backend"] == "cpu":
            yield check_processors(limits.processors(), os.cpu_count() or 1)
        yield from check_self_tests(probe["self_tests"])
        if probe["backend"] == "cpu":
            yield check_blas(str(probe["blas"]))
    if platform.system() == "Linux" and (runs_on_cpu() if "error" in probe else probe["backend"] == "cpu"):
        yield check_compiler(which)
        if which("nvidia-smi") is not None and "error" not in probe:
            yield warning(
                "GPU",
                "NVIDIA's driver is installed, but MLX is the build for CPUs",
                f"{pip()} uninstall -y mlx-cpu mlx && {install_mlx('cuda13')}{CUDA_12}",
            )


def check_memory(memory_bytes: int, backend: str, limit: MemoryLimit | None) -> Check:
    """limit: of the container or service."""
    share = CacheConfig().memory_fraction
    is_limited = backend != "cuda" and limit is not None
    within = f" of the {limit.limit_bytes / 1e9:.1f} GB of this container or service" if limit and is_limited else ""
    found = f"{memory_bytes / 1e9:.1f} GB free{within}; serve takes {share:.0%} of it for weights and K/V "
    found += "(--memory-fraction)"
    if memory_bytes < FEW_BYTES and is_limited:
        return warning(
            "memory",
            found,
            "give it more (docker run --memory, MemoryMax= of systemd); 'anllm info MODEL' tells what a model needs",
        )
    if memory_bytes < FEW_BYTES:
        whose = "the GPU" if backend == "cuda" else "this machine"
        return warning("memory", found, f"end other programs on {whose}; 'anllm info MODEL' tells what a model needs")
    return ok("memory", found)


def check_processors(usable: int, present: int) -> Check:
    shown = f"{usable} of {present}, by the limits of this container, service or process" if usable < present else ""
    return ok("processors", shown or str(usable))


def check_blas(found: str) -> Check:
    """found: name and measured speed."""
    if found.startswith(STOCK):
        return warning(
            "BLAS",
            found,
            "install a C compiler (Debian, Ubuntu: sudo apt-get install gcc; Fedora: sudo dnf install gcc), or "
            f"{pip()} install mkl",
        )
    return ok("BLAS", found)


def check_compiler(which: Which) -> Check:
    """g++ is called by mx.compile, any C compiler by the way to NumPy's BLAS."""
    compiler = next(filter(None, map(which, COMPILERS)), None)
    if which("g++") is None:
        found = f"{compiler}, no g++" if compiler else "none"
        return warning(
            "compiler",
            f"{found}: MLX can't compile, which makes it slower",
            "Debian, Ubuntu: sudo apt-get install g++; Fedora: sudo dnf install gcc-c++",
        )
    return ok("compiler", f"{compiler or 'none'}, {which('g++')}")


def check_self_tests(tests: list[dict[str, Any]]) -> Iterator[Check]:
    for test in tests:
        name = f"self-test: {test['name']}"
        if test["works"]:
            yield ok(name, f"right to {test['difference']:.0e}")
            continue
        found = test["reason"] or f"off by {test['difference']:.0e}"
        if test["is_needed"]:
            yield problem(
                name,
                found,
                f"reinstall MLX: {pip()} install --force-reinstall mlx; on a CPU try another --blas",
            )
        else:
            yield warning(
                name, found, "nothing has to be done: a slower way is taken; a newer driver or compiler may help"
            )
