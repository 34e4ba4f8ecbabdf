"""What becomes of the fields of a Messages request: the prompt, the sampling, the tools, the form."""

from __future__ import annotations

from typing import Any

import pytest

from server_harness import Server, assert_messages_error

pytestmark = pytest.mark.anyio

PARAMETERS = {"type": "object", "properties": {"room": {"enum": ["attic", "cellar"]}}, "required": ["room"]}
LAMP = {"name": "lamp_state", "description": "Whether it is on.", "input_schema": PARAMETERS}
PING = {"name": "ping", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
ASK = {"role": "user", "content": "Is the lamp on?"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "lamp_state", "input": {"room": "attic"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "on"}


async def rendered(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """The messages that the template got."""
    server = Server()
    response = await server.message(messages=list(messages), **fields)
    assert response.status_code == 200, response.text
    return server.template.messages


async def refused(message: str, *messages: dict[str, Any], **fields: Any) -> None:
    server = Server()
    response = await server.message(messages=list(messages) or [ASK], **fields)
    assert_messages_error(response, 400, "invalid_request_error", message)
    assert not server.client.requests


# -- the conversation --------------------------------------------------------------------------------------------------


async def test_the_system_prompt_comes_first() -> None:
    assert await rendered(ASK, system="Be brief.") == [{"role": "system", "content": "Be brief."}, ASK]
    parts = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind.", "cache_control": {}}]
    assert await rendered(ASK, system=parts) == [{"role": "system", "content": "Be brief.\nBe kind."}, ASK]
    assert await rendered(ASK, system=[]) == [ASK]


async def test_a_line_that_changes_with_each_request_is_left_out() -> None:
    """Nothing behind it would be found in the prefix cache: https://github.com/anthropics/claude-code/issues/68900"""
    line = "x-anthropic-billing-header: cc_version=2.1; cch=8f3a1;"
    for system in ([{"type": "text", "text": line}, {"type": "text", "text": "Be brief."}], f"{line}\nBe brief."):
        assert await rendered(ASK, system=system) == [{"role": "system", "content": "Be brief."}, ASK]
    assert await rendered(ASK, system=line) == [ASK]


async def test_calls_and_their_results() -> None:
    turn = {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, USE]}
    more = {"type": "text", "text": "And the cellar?"}
    messages = await rendered(ASK, turn, {"role": "user", "content": [more, RESULT]})
    assert messages == [
        ASK,
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "lamp_state", "arguments": '{"room": "attic"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "on"},
        {"role": "user", "content": "And the cellar?"},
    ]


@pytest.mark.parametrize(
    ("content", "is_error", "text"),
    [
        (None, None, ""),
        ("on", False, "on"),
        ([], None, ""),
        ([{"type": "text", "text": "on"}, {"type": "tool_reference", "tool_name": "x"}], None, "on"),
        ("no such room", True, "Error: no such room"),
        ("Error: no such room", True, "Error: no such room"),
        (None, True, "Error: "),
        ([{"type": "search_result", "title": "Lamps", "source": "a.txt", "content": [{"type": "text", "text": "on"}]}],
         None, "Lamps\na.txt\non"),
    ],
)  # fmt: skip
async def test_what_a_result_says(content: object, is_error: bool | None, text: str) -> None:
    result = {**RESULT, "content": content, "is_error": is_error}
    messages = await rendered(ASK, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]})
    assert messages[2:] == [{"role": "tool", "tool_call_id": "toolu_1", "content": text}]


async def test_several_texts_stay_apart() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert await rendered({"role": "user", "content": parts}) == [{"role": "user", "content": parts}]


async def test_documents_that_are_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "The lamp is on."}
    document = {"type": "document", "title": "House", "context": "Of today", "source": source}
    messages = await rendered({"role": "user", "content": [document]})
    assert messages == [{"role": "user", "content": "House\nOf today\nThe lamp is on."}]


@pytest.mark.parametrize("content", ["The lamp is on.", [{"type": "text", "text": "The lamp is on."}]])
async def test_documents_of_blocks(content: object) -> None:
    document = {"type": "document", "title": "House", "source": {"type": "content", "content": content}}
    messages = await rendered({"role": "user", "content": [document]})
    assert messages == [{"role": "user", "content": "House\nThe lamp is on."}]


async def test_a_document_of_blocks_that_are_no_text_is_refused_by_the_place() -> None:
    document = {"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": {}}]}}
    await refused("'messages[0].content[0].source.content[0].type'", {"role": "user", "content": [document]})


async def test_a_summary_stands_for_what_came_before_it() -> None:
    summary = {"type": "compaction", "content": "It is about lamps.", "signature": "x", "cache_control": None}
    messages = await rendered({"role": "assistant", "content": [summary]}, ASK)
    assert messages == [{"role": "assistant", "content": "It is about lamps."}, ASK]
    messages = await rendered({"role": "assistant", "content": [{**summary, "content": None}]}, ASK)
    assert messages == [{"role": "assistant", "content": ""}, ASK]


async def test_what_the_system_says_for_one_turn_alone() -> None:
    hint = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    plain = {"role": "system", "content": "Be brief."}
    answer = {"role": "assistant", "content": "Yes."}
    assert await rendered(ASK, hint) == [ASK, plain]
    assert await rendered(ASK, hint, answer, ASK) == [ASK, answer, ASK]
    assert await rendered(ASK, {**hint, "clear_at": "never"}, answer, ASK) == [ASK, plain, answer, ASK]


async def test_what_anthropics_servers_told_of_other_servers_tools_is_left_out() -> None:
    listing = {"type": "mcp_tool_listing", "mcp_server_name": "house", "tools": []}
    answer = {"role": "assistant", "content": [listing, {"type": "text", "text": "Yes."}]}
    assert await rendered(ASK, answer, ASK) == [ASK, {"role": "assistant", "content": "Yes."}, ASK]


