"""Numbers as people read them. Powers of 1000, as disks and downloads are sold."""

from __future__ import annotations

STEPS = (("day", 86400), ("hour", 3600), ("minute", 60))


def size(num_bytes: float) -> str:
    """Like "98 MB" or "1.2 GB"."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(num_bytes) >= 999.5 and len(units) > 1:
        num_bytes /= 1000
        del units[0]
    digits = 0 if units[0] in ("B", "kB") or abs(num_bytes) >= 99.5 else 1
    return f"{num_bytes:.{digits}f} {units[0]}"


def ago(seconds: float) -> str:
    """Like "3 hours ago"; "just now" within a minute."""
    for unit, length in STEPS:
        number = int(max(seconds, 0) // length)
        if number:
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"
