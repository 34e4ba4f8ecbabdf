"""Tools, reasoning and forms over HTTP, with scripted outputs: what comes of them, whole and streamed."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from llguidance import LLMatcher

from anllm.core.request import FinishReason
from anllm.parsers.choose import OutputFormat
from anllm.structured.checker import GrammarChecker
from anllm.structured.grammar import GrammarSource
from server_harness import EOS, Server, chat_body, chunks, grammar_checker
from serving import PATIENCE_S, eventually

PARAMETERS = {"type": "object", "properties": {"room": {"enum": ["attic", "cellar"]}}, "required": ["room"]}
LAMP = {"type": "function", "function": {"name": "lamp_state", "parameters": PARAMETERS}}
PING = {"type": "function", "function": {"name": "ping"}}
pytestmark = pytest.mark.anyio

CALL = '<tool_call>\n{"name": "lamp_state", "arguments": {"room": "attic"}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
THINKING = "{% if enable_thinking %}<think>{% endif %}</think>"


def says(server: Server, text: str, *, is_cut: bool = False) -> None:
    server.client.answer = lambda request: [*text.encode(), *([] if is_cut else [EOS])]


def thinks(server: Server) -> None:
    server.service.output_format = OutputFormat.choose("", lambda piece: False, reasoning_parser="qwen3")


async def both(server: Server, **fields: Any) -> dict[str, Any]:
    """The choice of the whole answer, which the stream must agree with."""
    response = await server.chat(**fields)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert streamed(await server.chat(**fields, stream=True)) == without_ids(choice)
    return choice


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "calls": [call["function"] for call in message.get("tool_calls", [])],
        "function_call": message.get("function_call"),
        "finish_reason": choice["finish_reason"],
    }


def streamed(response: Any) -> dict[str, Any]:
    """The same of a stream, put together as clients do it, and its rules checked."""
    joined: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "function_call": None}
    ids = []
    for chunk in chunks(response.text):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            assert "content" not in delta or not joined["calls"], "text behind a call"
            joined["content"] += delta.get("content") or ""
            joined["reasoning_content"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(joined["calls"]):
                    assert call["type"] == "function" and call["function"]["arguments"] == ""
                    ids.append(call["id"])
                    joined["calls"].append({"name": call["function"]["name"], "arguments": ""})
                else:
                    assert call["index"] == len(joined["calls"]) - 1 and call.keys() == {"index", "function"}
                    assert call["function"].keys() == {"arguments"}
                    joined["calls"][-1]["arguments"] += call["function"]["arguments"]
            if function := delta.get("function_call"):
                joined["function_call"] = joined["function_call"] or {"name": function["name"], "arguments": ""}
                joined["function_call"]["arguments"] += function["arguments"]
            if choice["finish_reason"] is not None:
                assert delta == {}
                joined["finish_reason"] = choice["finish_reason"]
    assert len(set(ids)) == len(ids)
    return joined


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_F_6_a_call_comes_as_tool_calls_and_no_markup_is_left(server: Server) -> None:
    says(server, f"Let me look.\n{CALL}")
    choice = await both(server, tools=[LAMP, PING])
    message = choice["message"]
    assert message["content"] == "Let me look." and choice["finish_reason"] == "tool_calls"
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_") and "index" not in call
    assert call["function"] == {"name": "lamp_state", "arguments": '{"room": "attic"}'}
    assert server.template.tools == (LAMP, PING)


async def test_C132_F_5_several_calls_come_in_order_with_ids_of_their_own(server: Server) -> None:
    says(server, f"{CALL}\n{SECOND}\n</tool_call>")
    message = (await both(server, tools=[LAMP, PING]))["message"]
    assert message["content"] is None
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["lamp_state", "ping"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2


async def test_C114_without_parallel_calls_the_answer_ends_after_the_first(server: Server) -> None:
    says(server, f"{CALL}\n{SECOND} and so on")
    choice = await both(server, tools=[LAMP, PING], parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["lamp_state"]
    assert choice["finish_reason"] == "tool_calls" and server.client.aborted


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": [LAMP], "tool_choice": "none"}])
async def test_C112_without_tools_markup_is_text(server: Server, fields: dict[str, Any]) -> None:
    says(server, CALL)
    choice = await both(server, **fields)
    assert choice["message"]["content"] == CALL and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


async def test_without_a_call_the_key_is_not_there(server: Server) -> None:
    says(server, "It is on.")
    choice = await both(server, tools=[LAMP])
    assert choice["message"]["content"] == "It is on." and "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "text",
    [
        "{'room': 'attic'}",
        "<tool_call>\n{'name': 'lamp_state'}\n</tool_call>",
        '<tool_call>\n{"name": ',
        "<tool_call>",
        "[lamp_state(room=attic]",
    ],
)
async def test_F_4_a_call_whose_beginning_is_broken_is_text(server: Server, text: str) -> None:
    says(server, text)
    choice = await both(server, tools=[LAMP])
    assert choice["message"]["content"] == text and choice["finish_reason"] == "stop"


async def test_F_4_arguments_that_are_broken_are_what_was_written(server: Server) -> None:
    says(server, '<tool_call>\n{"name": "nope", "arguments": {"room": "\\d+", oh}}\n</tool_call>')
    (call,) = (await both(server, tools=[LAMP]))["message"]["tool_calls"]
    assert call["function"]["name"] == "nope" and call["function"]["arguments"].startswith('{"room": "\\d+"')


async def test_F_6_a_call_that_a_limit_cut_ends_with_length(server: Server) -> None:
    says(server, CALL[:-20], is_cut=True)
    choice = await both(server, tools=[LAMP])
    assert choice["finish_reason"] == "length" and choice["message"]["content"] is None
    says(server, CALL[:20], is_cut=True)
    choice = await both(server, tools=[LAMP])
    assert choice["finish_reason"] == "length" and not choice["message"]["content"]


async def test_a_stop_string_is_looked_for_in_the_text_alone(server: Server) -> None:
    says(server, f"One two three.{CALL}")
    choice = await both(server, tools=[LAMP], stop=["attic"])
    assert choice["message"]["content"] == "One two three." and len(choice["message"]["tool_calls"]) == 1
    choice = await both(server, tools=[LAMP], stop=["two"])
    assert choice["message"]["content"] == "One " and "tool_calls" not in choice["message"]
    choice = await both(server, tools=[LAMP], stop=["three.?"])
    assert choice["message"]["content"] == "One two three."


async def test_each_of_n_answers_has_calls_of_its_own(server: Server) -> None:
    answers = iter([CALL, "No.", SECOND])
    server.client.answer = lambda request: [*next(answers).encode(), EOS]
    body = (await server.chat(tools=[LAMP], n=3)).json()
    assert [choice["finish_reason"] for choice in body["choices"]] == ["tool_calls", "stop", "tool_calls"]
    ids = [call["id"] for choice in body["choices"] for call in choice["message"].get("tool_calls", [])]
    assert len(set(ids)) == 2


async def test_log_probabilities_are_those_of_the_content(server: Server) -> None:
    says(server, f"Hé.\n{CALL}")
    choice = await both(server, tools=[LAMP], logprobs=True, top_logprobs=1)
    told = choice["logprobs"]["content"]
    assert bytes(byte for token in told for byte in token["bytes"]).decode() == "Hé."
    streamed_tokens = [
        token
        for chunk in chunks((await server.chat(tools=[LAMP], logprobs=True, top_logprobs=1, stream=True)).text)
        for each in chunk["choices"]
        for token in (each["logprobs"] or {"content": []})["content"]
    ]
    assert streamed_tokens == told


async def test_older_functions_are_answered_in_their_own_form(server: Server) -> None:
    says(server, f"{CALL}\n{SECOND}")
    choice = await both(server, functions=[LAMP["function"], PING["function"]])
    assert choice["message"]["function_call"] == {"name": "lamp_state", "arguments": '{"room": "attic"}'}
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    says(server, CALL)
    choice = await both(server, functions=[LAMP["function"]], function_call="none")
    assert choice["message"]["content"] == CALL


# -- what is enforced --------------------------------------------------------------------------------------------------


def accepts(grammar: str, text: str) -> bool:
    """Whether the engine could have written this, and ended there."""
    matcher = LLMatcher(grammar_checker()._vocabulary.build(), grammar, log_level=0)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


async def grammar_of(server: Server, **fields: Any) -> str:
    assert (await server.chat(**fields)).status_code == 200
    return server.client.requests[-1].params.grammar


async def test_C110_F_3_required_calls_are_bound_to_the_tools_and_their_schemas(server: Server) -> None:
    says(server, CALL)
    grammar = await grammar_of(server, tools=[LAMP, PING], tool_choice="required")
    assert accepts(grammar, CALL) and accepts(grammar, f"{CALL}\n{SECOND}")
    assert not accepts(grammar, "It is on.") and not accepts(grammar, "")
    assert not accepts(grammar, CALL.replace("attic", "garage"))
    assert not accepts(grammar, CALL.replace("lamp_state", "nope"))
    assert not accepts(grammar, CALL.replace('"attic"', '"attic", "more": 1'))
    one = await grammar_of(server, tools=[LAMP, PING], tool_choice="required", parallel_tool_calls=False)
    assert accepts(one, CALL) and not accepts(one, f"{CALL}\n{SECOND}")


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "ping"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "ping"}}]},
        },
    ],
)
async def test_C111_F_3_a_named_function_is_the_only_one(server: Server, choice: dict[str, Any]) -> None:
    says(server, SECOND)
    grammar = await grammar_of(server, tools=[LAMP, PING], tool_choice=choice)
    assert accepts(grammar, SECOND) and not accepts(grammar, CALL)
    assert len(server.template.tools) == 2


async def test_C115_functions_that_are_strict_bind_their_calls_in_free_text(server: Server) -> None:
    strict = {"type": "function", "function": {**LAMP["function"], "strict": True}}
    says(server, "Hello.")
    grammar = await grammar_of(server, tools=[strict, PING])
    assert accepts(grammar, "Hello.") and accepts(grammar, f"Hello. {CALL}") and accepts(grammar, SECOND)
    assert not accepts(grammar, CALL.replace("attic", "garage"))
    assert await grammar_of(server, tools=[LAMP]) == ""


async def test_a_form_and_tools_give_one_or_the_other(server: Server) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    says(server, "7")
    grammar = await grammar_of(server, tools=[LAMP], response_format=wanted)
    assert accepts(grammar, "7") and accepts(grammar, CALL) and not accepts(grammar, "seven")
    choice = await both(server, tools=[LAMP], response_format=wanted)
    assert choice["message"]["content"] == "7"


@pytest.mark.parametrize(
    "function",
    [
        {"name": "ping"},
        {"name": "ping", "parameters": None},
        {"name": "ping", "parameters": {}},
        {"name": "ping", "parameters": {"type": "object"}},
        {"name": "p" * 64},
    ],
)
async def test_F_7_a_tool_without_parameters_is_one(server: Server, function: dict[str, Any]) -> None:
    tool = {"type": "function", "function": function}
    says(server, "Hm.")
    assert (await both(server, tools=[tool]))["message"]["content"] == "Hm."
    grammar = await grammar_of(server, tools=[tool], tool_choice="required")
    assert accepts(grammar, SECOND.replace("ping", function["name"]))
    assert server.template.tools[0]["function"]["name"] == function["name"]


TREE = {
    "$defs": {
        "t": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/t"}}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/t",
}
CYCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


def as_format(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


async def test_F_8_a_recursive_schema_works(server: Server) -> None:
    grammar = await grammar_of(server, **as_format(TREE))
    assert accepts(grammar, '{"v": 1, "kids": [{"v": 2}, {"v": 3, "kids": []}]}')
    assert not accepts(grammar, '{"v": 1, "kids": [{"w": 2}]}')


@pytest.mark.parametrize("schema", [CYCLE, {"$ref": "#/$defs/missing"}, {"$ref": "http://127.0.0.1:9/x"}])
async def test_F_8_references_to_nothing_are_refused(server: Server, schema: dict[str, Any]) -> None:
    function = {"name": "f", "parameters": schema, "strict": True}
    forced = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    for fields, param in ((as_format(schema), "response_format"), (forced, "tools")):
        response = await server.chat(**fields)
        error = response.json()["error"]
        assert response.status_code == 400 and error["param"].startswith(param), error
        assert error["code"] == "invalid_grammar"
    assert not server.client.requests


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a{1,9999}){1,9999}$"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000},
        {"type": "string", "maxLength": 100_000_000},
        {"enum": [f"word {i}" for i in range(50_000)]},
        {"type": "integer", "multipleOf": 999_983},
    ],
    ids=lambda schema: "-".join(schema.keys() - {"type", "items"}),
)
async def test_F_10_schemas_that_explode_hold_nobody_up(server: Server, schema: dict[str, Any]) -> None:
    """That each ends in time is seen by tests/structured; here, that the event loop does something else meanwhile."""
    watched = server.service.grammars = Watched()
    waiting = asyncio.ensure_future(server.chat(**as_format(schema)))
    await eventually(lambda: watched.begun.is_set() or waiting.done())
    assert (await server.http.get("/health")).status_code == 200
    watched.goes_on.set()
    response = await waiting
    assert response.status_code in (200, 400), response.text


class Watched(GrammarChecker):
    """Tries no grammar before it is told to, which an event loop that waits for it could not do."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def check(self, source: GrammarSource) -> str:
        self.begun.set()
        assert self.goes_on.wait(PATIENCE_S), "the event loop waits for the grammar"
        return grammar_checker().check(source)


