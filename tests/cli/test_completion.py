from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from anllm.cli import main
from e2e.servers import COMMAND, environment


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_code_and_where_to_put_it(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert "_ANLLM_COMPLETE" in result.output
    assert result.output.startswith("# ")
    assert f"anllm completion {shell}" in result.output.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("anllm ", {"serve", "chat", "pull", "list", "rm", "info", "bench", "doctor", "completion"}),
        ("anllm serve --execution ", {"auto", "flattened", "compatible", "sequential"}),
        ("anllm bench --con", {"--concurrency"}),
        ("anllm completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_what_bash_is_told(words: str, expected: set[str]) -> None:
    """As the code that bash gets calls it."""
    count = len(words.split()) - (not words.endswith(" "))
    variables = {**environment(), "_ANLLM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    command = [sys.executable, "-c", COMMAND[2].replace("main()", "main(prog_name='anllm')")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=100)
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == expected, done.stderr
