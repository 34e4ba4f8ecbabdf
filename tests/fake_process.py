"""The whole server with a fake model, as processes of their own: `python fake_process.py LISTENER SERVER SCHEDULER
MODEL STEP_S`, with the number of a listening socket, and settings as JSON. So what it costs can be seen apart from what
the test costs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import uvloop

from anllm.config import SchedulerConfig, ServerConfig
from anllm.engine.client import EngineClient
from anllm.engine.process import ProcessTransport, serve_socket
from anllm.launch import bind, web_server
from anllm.server.app import create_app
from anllm.testing import FakeRunner
from fake_server import make_grammars, make_runner, make_service
from processes import end
from serving import PATIENCE_S, make_masks
from stepping import EOS, nearby

START_S = 100.0  # it takes two; the rest is for busy machines


def brief(token_ids: tuple[int, ...]) -> int:
    """As nearby, but answers end after some 30 tokens."""
    token_id = nearby(token_ids)
    return EOS if token_id == ord(" ") and len(token_ids) % 7 == 0 else token_id


MODELS = {"nearby": nearby, "brief": brief}


class FakeProcess:
    """Ended with the block, whatever happens in it.

    folder: where its log goes. model: of MODELS. step_s: what each step takes.
    """

    def __init__(
        self,
        folder: Path,
        server: ServerConfig | None = None,
        scheduler: SchedulerConfig | None = None,
        model: str = "nearby",
        step_s: float = 0.001,
    ) -> None:
        listener = bind(ServerConfig(port=0))  # here, so that the port is nobody else's by the time it is listened on
        self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        sections = (server or ServerConfig(), scheduler or SchedulerConfig())
        settings = [json.dumps(asdict(section)) for section in sections]
        self._log = folder / "log"
        with listener, self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno()), *settings, model, str(step_s)],
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, f"the server ended:\n{self.log}"
        try:
            return httpx.get(f"{self.url}/health", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def num_connections(self) -> int:
        """That the API process holds, whatever their state."""
        folder = f"/proc/{self.process.pid}"
        held = set()
        for name in os.listdir(f"{folder}/fd"):
            with contextlib.suppress(FileNotFoundError):
                held.add(os.readlink(f"{folder}/fd/{name}"))
        listing = [line.split() for line in Path(f"{folder}/net/tcp").read_text().splitlines()[1:]]
        mine = f"0100007F:{self.port:04X}"
        return sum(f"socket:[{row[9]}]" in held for row in listing if row[1] == mine and row[3] != "0A")

    def connect(self, *, receive_buffer_bytes: int | None = None) -> socket.socket:
        connection = socket.socket()
        if receive_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            assert time.monotonic() < deadline, f"not ready after {START_S} s:\n{self.log}"
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end(self.process)


async def serve(listener: socket.socket, server: str, scheduler: str, model: str, step_s: str) -> None:
    config = ServerConfig(**json.loads(server))
    engine = [sys.executable, __file__, "engine", scheduler, model, step_s]
    client = EngineClient(ProcessTransport(lambda: engine), SchedulerConfig(**json.loads(scheduler)))
    await client.start()
    try:
        with closing(make_grammars()) as grammars, listener:
            service = make_service(client, grammars)
            web = web_server(create_app(service, config), config)
            gc.collect()
            gc.freeze()  # as launch does
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(web, "should_exit", True))
            await web.serve([listener])
    finally:
        await client.close()


def run_engine(scheduler: str, model: str, step_s: str, address: str) -> int:
    runner = make_runner(MODELS[model], lambda plan: take_time(runner, float(step_s)))
    return serve_socket(address, SchedulerConfig(**json.loads(scheduler)), lambda on_progress: runner, make_masks)


def take_time(runner: FakeRunner, step_s: float) -> None:
    runner.plans.clear()  # it would keep them for tests to look at
    time.sleep(step_s)


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        sys.exit(run_engine(*sys.argv[2:]))
    inherited = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, int(sys.argv[1]))
    inherited.setblocking(False)
    uvloop.run(serve(inherited, *sys.argv[2:]))
