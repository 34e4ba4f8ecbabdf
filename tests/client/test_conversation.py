"""What a conversation sends and keeps; answers come from a list of events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anllm.client.address import Address
from anllm.client.conversation import Answer, Conversation
from anllm.client.plain import PlainClient
from anllm.errors import ConfigError, RemoteError


class Scripted(PlainClient):
    """Answers with the events given; an exception among them is raised."""

    def __init__(self, *events: Any) -> None:
        super().__init__(Address.parse("http://nowhere:1"))
        self.events = events
        self.bodies: list[dict[str, Any]] = []

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.bodies.append({**body, "messages": list(body["messages"])})
        for event in self.events:
            if isinstance(event, BaseException):
                raise event
            yield event


def delta(reason: str | None = None, **fields: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def ask(conversation: Conversation, client: PlainClient, text: str = "hi") -> Answer:
    return conversation.ask(text, client, lambda answer: None)


def test_an_answer_is_put_together_and_kept() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 3}}
    client = Scripted(
        delta(role="assistant"), delta(reasoning_content="hm"), delta(content="a"), delta("stop", content="b"), usage
    )
    conversation = Conversation("m", "be brief", {"temperature": 0})
    seen: list[str] = []
    answer = conversation.ask("hi", client, lambda answer: seen.append(answer.content))
    assert (answer.content, answer.reasoning, answer.finish_reason, answer.num_tokens) == ("ab", "hm", "stop", 3)
    assert seen == ["", "a", "ab"]
    assert conversation.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ab"}]
    assert client.bodies[0] == {
        "model": "m",
        "temperature": 0,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True},
    }


def test_what_fails_was_never_said() -> None:
    conversation = Conversation("m")
    with pytest.raises(RemoteError):
        ask(conversation, Scripted(delta(content="a"), RemoteError("The engine ended.")))
    assert conversation.messages == []


def test_an_answer_that_is_interrupted_stays_as_far_as_it_came() -> None:
    conversation = Conversation("m")
    answer = ask(conversation, Scripted(delta(content="half"), KeyboardInterrupt()))
    assert answer.finish_reason == "interrupted"
    assert conversation.messages[-1] == {"role": "assistant", "content": "half"}


def test_taking_back_gives_what_was_said() -> None:
    conversation = Conversation("m")
    assert conversation.take_back() is None
    ask(conversation, Scripted(delta("stop", content="a")), "one")
    ask(conversation, Scripted(delta("stop", content="b")), "two")
    assert conversation.take_back() == "two"
    assert [m["content"] for m in conversation.messages] == ["one", "a"]


def test_settings_are_json_or_text_and_unknown_ones_are_refused() -> None:
    conversation = Conversation("m")
    for name, value in (
        ("temperature", "0.2"),
        ("stop", '["x"]'),
        ("reasoning_effort", "low"),
        ("seed", "1"),
        ("seed", "none"),
    ):
        conversation.set(name, value)
    assert conversation.settings == {"temperature": 0.2, "stop": ["x"], "reasoning_effort": "low"}
    with pytest.raises(ConfigError, match=r"no setting 'temprature'\. Did you mean temperature\?"):
        conversation.set("temprature", "1")


def test_a_saved_conversation_is_loaded_with_all_but_its_model(tmp_path: Path) -> None:
    conversation = Conversation("m", "be brief", {"seed": 1})
    ask(conversation, Scripted(delta("stop", content="ä")))
    conversation.save(tmp_path / "c.json")
    other = Conversation("other")
    other.load(tmp_path / "c.json")
    assert (other.model, other.system, other.settings) == ("other", "be brief", {"seed": 1})
    assert other.messages == conversation.messages


@pytest.mark.parametrize("content", ["{", "[]", '{"messages": [1]}', '{"messages": [{"role": "user"}]}'])
def test_what_is_no_conversation_is_refused_and_changes_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content)
    conversation = Conversation("m", "kept")
    with pytest.raises(ConfigError, match="is no conversation that /save wrote"):
        conversation.load(tmp_path / "c.json")
    with pytest.raises(ConfigError, match="can't be read"):
        conversation.load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="can't be written"):
        conversation.save(tmp_path / "no" / "folder.json")
    assert conversation.system == "kept"


def test_speed_counts_from_the_first_token() -> None:
    assert Answer(num_tokens=11, first_s=1.0, total_s=3.0).tokens_s == 5
    assert Answer(num_tokens=1, first_s=1.0, total_s=3.0).tokens_s is None
    assert Answer(num_tokens=22, first_s=1.0, total_s=1.0001).tokens_s is None, "all came at once"
    assert Answer().tokens_s is None
