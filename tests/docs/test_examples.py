"""The examples run as they are, each in a process of its own: on the default model, or on a server with scripted
answers where it matters what the model says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.scripted import ScriptedServer
from e2e.servers import RunningServer, environment

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.name for path in (ROOT / "examples").glob("*.py")}


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as server:
        yield server


def run_example(name: str, *arguments: str) -> list[str]:
    """The lines that it prints."""
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.real_model
def test_engine_gives_equal_prompts_equal_tokens() -> None:
    lines = [re.fullmatch(r"(\d+) length \[([\d, ]+)\]", line) for line in run_example("engine.py")]
    assert [line[1] for line in lines if line] == ["0", "1"]
    first, second = (line[2].split(", ") for line in lines if line)
    assert first == second
    assert len(first) == 8


@pytest.mark.real_model
def test_llm_completes_and_answers() -> None:
    lines = run_example("llm.py")
    assert len(lines) == 3
    assert re.fullmatch(r"'The sky is' -> '.+' \(length\)", lines[0])
    assert lines[1].startswith("'Water boils at' -> ")
    assert "Paris" in lines[2]


@pytest.mark.real_model
def test_batch_answers_each_line(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("What is the capital of France?\n\nWhat is the capital of Italy?\n", encoding="utf-8")
    answers = [json.loads(line) for line in run_example("batch.py", str(prompts), "16")]
    assert [answer["prompt"][-7:] for answer in answers] == ["France?", " Italy?"]
    assert "Paris" in answers[0]["answer"] and answers[1]["answer"]
    assert all(answer["finish_reason"] in ("stop", "length") for answer in answers)


@pytest.mark.real_model
def test_chat_client_streams_and_counts(served: RunningServer) -> None:
    lines = run_example("chat_client.py", "--url", f"{served.url}/v1")
    assert "Paris" in lines[0]
    assert re.fullmatch(r"\d+ prompt tokens, \d+ completion tokens", lines[-1])


@pytest.mark.real_model
def test_extract_gives_what_the_schema_asks_for(served: RunningServer) -> None:
    sale = json.loads("\n".join(run_example("extract.py", "Bo, 7, of Oslo.", "--url", f"{served.url}/v1")))
    assert list(sale) == ["name", "age", "city", "date", "price"]
    assert 0 <= sale["age"] <= 120 and sale["city"] in ("Oslo", "Rome", "Paris")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", sale["date"])


@pytest.mark.real_model
def test_metrics_tell_what_was_done(served: RunningServer) -> None:
    run_example("chat_client.py", "--url", f"{served.url}/v1")
    lines = run_example("metrics.py", "--url", f"{served.url}/v1")
    assert lines[0] == "running 0, waiting 0"
    read, written = (int(re.findall(r"\d+", line)[0]) for line in lines[2:4])
    assert read > 0 and written > 0
    assert re.fullmatch(r"first token after [1-9]\d* ms on average", lines[4])


def test_tools_loop_calls_until_there_is_an_answer(scripted: ScriptedServer) -> None:
    question = 'call get_weather {"city": "Oslo"} get_weather {"city": "Rome"} then call get_weather {"city": "Bonn"}'
    assert run_example("tools_loop.py", question, "--url", f"{scripted.url}/v1") == [
        'get_weather({"city": "Oslo"}) -> 12 degrees',
        'get_weather({"city": "Rome"}) -> 24 degrees',
        'get_weather({"city": "Bonn"}) -> There is no weather for Bonn.',
        "The tools said: 12 degrees, 24 degrees, There is no weather for Bonn..",
    ]


def test_tools_loop_ends_where_calls_do_not(scripted: ScriptedServer) -> None:
    question = " then ".join(['call get_weather {"city": "Oslo"}'] * 6)
    lines = run_example("tools_loop.py", question, "--url", f"{scripted.url}/v1")
    assert len(lines) == 6 and lines[-1] == "No answer after 5 rounds of calls."


@pytest.mark.real_model
def test_load_answers_all(served: RunningServer) -> None:
    lines = run_example("load.py", "12", "6", "--url", f"{served.url}/v1")
    assert re.fullmatch(r"12 of 12 requests answered, [1-9]\d* tokens in [\d.]+ s", lines[0])
    assert re.fullmatch(r"\d+ tokens/s, first token after [1-9]\d* ms \(median\)", lines[1])
    assert len(lines) == 2


def test_each_example_is_run_here_and_listed() -> None:
    run = set(re.findall(r'run_example\(\s*"(\w+\.py)"', Path(__file__).read_text(encoding="utf-8")))
    listed = set(re.findall(r"\((\w+\.py)\)", (ROOT / "examples" / "README.md").read_text(encoding="utf-8")))
    assert run == listed == EXAMPLES
