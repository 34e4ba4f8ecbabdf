"""Each agent against a running server: an answer, a call of a tool to its end, and what it says when it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.agents import AGENTS, Agent
from clients.scripted import ANSWERS, ScriptedServer
from e2e.servers import RunningServer
from server_harness import MODEL as SCRIPTED_MODEL

MODEL = "SmolLM2-135M-Instruct"
WEATHER = "Oslo has 12 degrees."

each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "thinking"])
def roomy(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    """With room for the instructions of an agent, of which a byte is a token."""
    with ScriptedServer(thinks=request.param, max_model_len=1 << 17).running() as server:
        yield server


@each_agent
def test_an_answer(agent: Agent, roomy: ScriptedServer, tmp_path: Path) -> None:
    agent.set_up(tmp_path, roomy.url, SCRIPTED_MODEL)
    done = agent.ask("greet", tmp_path, SCRIPTED_MODEL)
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip().endswith(ANSWERS["greet"])
    roomy.until_idle()


@each_agent
def test_a_tool_is_called_and_its_result_answered(agent: Agent, roomy: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "weather.txt").write_text(WEATHER)
    tool, argument = agent.read
    agent.set_up(tmp_path, roomy.url, SCRIPTED_MODEL)
    call = json.dumps({argument: str(tmp_path / "weather.txt")})
    done = agent.ask(f"call {tool} {call}", tmp_path, SCRIPTED_MODEL)
    assert done.returncode == 0, done.stdout
    said = done.stdout[done.stdout.index("The tools said: ") :]
    assert WEATHER in said
    roomy.until_idle()


@each_agent
def test_an_error_is_told(agent: Agent, scripted: ScriptedServer, tmp_path: Path) -> None:
    agent.set_up(tmp_path, scripted.url, "other")
    done = agent.ask("greet", tmp_path, "other")
    assert done.returncode != 0
    assert f"This server serves `{SCRIPTED_MODEL}`." in done.stdout


@each_agent
def test_the_default_model_answers(agent: Agent, model: RunningServer, tmp_path: Path) -> None:
    agent.set_up(tmp_path, model.url, MODEL)
    done = agent.ask("What is the capital of France?", tmp_path, MODEL)
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip()
    assert "request refused" not in model.log
