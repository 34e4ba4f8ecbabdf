"""Other processes: how they end, and what they take, which is read from /proc, so on Linux alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Ask it to end, and after a while make it."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_alive(pid: int) -> bool:
    """A process that has ended but was not waited for counts as gone."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(shown.strip()) and not shown.startswith("Z")


def children(pid: int) -> dict[int, str]:
    """Processes of this one, by their ids: what they were called with."""
    command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return {int(child): words for child, parent, words in rows if int(parent) == pid}


def resident_bytes(pid: int) -> int:
    """Of memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_descriptors(pid: int) -> int:
    """Open files, sockets and the like."""
    return len(os.listdir(f"/proc/{pid}/fd"))
