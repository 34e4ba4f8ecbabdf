"""Limits are read from the files of the kernel, as containers and services of both versions have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anllm.limits import MemoryLimit, memory_limit, processors

UNIFIED = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
GB = 1 << 30


@pytest.fixture(autouse=True)
def _twelve_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)


def make(root: Path, mounts: str, groups: str, **files: str) -> Path:
    """A machine's root with /proc and what stands in /sys/fs/cgroup; __ in a name of `files` is a slash."""
    written = {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups}
    written |= {f"sys/fs/cgroup/{name.replace('__', '/')}": text for name, text in files.items()}
    for name, text in written.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_machine_without_groups_has_no_limits(tmp_path: Path) -> None:
    assert processors(tmp_path) == 12
    assert memory_limit(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "found"), [("200000 100000\n", 2), ("150000 100000\n", 1), ("50000 100000\n", 1), ("max 100000\n", 12)]
)
def test_a_container_sees_its_group_as_the_root(tmp_path: Path, text: str, found: int) -> None:
    root = make(tmp_path, UNIFIED, "0::/\n", **{"cpu.max": text, "memory.max": f"{2 * GB}\n", "memory.current": "5\n"})
    assert processors(root) == found
    assert memory_limit(root) == MemoryLimit(2 * GB, 2 * GB - 5)


def test_files_in_memory_make_room(tmp_path: Path) -> None:
    files = {"memory.max": f"{4 * GB}", "memory.current": f"{3 * GB}"}
    files["memory.stat"] = f"anon {GB}\nfile {2 * GB}\nactive_file {GB}\ninactive_file {GB}\nslab 7\n"
    root = make(tmp_path, UNIFIED, "0::/\n", **files)
    assert memory_limit(root) == MemoryLimit(4 * GB, 3 * GB)


def test_a_service_is_limited_by_all_it_lies_in(tmp_path: Path) -> None:
    """MemoryMax= of the unit, MemoryHigh= and CPUQuota= of the slice."""
    slice_, unit = "system.slice", "system.slice__anllm.service"
    files = {
        f"{slice_}__memory.max": "max",
        f"{slice_}__memory.high": f"{3 * GB}",
        f"{slice_}__cpu.max": "400000 100000",
    }
    files |= {f"{unit}__memory.max": f"{8 * GB}", f"{unit}__memory.current": "0", f"{unit}__cpu.max": "max 100000"}
    root = make(tmp_path, UNIFIED, "0::/system.slice/anllm.service\n", **files)
    assert processors(root) == 4
    assert memory_limit(root) == MemoryLimit(3 * GB, 3 * GB)


@pytest.mark.parametrize("mount_root", ["/", "/docker/abc"], ids=["on the host", "in the container"])
def test_version_1_has_a_tree_for_each_controller(tmp_path: Path, mount_root: str) -> None:
    mounts = "".join(
        f"{n} 20 0:{n} {mount_root} /sys/fs/cgroup/{name} rw,relatime shared:{n} - cgroup cgroup rw,{name}\n"
        for n, name in enumerate(("cpu,cpuacct", "memory"), 30)
    )
    group = "__docker__abc__" if mount_root == "/" else "__"
    files = {f"cpu,cpuacct{group}cpu.cfs_quota_us": "300000\n", f"cpu,cpuacct{group}cpu.cfs_period_us": "100000\n"}
    files |= {f"memory{group}memory.limit_in_bytes": f"{GB}", f"memory{group}memory.usage_in_bytes": "600"}
    stat = {"active_file": 1, "inactive_file": 1, "total_active_file": 200, "total_inactive_file": 300}
    files[f"memory{group}memory.stat"] = "\n".join(f"{name} {value}" for name, value in stat.items())
    root = make(tmp_path, mounts, "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n", **files)
    assert processors(root) == 3
    assert memory_limit(root) == MemoryLimit(GB, GB - 100)


def test_what_version_1_writes_for_none_is_none(tmp_path: Path) -> None:
    mounts = "".join(f"3{n} 20 0:3{n} / /sys/fs/cgroup/{n} rw - cgroup c rw,{n}\n" for n in ("cpu", "memory"))
    files = {"cpu__cpu.cfs_quota_us": "-1", "cpu__cpu.cfs_period_us": "100000"}
    files["memory__memory.limit_in_bytes"] = "9223372036854771712"
    root = make(tmp_path, mounts, "5:cpu:/\n4:memory:/\n", **files)
    assert processors(root) == 12
    assert memory_limit(root) is None


def test_a_limit_above_what_the_machine_has_is_none(tmp_path: Path) -> None:
    root = make(tmp_path, UNIFIED, "0::/\n", **{"memory.max": f"{4 * GB}", "memory.current": "0"})
    assert memory_limit(root) == MemoryLimit(4 * GB, 4 * GB)
    (root / "proc/meminfo").write_text(f"MemTotal:       {(2 * GB) // 1024} kB\nMemFree: 5 kB\n")
    assert memory_limit(root) is None


def test_a_group_that_has_more_taken_than_it_may_leaves_nothing(tmp_path: Path) -> None:
    root = make(tmp_path, UNIFIED, "0::/\n", **{"memory.max": "100", "memory.current": "300"})
    assert memory_limit(root) == MemoryLimit(100, 0)
