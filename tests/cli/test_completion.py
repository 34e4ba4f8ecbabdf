from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from anllm.cli import main
from e2e.servers import COMMAND, environment
from store.test_inventory import HUB_ID, make_hub, make_model


def test_help_says_where_to_put_it_line_for_line() -> None:
    lines = CliRunner().invoke(main, ["completion", "--help"]).output.splitlines()
    assert '  zsh, in ~/.zshrc:    eval "$(anllm completion zsh)"' in lines


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_code_and_where_to_put_it(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert "_ANLLM_COMPLETE" in result.output
    assert result.output.splitlines()[-1].startswith("# ")
    assert f"anllm completion {shell}" in result.output.splitlines()[-1]


def test_zsh_finds_it_as_a_file_of_its_functions_path() -> None:
    assert CliRunner().invoke(main, ["completion", "zsh"]).output.startswith("#compdef anllm\n")


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
    assert {text for _, text in told(words, {})} == expected


def test_models_of_the_caches_are_names_and_else_files(tmp_path: Path) -> None:
    caches = {"XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    make_model(tmp_path / "anllm" / "gguf" / "file-0123")
    make_hub(tmp_path / "hub")
    for command in ("serve", "chat", "info", "bench"):
        assert told(f"anllm {command} ", caches) == [("plain", HUB_ID)]
    assert told("anllm serve ./f", caches) == [("file", "./f")]
    assert {text for _, text in told("anllm rm ", caches)} == {HUB_ID, "file-0123"}


def told(words: str, variables: dict[str, str]) -> list[tuple[str, str]]:
    """Kind and text of each proposal, as the code that bash gets asks for them."""
    count = len(words.split()) - (not words.endswith(" "))
    variables = {
        **environment(),
        **variables,
        "_ANLLM_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(count),
    }
    command = [sys.executable, "-c", COMMAND[2].replace("main()", "main(prog_name='anllm')")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr == ""
    return [(kind, text) for kind, _, text in (line.partition(",") for line in done.stdout.splitlines())]
