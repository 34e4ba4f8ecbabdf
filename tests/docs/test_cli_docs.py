"""Every command of docs/cli.md runs as it stands there, in order, with the default model."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anllm.cli.main import COMMANDS
from docs.conftest import SHORT
from e2e.servers import COMMAND, RunningServer, environment, reserved_port

pytestmark = pytest.mark.real_model

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh|yaml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PORT = "8123"


class Shell:
    """Runs the page's commands in a folder, where `anllm` is this code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port, self._reserved = reserved_port()
        self.port = str(port)
        self._outputs: dict[str, str] = {}
        program = folder / "bin" / "anllm"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*COMMAND[:2], COMMAND[2].replace("main()", CALL)])} "$@"\n')
        program.chmod(0o755)

    def close(self) -> None:
        self._reserved.close()

    def once(self, command: str) -> str:
        """Its output; a second call gives that of the first."""
        if command not in self._outputs:
            self._outputs[command] = self.run(command)
        return self._outputs[command]

    def run(self, command: str) -> str:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-c", command.replace(PORT, self.port)],
            cwd=self.folder,
            env={**environment(), "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, f"{command}{done.stdout}{done.stderr}"
        return done.stdout


CALL = "main(prog_name='anllm')"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    made = Shell(tmp_path_factory.mktemp("shell"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(shell: Shell) -> Iterator[RunningServer]:
    """By the page's own file; the port alone is another one, since tests may run beside each other."""
    (text,) = (text for kind, text in BLOCKS if kind == "yaml" and text.startswith("# server.yaml\n"))
    (shell.folder / "server.yaml").write_text(text.replace(PORT, shell.port))
    (line,) = (text for kind, text in BLOCKS if kind == "sh" and text.startswith("anllm serve "))
    _, _, *flags = shlex.split(line.replace("server.yaml", str(shell.folder / "server.yaml")))
    with RunningServer(shell.folder, *flags, port=int(shell.port), **SHORT) as running:
        running.wait_for(200)
        yield running


OUTPUT = {
    "doctor": r"Ready to serve\.\n$",
    "pull": r"/SmolLM2-135M-Instruct\n$",
    "list": r"SmolLM2-135M-Instruct +default +llama · 4-bit +10\d MB",
    "info": r"execution +flattened batching\n(.|\n)*memory for 8 streams of 1,024 tokens",
    "chat": r"\w+",
    "bench": r"1 stream +8 (.|\n)*4 streams +8 ",
    "completion": r"_ANLLM_COMPLETE",
}
LINES = [text for kind, text in BLOCKS if kind == "sh" and not text.startswith("anllm serve ")]


@pytest.mark.parametrize("line", LINES)
def test_each_command_of_the_page_does_what_the_page_says(shell: Shell, server: RunningServer, line: str) -> None:
    (name,) = re.findall(r"\banllm (\w+)", line)
    assert re.search(OUTPUT[name], shell.once(line)), line


def test_the_page_speaks_of_every_command() -> None:
    names = {name for commands in COMMANDS.values() for name in commands}
    assert names <= set(re.findall(r"`?anllm (\w+)", PAGE))
    assert {re.findall(r"\banllm (\w+)", line)[0] for line in LINES} | {"serve", "rm"} == names


def test_the_answer_and_the_figures_are_real(shell: Shell, server: RunningServer) -> None:
    line = next(line for line in LINES if "--prompt" in line and " chat " in line)
    assert shell.once(line) == "The capital of France is Paris.\n"
    shell.once(next(line for line in LINES if line.startswith("anllm bench ")))
    points = json.loads((shell.folder / "bench.json").read_text())["points"]
    assert [(p["max_concurrency"], p["completed"], p["failed"]) for p in points] == [(1, 8, 0), (4, 8, 0)]
    assert all(p["total_output_tokens"] == 8 * 16 for p in points)
    assert all(abs(p["total_input_tokens"] - 8 * 64) <= 8 * 3 for p in points)


def test_a_server_of_its_own_is_ended_with_the_command(shell: Shell) -> None:
    assert shell.run("anllm chat SmolLM2-135M-Instruct -p 'Say hello.' --set temperature=0").strip()
    listed = subprocess.run(["ps", "-A", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if "anllm.client.guarded" in line and sys.executable in line]
