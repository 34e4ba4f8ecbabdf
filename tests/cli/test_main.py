"""The command line: what it says, what it refuses, and which Config it builds. No server is started, nothing loaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import anllm
from anllm import launch
from anllm.cli import main
from anllm.cli.console import print_ready, ready_line
from anllm.cli.main import COMMANDS
from anllm.cli.serve import Size, warn_of_unknown_variables
from anllm.config import Config, Execution, ModelConfig, SecurityConfig, ServerConfig, Weights
from anllm.core.events import EngineInfo
from anllm.errors import ModelError


class Launched:
    """Stands in for the server; keeps the Config that it was given."""

    def __init__(self) -> None:
        self.config: Config | None = None
        self.error: ModelError | None = None
        self.environment: dict[str, str] = {}

    def __call__(self, config: Config, console: object) -> int:
        self.config = config
        self.environment = dict(os.environ)
        if self.error is not None:
            raise self.error
        return 0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    stand_in = Launched()
    monkeypatch.setattr(launch, "serve", stand_in)
    return stand_in


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="anllm", env=environment)


def config_of(launched: Launched, *arguments: str, **environment: str) -> Config:
    result = run("serve", *arguments, **environment)
    assert result.exit_code == 0, result.output
    assert launched.config is not None
    return launched.config


# -- help and version --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["pull", "-h"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from anllm.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    assert not end.code
heavy = {{"mlx", "mlx_lm", "fastapi", "starlette", "pydantic", "uvicorn", "transformers", "numpy"}}
print("heavy:", sorted(heavy & {{name.split(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")


NAMES = [name for commands in COMMANDS.values() for name in commands]


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def test_help_names_the_commands_under_headings() -> None:
    text = run("--help").output
    for heading, commands in COMMANDS.items():
        assert f"{heading}:" in text
        for name, words in commands.items():
            assert re.search(rf"^  {name} +{re.escape(words)}$", text, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_names_every_option(name: str) -> None:
    text = run(name, "--help").output
    assert text.startswith(f"Usage: anllm {name} ")
    assert command(name).name == name
    for parameter in command(name).params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in text
            assert parameter.help


def test_help_of_serve_has_the_defaults() -> None:
    text = run("serve", "--help").output
    assert "[default: 8000]" in " ".join(text.split())
    assert run("serve", "-h").output == text


def test_version() -> None:
    assert run("--version").output == f"anllm, version {anllm.__version__}\n"


def test_the_package_is_a_program_too() -> None:
    command = [sys.executable, "-m", "anllm", "--version"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == f"anllm, version {anllm.__version__}\n"


# -- the Config --------------------------------------------------------------------------------------------------------


def test_without_options_the_config_is_the_default(launched: Launched) -> None:
    assert config_of(launched) == Config()


def test_every_option_has_its_place(launched: Launched) -> None:
    line = (
        "org/name --host 0.0.0.0 --port 9 --served-model-name m --max-model-len 99 --max-num-seqs 3 "
        "--max-num-batched-tokens 100 --decode-token-budget 50 --max-num-waiting 7 --memory-fraction 0.5 "
        "--kv-memory 8G --weights as-is --execution sequential --blas /b.so --max-n 2 --max-stop-strings 5 "
        "--max-body 1M --body-timeout 3 --keep-alive 2.5 --drain-timeout 1 --max-connections 77 "
        "--head-timeout 11 --idle-timeout 12 --write-timeout 13 --request-timeout 14 --max-queue-time 15 "
        "--step-timeout 16 --max-stored-responses 17 --max-stored 18M --stored-response-ttl 19"
    )
    config = config_of(launched, *line.split())
    assert config.model == ModelConfig("org/name", "m", 99, Weights.AS_IS, Execution.SEQUENTIAL, "/b.so")
    assert (config.cache.memory_fraction, config.cache.kv_memory_bytes) == (0.5, 8 << 30)
    scheduler = config.scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (3, 100)
    assert (scheduler.decode_token_budget, scheduler.max_num_waiting) == (50, 7)
    assert config.server == ServerConfig(
        host="0.0.0.0",
        port=9,
        max_body_bytes=1 << 20,
        head_timeout_s=11,
        body_timeout_s=3.0,
        idle_timeout_s=12,
        write_timeout_s=13,
        max_n=2,
        max_stop_strings=5,
        keep_alive_s=2.5,
        drain_timeout_s=1.0,
        max_connections=77,
        request_timeout_s=14,
        max_stored_responses=17,
        max_stored_bytes=18 << 20,
        stored_response_ttl_s=19,
    )
    assert (scheduler.max_queue_time_s, scheduler.step_timeout_s) == (15, 16)


def test_options_of_security_have_their_place(launched: Launched) -> None:
    line = (
        "--api-key k1 --api-key k2 --api-key-file /keys --max-requests-per-key 3 --allowed-hosts a.example "
        "--allowed-origins https://a.example,https://b.example:8443 --allowed-origins http://c.example "
        "--ssl-certfile c.pem --ssl-keyfile k.pem --ssl-keyfile-password p --ssl-ca-certs ca.pem"
    )
    origins = ("https://a.example", "https://b.example:8443", "http://c.example")
    assert config_of(launched, *line.split()).security == SecurityConfig(
        ("k1", "k2"), "/keys", 3, origins, ("a.example",), "c.pem", "k.pem", "p", "ca.pem"
    )


@pytest.mark.parametrize("name", ["ANLLM_API_KEY", "ANLLM_SERVE_API_KEY"])
def test_keys_come_from_the_environment_which_no_child_process_inherits(launched: Launched, name: str) -> None:
    password = {"ANLLM_SERVE_SSL_KEYFILE_PASSWORD": "p", "ANLLM_SERVE_SSL_CERTFILE": "c.pem"}
    security = config_of(launched, **{name: "k1 k2"}, **password).security
    assert (security.api_keys, security.ssl_keyfile_password) == (("k1", "k2"), "p")
    assert launched.environment.keys().isdisjoint({name, *password} - {"ANLLM_SERVE_SSL_CERTFILE"})


def test_a_wrong_value_is_told_with_its_variable() -> None:
    result = run("serve", ANLLM_SERVE_PORT="eighty")
    assert result.exit_code == 2
    assert "'eighty' is not a valid integer (by the variable ANLLM_SERVE_PORT)." in result.output


def test_a_variable_that_is_no_flag_is_told(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"ANLLM_SERVE_PROT": "1", "ANLLM_SERVE_PORT": "2", "ANLLM_SERVE_CONFIG": "x", "ANLLM_CHAT_URL": "y"}
    warn_of_unknown_variables(environment)
    assert caplog.messages == ["ANLLM_SERVE_PROT is set, and serve has no such flag. Did you mean ANLLM_SERVE_PORT?"]


def test_options_come_from_the_environment_too(launched: Launched) -> None:
    config = config_of(
        launched,
        "--max-n",
        "4",
        ANLLM_SERVE_PORT="8123",
        ANLLM_SERVE_HOST="::1",
        ANLLM_SERVE_KV_MEMORY="512M",
        ANLLM_SERVE_EXECUTION="compatible",
        ANLLM_SERVE_MAX_N="9",
        ANLLM_SERVE_MEMORY_FRACTION="0.25",
    )
    assert (config.server.host, config.server.port) == ("::1", 8123)
    assert config.cache.kv_memory_bytes == 512 << 20
    assert config.cache.memory_fraction == 0.25
    assert config.model.execution is Execution.COMPATIBLE
    assert config.server.max_n == 4, "an option goes before the environment"


def test_a_bad_value_from_the_environment_is_refused(launched: Launched) -> None:
    result = run("serve", ANLLM_SERVE_PORT="eighty")
    assert result.exit_code == 2
    assert "'eighty' is not a valid integer" in result.output


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8G", 8 << 30),
        ("8g", 8 << 30),
        ("8GB", 8 << 30),
        ("8GiB", 8 << 30),
        ("512M", 512 << 20),
        ("1.5K", 1536),
        ("1T", 1 << 40),
        ("1000", 1000),
        ("7B", 7),
        ("2 G", 2 << 30),
        (123, 123),
    ],
)
def test_sizes(text: object, number: int) -> None:
    assert Size().convert(text, None, None) == number


@pytest.mark.parametrize("text", ["", "G", "8X", "8GG", "eight", "1e400", "nan", "inf", "--", "8G8"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no size; give a number of bytes"):
        Size().convert(text, None, None)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--port", "70000"], 1, "port must be from 0 to 65535, got 70000."),
        (["--port", "x"], 2, "'x' is not a valid integer"),
        (["--max-num-seqs", "0"], 1, "max_num_seqs must be at least 1, got 0."),
        (["--max-model-len", "-5"], 1, "max_model_len must be at least 1, got -5."),
        (["--memory-fraction", "1.5"], 1, "memory_fraction must be above 0 and at most 1, got 1.5."),
        (["--memory-fraction", "nan"], 1, "memory_fraction must be above 0 and at most 1, got nan."),
        (["--kv-memory", "lots"], 2, "'lots' is no size"),
        (["--kv-memory", "-1G"], 1, "kv_memory_bytes must be at least 1"),
        (["--weights", "tiny"], 2, "'tiny' is not one of 'auto', 'as-is', 'dequantize'"),
        (["--execution", "fast"], 2, "'fast' is not one of"),
        (["--keep-alive", "0"], 1, "keep_alive_s must be above 0 and finite, got 0.0."),
        (["--keep-alive", "nan"], 1, "keep_alive_s must be above 0 and finite, got nan."),
        (["--drain-timeout", "-1"], 1, "drain_timeout_s must be above 0 and finite, got -1.0."),
        (["--drain-timeout", "inf"], 1, "drain_timeout_s must be above 0 and finite, got inf."),
        (["--no-such-option"], 2, "No such option"),
        (["one", "two"], 2, "unexpected extra argument"),
    ],
)
def test_bad_values_are_refused(launched: Launched, arguments: list[str], code: int, message: str) -> None:
    result = run("serve", *arguments)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.output.split())
    assert launched.config is None


def test_an_error_of_anllms_is_one_line_and_exit_code_1(launched: Launched) -> None:
    launched.error = ModelError("There is no such model.")
    result = run("serve", "x/y")
    assert result.exit_code == 1
    assert result.stderr == "Error: There is no such model.\n"
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["serve", "pull", "info"])
@pytest.mark.parametrize("model", ["/no/such/folder", "no-such-model.gguf", "nonsense"])
def test_models_that_are_none_are_refused(command: str, model: str) -> None:
    arguments = ["--port", "0"] if command == "serve" else []
    result = run(command, model, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_an_unknown_command_is_refused() -> None:
    result = run("serv")
    assert result.exit_code == 2
    assert "No such command 'serv'. Did you mean 'serve'?" in result.output
    assert "Did you mean" not in run("xyzzy").output


# -- the ready line ----------------------------------------------------------------------------------------------------


def make_info(**changes: Any) -> EngineInfo:
    fields: dict[str, Any] = {
        "backend": "cpu",
        "blas": "OpenBLAS of NumPy, 117 GFLOP/s on 2 threads",
        "kv_budget_bytes": 8_000_000_000,
        "kv_bytes_per_token": 46_080,
        "max_model_len": 8192,
        "vocab_size": 49152,
        "execution": "flattened",
        "weights": "float32",
        "eos_token_ids": (2,),
    }
    return EngineInfo(**{**fields, **changes})


def test_the_ready_line_tells_all() -> None:
    assert ready_line("http://127.0.0.1:8000", "SmolLM2", make_info()) == (
        "Serving SmolLM2 at http://127.0.0.1:8000/v1 · backend cpu · BLAS OpenBLAS of NumPy, 117 GFLOP/s on 2 threads"
        " · weights float32 · flattened batching · context 8192 · K/V budget 8.0 GB (173,611 tokens)"
        " · chat in the browser at http://127.0.0.1:8000/"
    )


def test_a_terminal_gets_the_addresses_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready("http://[fe80::1]:8000", "[org]/SmolLM2", make_info())
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:5] == [
        "Serving [org]/SmolLM2",
        "",
        "  Chat in the browser  http://[fe80::1]:8000/",
        "  OpenAI base URL      http://[fe80::1]:8000/v1",
    ]
    facts = "backend cpu · BLAS OpenBLAS of NumPy, 117 GFLOP/s on 2 threads · weights float32 · flattened batching"
    rest = " ".join(" ".join(lines[6:]).split())
    assert rest == f"{facts} · context 8192 · K/V budget 8.0 GB (173,611 tokens) Ctrl-C ends it."
    assert max(map(len, lines)) <= 80


def test_the_ready_line_leaves_out_a_blas_where_there_is_none() -> None:
    assert "BLAS" not in ready_line("http://h:1", "m", make_info(backend="metal", blas=""))
