"""Starting anllm and its rivals for a comparison, and ending them again. Each runs on a free port of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_S = 600.0


@dataclass(frozen=True)
class Server:
    """command: with {port} in it; model: the id to ask for; environment: what is set besides this process's own."""

    name: str
    command: tuple[str, ...]
    model: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    server: Server
    url: str
    pid: int

    def memory_bytes(self) -> int:
        """Resident memory of the process and its children."""
        return sum(_resident_bytes(pid) for pid in _tree(self.pid))


def gpu_memory_bytes() -> int | None:
    """What all processes have taken of the first GPU; None without one."""
    try:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return int(done.stdout.split()[0]) << 20


def anllm(model: Path, *flags: str) -> Server:
    code = "from anllm.cli import main; main()"
    command = (sys.executable, "-c", code, "serve", str(model), "--port", "{port}", "--log-level", "warning", *flags)
    return Server("anllm", command, model.name)


def mlx_lm(model: Path, *, blas: Path | None = None) -> Server:
    """mlx_lm.server with its batching wide open; with `blas`, that library preloaded."""
    command = (
        *(sys.executable, "-m", "mlx_lm.server", "--model", str(model), "--port", "{port}", "--log-level", "WARNING"),
        *("--decode-concurrency", "128", "--prompt-concurrency", "16"),
    )
    preload = {"LD_PRELOAD": str(blas)} if blas else {}
    return Server(f"mlx_lm.server{' with BLAS' if blas else ''}", command, str(model), preload)


def llama_cpp(gguf: Path, streams: int, threads: int) -> Server | None:
    """llama-server, if it is on the PATH."""
    binary = shutil.which("llama-server")
    if binary is None:
        return None
    command = (
        *(binary, "-m", str(gguf), "--port", "{port}", "-np", str(streams), "-c", str(1024 * streams)),
        *("-t", str(threads), "--log-disable"),
    )
    return Server("llama-server", command, gguf.name)


@contextmanager
def started(server: Server) -> Iterator[Running]:
    """The server, ready; ended afterwards with all its children. RuntimeError if it does not start."""
    port = _free_port()
    command = [part.replace("{port}", str(port)) for part in server.command]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **server.environment}, start_new_session=True
        )
        try:
            _wait_ready(process, f"http://127.0.0.1:{port}/health", log)
            yield Running(server, f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: object) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)  # type: ignore[attr-defined]
            raise RuntimeError(f"the server ended: {log.read()[-1000:].decode(errors='replace')}")  # type: ignore[attr-defined]
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start in {START_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        below = [int(child) for child in children.read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(descendant for child in below for descendant in _tree(child))]


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
