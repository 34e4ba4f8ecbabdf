"""Answers of POST /v1/messages, whole and streamed, and what Anthropic's clients rely on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anllm.config import SecurityConfig, ServerConfig
from anllm.parsers.choose import OutputFormat
from server_harness import (
    ANSWER,
    EOS,
    MODEL,
    Server,
    assert_error,
    assert_messages_error,
    message_events,
    messages_body,
)

pytestmark = pytest.mark.anyio

MESSAGES = "/v1/messages"
PARAMETERS = {"type": "object", "properties": {"room": {"enum": ["attic", "cellar"]}}, "required": ["room"]}
LAMP = {"name": "lamp_state", "input_schema": PARAMETERS}
PING = {"name": "ping", "input_schema": {"type": "object"}}
CALL = '<tool_call>\n{"name": "lamp_state", "arguments": {"room": "attic"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nHm, 1 + 1.\n</think>\n\n"
THINKING = {"type": "enabled", "budget_tokens": 1024}


def says(server: Server, text: str, *, is_cut: bool = False) -> None:
    server.client.answer = lambda request: [*text.encode(), *([] if is_cut else [EOS])]


def thinks(server: Server) -> None:
    server.service.output_format = OutputFormat.choose("", lambda piece: False, reasoning_parser="qwen3")


async def both(server: Server, **fields: Any) -> dict[str, Any]:
    """The whole answer, which the stream must agree with."""
    response = await server.message(**fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    whole: dict[str, Any] = response.json()
    events = message_events((await server.message(**fields, stream=True)).text)
    begun, end = events[0]["message"], events[-2]
    assert begun["id"].startswith("msg_") and begun["id"] != whole["id"]
    assert (begun["content"], begun["stop_reason"], begun["stop_sequence"]) == ([], None, None)
    assert begun["usage"]["output_tokens"] == 0
    put_together = {**begun, "content": blocks_of(events), **end["delta"], "usage": end["usage"]}
    assert without_ids(put_together) == without_ids(whole)
    assert put_together.keys() == whole.keys()
    return whole


def blocks_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As Anthropic's clients put them together."""
    blocks: list[dict[str, Any]] = []
    given = ""
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append(event["content_block"])
                given = ""
            case "content_block_delta":
                delta = event["delta"]
                match delta["type"]:
                    case "text_delta":
                        blocks[-1]["text"] += delta["text"]
                    case "thinking_delta":
                        blocks[-1]["thinking"] += delta["thinking"]
                    case "signature_delta":
                        blocks[-1]["signature"] = delta["signature"]
                    case "input_json_delta":
                        given += delta["partial_json"]
                        blocks[-1]["input"] = given
            case "content_block_stop" if given:
                blocks[-1]["input"] = json.loads(given)
    return blocks


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    return {**message, "id": "", "content": content}


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_a_text() -> None:
    message = await both(Server())
    assert message == {
        "id": message["id"],
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": ANSWER}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 23,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": len(ANSWER.encode()) + 1,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


async def test_the_beginning_of_a_stream_tells_the_tokens_of_the_prompt() -> None:
    """What of them was found in the cache is known when the engine begins."""
    events = message_events((await Server().message(stream=True)).text)
    assert events[0]["message"]["usage"]["input_tokens"] == 26
    assert events[-2]["usage"]["input_tokens"] + events[-2]["usage"]["cache_read_input_tokens"] == 26


async def test_an_answer_that_was_cut() -> None:
    message = await both(Server(), max_tokens=5)
    assert (message["content"][0]["text"], message["stop_reason"]) == ("Hello", "max_tokens")


@pytest.mark.parametrize("tools", [[], [LAMP]])
async def test_the_stop_sequence_that_ended_it_is_told(tools: list[object]) -> None:
    message = await both(Server(), stop_sequences=["nowhere", "Ann"], tools=tools)
    assert message["content"] == [{"type": "text", "text": "Hello there, "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "Ann")


async def test_an_answer_without_a_word_is_an_empty_text() -> None:
    server = Server()
    says(server, "")
    message = await both(server)
    assert message["content"] == [{"type": "text", "text": ""}]
    assert message["stop_reason"] == "end_turn"


async def test_calls_follow_the_text() -> None:
    server = Server()
    says(server, f"Let me see.\n{CALL}\n{SECOND}")
    message = await both(server, tools=[LAMP, PING], max_tokens=500)
    text, lamp, ping = message["content"]
    assert text == {"type": "text", "text": "Let me see."}
    assert lamp == {"type": "tool_use", "id": lamp["id"], "name": "lamp_state", "input": {"room": "attic"}}
    assert (ping["name"], ping["input"]) == ("ping", {})
    assert lamp["id"].startswith("toolu_") and lamp["id"] != ping["id"]
    assert message["stop_reason"] == "tool_use"


async def test_a_call_that_was_cut_tells_what_came_of_it() -> None:
    server = Server()
    says(server, CALL.partition('ic"')[0], is_cut=True)
    message = (await server.message(tools=[LAMP])).json()
    assert message["content"][0]["input"] == {"room": "att"}
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("arguments", ["[1, 2]", '"attic"'])
async def test_what_a_tool_is_called_with_is_an_object_whatever_the_model_wrote(arguments: str) -> None:
    server = Server()
    says(server, f'<tool_call>\n{{"name": "lamp_state", "arguments": {arguments}}}\n</tool_call>')
    message = (await server.message(tools=[LAMP])).json()
    for block in message["content"]:
        assert block["type"] == "text" or isinstance(block["input"], dict)
    assert arguments.strip('"') in json.dumps(message["content"])


async def test_thoughts_are_a_block_if_they_were_asked_for() -> None:
    server = Server()
    thinks(server)
    says(server, f"{THOUGHT}Two.")
    message = await both(server, thinking=THINKING)
    thought, text = message["content"]
    assert thought == {"type": "thinking", "thinking": "Hm, 1 + 1.", "signature": ""}
    assert text == {"type": "text", "text": "Two."}
    assert server.template.variables["enable_thinking"] is True
    assert 0 < message["usage"]["output_tokens_details"]["thinking_tokens"] < message["usage"]["output_tokens"]


async def test_a_thought_in_a_stream_ends_with_its_signature() -> None:
    """Though it is empty: the AI SDK gives back only thoughts that had one."""
    server = Server()
    thinks(server)
    says(server, f"{THOUGHT}Two.")
    events = message_events((await server.message(thinking=THINKING, stream=True)).text)
    ends = [index for index, event in enumerate(events) if event["type"] == "content_block_stop"]
    signature, text = (events[index - 1]["delta"] for index in ends)
    assert signature == {"type": "signature_delta", "signature": ""}
    assert text["type"] == "text_delta"


@pytest.mark.parametrize(
    "thinking", [{"type": "between_tools"}, {"type": "of-tomorrow"}, {"type": "adaptive", "display": "full"}]
)
async def test_whatever_does_not_switch_thinking_off_tells_thoughts(thinking: object) -> None:
    """Clients send what Anthropic's newest models take: https://github.com/anthropics/claude-code/issues/68551"""
    server = Server()
    thinks(server)
    says(server, f"{THOUGHT}Two.")
    message = await both(server, thinking=thinking)
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert server.template.variables["enable_thinking"] is True
    assert (await server.message(thinking={"type": "enabled", "budget_tokens": 0})).status_code == 200


@pytest.mark.parametrize("thinking", [..., {"type": "disabled"}, {"type": "adaptive", "display": "omitted"}])
async def test_thoughts_nobody_asked_for_are_not_told(thinking: object) -> None:
    """Clients take the first block for the answer's text."""
    server = Server()
    thinks(server)
    says(server, f"{THOUGHT}Two.")
    message = await both(server, thinking=thinking)
    assert message["content"] == [{"type": "text", "text": "Two."}]


async def test_nothing_but_a_thought_has_an_empty_text_behind_it() -> None:
    server = Server()
    thinks(server)
    says(server, "<think>\nHm", is_cut=True)
    message = await both(server, thinking={"type": "adaptive"})
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["stop_reason"] == "max_tokens"


async def test_silence_is_broken_by_events() -> None:
    """Comments are no sign of life to Claude Code."""
    server = Server(ServerConfig(keep_alive_s=0.01))
    server.client.is_manual = True
    call = server.open(MESSAGES, messages_body(stream=True))
    await call.until_sent('event: ping\ndata: {"type":"ping"}\n\n')
    assert b"\n:" not in call.body
    (request_id,) = server.client.open_ids
    server.client.emit(request_id, "Hi.")
    server.client.finish(request_id)
    message_events(await call.end())


# -- errors ------------------------------------------------------------------------------------------------------------


async def test_an_error_in_a_stream_is_an_event_of_that_name() -> None:
    server = Server()
    server.client.is_manual = True
    call = server.open(MESSAGES, messages_body(stream=True))
    await call.until_sent("message_start")
    server.client.fail(server.client.open_ids[0], "StepError", "It broke.")
    event = (await call.end()).rstrip("\n").rpartition("\n\n")[2]
    name, _, data = event.partition("\ndata: ")
    told = json.loads(data)
    assert name == "event: error" and told["type"] == "error"
    assert told["error"]["type"] == "api_error" and "It broke." in told["error"]["message"]
    assert told["request_id"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": ...}, "Missing required parameter: 'max_tokens'"),
        ({"max_tokens": 0}, "'max_tokens': must be >= 1"),
        ({"messages": []}, "'messages': must not be empty"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "'messages[0].content[0].text'"),
        ({"stop_sequences": [""]}, "'stop_sequences': must not hold an empty string"),
        ({"stop_sequences": ["a", 1]}, "'stop_sequences[1]': must be a string"),
        ({"stop_sequences": list("abcde")}, "'stop_sequences': must have at most 4 items"),
        ({"mcp_servers": [{"type": "url"}]}, "'mcp_servers' is known"),
        ({"compaction": {"type": "summarize"}}, "'compaction' is known"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "prompt is too long"),
    ],
)
async def test_what_is_wrong_is_told_as_anthropic_tells_it(fields: dict[str, Any], message: str) -> None:
    assert_messages_error(await Server().message(**fields), 400, "invalid_request_error", message)


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
async def test_a_conversation_that_the_server_would_have_to_hold_is_refused_so_that_all_of_it_is_sent(
    thread: object,
) -> None:
    """The client's loop of tools asks for one, and goes on without at this code alone. With the field passed over, its
    next request would be a result without its call."""
    response = await Server().message(thread=thread)
    assert_messages_error(response, 400, "invalid_request_error", "'thread' is known")
    assert response.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}
    assert (await Server().message(thread=None)).status_code == 200


