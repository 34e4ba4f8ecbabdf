"""The composition root of the API process: builds the rooms, hands each its neighbours, and runs the server.

Order: bind the port, look at the model's name, then listen at once and load meanwhile, so that /health can tell.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar, cast

import uvicorn

from anllm.config import Config, GenerationConfig, ModelConfig, SecurityConfig, ServerConfig
from anllm.core.events import EngineInfo, LoadProgress
from anllm.core.request import SamplingDefaults
from anllm.engine.client import EngineClient
from anllm.engine.process import ProcessTransport
from anllm.errors import AnllmError, ConfigError
from anllm.metrics.calls import Tracer
from anllm.metrics.recorder import Recorder
from anllm.parsers.choose import OutputFormat
from anllm.runner.build import RunnerSettings
from anllm.server.app import create_app
from anllm.server.connection import HttpConnection
from anllm.server.middleware import is_loopback
from anllm.server.service import Service
from anllm.server.tls import tls_context
from anllm.store.progress import Progress
from anllm.store.resolve import ModelSource, fetch, parse_source
from anllm.structured.checker import GrammarChecker
from anllm.structured.vocabulary import Vocabulary
from anllm.text.chat_template import ChatTemplate, load_chat_template
from anllm.text.generation_config import load_sampling_defaults
from anllm.text.interface import Tokenizer
from anllm.text.sandboxed_template import SandboxedTemplate
from anllm.text.special_tokens import read_json_object
from anllm.text.tokenizer import load_tokenizer
from anllm.worker import encode_settings

logger = logging.getLogger(__name__)

T = TypeVar("T")
DRAIN_SLACK_S = 2.0  # after the drain timeout, for error frames to go out


class Console(Progress, Protocol):
    """What the person who starts the server sees."""

    def loading(self, progress: LoadProgress) -> None:
        """The engine loads."""

    def ready(self, address: str, model_id: str, info: EngineInfo) -> None:
        """The model answers."""


def serve(config: Config, console: Console, worker: str = "anllm.worker") -> int:
    """Run the server until it is told to end. Returns the exit code; raises AnllmError if it can't start.

    worker: the module that is run as the engine process.
    """
    tls = tls_context(config.security)
    listener = bind(config.server)
    warn_of_exposure(config)
    try:
        source = parse_source(config.model.model)
        with asyncio.Runner(loop_factory=_event_loop_factory()) as runner:
            return runner.run(_Server(config, source, listener, console, worker, tls).run())
    finally:
        listener.close()


def bind(config: ServerConfig) -> socket.socket:
    """The listening socket. Raises ConfigError with one sentence if the address can't be had."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # named as TCP, since asyncio takes the delay for fuller packets off for such sockets only
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = f"Can't listen on {config.host} port {config.port}: {error.strerror or error}."
        raise ConfigError(f"{reason} {_way_out(error, config)}") from None
    listener.setblocking(False)
    return listener


def _way_out(error: OSError, config: ServerConfig) -> str:
    if error.errno == errno.EADDRINUSE:
        other = config.port + 1 if config.port < 65535 else 8000
        return f"Choose another, such as --port {other}, or end what has this one: lsof -i :{config.port} names it."
    if error.errno == errno.EACCES:
        return "Ports below 1024 are the system's: choose a higher one, such as --port 8000."
    return "Give an address of this machine as --host: 127.0.0.1 for programs on it, 0.0.0.0 for others too."


def warn_of_exposure(config: Config) -> None:
    """One line, where others can reach the server and nothing protects it."""
    security: SecurityConfig = config.security
    if "*" in security.allowed_origins:
        logger.warning("Every web page may use this server: allowed_origins is '*'.")
    if is_loopback(config.server.host):
        return
    advice = []
    if not security.has_api_keys:
        advice.append("everybody who can reach it may use it (--api-key-file)")
    if security.ssl_certfile is None:
        advice.append("prompts, answers and keys travel unencrypted (--ssl-certfile, or a proxy with TLS in front)")
    if advice:
        logger.warning("The server listens on %s: %s.", config.server.host, ", and ".join(advice))


