"""Each client against a running server: checks that need exact answers against the scripted one, round trips and the
snippets of docs/clients.md against the default model."""

from __future__ import annotations

import re

import pytest

from clients.agents import AGENTS
from clients.environments import CLIENTS, ROOT, Client
from clients.scripted import ScriptedServer
from e2e.reference import model_folder
from e2e.servers import RunningServer
from server_harness import MODEL as SCRIPTED_MODEL

MODEL = "SmolLM2-135M-Instruct"
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
LOCKS = ROOT / "locks" / "clients"
IN_PAGE = "http://127.0.0.1:8000"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
TASKS, TASKS_HERE = "--tasks arc_easy", "--include_path lm-eval --tasks facts_choice,facts_text"

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.id)


def snippets(client: Client) -> list[tuple[str, str]]:
    """The ending of the language and the text of each block of its part of the page that knows the server."""
    part = PAGE.split(f"\n## {client.heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(python|js|sh)\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    return [({"python": "py", "js": "mjs", "sh": "sh"}[language], text) for language, text in blocks if IN_PAGE in text]


@each_client
def test_exact_answers(client: Client, scripted: ScriptedServer) -> None:
    client.check("scripted", scripted.url, SCRIPTED_MODEL)
    scripted.until_idle()


@pytest.mark.parametrize("client", [client for client in CLIENTS if client.name != "lm-eval"], ids=lambda c: c.id)
def test_answers_with_thoughts(client: Client, scripted_thinking: ScriptedServer) -> None:
    client.check("thinking", scripted_thinking.url, SCRIPTED_MODEL)
    scripted_thinking.until_idle()


@each_client
def test_answers_of_the_default_model(client: Client, model: RunningServer) -> None:
    client.check("model", model.url, MODEL, model_folder())
    assert model.status("/health") == 200
    assert "Traceback" not in model.log


@pytest.mark.parametrize(
    ("client", "number"),
    [(client, number) for client in CLIENTS for number in range(len(client.shown))],
    ids=lambda value: value.id if isinstance(value, Client) else str(value + 1),
)
def test_a_snippet_of_the_page(client: Client, number: int, model: RunningServer) -> None:
    client.copy_scripts()
    assert len(snippets(client)) == len(client.shown)
    ending, text = snippets(client)[number]
    for in_page, here in ((IN_PAGE, model.url), (HUB_NAME, str(model_folder())), (TASKS, TASKS_HERE)):
        text = text.replace(in_page, here)  # what the network has -> what is here
    script = client.folder / f"snippet.{ending}"
    script.write_text(text, encoding="utf-8")
    done = client.run(script.name)
    assert done.returncode == 0, done.stdout
    for shown in client.shown[number]:
        assert shown in done.stdout


def test_each_locked_client_is_tested() -> None:
    locked = {path.stem for path in LOCKS.glob("*.txt")} | {path.parent.name for path in LOCKS.glob("*/package.json")}
    assert {client.name for client in CLIENTS} | {agent.name for agent in AGENTS} == locked - {"node"}
