"""`--config`: what a file may say, and who goes before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anllm import launch
from anllm.cli import main
from anllm.config import Config, Execution


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The Configs that a server would have been started with."""
    configs: list[Config] = []

    def serve(config: Config, console: object) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr(launch, "serve", serve)
    return configs


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments], prog_name="anllm", env=environment)


YAML = """
model: org/name
port: 8123
max-num-seqs: 3
kv_memory: 8G
prefix-cache: false
execution: compatible
served-model-name: null
"""
TOML = """
model = "org/name"
port = 8123
max-num-seqs = 3
kv_memory = "8G"
prefix-cache = false
execution = "compatible"
"""


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.toml", TOML)])
def test_flags_come_from_a_file(tmp_path: Path, launched: list[Config], name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    result = run("--config", str(tmp_path / name))
    assert result.exit_code == 0, result.output
    (config,) = launched
    assert (config.model.model, config.server.port, config.scheduler.max_num_seqs) == ("org/name", 8123, 3)
    assert (config.cache.kv_memory_bytes, config.cache.prefix_cache) == (8 << 30, False)
    assert config.model.execution is Execution.COMPATIBLE
    assert config.model.served_model_name is None


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: Path, launched: list[Config]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("port: 1\nmax-n: 1\nmax-num-seqs: 1\nmodel: org/file\n")
    result = run("org/flag", "--port", "3", ANLLM_SERVE_CONFIG=str(file), ANLLM_SERVE_PORT="2", ANLLM_SERVE_MAX_N="2")
    assert result.exit_code == 0, result.output
    (config,) = launched
    assert (config.server.port, config.server.max_n, config.scheduler.max_num_seqs) == (3, 2, 1)
    assert config.model.model == "org/flag"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "prot: 1", "a.yaml: there is no flag 'prot'. Did you mean port?"),
        ("a.yaml", "max_num_seq: 1", "there is no flag 'max_num_seq'. Did you mean max-num-seqs?"),
        ("a.yaml", "xyzzyq: 1", "docs/config.md lists the flags"),
        ("a.yaml", "config: b.yaml", "there is no flag 'config'"),
        ("a.yaml", "port: [1, 2]", "port must be one value, got [1, 2]"),
        ("a.yaml", "server: {port: 1}", "there is no flag 'server'"),
        ("a.yaml", "- port", "must have a key and a value a line"),
        ("a.yaml", "port: [", "is no YAML"),
        ("a.toml", "port 8", "is no TOML"),
        ("a.json", "{}", "must end with .yaml, .yml or .toml"),
        ("a.yaml", "port: eighty", "'eighty' is not a valid integer (in the config file)."),
        ("a.yaml", "port: 70000", "port must be from 0 to 65535, got 70000"),
        ("a.yaml", "!!python/object/apply:os.getcwd []", "is no YAML"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    tmp_path: Path, launched: list[Config], name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    result = run("--config", str(tmp_path / name))
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())
    assert not launched


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, launched: list[Config]) -> None:
    result = run("--config", str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    assert "can't be read" in result.stderr
    assert not launched


def test_an_empty_file_says_nothing(tmp_path: Path, launched: list[Config]) -> None:
    (tmp_path / "a.yaml").write_text("# nothing yet\n")
    assert run("--config", str(tmp_path / "a.yaml")).exit_code == 0
    assert launched == [Config()]