async def test_an_error_tells_its_code() -> None:
    response = await Server().message(max_tokens=...)
    assert response.json()["error"]["details"] == {"error_code": "missing_required_parameter"}


async def test_another_model_is_not_found() -> None:
    assert_messages_error(await Server().message(model="claude"), 404, "not_found_error", f"`{MODEL}`")


async def test_whatever_refuses_a_request_speaks_the_clients_language() -> None:
    server = Server(security=SecurityConfig(api_keys=("secret",)))
    assert_messages_error(await server.message(), 401, "authentication_error", "x-api-key")
    assert_messages_error(await server.post(f"{MESSAGES}/batches", {}), 401, "authentication_error", "API key")
    server = Server()
    assert_messages_error(await server.post(f"{MESSAGES}/batches", {}), 404, "not_found_error", "Invalid URL")
    assert_messages_error(await server.http.get(MESSAGES), 405, "invalid_request_error", "allowed: POST")
    assert_messages_error(await server.post(MESSAGES, b"{"), 400, "invalid_request_error", "JSON")
    server.client.max_num_open = 0
    assert_messages_error(await server.message(), 429, "rate_limit_error", "")
    assert_error(await server.chat(), 429)


async def test_a_server_that_is_not_ready_is_overloaded() -> None:
    server = Server()
    server.service.tokenizer = None
    response = await server.message()
    assert_messages_error(response, 529, "overloaded_error", "")
    assert int(response.headers["retry-after"]) > 0


