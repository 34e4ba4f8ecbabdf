"""Answers of POST /v1/responses, whole and streamed: contract C180-C183 and what its clients rely on."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from llguidance import LLMatcher
from pydantic import BaseModel

from anllm.config import ServerConfig
from anllm.parsers.choose import OutputFormat
from anllm.server.responses.output import Kind, OutputItem
from anllm.server.responses.thoughts import encrypted
from server_harness import ANSWER, EOS, MODEL, Server, assert_error, grammar_checker, named_events, responses_body

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
PARAMETERS = {"type": "object", "properties": {"room": {"enum": ["attic", "cellar"]}}, "required": ["room"]}
LAMP = {"type": "function", "name": "lamp_state", "parameters": PARAMETERS}
PING = {"type": "function", "name": "ping"}
PATCH = {"type": "custom", "name": "patch"}
CALL = '<tool_call>\n{"name": "lamp_state", "arguments": {"room": "attic"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
PATCHES = '<tool_call>\n{"name": "patch", "arguments": {"input": "a \\"b\\""}}\n</tool_call>'
THOUGHT = "<think>\nHm, 1 + 1.\n</think>\n\n"


def says(server: Server, text: str, *, is_cut: bool = False) -> None:
    server.client.answer = lambda request: [*text.encode(), *([] if is_cut else [EOS])]


def thinks(server: Server) -> None:
    server.service.output_format = OutputFormat.choose("", lambda piece: False, reasoning_parser="qwen3")


async def both(server: Server, **fields: Any) -> dict[str, Any]:
    """The whole answer, which the stream must agree with."""
    response = await server.respond(**fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    whole: dict[str, Any] = response.json()
    events = named_events((await server.respond(**fields, stream=True)).text)
    assert events[-1]["type"] == f"response.{whole['status']}"
    final = events[-1]["response"]
    assert without_ids(final) == without_ids(whole)
    assert put_together(events) == final["output"]
    return whole


def without_ids(value: Any) -> Any:
    own = ("id", "call_id", "created_at", "completed_at")
    if isinstance(value, dict):
        return {key: without_ids(each) for key, each in value.items() if key not in own}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client makes them of the events; the order of events is checked."""
    items: list[dict[str, Any]] = []
    texts: list[str] = []
    is_open, part_is_open = False, False
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert not is_open and event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
            items.append(event["item"])
            texts.append("")
            is_open = True
            continue
        assert is_open and event["output_index"] == len(items) - 1
        item, text = items[-1], texts[-1]
        if kind == "output_item.done":
            assert not part_is_open and event["item"]["id"] == item["id"]
            assert event["item"]["status"] in ("completed", "incomplete")
            items[-1], is_open = event["item"], False
            continue
        assert event["item_id"] == item["id"]
        if kind.endswith("part.added"):
            assert not part_is_open and event["part"]["text"] == ""
            part_is_open = True
        elif kind.endswith("part.done"):
            assert part_is_open and event["part"]["text"] == text
            part_is_open = False
        elif kind.endswith(".delta"):
            assert part_is_open is (item["type"] in ("message", "reasoning"))
            texts[-1] += event["delta"]
        else:
            (told,) = (event[key] for key in ("text", "arguments", "input") if key in event)
            assert told == text
    assert not is_open
    return items


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


# -- shape -------------------------------------------------------------------------------------------------------------


async def test_C180_the_object_has_all_keys(server: Server) -> None:
    body = await both(server)
    assert abs(body.pop("created_at") - time.time()) < 5 and abs(body.pop("completed_at") - time.time()) < 5
    assert body.pop("id").startswith("resp_")
    ((item,), num_prompt) = body.pop("output"), len(server.client.requests[0].prompt_token_ids)
    assert item.pop("id").startswith("msg_")
    part = {"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}
    assert item == {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
    num_answer = len(ANSWER.encode()) + 1
    assert body == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": MODEL,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
            "output_tokens": num_answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_prompt + num_answer,
        },
        "user": None,
        "metadata": {},
    }


