"""The library examples run as they are, each in a process of its own, on the default model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))


def run_example(name: str) -> list[str]:
    """The lines that it prints."""
    command = [sys.executable, str(ROOT / "examples" / name)]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.real_model
def test_engine_example_gives_equal_prompts_equal_tokens():
    lines = [re.fullmatch(r"(\d+) length \[([\d, ]+)\]", line) for line in run_example("engine.py")]
    assert [line[1] for line in lines if line] == ["0", "1"]
    first, second = (line[2].split(", ") for line in lines if line)
    assert first == second
    assert len(first) == 8


@pytest.mark.real_model
def test_llm_example_completes_and_answers():
    lines = run_example("llm.py")
    assert len(lines) == 3
    assert re.fullmatch(r"'The sky is' -> '.+' \(length\)", lines[0])
    assert lines[1].startswith("'Water boils at' -> ")
    assert "Paris" in lines[2]


def test_examples_compile():
    for path in (ROOT / "examples").glob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