async def test_unknown_betas_and_fields_are_ignored() -> None:
    """https://github.com/anthropics/claude-code/issues/70563"""
    headers = {"anthropic-beta": "what-nobody-knows-2031-01-01", "anthropic-version": "2023-06-01"}
    fields = {"betas": ["x"], "context_management": {"edits": []}, "zzz": 1, "metadata": {"user_id": "u"}}
    response = await Server().http.post(f"{MESSAGES}?beta=true", json=messages_body(**fields), headers=headers)
    assert response.status_code == 200
    assert response.headers["request-id"] == response.headers["x-request-id"]


# -- beside it ---------------------------------------------------------------------------------------------------------


async def test_tokens_are_counted_as_they_are_for_an_answer() -> None:
    server = Server()
    counted = await server.post(f"{MESSAGES}/count_tokens", messages_body(max_tokens=..., system="Be brief."))
    usage = (await server.message(system="Be brief.")).json()["usage"]
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert len(server.client.requests) == 1
    refused = await server.post(f"{MESSAGES}/count_tokens", messages_body(model="claude"))
    assert_messages_error(refused, 404, "not_found_error", "claude")


async def test_models_are_listed_in_the_form_that_the_client_knows() -> None:
    server = Server()
    headers = {"anthropic-version": "2023-06-01"}
    listed = (await server.http.get("/v1/models", headers=headers)).json()
    assert listed["data"] == [
        {
            "type": "model",
            "id": MODEL,
            "display_name": MODEL,
            "created_at": "2025-11-29T07:06:40Z",
            "max_input_tokens": 1000,
            "max_tokens": 1000,
            "lifecycle": "active",
        }
    ]
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, MODEL, MODEL)
    assert (await server.http.get(f"/v1/models/{MODEL}", headers=headers)).json() == listed["data"][0]
    assert_messages_error(await server.http.get("/v1/models/x", headers=headers), 404, "not_found_error", "'x'")
    assert (await server.http.get("/v1/models")).json()["object"] == "list"
