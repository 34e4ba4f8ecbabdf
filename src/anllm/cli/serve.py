"""`anllm serve`: the server. Flags carry vLLM's names where they mean the same."""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from anllm.cli.config_file import config_option
from anllm.cli.model_names import servable_models
from anllm.cli.sections import SectionedCommand
from anllm.config import (
    LOG_LEVELS,
    CacheConfig,
    Config,
    Execution,
    GenerationConfig,
    LogConfig,
    ModelConfig,
    SchedulerConfig,
    SecurityConfig,
    ServerConfig,
    Weights,
)
from anllm.logs import LogFormat, configure

if TYPE_CHECKING:
    _IntegerType = click.ParamType[int, object]
else:
    _IntegerType = click.ParamType  # which is not generic in older versions

DEFAULT = Config()
logger = logging.getLogger(__name__)
_SECRETS = ("ANLLM_API_KEY", "ANLLM_SERVE_API_KEY", "ANLLM_SERVE_SSL_KEYFILE_PASSWORD")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(_IntegerType):
    """A number of bytes, as 8G or 512M."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).upper().removesuffix("IB").removesuffix("B")
        unit = text[-1] if text[-1:].isalpha() else ""
        try:
            return int(float(text.removesuffix(unit)) * UNITS[unit])
        except (KeyError, OverflowError, ValueError):
            self.fail(f"{value!r} is no size; give a number of bytes, or one with K, M, G or T, such as 8G", param, ctx)


# The flag that a heading of --help begins with.
SECTIONS = {
    "host": "Address and name",
    "max_model_len": "Batching",
    "memory_fraction": "Memory",
    "weights": "Model",
    "max_n": "Requests",
    "api_key": "Security and load",
    "log_level": "Logs",
}


@click.command(cls=SectionedCommand, sections=SECTIONS, context_settings={"show_default": True})
@click.argument("model", required=False, shell_complete=servable_models)
@config_option
@click.option("--host", default=DEFAULT.server.host, help="Address to listen on.")
@click.option("--port", default=DEFAULT.server.port, type=int, help="Port to listen on.")
@click.option("--served-model-name", help="Id under which clients ask for the model.  [default: its own name]")
@click.option("--max-model-len", type=int, help="Longest prompt + answer in tokens.  [default: the model's limit]")
@click.option("--max-num-seqs", default=DEFAULT.scheduler.max_num_seqs, type=int, help="Sequences in one batch.")
@click.option(
    "--max-num-batched-tokens", type=int, help="Tokens in one step when nobody decodes.  [default: by the backend]"
)
@click.option(
    "--decode-token-budget",
    default=DEFAULT.scheduler.decode_token_budget,
    type=int,
    help="Tokens in one step while others decode.",
)
@click.option(
    "--max-num-waiting",
    default=DEFAULT.scheduler.max_num_waiting,
    type=int,
    help="Sequences in the queue; one more is refused with 429.",
)
@click.option(
    "--max-queue-time",
    type=float,
    help="Seconds that a request may wait to begin; then it fails with 503.  [default: no limit]",
)
@click.option(
    "--step-timeout",
    type=float,
    help="Seconds after which a step is taken to hang and the engine is started again.  [default: by the model]",
)
@click.option(
    "--memory-fraction",
    default=DEFAULT.cache.memory_fraction,
    type=float,
    help="Share of the device's memory for weights, K/V and work together.",
)
@click.option("--kv-memory", type=Size(), help="Memory for K/V, such as 8G.  [default: what the fraction leaves]")
@click.option(
    "--prefix-cache/--no-prefix-cache",
    default=DEFAULT.cache.prefix_cache,
    help="Keep what was computed for prompts that begin alike.",
)
@click.option(
    "--weights",
    default=DEFAULT.model.weights.value,
    type=click.Choice([w.value for w in Weights]),
    help="Form of the weights in memory.",
)
@click.option(
    "--execution",
    default=DEFAULT.model.execution.value,
    type=click.Choice([e.value for e in Execution]),
    help="How the model is called; auto takes the fastest that agrees with the model.",
)
@click.option("--blas", help="BLAS library for the CPU backend.  [default: the best one found]")
@click.option(
    "--generation-config",
    default=DEFAULT.model.generation_config.value,
    type=click.Choice([g.value for g in GenerationConfig]),
    help="Sampling of requests that don't say: auto is the model's generation_config.json.",
)
@click.option(
    "--tool-call-parser", help="Form in which the model writes tool calls, by vLLM's name.  [default: found out]"
)
@click.option("--reasoning-parser", help="Form in which it writes its thoughts, by vLLM's name.  [default: found out]")
@click.option(
    "--response-template", help="JSON file that describes its answers.  [default: response_template of the model]"
)
@click.option("--max-n", default=DEFAULT.server.max_n, type=int, help="Highest n of a request.")
@click.option(
    "--max-stop-strings", default=DEFAULT.server.max_stop_strings, type=int, help="Most stop strings of a request."
)
@click.option(
    "--max-body",
    default=DEFAULT.server.max_body_bytes,
    show_default=f"{DEFAULT.server.max_body_bytes >> 20}M",
    type=Size(),
    help="Longest request body.",
)
@click.option(
    "--head-timeout",
    default=DEFAULT.server.head_timeout_s,
    type=float,
    help="Seconds in which the head of a request must come.",
)
@click.option(
    "--body-timeout",
    default=DEFAULT.server.body_timeout_s,
    type=float,
    help="Seconds without a byte after which half a request body is refused.",
)
@click.option(
    "--idle-timeout",
    default=DEFAULT.server.idle_timeout_s,
    type=float,
    help="Seconds after which a connection without a request is closed.",
)
@click.option(
    "--write-timeout",
    default=DEFAULT.server.write_timeout_s,
    type=float,
    help="Seconds after which a client that takes nothing is disconnected.",
)
@click.option(
    "--keep-alive",
    default=DEFAULT.server.keep_alive_s,
    type=float,
    help="Seconds of silence after which a stream sends a comment.",
)
@click.option(
    "--request-timeout",
    type=float,
    help="Seconds that a request may take; its header x-request-timeout may say less.  [default: no limit]",
)
@click.option(
    "--drain-timeout",
    default=DEFAULT.server.drain_timeout_s,
    type=float,
    help="Seconds that open requests get to finish after SIGTERM.",
)
@click.option(
    "--max-stored-responses",
    default=DEFAULT.server.max_stored_responses,
    type=int,
    help="Answers of the Responses API that are kept for later requests; 0 keeps none.",
)
@click.option(
    "--max-stored", default=DEFAULT.server.max_stored_bytes, type=Size(), help="Memory for them, such as 64M."
)
@click.option(
    "--stored-response-ttl",
    default=DEFAULT.server.stored_response_ttl_s,
    type=float,
    help="Seconds after its last use for which one is kept.",
)
@click.option(
    "--api-key",
    "api_key",
    multiple=True,
    default=DEFAULT.security.api_keys,
    envvar="ANLLM_API_KEY",
    help="Key that requests must carry; may be given more than once. Better by ANLLM_API_KEY or --api-key-file, since "
    "other users can see command lines.",
)
@click.option(
    "--api-key-file", help="File of keys, one a line, perhaps with a name before it; read anew when it changes."
)
@click.option("--max-requests-per-key", type=int, help="Open requests of one key at a time.  [default: no limit]")
@click.option(
    "--allowed-origins",
    multiple=True,
    default=DEFAULT.security.allowed_origins,
    help="Web origins whose pages may use the server, as in CORS; with commas, or given more than once. * is all.",
)
@click.option(
    "--allowed-hosts",
    multiple=True,
    default=DEFAULT.security.allowed_hosts,
    help="Names that a Host header may have besides this machine's; with commas, or given more than once.",
)
@click.option("--ssl-certfile", help="Certificate chain in PEM form: serve HTTPS.")
@click.option("--ssl-keyfile", help="Its key in PEM form.  [default: in the same file]")
@click.option("--ssl-keyfile-password", help="Password of the key; better by its environment variable.")
@click.option("--ssl-ca-certs", help="Authorities in PEM form: clients need a certificate of one of them.")
@click.option(
    "--max-connections",
    default=DEFAULT.server.max_connections,
    type=int,
    help="Open connections; one more is told 503.",
)
@click.option(
    "--log-level",
    default=DEFAULT.log.level,
    type=click.Choice(LOG_LEVELS),
    help="What to log on stderr.",
)
@click.option(
    "--log-format",
    default=DEFAULT.log.format.value,
    type=click.Choice([f.value for f in LogFormat]),
    help="Form of log lines: text, or a JSON object a line.",
)
def serve(model: str | None, **options: Any) -> None:
    """Serve MODEL: a hub id, a local folder, or a .gguf file. Without MODEL, the embedded default model."""
    from anllm.store.progress import can_draw_on

    form = LogFormat(options["log_format"])
    configure(options["log_level"], form, "api", beside_bars=can_draw_on(sys.stderr))
    from anllm.cli.console import TerminalConsole
    from anllm.launch import serve as run_server

    warn_of_unknown_variables(os.environ)
    config = build_config(model, options)
    forget_secrets()
    with TerminalConsole() as console:
        code = run_server(config, console)
    sys.exit(code)


def warn_of_unknown_variables(environment: Mapping[str, str]) -> None:
    """One line for those that look like flags and are none: nobody else would tell."""
    known = {f"ANLLM_SERVE_{parameter.name}".upper() for parameter in serve.params}
    for name in sorted(name for name in environment if name.startswith("ANLLM_SERVE_") and name not in known):
        near = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        logger.warning("%s is set, and serve has no such flag.%s", name, hint)


def traces_are_wanted(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables name a place for traces."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_off and any(environment.get(name) for name in names)


def build_config(model: str | None, options: dict[str, Any]) -> Config:
    """The command's options by section. Raises ConfigError for a value out of range."""
    return Config(
        model=ModelConfig(
            model=model,
            served_model_name=options["served_model_name"],
            max_model_len=options["max_model_len"],
            weights=Weights(options["weights"]),
            execution=Execution(options["execution"]),
            blas=options["blas"],
            generation_config=GenerationConfig(options["generation_config"]),
            tool_parser=options["tool_call_parser"],
            reasoning_parser=options["reasoning_parser"],
            response_template=options["response_template"],
        ),
        cache=CacheConfig(
            memory_fraction=options["memory_fraction"],
            kv_memory_bytes=options["kv_memory"],
            prefix_cache=options["prefix_cache"],
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=options["max_num_seqs"],
            max_num_batched_tokens=options["max_num_batched_tokens"],
            decode_token_budget=options["decode_token_budget"],
            max_num_waiting=options["max_num_waiting"],
            max_queue_time_s=options["max_queue_time"],
            step_timeout_s=options["step_timeout"],
        ),
        server=ServerConfig(
            host=options["host"],
            port=options["port"],
            max_body_bytes=options["max_body"],
            head_timeout_s=options["head_timeout"],
            body_timeout_s=options["body_timeout"],
            idle_timeout_s=options["idle_timeout"],
            write_timeout_s=options["write_timeout"],
            max_n=options["max_n"],
            max_stop_strings=options["max_stop_strings"],
            keep_alive_s=options["keep_alive"],
            drain_timeout_s=options["drain_timeout"],
            max_connections=options["max_connections"],
            request_timeout_s=options["request_timeout"],
            max_stored_responses=options["max_stored_responses"],
            max_stored_bytes=options["max_stored"],
            stored_response_ttl_s=options["stored_response_ttl"],
        ),
        security=SecurityConfig(
            api_keys=options["api_key"],
            api_key_file=options["api_key_file"],
            max_requests_per_key=options["max_requests_per_key"],
            allowed_origins=_by_commas(options["allowed_origins"]),
            allowed_hosts=_by_commas(options["allowed_hosts"]),
            ssl_certfile=options["ssl_certfile"],
            ssl_keyfile=options["ssl_keyfile"],
            ssl_keyfile_password=options["ssl_keyfile_password"],
            ssl_ca_certs=options["ssl_ca_certs"],
        ),
        log=LogConfig(
            level=options["log_level"], format=LogFormat(options["log_format"]), traces=traces_are_wanted(os.environ)
        ),
    )


def forget_secrets() -> None:
    """So that no child process inherits them."""
    for name in _SECRETS:
        os.environ.pop(name, None)


def _by_commas(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
