"""What the documentation tells to type works: shell and Python are run against the default model, configuration is
read. What is not run stands in not_run.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from anllm.cli.main import main
from anllm.cli.serve import build_config, serve
from anllm.store.resolve import SourceKind, parse_source
from docs import not_run
from docs.blocks import ROOT, Block, blocks, commands, imports
from e2e.servers import RunningServer, environment

# docs/cli.md is run as a whole, one command after the other, by test_cli_docs.py.
SHELL = [block for block in blocks("sh", "bash", "shell", "console") if block.page != "docs/cli.md"]
PYTHON = blocks("python", "py")
IN_PAGES = "http://127.0.0.1:8000"
RUN = ("curl", "echo", "export", "sed", "umask")  # first words of commands that are run as they stand
SERVE = re.compile(r"(?:[A-Z_]+=\S+ |taskset -c \S+ )*anllm serve\b")

each_shell = pytest.mark.parametrize("block", SHELL, ids=str)


def reason_not_to_run(command: str) -> str | None:
    return next((reason for start, reason in not_run.COMMANDS.items() if re.match(start, command)), None)


def runs(command: str) -> bool:
    return reason_not_to_run(command) is None and shlex.split(command)[0] in RUN


@each_shell
def test_each_command_is_run_or_has_a_reason(block: Block) -> None:
    for command in commands(block.text):
        is_known = runs(command) or SERVE.match(command) or reason_not_to_run(command)
        assert is_known, f"{block}: run {command!r}, or say in tests/docs/not_run.py why not"


@pytest.mark.real_model
@pytest.mark.parametrize("block", [b for b in SHELL if any(map(runs, commands(b.text)))], ids=str)
def test_commands_run(block: Block, served: RunningServer, tmp_path: Path) -> None:
    """Those of a block one after the other, from the root of the clone, with a home of their own."""
    (tmp_path / "Library" / "LaunchAgents").mkdir(parents=True)
    (tmp_path / "packaging").symlink_to(ROOT / "packaging")
    script = "\n".join(filter(runs, commands(block.text)))
    script = script.replace(IN_PAGES, served.url).replace("curl ", "curl --silent --show-error --fail-with-body ")
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "LITELLM_MASTER_KEY": "sk-none"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "curl" in script:
        assert '{"error"' not in done.stdout and done.stdout.strip()


@pytest.mark.parametrize(
    "command",
    sorted({c for b in SHELL for c in commands(b.text) if SERVE.match(c)}),
    ids=lambda c: c.replace("\n", " "),
)
def test_serve_takes_its_flags(command: str) -> None:
    """Up to the settings; names of models can be ones. Serving itself is tested in tests/e2e."""
    arguments = shlex.split(SERVE.sub("", command, count=1))
    parent = click.Context(main, info_name="anllm", **main.context_settings)
    options = serve.make_context("serve", arguments, parent=parent).params
    model = options.pop("model")
    build_config(model, options)
    if model is not None and model != "MODEL" and not model.endswith(".gguf"):
        assert parse_source(model).kind is SourceKind.HUB


def test_make_understands_its_lines() -> None:
    """Not run, but planned by make: targets and variables are there."""
    for command in {c for b in SHELL for c in commands(b.text) if c.startswith("make ")}:
        done = subprocess.run(
            ["make", "--dry-run", "PYTHON=python3", *shlex.split(command)[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.mark.real_model
@pytest.mark.parametrize("block", [b for b in PYTHON if not imports(b.text) & not_run.IMPORTS.keys()], ids=str)
def test_snippets_run(block: Block, served: RunningServer) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.text.replace(IN_PAGES, served.url)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert ("print(" in block.text) == bool(done.stdout.strip())


@pytest.mark.parametrize("block", blocks("json", "yaml", "toml"), ids=str)
def test_configuration_can_be_read(block: Block) -> None:
    read = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}[block.language]
    assert read(block.text)


def test_nothing_is_excused_that_is_not_there() -> None:
    found = [command for block in SHELL for command in commands(block.text)]
    assert [start for start in not_run.COMMANDS if not any(re.match(start, command) for command in found)] == []
    used = set().union(*(imports(block.text) for block in PYTHON))
    assert not_run.IMPORTS.keys() - used == set()


def test_snippets_of_other_languages_are_those_of_the_clients() -> None:
    """Which `make test-clients` runs."""
    assert {block.page for block in blocks("js", "ts", "javascript", "typescript")} == {"docs/clients.md"}


def test_commands_are_found() -> None:
    script = "cd a && make b  # why\ncurl x -d '{\n  \"a\": 1}'\npython c \\\n  --d\n\n# nothing\n"
    assert commands(script) == ["cd a", "make b", "curl x -d '{\n  \"a\": 1}'", "python c \\\n  --d"]