async def test_fields_are_told_as_they_hold(server: Server) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "integer"}, "strict": True}
    given: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 60,
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "store": False,
        "temperature": 0.5,
        "text": {"format": form, "verbosity": "low"},
        "tool_choice": "none",
        "tools": [LAMP, {"type": "web_search", "external_web_access": False}],
        "top_logprobs": 2,
        "top_p": 0.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "truncation": "auto",
        "user": "u",
        "metadata": {"a": "b"},
    }
    says(server, "7")
    body = await both(server, **given, service_tier="flex")
    tools = [{**LAMP, "description": None, "strict": False}, given["tools"][1]]
    assert {key: body[key] for key in given} == {**given, "tools": tools}
    assert body["service_tier"] == "default"


async def test_sampling_reaches_the_engine(server: Server) -> None:
    await server.respond(temperature=0.25, top_p=0.5, seed=7, top_k=4, max_output_tokens=9, stop=["zz"], priority=-2)
    params = server.client.requests[0].params
    assert (params.temperature, params.top_p, params.seed, params.top_k) == (0.25, 0.5, 7, 4)
    assert (params.max_tokens, params.priority, params.n) == (9, -2, 1)
    assert text_of((await server.respond(stop=[" Ann"])).json()) == "Hello there,"


async def test_instructions_stand_first(server: Server) -> None:
    await server.respond(instructions="Be brief.", input=[{"role": "developer", "content": "And kind."}])
    assert server.template.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "And kind."},
    ]


async def test_effort_and_variables_reach_the_template(server: Server) -> None:
    await server.respond(reasoning={"effort": "none"}, chat_template_kwargs={"x": 1})
    assert server.template.variables == {"reasoning_effort": "none", "enable_thinking": False, "x": 1}
    await server.respond()
    assert server.template.variables == {}


async def test_C182_a_limit_makes_it_incomplete(server: Server) -> None:
    body = await both(server, max_output_tokens=5)
    assert body["status"] == "incomplete" and body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["completed_at"] is None and body["output"][-1]["status"] == "incomplete"
    assert text_of(body) == "Hello"


async def test_an_empty_answer_is_an_empty_message(server: Server) -> None:
    says(server, "")
    body = await both(server)
    assert body["status"] == "completed" and [item["type"] for item in body["output"]] == ["message"]
    assert text_of(body) == ""


async def test_text_is_whole_characters(server: Server) -> None:
    text = "\U0001f469‍\U0001f4bb\U0001f1ef\U0001f1f5é漢"
    says(server, text)
    assert text_of(await both(server)) == text


async def test_log_probabilities_come_where_they_are_included(server: Server) -> None:
    include = ["message.output_text.logprobs"]
    body = await both(server, include=include, top_logprobs=2)
    entries = body["output"][0]["content"][0]["logprobs"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == ANSWER
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}
    assert entries[0]["top_logprobs"][0] == {key: entries[0][key] for key in ("token", "logprob", "bytes")}
    events = named_events((await server.respond(include=include, top_logprobs=2, stream=True)).text)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == entries
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    assert done["logprobs"] == entries
    body = await both(server, include=include, stop=["there"], tools=[LAMP])
    told = body["output"][0]["content"][0]["logprobs"]
    assert bytes(byte for entry in told for byte in entry["bytes"]).decode() == text_of(body) == "Hello "
    assert (await both(server, top_logprobs=2))["output"][0]["content"][0]["logprobs"] == []


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_C183_calls_are_items_behind_the_words_before_them(server: Server) -> None:
    says(server, f"Let me look.\n{CALL}\n{SECOND}")
    said, *calls = (await both(server, tools=[LAMP, PING]))["output"]
    assert said["content"][0]["text"] == "Let me look." and said["status"] == "completed"
    assert [(call["type"], call["name"], call["arguments"]) for call in calls] == [
        ("function_call", "lamp_state", '{"room": "attic"}'),
        ("function_call", "ping", "{}"),
    ]
    assert len({call["call_id"] for call in calls} | {call["id"] for call in calls}) == 4
    assert all(call["call_id"].startswith("call_") and call["id"].startswith("fc_") for call in calls)


async def test_a_call_of_a_namespace_says_so(server: Server) -> None:
    space = {"type": "namespace", "name": "house", "description": "x", "tools": [LAMP]}
    says(server, CALL)
    (call,) = (await both(server, tools=[space]))["output"]
    assert (call["namespace"], call["name"]) == ("house", "lamp_state")
    says(server, CALL.replace("lamp_state", "house__lamp_state"))
    (call,) = (await both(server, tools=[space, LAMP]))["output"]
    assert (call["namespace"], call["name"]) == ("house", "lamp_state")
    again = [
        {"role": "user", "content": "On?"},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "off"},
    ]
    await both(server, tools=[space, LAMP], input=again)
    assert server.template.messages[1]["tool_calls"][0]["function"]["name"] == "house__lamp_state"


