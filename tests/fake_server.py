"""The whole server but for the model: the real app, the real client and engine, and FakeRunner. In process, or on a
real port in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from anllm.config import SchedulerConfig, SecurityConfig, ServerConfig
from anllm.core.request import Request, SamplingParams
from anllm.core.step import StepPlan
from anllm.engine.client import EngineClient
from anllm.launch import bind, web_server
from anllm.metrics.recorder import Recorder
from anllm.server.app import create_app
from anllm.server.service import Service
from anllm.server.tls import tls_context
from anllm.structured.checker import GrammarChecker
from anllm.testing import ByteTokenizer, FakeRunner
from anllm.testing.runner import Model, letters
from server_harness import MODEL, FakeTemplate, chat_body, comp_body
from serving import PATIENCE_S, Gate, running_client, vocabulary
from stepping import alone, make_request

MAX_MODEL_LEN = 8192


def make_grammars() -> GrammarChecker:
    """To be closed; its process starts with the first grammar."""
    return GrammarChecker(vocabulary(ByteTokenizer.vocab_size))


def make_service(client: EngineClient, grammars: GrammarChecker, recorder: Recorder | None = None) -> Service:
    service = Service(client, MODEL, 1764400000, recorder)
    service.grammars = grammars
    service.tokenizer, service.chat_template, service.max_model_len = ByteTokenizer(), FakeTemplate(), MAX_MODEL_LEN
    return service


def make_runner(
    model: Model = letters,
    before_run: Callable[[StepPlan], None] = lambda plan: None,
    kv_budget_tokens: int = 1 << 20,
    max_model_len: int = MAX_MODEL_LEN,
) -> FakeRunner:
    return FakeRunner(model, max_model_len=max_model_len, before_run=before_run, kv_budget_tokens=kv_budget_tokens)


def prompt_of(body: dict[str, Any]) -> tuple[int, ...]:
    """What the engine gets for this body."""
    text = FakeTemplate().render(body["messages"]) if "messages" in body else body["prompt"]
    return tuple(text.encode())


def text_alone(body: dict[str, Any], model: Model = letters) -> tuple[str, str]:
    """Text and finish reason of this body's answer when nobody else is there."""
    request = make_request(prompt=prompt_of(body), max_tokens=body.get("max_tokens"))
    tokens, reason = alone(request, model, max_model_len=MAX_MODEL_LEN)
    return ByteTokenizer().decode(tokens), str(reason)


class InProcess:
    """The app behind httpx, without a socket."""

    def __init__(self, client: EngineClient, runner: FakeRunner, grammars: GrammarChecker, recorder: Recorder) -> None:
        self.client = client
        self.runner = runner
        self.recorder = recorder
        self.service = make_service(client, grammars, recorder)
        self.app: FastAPI = create_app(self.service, ServerConfig())
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://localhost:8000", timeout=PATIENCE_S
        )

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=chat_body(**fields))

    async def comp(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json=comp_body(**fields))


@asynccontextmanager
async def in_process(
    runner: FakeRunner | None = None, config: SchedulerConfig | None = None, **settings: Any
) -> AsyncIterator[InProcess]:
    """settings: of the EngineClient."""
    runner = runner or make_runner()
    recorder = Recorder()
    async with running_client(runner, config, watcher=recorder, **settings) as client:
        with closing(make_grammars()) as grammars:
            server = InProcess(client, runner, grammars, recorder)
            async with server.http:
                yield server


class RealServer:
    """uvicorn on a port of its own. `client` belongs to the server's thread: only look at it."""

    client: EngineClient
    grammars: GrammarChecker
    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        runner: FakeRunner,
        gate: Gate,
        config: SchedulerConfig,
        server_config: ServerConfig | None = None,
        security: SecurityConfig | None = None,
    ) -> None:
        self._security = security or SecurityConfig()
        self._server_config = server_config or ServerConfig(drain_timeout_s=0.1)
        self.runner = runner
        self.gate = gate
        self._config = config
        self._listener = bind(ServerConfig(port=0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.recorder = Recorder()
        self._web: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="test-server")

    @contextmanager
    def running(self) -> Iterator[RealServer]:
        self._thread.start()
        try:
            self.until(lambda: self._web is not None and self._web.started)
            yield self
        finally:
            self.gate.open()
            if self._web is not None:
                self._web.should_exit = True
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()
            self._listener.close()

    def make_app(self) -> FastAPI:
        return create_app(self.make_service(), self._server_config, self._security)

    def make_service(self) -> Service:
        return make_service(self.client, self.grammars, self.recorder)

    async def _serve(self) -> None:
        with closing(make_grammars()) as self.grammars:
            await self._serve_until_told()

    async def _serve_until_told(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with running_client(self.runner, self._config, watcher=self.recorder) as self.client:
            self._web = web_server(self.make_app(), self._server_config, tls_context(self._security))
            await self._web.serve([self._listener])

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it never came to hold"
            time.sleep(0.002)

    def until_idle(self) -> None:
        """No request is open, and the engine does nothing any more: it has refused one that came after all others,
        which it does between two steps."""
        self.until(lambda: self.client.num_open == 0)
        refused = threading.Event()
        empty = Request(request_id=self.client.next_request_id(), prompt_token_ids=(), params=SamplingParams())
        self._loop.call_soon_threadsafe(self.client.submit, [empty], lambda event: refused.set())
        assert refused.wait(PATIENCE_S)

    def connect(self, *, receive_buffer_bytes: int | None = None) -> socket.socket:
        connection = socket.socket()
        if receive_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", self.port))
        return connection