async def test_F_11_both_spellings_of_a_letter_are_one(server: Server) -> None:
    values = ["zażółć", "北京", "\U0001fae0", "naïve"]
    schema = {"type": "object", "properties": {"größe": {"enum": values}}, "required": ["größe"]}
    grammars = []
    for escapes in (False, True):
        body = json.dumps(chat_body(**as_format(schema)), ensure_ascii=escapes).encode()
        assert (await server.post("/v1/chat/completions", body)).status_code == 200
        grammars.append(server.client.requests[-1].params.grammar)
    assert grammars[0] == grammars[1]
    for value in values:
        assert accepts(grammars[0], json.dumps({"größe": value}, ensure_ascii=False))
    assert not accepts(grammars[0], '{"größe": "naive"}')


# -- forms -------------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": [1]}', "[1]"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "{}", "7"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            '{"größe": 5}',
            '{"größe": "5"}',
        ),
        ({"guided_json": SCHEMA}, '{"größe": 5}', "{}"),
        ({"guided_json": json.dumps(SCHEMA)}, '{"größe": 5}', "{}"),
        ({"guided_regex": "[0-9]{3}"}, "123", "12"),
        ({"guided_choice": ["yes", "no, never"]}, "no, never", "no"),
        ({"guided_grammar": 'root ::= "a" | "b"'}, "b", "c"),
        ({"guided_grammar": 'start: "a" | "b"'}, "a", "c"),
        ({"structured_outputs": {"json": SCHEMA}}, '{"größe": 5}', "{}"),
        ({"structured_outputs": {"regex": "a+"}}, "aa", "b"),
        ({"structured_outputs": {"choice": ["x"]}}, "x", "y"),
        ({"structured_outputs": {"grammar": 'start: "q"'}}, "q", "r"),
        ({"structured_outputs": {"json_object": True}}, "{}", "1"),
    ],
)
@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("endpoint", ["chat", "comp"])
async def test_each_form_reaches_the_engine_as_its_grammar(
    server: Server, fields: dict[str, Any], right: str, wrong: str, thinking: bool, endpoint: str
) -> None:
    if thinking:
        thinks(server)
    assert (await getattr(server, endpoint)(**fields)).status_code == 200
    grammar = server.client.requests[-1].params.grammar
    assert accepts(grammar, right) and not accepts(grammar, wrong)
    thoughts = "<think>\nwhat is right?\n</think>\n\n"
    assert accepts(grammar, thoughts + right) is (thinking and endpoint == "chat")
    assert not accepts(grammar, thoughts + wrong)