async def test_a_custom_tool_is_called_with_a_text(server: Server) -> None:
    says(server, PATCHES)
    (call,) = (await both(server, tools=[PATCH, LAMP]))["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", 'a "b"')
    text = (await server.respond(tools=[PATCH], stream=True)).text
    assert "keep-alive" not in text, "what is not told yet is no silence"
    events = named_events(text)
    kinds = [event["type"].removeprefix("response.") for event in events[2:-1]]
    assert kinds == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"text": "a"}', '{"text": "a"}'),
        ('["a"]', '["a"]'),
        ('{"input": "\\ud800"}', '{"input": "\\ud800"}'),
        ("[" * 2000, "[" * 2000),
    ],
)
async def test_what_a_custom_tool_is_called_with_is_a_text_whatever_the_model_wrote(arguments: str, given: str) -> None:
    item = OutputItem(Kind.CUSTOM_CALL, 0, "ctc_1", {}, pieces=[arguments])
    assert item.so_far()["input"] == given


async def test_a_call_that_is_cut_is_incomplete(server: Server) -> None:
    says(server, CALL[:-20], is_cut=True)
    body = await both(server, tools=[LAMP])
    assert body["status"] == "incomplete" and body["output"][-1]["status"] == "incomplete"
    assert body["output"][-1]["type"] == "function_call"


async def test_a_tool_that_the_model_made_up_is_told_as_it_wrote_it(server: Server) -> None:
    says(server, CALL.replace("lamp_state", "nope"))
    (call,) = (await both(server, tools=[LAMP]))["output"]
    assert (call["type"], call["name"]) == ("function_call", "nope")


async def test_without_tools_markup_is_text(server: Server) -> None:
    says(server, CALL)
    for fields in ({}, {"tools": [{"type": "web_search"}]}, {"tools": [LAMP], "tool_choice": "none"}):
        assert text_of(await both(server, **fields)) == CALL


async def test_without_parallel_calls_the_answer_ends_after_the_first(server: Server) -> None:
    says(server, f"{CALL}\n{SECOND}")
    body = await both(server, tools=[LAMP, PING], parallel_tool_calls=False)
    assert [item["name"] for item in body["output"]] == ["lamp_state"] and body["status"] == "completed"


# -- forms -------------------------------------------------------------------------------------------------------------


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(grammar_checker()._vocabulary.build(), grammar, log_level=0)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


async def grammar_of(server: Server, **fields: Any) -> str:
    response = await server.respond(**fields)
    assert response.status_code == 200, response.text
    return server.client.requests[-1].params.grammar


async def test_C187_forms_bind_the_answer(server: Server) -> None:
    schema = {"type": "json_schema", "name": "x", "schema": PARAMETERS}
    grammar = await grammar_of(server, text={"format": schema})
    assert accepts(grammar, '{"room": "attic"}') and not accepts(grammar, '{"room": "garage"}')
    grammar = await grammar_of(server, text={"format": {"type": "json_object"}})
    assert accepts(grammar, '{"a": [1]}') and not accepts(grammar, "[1]")
    assert await grammar_of(server, text={"format": {"type": "text"}}) == await grammar_of(server) == ""
    grammar = await grammar_of(server, structured_outputs={"choice": ["yes", "no"]})
    assert accepts(grammar, "yes") and not accepts(grammar, "maybe")


async def test_required_calls_are_bound_to_their_schemas(server: Server) -> None:
    says(server, CALL)
    grammar = await grammar_of(server, tools=[LAMP, PING], tool_choice="required")
    assert accepts(grammar, CALL) and accepts(grammar, SECOND) and not accepts(grammar, "It is on.")
    grammar = await grammar_of(server, tools=[LAMP, PING], tool_choice={"type": "function", "name": "ping"})
    assert accepts(grammar, SECOND) and not accepts(grammar, CALL)
    strict = await grammar_of(server, tools=[{**LAMP, "strict": True}])
    assert accepts(strict, "Hello.") and not accepts(strict, CALL.replace("attic", "garage"))


# -- thoughts ----------------------------------------------------------------------------------------------------------


