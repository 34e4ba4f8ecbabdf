"""locks/download.py, by which make fetches packages."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

PATH = Path(__file__).parents[2] / "locks" / "download.py"
spec = importlib.util.spec_from_file_location("download", PATH)
assert spec is not None and spec.loader is not None
download = importlib.util.module_from_spec(spec)
spec.loader.exec_module(download)


def test_what_pip_says_becomes_one_line() -> None:
    lines = [
        "Looking in links: /wheels\n",
        "Ignoring colorama: markers 'sys_platform == \"win32\"' don't match your environment\n",
        "Collecting numpy==2.4.6 (from -r locks/cpu.txt (line 799))\n",
        "  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)\n",
        "Progress 0 of 16900000\n",
        "Progress 8450000 of 16900000\n",
        "Collecting packaging==26.4 (from -r locks/cpu.txt (line 942))\n",
        "  File was already downloaded /wheels/packaging-26.4-py3-none-any.whl\n",
        "Successfully downloaded numpy\n",
    ]
    assert list(download.told(lines, 3)) == [
        "1 of 3  numpy 2.4.6",
        "1 of 3  numpy 2.4.6  16.9 MB",
        "1 of 3  numpy 2.4.6  16.9 MB  0 %",
        "1 of 3  numpy 2.4.6  16.9 MB  50 %",
        "2 of 3  packaging 26.4",
    ]


def test_progress_of_an_unknown_length_is_left_out() -> None:
    assert list(download.told(["Collecting a==1 (from x)\n", "Progress 5 of 0\n"], 1)) == ["1 of 1  a 1"]


def test_a_download_that_fails_says_why_and_what_to_do(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("no-such-package-anywhere==1 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    done = subprocess.run(
        [sys.executable, str(PATH), str(lock), str(tmp_path), sys.executable, "-m", "pip", "--no-input"],
        env={**os.environ, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package-anywhere==1" in done.stderr
    assert done.stderr.endswith("The download failed: check the network and pip's settings, and try again.\n")
    assert done.stdout == ""