# -- reasoning ---------------------------------------------------------------------------------------------------------


async def test_B_9_thoughts_come_apart_from_the_answer(server: Server) -> None:
    thinks(server)
    says(server, "<think>\nHm, 1 + 1.\n</think>\n\nTwo.")
    choice = await both(server)
    assert choice["message"]["reasoning_content"] == "Hm, 1 + 1." and choice["message"]["content"] == "Two."
    usage = (await server.chat()).json()["usage"]
    assert 18 <= usage["completion_tokens_details"]["reasoning_tokens"] <= 30


async def test_thoughts_can_be_left_out(server: Server) -> None:
    thinks(server)
    says(server, "<think>\nHm.\n</think>\n\nTwo.")
    choice = await both(server, include_reasoning=False)
    assert choice["message"]["content"] == "Two." and "reasoning_content" not in choice["message"]
    assert "keep-alive" not in (await server.chat(include_reasoning=False, stream=True)).text


async def test_B_9_thoughts_that_never_end_leave_no_answer(server: Server) -> None:
    thinks(server)
    says(server, "<think>\nHm, on and on", is_cut=True)
    choice = await both(server)
    assert choice["message"]["content"] == "" and choice["message"]["reasoning_content"] == "Hm, on and on"
    assert choice["finish_reason"] == str(FinishReason.LENGTH)


async def test_thoughts_calls_and_stop_strings_together(server: Server) -> None:
    thinks(server)
    says(server, f"<think>\nstop here?\n</think>\n\nI look.\n{CALL}")
    choice = await both(server, tools=[LAMP], stop=["stop"])
    assert choice["message"]["reasoning_content"] == "stop here?" and choice["message"]["content"] == "I look."
    assert choice["finish_reason"] == "tool_calls"


async def test_no_thoughts_no_key(server: Server) -> None:
    thinks(server)
    says(server, "Two.")
    assert "reasoning_content" not in (await both(server))["message"]