async def test_thoughts_are_an_item_before_the_message(server: Server) -> None:
    thinks(server)
    says(server, f"{THOUGHT}Two.")
    body = await both(server)
    thought, message = body["output"]
    assert thought.pop("id").startswith("rs_")
    assert thought == {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm, 1 + 1."}],
        "encrypted_content": None,
    }
    assert message["content"][0]["text"] == "Two."
    assert 0 < body["usage"]["output_tokens_details"]["reasoning_tokens"] < body["usage"]["output_tokens"]


@pytest.mark.parametrize("key", ["summary", "generate_summary"])
async def test_thoughts_are_a_summary_where_one_is_asked_for(server: Server, key: str) -> None:
    thinks(server)
    says(server, f"{THOUGHT}Two.")
    thought = (await both(server, reasoning={key: "auto"}))["output"][0]
    assert thought["summary"] == [{"type": "summary_text", "text": "Hm, 1 + 1."}] and thought["content"] == []
    events = named_events((await server.respond(reasoning={key: "auto"}, stream=True)).text)
    kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in events[2:]))
    assert kinds[:6] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]


async def test_thoughts_can_be_kept_by_the_client_and_given_back(server: Server) -> None:
    thinks(server)
    says(server, f"{THOUGHT}{CALL}")
    asked = {"include": ["reasoning.encrypted_content"], "store": False, "tools": [LAMP]}
    thought, call = (await both(server, **asked))["output"]
    assert thought["encrypted_content"] == encrypted("Hm, 1 + 1.")
    alone = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "off"}
    await both(server, input=[{"role": "user", "content": "On?"}, alone, call, result], **asked)
    assert [message.get("reasoning_content") for message in server.template.messages] == [None, "Hm, 1 + 1.", None]


