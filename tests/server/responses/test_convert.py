"""Requests that are refused, and with which words; and those that are taken though they hold more than is needed."""

from __future__ import annotations

from typing import Any

import pytest

from anllm.server.field_support import RESPONSES_ACCEPTED_WITHOUT_EFFECT
from anllm.server.responses.protocol import ResponsesRequest
from server_harness import MODEL, Server, assert_error

pytestmark = pytest.mark.anyio

JSON_SCHEMA = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}

REFUSED = [
    ("model_absent", {"model": ...}, "model", "missing_required_parameter"),
    ("model_empty", {"model": ""}, "model", "missing_required_parameter"),
    ("input_absent", {"input": ...}, "input", "missing_required_parameter"),
    ("input_null", {"input": None}, "input", "missing_required_parameter"),
    ("input_number", {"input": 5}, "input", "invalid_type"),
    ("input_empty", {"input": []}, "input", None),
    ("input_dropped", {"input": [{"type": "web_search_call"}]}, "input", None),
    ("item_text", {"input": ["hi"]}, "input[0]", "invalid_type"),
    ("item_type_number", {"input": [{"type": 5}]}, "input[0].type", "invalid_type"),
    ("item_type_array", {"input": [{"type": []}]}, "input[0].type", "invalid_type"),
    ("item_type", {"input": [{"type": "nope"}]}, "input[0].type", "invalid_value"),
    ("item_role", {"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
    ("item_role_absent", {"input": [{"content": "x"}]}, "input[0].role", "missing_required_parameter"),
    ("item_content_absent", {"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
    ("item_content_number", {"input": [{"role": "user", "content": 5}]}, "input[0].content", "invalid_type"),
    ("item_part_text", {"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]", "invalid_type"),
    ("item_id_number", {"input": [{"role": "user", "content": "", "id": 5}]}, "input[0].id", "invalid_type"),
    ("item_id_long", {"input": [{"id": "x" * 257}]}, "input[0].id", "string_above_max_length"),
    (
        "call_id_absent",
        {"input": [{"type": "function_call", "name": "f"}]},
        "input[0].call_id",
        "missing_required_parameter",
    ),
    (
        "output_without_call",
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
        "input",
        None,
    ),
    ("instructions_array", {"instructions": []}, "instructions", "invalid_type"),
    ("limit_zero", {"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
    ("limit_text", {"max_output_tokens": "8"}, "max_output_tokens", "invalid_type"),
    ("temperature", {"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ("top_logprobs", {"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ("tools_object", {"tools": {}}, "tools", "invalid_type"),
    ("tool_text", {"tools": ["x"]}, "tools[0]", "invalid_type"),
    ("tool_without_type", {"tools": [{"name": "f"}]}, "tools[0].type", "missing_required_parameter"),
    ("tool_without_name", {"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    (
        "tool_of_chat",
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools[0].name",
        "missing_required_parameter",
    ),
    ("tool_name", {"tools": [{"type": "function", "name": "bad name!"}]}, "tools[0].name", "invalid_value"),
    ("tool_choice_number", {"tool_choice": 5}, "tool_choice", "invalid_type"),
    ("format_without_type", {"text": {"format": {}}}, "text.format.type", "missing_required_parameter"),
    ("format_type", {"text": {"format": {"type": "yaml"}}}, "text.format.type", "invalid_value"),
    ("format_name", {"text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing_required_parameter"),
    (
        "format_schema",
        {"text": {"format": {**JSON_SCHEMA, "schema": None}}},
        "text.format.schema",
        "missing_required_parameter",
    ),
    ("format_enum", {"text": {"format": {**JSON_SCHEMA, "schema": {"enum": []}}}}, "text.format", "invalid_grammar"),
    ("two_forms", {"text": {"format": JSON_SCHEMA}, "guided_regex": "a"}, "guided_regex", None),
    ("verbosity", {"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value"),
    ("effort", {"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
    ("summary", {"reasoning": {"summary": "long"}}, "reasoning.summary", "invalid_value"),
    ("include_text", {"include": "x"}, "include", "invalid_type"),
    ("truncation", {"truncation": "some"}, "truncation", "invalid_value"),
    ("service_tier", {"service_tier": "bogus"}, "service_tier", "invalid_value"),
    ("metadata_text", {"metadata": "x"}, "metadata", "invalid_type"),
    ("metadata_value", {"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ("metadata_long", {"metadata": {"a": "x" * 513}}, "metadata.a", "string_above_max_length"),
    ("metadata_key", {"metadata": {"a" * 65: "x"}}, "metadata", "string_above_max_length"),
    ("metadata_many", {"metadata": {str(i): "" for i in range(17)}}, "metadata", "object_above_max_properties"),
    ("stream_text", {"stream": "true"}, "stream", "invalid_type"),
    ("stream_options", {"stream_options": {"include_obfuscation": False}}, "stream_options", None),
    ("variables", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", None),
    ("background", {"background": True}, "background", "unsupported_parameter"),
    ("conversation", {"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ("prompt", {"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ("moderation", {"moderation": {"model": "x"}}, "moderation", "unsupported_parameter"),
    ("n", {"n": 2}, "n", "unsupported_parameter"),
    ("response_format", {"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ("return_token_ids", {"return_token_ids": True}, "return_token_ids", "unsupported_parameter"),
    ("template_refuses", {"input": "REFUSE"}, "input", None),
]


@pytest.mark.parametrize(("fields", "param", "code"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_wrong_is_named(
    server: Server, fields: dict[str, Any], param: str, code: str | None, stream: bool
) -> None:
    if "stream" in fields or "stream_options" in fields:
        stream = False
    response = await server.respond(**{**({"stream": True} if stream else {}), **fields})
    assert_error(response, 400, param, code)
    assert not server.client.requests


async def test_what_is_refused_says_what_to_do(server: Server) -> None:
    for fields, advice in (
        ({"conversation": "conv_1"}, "previous_response_id"),
        ({"prompt": {"id": "x"}}, "instructions"),
        ({"background": True}, "stream"),
        ({"response_format": {"type": "json_object"}}, "text.format"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "function"),
    ):
        assert advice in assert_error(await server.respond(**fields), 400)["message"]


async def test_another_model_is_404(server: Server) -> None:
    assert_error(await server.respond(model="other"), 404, None, "model_not_found")


async def test_nulls_are_the_same_as_nothing(server: Server) -> None:
    optional = ResponsesRequest.model_fields.keys() - {"model", "input"}
    response = await server.respond(**dict.fromkeys((*optional, "background", "conversation", "prompt")))
    assert response.status_code == 200, response.text


async def test_C186_what_agents_add_is_taken(server: Server) -> None:
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    response = await server.respond(
        tools=[
            {"type": "web_search"},
            {"type": "namespace", "name": "n", "description": "", "tools": [function]},
            function,
        ],
        include=["reasoning.encrypted_content", "something.new"],
        client_metadata={"a": "b"},
        prompt_cache_key="k",
        store=False,
        parallel_tool_calls=True,
        reasoning={"summary": "auto", "context": "new"},
        unknown_key=1,
    )
    assert response.status_code == 200, response.text


async def test_fields_without_effect_are_taken(server: Server) -> None:
    given: dict[str, Any] = {
        "context_management": [{"type": "compaction"}],
        "max_tool_calls": 2,
        "prompt_cache_key": "k",
        "prompt_cache_options": {},
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "service_tier": "flex",
        "user": "u",
    }
    assert given.keys() == RESPONSES_ACCEPTED_WITHOUT_EFFECT.keys() <= ResponsesRequest.model_fields.keys()
    assert (await server.respond(**given)).status_code == 200
    assert (await server.respond(background=False, n=1, response_format={"type": "text"})).status_code == 200


async def test_the_engine_has_to_be_there(server: Server) -> None:
    server.service.draining = True
    assert_error(await server.respond(), 503, None, "service_unavailable")


async def test_a_base_model_takes_no_conversation(server: Server) -> None:
    server.service.chat_template = None
    error = assert_error(await server.respond(), 400, "input", None)
    assert MODEL in error["message"]
