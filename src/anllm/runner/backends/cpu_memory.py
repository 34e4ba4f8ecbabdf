"""How the C library's allocator treats the arrays of a step."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 1 << 30  # free memory at the heap's end beyond this goes back to the system
LARGEST_HEAP_BYTES = 32 << 20  # glibc takes no more; larger arrays are mapped each by itself


def keep_freed_memory() -> None:
    """Let freed memory stay with the process, for the next layer to use.

    MLX's CPU backend takes an array's memory from malloc and frees it when it is used up, a dozen times a layer. By
    default glibc gives megabytes of it back to the system each time and takes them anew, page by page: 830,000 page
    faults in 24 steps of prompts, 12 % of the time of large ones (docs/log.md). Does nothing where the C library is
    another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_HEAP_BYTES)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