async def test_a_thought_that_is_cut_is_all_there_is(server: Server) -> None:
    thinks(server)
    says(server, "<think>\nHm, on and on", is_cut=True)
    body = await both(server)
    assert [(item["type"], item["status"]) for item in body["output"]] == [("reasoning", "incomplete")]
    assert body["status"] == "incomplete"


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_C181_headers_and_names_of_a_stream(server: Server) -> None:
    response = await server.respond(stream=True, stream_options={"include_obfuscation": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert "content-length" not in response.headers
    events = named_events(response.text)
    first, second, added, part = events[:4]
    assert first["response"] == second["response"]
    assert (first["response"]["status"], first["response"]["output"], first["response"]["usage"]) == (
        "in_progress",
        [],
        None,
    )
    assert (added["type"], part["type"]) == ("response.output_item.added", "response.content_part.added")
    assert added["item"]["content"] == []
    assert [event["type"] for event in events[-4:]] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert all(event["delta"] for event in events if event["type"].endswith(".delta"))
    assert "obfuscation" not in response.text


async def test_deltas_are_written_as_the_plain_encoder_writes_them(server: Server) -> None:
    thinks(server)
    says(server, f'{THOUGHT}I "look".\n{CALL}')
    for fields in ({}, {"reasoning": {"summary": "auto"}}, {"include": ["message.output_text.logprobs"]}):
        text = (await server.respond(stream=True, tools=[LAMP], **fields)).text
        for event in text.split("\n\n")[:-2]:
            data = event.partition("\ndata: ")[2]
            assert data == json.dumps(json.loads(data), separators=(",", ":"))


async def test_a_stream_begins_before_there_is_a_token_and_shows_that_it_lives() -> None:
    server = Server(ServerConfig(keep_alive_s=0.02))
    server.client.is_manual = True
    call = server.open(RESPONSES, responses_body(stream=True))
    await call.until_sent("event: response.in_progress")
    await call.until_sent(": keep-alive")
    (request_id,) = server.client.open_ids
    server.client.emit(request_id, "Hi")
    server.client.finish(request_id)
    assert text_of(named_events(await call.end())[-1]["response"]) == "Hi"


async def test_an_error_in_a_stream_is_told_in_both_shapes_and_ends_the_response(server: Server) -> None:
    server.client.is_manual = True
    call = server.open(RESPONSES, responses_body(stream=True))
    await call.until(lambda: server.client.num_open)
    (request_id,) = server.client.open_ids
    server.client.emit(request_id, "He")
    await call.until_sent('"delta":"He"')
    server.client.fail(request_id)
    *_, error, failed = named_events(await call.end())
    assert error["type"] == "error" and error["error"].keys() == {"type", "code", "message", "param"}
    assert error["message"] == error["error"]["message"] and "The step failed." in error["message"]
    assert (error["code"], error["error"]["type"]) == ("server_error", "server_error")
    response = failed["response"]
    assert (failed["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"] == {"code": "server_error", "message": error["message"]}
    assert [(item["status"], item["content"][0]["text"]) for item in response["output"]] == [("incomplete", "He")]
    assert (await server.http.get(f"{RESPONSES}/{response['id']}")).status_code == 404


async def test_a_client_that_leaves_ends_its_generation(server: Server) -> None:
    server.client.is_manual = True
    for stream in (False, True):
        call = server.open(RESPONSES, responses_body(stream=stream))
        await call.until(lambda: server.client.num_open == 1)
        call.leave()
        await call.end()
        assert server.client.num_open == 0


async def test_time_limits_hold_here_too(server: Server) -> None:
    server.client.is_manual = True
    call = server.open(RESPONSES, responses_body(), {"x-request-timeout": "0.05"})
    assert '"code":"request_timeout"' in await call.end() and call.status == 504
    call = server.open(RESPONSES, responses_body(stream=True), {"x-request-timeout": "0.05"})
    *_, error, failed = named_events(await call.end())
    assert error["code"] == failed["response"]["error"]["code"] == "request_timeout"


async def test_what_is_wrong_is_no_stream(server: Server) -> None:
    assert_error(await server.respond(temperature=3, stream=True), 400, "temperature", "decimal_above_max_value")
    assert_error(await server.respond(input="x" * 2000, stream=True), 400, "input", "context_length_exceeded")


class Pair(BaseModel):
    a: int
    b: str


async def test_C189_openai_types_and_stream_helper(server: Server) -> None:
    openai = pytest.importorskip("openai")
    httpx2 = pytest.importorskip("httpx2")  # what the client speaks through
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app))
    client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http)
    whole = await client.responses.create(model=MODEL, input="Say hi.")
    assert whole.output_text == ANSWER and type(whole).model_validate(whole.model_dump()) == whole
    async with client.responses.stream(model=MODEL, input="Say hi.") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == ANSWER
    says(server, f"Let me look.\n{CALL}")
    strict: Any = {**LAMP, "parameters": {**PARAMETERS, "additionalProperties": False}, "strict": True}
    async with client.responses.stream(model=MODEL, input="On?", tools=[strict]) as stream:
        final = await stream.get_final_response()
    call = final.output[-1]
    assert call.type == "function_call" and call.parsed_arguments == {"room": "attic"}
    says(server, '{"a": 1, "b": "x"}')
    parsed = await client.responses.parse(model=MODEL, input="Say hi.", text_format=Pair)
    assert parsed.output_parsed == Pair(a=1, b="x")


# -- the prompt --------------------------------------------------------------------------------------------------------


async def test_what_does_not_fit_is_refused_or_shortened() -> None:
    server = Server(max_model_len=400)
    turns = [{"role": role, "content": f"{number} " * 20} for number in range(20) for role in ("user", "assistant")]
    conversation = [*turns, {"role": "user", "content": "Last."}]
    error = assert_error(await server.respond(input=conversation), 400, "input", "context_length_exceeded")
    assert "maximum context length is 400 tokens" in error["message"]
    response = await server.respond(input=conversation, truncation="auto", instructions="Be brief.")
    assert response.status_code == 200
    roles = [message["role"] for message in server.template.messages]
    assert roles[:2] == ["system", "user"] and 4 <= len(roles) < 40
    assert server.template.messages[-1]["content"] == "Last."
    assert len(server.client.requests[-1].prompt_token_ids) <= 350
    too_long = [{"role": "user", "content": "x" * 500}]
    assert_error(await server.respond(input=too_long, truncation="auto"), 400, "input", "context_length_exceeded")


async def test_input_tokens_are_counted(server: Server) -> None:
    fields = {"instructions": "Be brief.", "tools": [LAMP], "text": {"format": {"type": "json_object"}}}
    counted = await server.post(f"{RESPONSES}/input_tokens", responses_body(**fields))
    used = (await server.respond(**fields)).json()["usage"]["input_tokens"]
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": used}
    assert len(server.client.requests) == 1
    refused = await server.post(f"{RESPONSES}/input_tokens", responses_body(input=...))
    assert_error(refused, 400, "input", "missing_required_parameter")
