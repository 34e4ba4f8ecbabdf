"""What another process takes, from /proc; Linux alone has it."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Of memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_descriptors(pid: int) -> int:
    """Open files, sockets and the like."""
    return len(os.listdir(f"/proc/{pid}/fd"))