async def test_what_the_model_thought_before_goes_to_the_template() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    turn = {"role": "assistant", "content": [thought, {"type": "redacted_thinking", "data": "x"}, USE]}
    messages = await rendered(ASK, turn, {"role": "user", "content": [RESULT]})
    assert messages[1]["reasoning_content"] == "Hm."


@pytest.mark.parametrize("content", ["The lamp is", [{"type": "text", "text": "The lamp is"}]])
async def test_an_answer_that_has_begun_goes_on(content: object) -> None:
    server = Server()
    await server.message(messages=[ASK, {"role": "assistant", "content": content}])
    assert bytes(server.client.requests[0].prompt_token_ids).decode().endswith('The lamp is""<continue>')


async def test_blocks_that_are_refused() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "x"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}}
    for block, message in (
        (image, "'messages[0].content[0].type': the model takes text only, got a block of type 'image'"),
        (pdf, "'messages[0].content[0].source.type': the model takes text only"),
        ({"type": "nope"}, "'messages[0].content[0].type': must be 'text', got \"nope\""),
        (USE, "a tool_use does not belong to a message of the user"),
        ({"type": "tool_result"}, "Missing required parameter: 'messages[0].content[0].tool_use_id'"),
        (RESULT, 'must be the id of a tool_use in an earlier message of the assistant, got "toolu_1"'),
        ({"type": "text"}, "Missing required parameter: 'messages[0].content[0].text'"),
    ):
        await refused(message, {"role": "user", "content": [block]})
    await refused("a tool_result belongs to a message of the user", {"role": "assistant", "content": [RESULT]})
    await refused("'messages[0].content[0].id'", {"role": "assistant", "content": [{**USE, "id": None}]})
    await refused('got "bogus"', {"role": "bogus", "content": "x"})


# -- fields ------------------------------------------------------------------------------------------------------------


async def test_sampling() -> None:
    server = Server()
    await server.message(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["x"], seed=3, max_tokens=9)
    params = server.client.requests[0].params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.9, 7, 9)


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
         {"enable_thinking": False, "reasoning_effort": "high"}),
        ({"chat_template_kwargs": {"enable_thinking": True, "x": 1}}, {"enable_thinking": True, "x": 1}),
    ],
)  # fmt: skip
async def test_what_the_template_is_told(fields: dict[str, Any], variables: dict[str, Any]) -> None:
    server = Server()
    assert (await server.message(**fields)).status_code == 200
    assert server.template.variables == variables


async def test_tools_are_offered_in_the_form_of_chat() -> None:
    server = Server()
    await server.message(tools=[LAMP, SEARCH, {**PING, "type": "custom"}])
    assert server.template.tools == (
        {
            "type": "function",
            "function": {"name": "lamp_state", "description": "Whether it is on.", "parameters": PARAMETERS},
        },
        {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}},
    )


async def test_names_of_tools_may_be_long() -> None:
    """Those of MCP servers are: 128 characters with Anthropic."""
    server = Server()
    await server.message(tools=[{**LAMP, "name": "m" * 128}])
    assert server.template.tools[0]["function"]["name"] == "m" * 128  # type: ignore[index]
    await refused("'tools[0].name'", tools=[{**LAMP, "name": "m" * 129}])


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"lamp_state", "ping"}),
        ({"type": "tool", "name": "ping"}, {"ping"}),
    ],
)
async def test_a_choice_of_tools_binds_the_answer(choice: object, names: set[str]) -> None:
    server = Server()
    assert (await server.message(tools=[LAMP, PING], tool_choice=choice)).status_code == 200
    grammar = server.client.requests[0].params.grammar
    assert grammar
    assert {name for name in ("lamp_state", "ping") if name in grammar} == names


async def test_tools_that_may_not_be_called() -> None:
    server = Server()
    assert (await server.message(tools=[LAMP], tool_choice={"type": "none"})).status_code == 200
    assert not server.client.requests[0].params.grammar
    assert len(server.template.tools) == 1


async def test_one_call_at_a_time() -> None:
    server = Server()
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    server.client.answer = lambda request: list(f"{call}\n{call}".encode())
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = (await server.message(tools=[PING], tool_choice=choice, max_tokens=500)).json()
    assert [block["type"] for block in message["content"]] == ["tool_use"]
    assert message["stop_reason"] == "tool_use"


async def test_choices_that_are_refused() -> None:
    await refused("'tool_choice.name'", tools=[LAMP], tool_choice={"type": "tool"})
    await refused("must name one of 'tools'", tools=[LAMP, SEARCH], tool_choice={"type": "tool", "name": "web_search"})
    await refused("'tool_choice': is only allowed", tools=[SEARCH], tool_choice={"type": "any"})
    await refused("'tool_choice.type': must be", tools=[LAMP], tool_choice={"type": "maybe"})
    await refused("'tools[1].name': must not be the name of another one", tools=[LAMP, LAMP])


@pytest.mark.parametrize("field", ["output_config", "output_format"])
async def test_an_answer_of_a_form(field: str) -> None:
    server = Server()
    form = {"type": "json_schema", "schema": {**PARAMETERS, "additionalProperties": False}}
    response = await server.message(**{field: {"format": form} if field == "output_config" else form})
    assert response.status_code == 200, response.text
    assert "attic" in (server.client.requests[0].params.grammar or "")


async def test_forms_that_are_refused() -> None:
    form = {"type": "json_schema", "schema": {"type": "nope"}}
    await refused("'output_config.format'", output_config={"format": form})
    await refused("'output_format': is not allowed together", output_config={"format": form}, output_format=form)
    await refused("Missing required parameter: 'output_format.schema'", output_format={"type": "json_schema"})
