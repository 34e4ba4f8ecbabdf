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


def resident_bytes(pid: int) -> int:
    """Of memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_descriptors(pid: int) -> int:
    """Open files, sockets and the like."""
    return len(os.listdir(f"/proc/{pid}/fd"))
