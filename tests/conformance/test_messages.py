"""What reaches the model of a conversation, by the tokens that the engine gets."""

from __future__ import annotations

from typing import Any

import pytest

from server_harness import Server, assert_error

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "type": "function", "function": {"name": "lamp_state", "arguments": '{"room":"attic"}'}}
TOOL = {"role": "tool", "tool_call_id": "c1", "content": "off"}


def user(content: object, **fields: object) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


async def prompt(server: Server, messages: list[dict[str, Any]]) -> str:
    response = await server.chat(messages=messages)
    assert response.status_code == 200, response.text
    return bytes(server.client.requests[-1].prompt_token_ids).decode()


async def test_C046_tool_message_without_the_id_of_its_call(server: Server) -> None:
    messages = [user("Lights?"), {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "off"}]
    response = await server.chat(messages=messages)
    assert_error(response, 400, "messages[2].tool_call_id", "missing_required_parameter")


async def test_E_1_call_without_text_in_three_spellings(server: Server) -> None:
    turns = [{"content": None}, {}, {"content": ""}]
    prompts = [
        await prompt(server, [user("Lights?"), {"role": "assistant", "tool_calls": [CALL], **turn}, TOOL])
        for turn in turns
    ]
    assert prompts[0] == prompts[1] == prompts[2]
    assert "attic" in prompts[0]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
async def test_C061_E_2_parts_are_the_joined_text_in_every_role(server: Server, role: str) -> None:
    joined, apart = [
        await prompt(server, [{"role": role, "content": content}, user("Go on.")])
        for content in ("Say the word pear.", parts("Say the", " word pear."))
    ]
    assert joined == apart


async def test_C066_E_2_E_8_tool_results_in_parts(server: Server) -> None:
    history = [user("Lights?"), {"role": "assistant", "tool_calls": [CALL]}]
    joined, apart, named = [
        await prompt(server, [*history, {**TOOL, **fields}])
        for fields in ({"content": "it is off"}, {"content": parts("it is ", "off")}, {"name": "lamp_state"})
    ]
    assert joined == apart
    assert "off" in named


async def test_E_8_long_tool_result(server: Server) -> None:
    server.service.max_model_len = 300_000
    history = [user("Lights?"), {"role": "assistant", "tool_calls": [CALL]}, {**TOOL, "content": "x" * 200_000}]
    assert "x" * 200_000 in await prompt(server, history)


async def test_E_7_all_of_a_conversation_is_in_the_prompt(server: Server) -> None:
    server.service.max_model_len = 10_000
    system = {"role": "system", "content": "My name is Quill. " * 20}
    assistant = {"role": "assistant", "content": "So it is. " * 50}
    lengths = []
    for messages in (
        [user("first " * 50)],
        [system, user("first " * 50)],
        [system, user("first " * 50), assistant, user("What is my name? " * 10)],
    ):
        text = await prompt(server, messages)
        assert all(message["content"] in text for message in messages)
        lengths.append(len(text))
    assert lengths[0] + 40 < lengths[1] and lengths[1] + 80 < lengths[2]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "a"}, user("b"), user("c")],
        [user("b"), user("c")],
        [{"role": "assistant", "content": "a"}, user("b")],
        [user("a"), {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}, user("d")],
        [{"role": "system", "content": "a"}],
    ],
)
async def test_E_5_orders_that_a_lenient_template_takes(server: Server, messages: list[dict[str, Any]]) -> None:
    text = await prompt(server, messages)
    assert all(f"<{message['role']}>{message['content']}" in text for message in messages)
