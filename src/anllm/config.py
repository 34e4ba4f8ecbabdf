"""The settings: one frozen Config of sections, each validated once and refused as a whole.

Plain dataclasses. Only cli/ builds a Config from argv and environment; every room gets the section that it needs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from anllm.errors import ConfigError
from anllm.logs import LogFormat

LOG_LEVELS = ("debug", "info", "warning", "error")

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s*]+")  # RFC 6454: scheme, host and perhaps port


class Weights(StrEnum):
    """In which form weights stay in memory."""

    AUTO = "auto"  # what is fastest on the backend, where it fits: as stored on the CPU, dequantised on CUDA
    AS_IS = "as-is"
    DEQUANTIZE = "dequantize"


class Execution(StrEnum):
    """How the model's forward is called; see runner/forward.py."""

    AUTO = "auto"  # the fastest that agrees with the model itself
    FLATTENED = "flattened"
    COMPATIBLE = "compatible"
    SEQUENTIAL = "sequential"


class GenerationConfig(StrEnum):
    """Where the sampling of requests comes from that don't say."""

    AUTO = "auto"  # the model's generation_config.json, where it has one
    NEUTRAL = "neutral"  # temperature 1 and no filters, as OpenAI has it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how it is loaded.

    model: hub id, local folder, or .gguf file; None is the embedded default model.
    served_model_name: id under which clients ask for it; None is the name of the model itself.
    max_model_len: longest prompt + answer in tokens; None is the model's own limit.
    weights, execution: see the enums.
    blas: path of a BLAS library for the CPU backend; None lets anllm choose.
    generation_config: see the enum.
    tool_parser, reasoning_parser: names of the forms in which it writes calls and thoughts; None finds them out.
    response_template: path of a JSON file that describes its answers, in place of what its folder has.
    """

    model: str | None = None
    served_model_name: str | None = None
    max_model_len: int | None = None
    weights: Weights = Weights.AUTO
    execution: Execution = Execution.AUTO
    blas: str | None = None
    generation_config: GenerationConfig = GenerationConfig.AUTO
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    response_template: str | None = None

    def __post_init__(self) -> None:
        _at_least(1, "max_model_len", self.max_model_len)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Memory for K/V, and what is kept in it.

    memory_fraction: share of the device's memory that weights, K/V and working memory may take together, (0, 1].
    kv_memory_bytes: K/V budget in bytes, in place of the one found by memory_fraction.
    prefix_cache: keep the K/V of requests that have ended, as long as there is room, for prompts that begin alike.
    """

    memory_fraction: float = 0.8
    kv_memory_bytes: int | None = None
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.memory_fraction <= 1:
            raise ConfigError(f"memory_fraction must be above 0 and at most 1, got {self.memory_fraction}.")
        _at_least(1, "kv_memory_bytes", self.kv_memory_bytes)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Who runs.

    max_num_seqs: sequences in one batch.
    max_num_batched_tokens: tokens in one step when nobody decodes (prefill in large pieces); None is what suits the
        backend.
    decode_token_budget: most tokens in one step while others decode; measured speed sets what they really get.
    max_num_waiting: sequences in the queue; one more is refused with 429.
    max_queue_time_s: seconds that a sequence may wait before anything of it is computed; then it fails with 503. None
        is no limit.
    step_timeout_s: seconds after which a step is taken to hang, and the engine is started again. None is found out, by
        what the model takes on this machine.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int | None = None
    decode_token_budget: int = 1024
    max_num_waiting: int = 512
    max_queue_time_s: float | None = None
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "decode_token_budget", "max_num_waiting"):
            _at_least(1, name, getattr(self, name))
        for name in ("max_queue_time_s", "step_timeout_s"):
            _is_duration(name, getattr(self, name))

    @property
    def max_num_open(self) -> int:
        """Sequences that may be running or waiting."""
        return self.max_num_seqs + self.max_num_waiting


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP side.

    host, port: where to listen. The default takes connections of this machine only.
    max_body_bytes: longest request body; more is refused with 413.
    head_timeout_s: seconds in which the head of a request must come; half a head is refused with 408.
    body_timeout_s: seconds without a byte after which a body that is not complete is refused with 408.
    max_connections: open connections; one more is told 503.
    idle_timeout_s: seconds after which a connection is closed that sends no further request.
    write_timeout_s: seconds after which a client that takes nothing of its answer is disconnected.
    max_n: highest `n` of a request. max_stop_strings: most `stop` strings of a request.
    keep_alive_s: seconds of silence after which a stream sends a comment line.
    drain_timeout_s: seconds that open streams get to finish after SIGTERM.
    request_timeout_s: seconds that a request may take, from its arrival to the end of its answer; None is no limit. A
        request may set less by its header x-request-timeout.
    max_stored_responses: answers of the Responses API that are kept for requests that go on from them; 0 keeps none.
    max_stored_bytes: memory for them. stored_response_ttl_s: seconds after its last use for which one is kept.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 32 * 1024 * 1024
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 120.0
    max_n: int = 128
    max_stop_strings: int = 4
    keep_alive_s: float = 10.0
    drain_timeout_s: float = 10.0
    max_connections: int = 4096
    request_timeout_s: float | None = None
    max_stored_responses: int = 1000
    max_stored_bytes: int = 64 * 1024 * 1024
    stored_response_ttl_s: float = 86_400.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, got {self.port}.")
        for name in ("max_body_bytes", "max_n", "max_stop_strings", "max_connections", "max_stored_bytes"):
            _at_least(1, name, getattr(self, name))
        _at_least(0, "max_stored_responses", self.max_stored_responses)
        for name in (
            "head_timeout_s",
            "body_timeout_s",
            "idle_timeout_s",
            "write_timeout_s",
            "keep_alive_s",
            "drain_timeout_s",
            "request_timeout_s",
            "stored_response_ttl_s",
        ):
            _is_duration(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is told about what happens, by both processes.

    level: the least that is logged on stderr: "debug", "info", "warning" or "error".
    format: see LogFormat.
    traces: send a span for each request to where OpenTelemetry's environment variables say.
    """

    level: str = "info"
    format: LogFormat = LogFormat.TEXT
    traces: bool = False

    def __post_init__(self) -> None:
        if self.level not in LOG_LEVELS:
            raise ConfigError(f"log_level must be one of {', '.join(LOG_LEVELS)}, got {self.level!r}.")


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Who may use the server, and how it is reached.

    api_keys: secrets of which a request must carry one; none lets everybody in. Never shown.
    api_key_file: file with more of them, read again when it changes; see server/api_keys.py for its form.
    max_requests_per_key: open POST requests of one key at a time; None is no limit of its own.
    allowed_origins: web origins, such as https://chat.example.com, whose pages may use the server; "*" is all.
    allowed_hosts: names that a Host header may have besides those of this machine. Empty on an address that others can
        reach lets every name pass.
    ssl_certfile, ssl_keyfile, ssl_keyfile_password: PEM files of the server's certificate chain and its key, for HTTPS;
        the key may stand in the first file.
    ssl_ca_certs: PEM file of authorities; clients must then have a certificate from one of them.
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: str | None = None
    max_requests_per_key: int | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = field(default=None, repr=False)
    ssl_ca_certs: str | None = None

    def __post_init__(self) -> None:
        _at_least(1, "max_requests_per_key", self.max_requests_per_key)
        for position, key in enumerate(self.api_keys, 1):
            if not is_api_key(key):
                raise ConfigError(f"api_keys: key {position} must be printable ASCII without spaces, and not empty.")
        if self.max_requests_per_key is not None and not self.has_api_keys:
            raise ConfigError("max_requests_per_key needs API keys: set api_keys or api_key_file, too.")
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"allowed_origins must be '*' or origins such as https://chat.example.com, without a path, "
                    f"got {origin!r}."
                )
        for host in self.allowed_hosts:
            if not host or "/" in host or "*" in host:
                raise ConfigError(f"allowed_hosts must be names such as llm.example.com, got {host!r}.")
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ConfigError(f"{name} needs ssl_certfile: the certificate of the server, as a PEM file.")

    @property
    def has_api_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self.api_keys) or self.api_key_file is not None


def is_api_key(text: str) -> bool:
    """Whether it can stand in a header as it is."""
    return bool(text) and all("!" <= char <= "~" for char in text)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    log: LogConfig = field(default_factory=LogConfig)


def _is_duration(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ConfigError(f"{name} must be above 0 and finite, got {value}.")


def _at_least(minimum: int, name: str, value: int | None) -> None:
    if value is not None and value < minimum:
        raise ConfigError(f"{name} must be at least {minimum}, got {value}.")
