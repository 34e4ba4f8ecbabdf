"""What the CPU backend decides by measuring and by what the container says."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from anllm import limits
from anllm.limits import MemoryLimit
from anllm.runner.backends import cpu
from anllm.runner.backends.cpu import best_thread_count, thread_counts

pytestmark = pytest.mark.mlx


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ({1: 100.0}, 1),
        ({1: 100.0, 2: 180.0}, 2),
        ({1: 100.0, 2: 70.0}, 2),  # somebody else was busy: still two
        ({1: 100.0, 2: 40.0}, 1),  # two are really no good here
        ({1: 50.0, 2: 100.0, 4: 190.0, 6: 150.0}, 6),
        ({1: 50.0, 2: 100.0, 4: 190.0, 8: 60.0}, 4),
    ],
)
def test_the_most_threads_that_are_not_clearly_slower(speeds: dict[int, float], best: int) -> None:
    assert best_thread_count(speeds) == best


@pytest.mark.parametrize(("processors", "tried"), [(12, [1, 2, 4, 8, 12]), (3, [1, 2, 3]), (1, [1])])
def test_threads_are_tried_up_to_what_the_container_gives(
    processors: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "processors", lambda: processors)
    assert thread_counts() == tried


@pytest.mark.parametrize(("limit", "left"), [(None, 10 << 30), (MemoryLimit(4 << 30, 3 << 30), 3 << 30)])
def test_memory_is_what_the_machine_and_the_container_have_left(
    limit: MemoryLimit | None, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "memory_limit", lambda: limit)
    monkeypatch.setattr(cpu.Path, "read_text", lambda file: f"MemAvailable: {10 << 20} kB")
    assert cpu.available_memory() == left


COMPILE = """
import logging
logging.basicConfig(level=logging.WARNING)
from anllm.runner.backends.cpu import compile_fault
print(bool(compile_fault()))
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="MLX runs a compiler on Linux alone")
@pytest.mark.parametrize(
    ("script", "has_folder"),
    [
        ("echo broken; exit 1", True),
        ('while [ "$1" != -o ]; do shift; done; echo half > "$2"', True),
        ("exit 1", False),
    ],
    ids=["a compiler that fails", "half a library", "no folder for what it writes"],
)
def test_where_mlx_can_not_compile_it_is_told_and_plain_functions_are_used(
    tmp_path: Path, script: str, has_folder: bool
) -> None:
    """Else the engine would end at its first kernel: in a container whose /tmp is read-only or may not be executed
    from, and beside a compiler that is not whole."""
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{script}\n')
    compiler.chmod(0o755)
    if not has_folder:
        (tmp_path / "mlx").write_text("in the way")
    path = os.pathsep.join([str(compiler.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert "MLX can't compile kernels here" in done.stderr


FAULTS = """
import resource, sys
from anllm.runner.backends.cpu_memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
import mlx.core as mx
x = mx.ones((2 << 20,))
mx.eval(x)
def use():
    mx.eval([x + i for i in range(12)])
for _ in range(20):  # until the heap is as large as it gets: with a few arrays it grows once, at any time
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc")
def test_freed_memory_is_kept_for_the_next_arrays() -> None:
    """20 times 12 arrays of 2,048 pages. What the system gave is touched once; given back, it would be 368,000 times,
    unless something lies at the end of the heap by chance."""
    command = [sys.executable, "-c", FAULTS, "keep"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000