class _Server:
    """One run: the web server, the engine, and who ends when."""

    def __init__(
        self,
        config: Config,
        source: ModelSource,
        listener: socket.socket,
        console: Console,
        worker: str,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._config = config
        self._source = source
        self._listener = listener
        self._console = console
        self._worker = worker
        self._settings: RunnerSettings | None = None
        transport = ProcessTransport(self._engine_command)
        recorder = Recorder()
        self._client = EngineClient(transport, config.scheduler, on_progress=console.loading, watcher=recorder)
        model_id = config.model.served_model_name or source.name
        self._service = Service(self._client, model_id, int(time.time()), recorder)
        self._service.tracer = make_tracer() if config.log.traces else None
        self._web = web_server(create_app(self._service, config.server, config.security), config.server, tls)
        self._failure: AnllmError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._grammars: GrammarChecker | None = None
        self._template: SandboxedTemplate | None = None

    async def run(self) -> int:
        """Serve until a signal, or until the model can't be served."""
        self._on_signals()
        self._spawn(self._bring_up())
        await self._web.serve(sockets=[self._listener])
        for task in self._tasks:
            task.cancel()
        await self._client.close()
        for helper in (self._grammars, self._template, self._service.tracer):
            if helper is not None:
                helper.close()
        if self._failure is not None:
            raise self._failure
        return 0

    async def _bring_up(self) -> None:
        """Fetch, load, announce; then watch the engine until it is down for good."""
        try:
            await self._load()
        except AnllmError as error:
            if not self._service.draining:  # an end that was asked for while loading is no failure
                self._fail(error)
            return
        await self._client.wait_closed()
        if not self._service.draining:
            reason = self._client.end_reason
            self._fail(AnllmError(f"The engine ended too often in a row. The last one {reason}; the log tells more."))

    async def _load(self) -> None:
        config, service = self._config, self._service
        folder = await _in_thread(lambda: fetch(self._source, self._console))
        self._console.stage("Starting the engine", None)
        tokenizer = await _in_thread(lambda: load_tokenizer(folder))
        self._settings = RunnerSettings(
            folder, tuple(sorted(tokenizer.eos_token_ids)), config.model, config.cache, config.scheduler
        )
        if config.model.generation_config is GenerationConfig.AUTO:
            service.defaults = await _in_thread(lambda: load_sampling_defaults(folder))
        chat_template = await _in_thread(lambda: load_chat_template(folder))
        service.output_format = output_format(folder, chat_template, tokenizer, config.model)
        if chat_template is not None:
            self._template = SandboxedTemplate(chat_template)
        info, vocabulary, service.chat_template = await asyncio.gather(
            self._client.start(),
            _in_thread(lambda: Vocabulary.of(tokenizer) if tokenizer.eos_token_ids else None),
            _in_thread(lambda: _warm_template(self._template)),
        )
        service.tokenizer = tokenizer
        if vocabulary is not None:
            service.grammars = self._grammars = GrammarChecker(vocabulary.fitted(info.vocab_size))
        service.max_model_len = info.max_model_len
        gc.collect()
        gc.freeze()  # what stays for good; looking through all of it would hold up every stream for 40 ms
        host, port = self._listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        if service.defaults != SamplingDefaults():
            logger.info("sampling of requests that don't say, by the model's generation_config: %s", service.defaults)
        scheme = "http" if config.security.ssl_certfile is None else "https"
        self._console.ready(f"{scheme}://{host}:{port}", service.model_id, info)

    def _engine_command(self) -> list[str]:
        assert self._settings is not None
        log = self._config.log
        return [sys.executable, "-m", self._worker, encode_settings(self._settings), log.level, log.format.value]

    def _fail(self, error: AnllmError) -> None:
        self._failure = error
        self._service.start_error = error.message
        self._web.should_exit = True

    # -- the end -------------------------------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        """First: take nothing new, let streams finish. Second: end now."""
        if self._service.draining:
            self._web.should_exit = self._web.force_exit = True
            self._spawn(self._client.close())
            return
        self._service.draining = True
        self._spawn(self._drain())

    async def _drain(self) -> None:
        """Give open requests their time; those that still run then get an error, and their streams an end. New ones are
        answered with 503 meanwhile, so that whoever shares the load among servers learns of it."""
        deadline = time.monotonic() + self._config.server.drain_timeout_s
        if self._client.num_open:
            logger.info(
                "ending: open requests get %g seconds to finish (%d now); a second Ctrl-C or SIGTERM ends them at once",
                self._config.server.drain_timeout_s,
                self._client.num_open,
            )
        while self._client.num_open and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await self._client.close()
        self._web.should_exit = True

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def make_tracer() -> Tracer | None:
    """By OpenTelemetry's own variables. None, and a warning, where its packages are not installed: the variables are
    often set for a whole machine."""
    try:
        from anllm.metrics.traces import OpenTelemetryTracer
    except ImportError as error:
        logger.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but traces need packages that are not installed (%s). No traces are "
            "sent. Install anllm with its extra 'otel', or: pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http",
            error,
        )
        return None
    return OpenTelemetryTracer.from_environment()


def output_format(
    folder: Path, chat_template: ChatTemplate | None, tokenizer: Tokenizer, config: ModelConfig
) -> OutputFormat:
    """How the model writes thoughts and calls. Raises ConfigError for a setting that is wrong, ModelError for a
    response_template of the model's that is."""
    own = read_json_object(folder, "tokenizer_config.json").get("response_template")
    template = read_json_file(Path(config.response_template)) if config.response_template else own
    return OutputFormat.choose(
        "" if chat_template is None else chat_template.text,
        lambda piece: tokenizer.token_id(piece) is not None,
        config.tool_parser,
        config.reasoning_parser,
        template if isinstance(template, dict) else None,
    )


def read_json_file(path: Path) -> dict[str, object]:
    """Raises ConfigError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"response_template: {path} can't be read as JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"response_template: {path} must hold a JSON object, got {type(value).__name__}.")
    return value


class _WebServer(uvicorn.Server):
    """uvicorn without its own signal handling, which can't drain streams."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def web_server(app: Callable[..., object], config: ServerConfig, tls: ssl.SSLContext | None = None) -> uvicorn.Server:
    """uvicorn as it serves `app` here; it listens where it is told to. With a TLS context it speaks HTTPS."""
    return _WebServer(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            http=HttpConnection.with_limits(config),
            ws="none",  # whatever is installed beside
            server_header=False,
            timeout_graceful_shutdown=int(config.drain_timeout_s + DRAIN_SLACK_S),
            ssl_context_factory=None if tls is None else lambda settings, default: tls,
        )
    )


def _event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _in_thread(work: Callable[[], T]) -> T:
    """Like asyncio.to_thread, on a thread that does not hold up the end of the process: a download may take long."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(cast("T", value))

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as raised:  # noqa: BLE001 - whatever it was, it is raised again where the work is awaited
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="anllm-load", daemon=True).start()
    return await result


def _warm_template(template: SandboxedTemplate | None) -> SandboxedTemplate | None:
    """Rendering starts a process on first use; let no request wait for it."""
    if template is not None:
        try:
            template.render([{"role": "user", "content": "hi"}])
        except AnllmError:
            logger.debug("the chat template refuses a plain message", exc_info=True)
    return template
