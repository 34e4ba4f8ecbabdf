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

from processes import end

START_S = 60.0  # a model loads in a few seconds; the rest is for busy machines
COMMAND = [sys.executable, "-c", "from anllm.cli import main; main()"]


def environment() -> dict[str, str]:
    """This process's, without settings of anllm, and with its import path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANLLM_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def run_command(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
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
        self.port = port or free_port()
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
        command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listing.splitlines()]
        return {int(pid): words for pid, parent, words in rows if int(parent) == self.process.pid}

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
