"""Servers started as a user starts them, in processes of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from processes import children, end, resident_bytes

START_S = 100.0  # a model loads in a few seconds; the rest is for busy machines
COMMAND = [sys.executable, "-c", "from anllm.cli import main; main()"]


def environment() -> dict[str, str]:
    """This process's, without settings of anllm, and with its import path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANLLM_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def reserved_port() -> tuple[int, socket.socket]:
    """A free port, and what keeps it from everybody but a server that listens on it, until it is closed."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", 0))
    port: int = found.getsockname()[1]
    if sys.platform != "linux":  # elsewhere it would keep it from the server too
        found.close()
    return port, found


def run_command(*arguments: str, timeout_s: float = START_S) -> subprocess.CompletedProcess[str]:
    """`anllm ARGUMENTS`, to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(), capture_output=True, text=True, check=False, timeout=timeout_s
    )


class RunningServer:
    """`anllm serve` and what it says. Ended with the block, whatever happens in it."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: Sequence[str] = (*COMMAND, "serve"),
        port: int | None = None,
        **variables: str,
    ) -> None:
        """folder: where its output goes. variables: of its environment, besides this process's. program: in place of
        `anllm serve`. port: that the arguments name otherwise; None takes a free one."""
        self._reserved = None
        if port is None:
            self.port, self._reserved = reserved_port()
        else:
            self.port = port
        self.url = f"http://127.0.0.1:{self.port}"
        self._stdout, self._stderr = folder / "stdout", folder / "stderr"
        with self._stdout.open("w") as out, self._stderr.open("w") as err:
            self.process = subprocess.Popen(
                [*program, *arguments, *([] if port else ["--port", str(self.port)])],
                env=environment() | variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def log(self) -> str:
        return self._stderr.read_text()

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def status(self, path: str) -> int:
        """HTTP status; 0 if nobody listens."""
        try:
            return self.get(path).status_code
        except httpx.TransportError:
            return 0

    def wait_for(self, status: int, path: str = "/health", timeout_s: float = START_S) -> None:
        deadline = time.monotonic() + timeout_s
        while self.status(path) != status:
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            assert time.monotonic() < deadline, f"{path} is not {status} after {timeout_s} s:\n{self.log}"
            time.sleep(0.02)

    def children(self) -> dict[int, str]:
        """Its processes, by their ids: what they were called with."""
        return children(self.process.pid)

    def used_bytes(self) -> tuple[int, int]:
        """Resident memory of the API process, and of the engine without what MLX keeps of freed arrays, which has a
        bound of its own that it comes to slowly. From /proc, so on Linux alone."""
        kept = self.get("/v1/status").json()["memory"]["cached_bytes"]
        return resident_bytes(self.process.pid), resident_bytes(self.engine_pid()) - kept

    def engine_pid(self) -> int:
        """The child that has the model."""
        (pid,) = [pid for pid, words in self.children().items() if " ipc://" in words]
        return pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end(self.process)
        if self._reserved is not None:
            self._reserved.close()


class Stream(threading.Thread):
    """Reads a stream of events in the background."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.started = threading.Event()  # a token has come, or the end
        self.events: list[Any] = []
        self._url = url
        self._body = {**body, "stream": True}
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=120) as response:
                for event in self._read(response):
                    self.events.append(event)
                    if len(self.events) >= 3:
                        self.started.set()
        finally:
            self.started.set()

    def _read(self, response: httpx.Response) -> Iterator[Any]:
        for line in response.iter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                yield data if data == "[DONE]" else json.loads(data)

    @property
    def error(self) -> dict[str, Any] | None:
        found = [event["error"] for event in self.events if isinstance(event, dict) and "error" in event]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def finish_reason(self) -> str | None:
        reasons = [c["finish_reason"] for e in self.events if isinstance(e, dict) for c in e.get("choices", ())]
        return reasons[-1] if reasons else None
