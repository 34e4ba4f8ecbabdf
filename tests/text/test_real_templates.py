"""Prompts from templates that models ship (tests/text/templates): one that knows no system role and insists on turns
that alternate (Gemma 3), one that takes any role (Llama 3), and one with tools and reasoning (Qwen 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anllm.errors import InvalidRequestError
from anllm.text.chat_template import ChatTemplate

FOLDER = Path(__file__).parent / "templates"
BOS = {"gemma3": "<bos>", "llama3": "<|begin_of_text|>", "qwen3": ""}
ALL = sorted(BOS)
CALL = {"id": "c1", "type": "function", "function": {"name": "lamp_state", "arguments": '{"room": "attic"}'}}


def template(name: str) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"), {"bos_token": BOS[name]})


def message(role: str, content: object, **other: object) -> dict[str, Any]:
    return {"role": role, "content": content, **other}


FORMS = {
    "one": [message("user", "first")],
    "system": [message("system", "rules"), message("user", "first")],
    "developer": [message("developer", "rules"), message("user", "first")],
    "two systems": [message("system", "rules"), message("system", "more"), message("user", "first")],
    "system later": [
        message("user", "first"),
        message("assistant", "second"),
        message("system", "rules"),
        message("user", "third"),
    ],
    "two of the user": [message("user", "first"), message("user", "second")],
    "two of both": [
        message("user", "first"),
        message("assistant", "second"),
        message("assistant", "third"),
        message("user", "fourth"),
    ],
    "assistant last": [message("user", "first"), message("assistant", "second")],
    "system alone": [message("system", "rules")],
    "parts": [
        message("system", [{"type": "text", "text": "rules"}]),
        message("user", [{"type": "text", "text": "fir"}, {"type": "text", "text": "st"}]),
    ],
    "names": [message("system", "rules", name="s"), message("user", "first", name="ann")],
}


@pytest.mark.parametrize("messages", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("name", ALL)
def test_E_5_all_texts_come_once_and_in_their_order_behind_one_bos(name: str, messages: list[dict[str, Any]]) -> None:
    prompt = template(name).render(messages)
    others = [m for m in messages if m["role"] in ("user", "assistant")]
    texts = ["first" if isinstance(m["content"], list) else m["content"] for m in others]
    assert [prompt.count(text) for text in texts] == [1] * len(texts)
    assert sorted(texts, key=prompt.index) == texts
    for text in ("rules", "more"):
        assert prompt.count(text) == any(text in str(m["content"]) for m in messages)
    if BOS[name]:
        assert prompt.startswith(BOS[name])
        assert prompt.count(BOS[name]) == 1


def test_gemma_gets_the_system_text_as_its_own_template_writes_it() -> None:
    expected = "<bos><start_of_turn>user\nrules\n\nfirst<end_of_turn>\n<start_of_turn>model\n"
    assert template("gemma3").render(FORMS["system"]) == expected
    assert template("gemma3").render(FORMS["developer"]) == expected


@pytest.mark.parametrize("content", [None, "", ...])
@pytest.mark.parametrize("arguments", ['{"room": "attic"}', {"room": "attic"}])
def test_E_1_E_4_calls_and_results_reach_a_template_that_knows_tools(content: object, arguments: object) -> None:
    call = {**CALL, "function": {"name": "lamp_state", "arguments": arguments}}
    turn = {"role": "assistant", "tool_calls": [call]} | ({} if content is ... else {"content": content})
    prompt = template("qwen3").render(
        [message("user", "Lights?"), turn, message("tool", "off", tool_call_id="c1", name="lamp_state")]
    )
    assert '{"name": "lamp_state", "arguments": {"room": "attic"}}' in prompt
    assert "<tool_response>\noff\n</tool_response>" in prompt


@pytest.mark.parametrize("content", ["off", "", [{"type": "text", "text": "off"}]])
def test_E_8_a_template_without_calls_gets_them_as_text(content: object) -> None:
    history = [
        message("user", "Lights?"),
        message("assistant", None, tool_calls=[CALL]),
        message("tool", content, tool_call_id="c1"),
    ]
    prompt = template("gemma3").render(history)
    assert '<tool_call>\n{"name": "lamp_state", "arguments": {"room": "attic"}}\n</tool_call>' in prompt
    assert f"<start_of_turn>user\n<tool_response>\n{'off' if content else ''}\n</tool_response>" in prompt


def test_E_5_a_conversation_that_the_assistant_begins_is_refused_by_a_strict_template() -> None:
    messages = [message("assistant", "first"), message("user", "second")]
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        template("gemma3").render(messages)
    assert "first" in template("llama3").render(messages)
