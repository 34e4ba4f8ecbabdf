"""What the CPU backend decides by measuring and by what the container says."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from anllm.runner.backends import cpu
from anllm.runner.backends.cpu import best_thread_count, cpu_quota, thread_counts

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


@pytest.mark.parametrize(
    ("text", "quota"),
    [("200000 100000\n", 2), ("150000 100000\n", 1), ("50000 100000\n", 0), ("max 100000\n", 1 << 20)],
)
def test_the_containers_share_of_time_is_read(tmp_path: Path, text: str, quota: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path / "cpu.max") == quota
    assert cpu_quota(tmp_path / "absent") == 1 << 20


def test_threads_are_tried_up_to_what_the_container_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu.os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    monkeypatch.setattr(cpu, "CGROUP_QUOTA", tmp_path / "cpu.max")
    assert thread_counts() == [1, 2, 4, 8, 12]
    (tmp_path / "cpu.max").write_text("300000 100000")
    assert thread_counts() == [1, 2, 3]
    (tmp_path / "cpu.max").write_text("50000 100000")
    assert thread_counts() == [1]


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
