"""What a figure was measured on: commit, versions, hardware. Goes into every benchmark's JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("mlx", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "mlx-lm", "numpy", "uvicorn", "fastapi")


def describe() -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": _gpu(),
    }


def _commit() -> str:
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _gpu() -> str | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None
