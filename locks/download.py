"""Downloads what a lock file names into a folder of wheels, and tells in one line how far it is.

    python locks/download.py LOCK WHEELS PIP...

PIP is how pip is called. Its own output, some three lines a package, is shown only if it fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

PINNED = re.compile(r"^[A-Za-z0-9]", re.MULTILINE)
COLLECTING = re.compile(r"^Collecting (\S+?)==(\S+)")
SIZE = re.compile(r"^ +Downloading \S+ \((.*)\)")
PROGRESS = re.compile(r"^Progress (\d+) of (\d+)")
CLEAR_LINE = "\r\x1b[2K"
RAW_SINCE = (24, 1)  # the pip that can tell of its progress in numbers


def main(lock: Path, wheels: str, pip: list[str]) -> int:
    """Returns the exit code."""
    is_new = tuple(map(int, version("pip").split(".")[:2])) >= RAW_SINCE
    command = [*pip, "download", "--no-deps", "--require-hashes", "--dest", wheels, "-r", str(lock)]
    command += ["--progress-bar", "raw" if is_new else "off"]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for text in told(kept(process.stdout, said), len(PINNED.findall(lock.read_text(encoding="utf-8")))):
            if sys.stdout.isatty():
                print(f"{CLEAR_LINE}    {text}", end="", flush=True)
    if sys.stdout.isatty():
        print(CLEAR_LINE, end="", flush=True)
    if process.returncode:
        print("".join(said), end="", file=sys.stderr)
        print("The download failed: check the network and pip's settings, and try again.", file=sys.stderr)
    return 1 if process.returncode else 0


def kept(lines: Iterable[str], said: list[str]) -> Iterator[str]:
    """The same, noted down but for those of progress."""
    for line in lines:
        if not PROGRESS.match(line):
            said.append(line)
        yield line


def told(lines: Iterable[str], num_pinned: int) -> Iterator[str]:
    """Of pip's lines, what to show. num_pinned: packages of the lock, of which some may be for other systems."""
    number, name, size = 0, "", ""
    for line in lines:
        if match := COLLECTING.match(line):
            number, name, size = number + 1, f"{match[1]} {match[2]}", ""
            yield f"{number} of {num_pinned}  {name}"
        elif match := SIZE.match(line):
            size = match[1]
            yield f"{number} of {num_pinned}  {name}  {size}"
        elif (match := PROGRESS.match(line)) and int(match[2]):
            yield f"{number} of {num_pinned}  {name}  {size}  {100 * int(match[1]) // int(match[2])} %"


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except KeyboardInterrupt:
        sys.exit(130)
