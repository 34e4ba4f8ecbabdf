"""What the system lets this process have, where that is less than the machine has: processors and memory.

Linux: the affinity, and the control groups (a container, a service of systemd, a job of a cluster) with all that they
lie in, in both versions. Elsewhere there are no such limits, and the machine counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """limit_bytes: of the narrowest group; left_bytes: of that, what is not taken. Files that the kernel keeps in
    memory are not counted as taken, since they make room."""

    limit_bytes: int
    left_bytes: int


def processors(root: Path = ROOT) -> int:
    """How many this process may use, by its affinity and by whole processors' worth of its groups' time; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min([allowed, *_quotas(root)]), 1)


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """Of the group that leaves least; None where no group has less than the machine."""
    return min(_memory_limits(root), key=lambda found: found.left_bytes, default=None)


def _quotas(root: Path) -> Iterator[int]:
    for group in _groups(root, "cpu"):
        match _numbers(group / "cpu.max"):
            case [quota, period]:
                yield quota // period
        match _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us"):
            case [quota, period] if quota > 0:
                yield quota // period


def _memory_limits(root: Path) -> Iterator[MemoryLimit]:
    machine = _machine_bytes(root)
    for group in _groups(root, "memory"):
        for limit_file, taken_file in (
            ("memory.max", "memory.current"),
            ("memory.high", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            match _numbers(group / limit_file):
                case [limit] if limit < machine:
                    taken = next(iter(_numbers(group / taken_file)), 0) - _file_bytes(group / "memory.stat")
                    yield MemoryLimit(limit, max(limit - max(taken, 0), 0))


def _machine_bytes(root: Path) -> int:
    """Version 1 writes a number near 2**63 for no limit, which is more than this in any case."""
    lines = _read(root / "proc/meminfo").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), 1 << 60)


def _file_bytes(stat: Path) -> int:
    """Bytes of files that are in memory, those of groups below included."""
    lines = _read(stat).splitlines()
    found = {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}
    prefix = "total_" if "total_active_file" in found else ""
    return found.get(f"{prefix}active_file", 0) + found.get(f"{prefix}inactive_file", 0)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The group of this process that has the controller, and those that it lies in, as far as they can be seen."""
    paths = _paths(root)
    for mount_root, mount_point, controllers in _mounts(root):
        name = controller if controllers else ""
        if name not in paths or (controllers and name not in controllers):
            continue
        top = root / mount_point.lstrip("/")
        # inside of a container the path may be the host's; then what is mounted is the group itself
        below = os.path.relpath(paths[name], mount_root)
        group = top if below.startswith("..") else top / below
        yield group
        yield from (parent for parent in group.parents if parent == top or top in parent.parents)


def _paths(root: Path) -> Mapping[str, str]:
    """By controller the path of its group; "" stands for version 2."""
    found = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _mounts(root: Path) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Of each file system of groups: which path of the hierarchy is mounted, where, and version 1's controllers."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        fields, _, kind = line.partition(" - ")
        _, _, _, mount_root, mount_point, *_ = fields.split()
        match kind.split():
            case ["cgroup2", *_]:
                yield mount_root, mount_point, frozenset()
            case ["cgroup", *_, options]:
                yield mount_root, mount_point, frozenset(options.split(","))


def _numbers(file: Path) -> list[int]:
    """The numbers in it; none if it is absent, or says "max" for what is not limited."""
    words = _read(file).split()
    return [int(word) for word in words] if all(word.lstrip("-").isdigit() for word in words) else []


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
