"""Requests that are refused, with which words: contract C020-C057, case groups a, c, d, h."""

import json

import pytest

from server_harness import MODEL, Server, assert_error, chat_body, comp_body

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
COMP = "/v1/completions"
LONG = 10**30

SHARED = [
    ("C020_temperature_above_two", {"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ("C021_temperature_below_zero", {"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    ("C022_temperature_string", {"temperature": "1"}, "temperature", "invalid_type"),
    ("C023_temperature_bool", {"temperature": True}, "temperature", "invalid_type"),
    ("A_2_temperature_string_nan", {"temperature": "NaN"}, "temperature", "invalid_type"),
    ("A_2_temperature_huge_int", {"temperature": 10**400}, "temperature", "invalid_type"),
    ("C025_top_p_above", {"top_p": 1.1}, "top_p", "decimal_above_max_value"),
    ("C025_top_p_below", {"top_p": -0.1}, "top_p", "decimal_below_min_value"),
    ("C026_max_tokens_fraction", {"max_tokens": 1.5}, "max_tokens", "invalid_type"),
    ("C026_max_tokens_string", {"max_tokens": "8"}, "max_tokens", "invalid_type"),
    ("C026_C158_max_tokens_negative", {"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ("C028_n_zero", {"n": 0}, "n", "integer_below_min_value"),
    ("C028_n_above", {"n": 129}, "n", "integer_above_max_value"),
    ("C028_n_string", {"n": "2"}, "n", "invalid_type"),
    ("D_1_n_million", {"n": 1000000}, "n", "integer_above_max_value"),
    ("D_1_n_negative", {"n": -1}, "n", "integer_below_min_value"),
    ("C029_five_stops", {"stop": list("abcde")}, "stop", "array_above_max_length"),
    ("C029_stop_item_number", {"stop": [1]}, "stop[0]", "invalid_type"),
    ("C029_stop_second_item", {"stop": ["a", None]}, "stop[1]", "invalid_type"),
    ("C_2_stop_empty", {"stop": ""}, "stop", "invalid_value"),
    ("C_2_stop_empty_item", {"stop": ["", "X"]}, "stop", "invalid_value"),
    ("C_2_stop_object", {"stop": {"a": 1}}, "stop", "invalid_type"),
    ("C_6_thousand_stops", {"stop": [str(i) for i in range(1000)]}, "stop", "array_above_max_length"),
    ("C_6_long_stop", {"stop": "a" * 100_000}, "stop", "string_above_max_length"),
    ("C030_presence", {"presence_penalty": 2.1}, "presence_penalty", "decimal_above_max_value"),
    ("C030_frequency", {"frequency_penalty": -2.1}, "frequency_penalty", "decimal_below_min_value"),
    ("C030_presence_below", {"presence_penalty": -2.1}, "presence_penalty", "decimal_below_min_value"),
    ("C030_frequency_above", {"frequency_penalty": 2.1}, "frequency_penalty", "decimal_above_max_value"),
    ("C030_string", {"frequency_penalty": "1"}, "frequency_penalty", "invalid_type"),
    ("C032_bias_key", {"logit_bias": {"abc": 1}}, "logit_bias", "invalid_value"),
    ("C032_bias_value", {"logit_bias": {"1": 101}}, "logit_bias", "invalid_value"),
    ("D_3_bias_outside_vocabulary", {"logit_bias": {"99999999": 5}}, "logit_bias", "invalid_value"),
    ("D_3_bias_negative_id", {"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ("D_3_bias_null", {"logit_bias": {"15": None}}, "logit_bias", "invalid_value"),
    ("D_3_bias_huge", {"logit_bias": {"15": 1e9}}, "logit_bias", "invalid_value"),
    ("D_3_bias_string", {"logit_bias": {"15": "5"}}, "logit_bias", "invalid_value"),
    ("D_3_bias_list", {"logit_bias": []}, "logit_bias", None),
    ("D_3_bias_first_id_outside", {"logit_bias": {"258": 5}}, "logit_bias", "invalid_value"),
    ("D_3_bias_bool", {"logit_bias": {"15": True}}, "logit_bias", "invalid_value"),
    ("D_3_bias_below", {"logit_bias": {"15": -100.5}}, "logit_bias", "invalid_value"),
    ("C033_stream_options_alone", {"stream_options": {"include_usage": True}}, "stream_options", None),
    (
        "C033_usage_not_bool",
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "invalid_type",
    ),
    ("C034_stream_string", {"stream": "true"}, "stream", "invalid_type"),
    ("C051_seed_fraction", {"seed": 1.5}, "seed", "invalid_type"),
    ("C051_seed_string", {"seed": "1"}, "seed", "invalid_type"),
    ("A_3_min_p", {"min_p": 2}, "min_p", "decimal_above_max_value"),
    ("A_3_top_k", {"top_k": -7}, "top_k", "integer_below_min_value"),
    ("top_k_bool", {"top_k": True}, "top_k", "invalid_type"),
    ("repetition_penalty_zero", {"repetition_penalty": 0}, "repetition_penalty", "decimal_below_min_value"),
    ("min_tokens_negative", {"min_tokens": -1}, "min_tokens", "integer_below_min_value"),
    ("skip_special_number", {"skip_special_tokens": 0}, "skip_special_tokens", "invalid_type"),
    ("keep_stop_string", {"include_stop_str_in_output": "true"}, "include_stop_str_in_output", "invalid_type"),
    ("guided_json_no_schema", {"guided_json": {"type": "strin"}}, "guided_json", "invalid_grammar"),
    ("guided_json_text", {"guided_json": "{"}, "guided_json", "invalid_grammar"),
    ("guided_choice_empty", {"guided_choice": []}, "guided_choice", "invalid_grammar"),
    ("F_9_regex", {"guided_regex": "(["}, "guided_regex", "invalid_grammar"),
    ("F_9_grammar", {"guided_grammar": "start: ("}, "guided_grammar", "invalid_grammar"),
    ("F_9_gbnf", {"guided_grammar": 'root ::= "a" b'}, "guided_grammar", "invalid_grammar"),
    ("structured_nothing", {"structured_outputs": {}}, "structured_outputs", None),
    ("structured_two", {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", None),
    ("structured_regex", {"structured_outputs": {"regex": "(["}}, "structured_outputs.regex", "invalid_grammar"),
    ("structured_tag", {"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", None),
    ("two_forms", {"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", None),
    ("form_and_allowed", {"guided_regex": "a", "allowed_token_ids": [97]}, "allowed_token_ids", None),
    ("F_9_type", {"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
    (
        "F_9_enum",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": []}}}},
        "response_format",
        "invalid_grammar",
    ),
    (
        "F_9_null",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": None}}},
        "response_format.json_schema.schema",
        "invalid_type",
    ),
    (
        "strict_unsupported",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": {"not": {"type": "string"}}},
            }
        },
        "response_format",
        "invalid_grammar",
    ),
    ("stop_token_id_outside", {"stop_token_ids": [258]}, "stop_token_ids[0]", "invalid_value"),
    ("stop_token_id_bool", {"stop_token_ids": [True]}, "stop_token_ids[0]", "invalid_type"),
    ("allowed_token_id_outside", {"allowed_token_ids": [5, -1]}, "allowed_token_ids[1]", "invalid_value"),
    ("allowed_tokens_none_at_all", {"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
    ("user_number", {"user": 5}, "user", "invalid_type"),
    ("C005_model_absent", {"model": ...}, "model", "missing_required_parameter"),
    ("model_null", {"model": None}, "model", "missing_required_parameter"),
    ("model_empty", {"model": ""}, "model", "missing_required_parameter"),
    ("model_number", {"model": 5}, "model", "invalid_type"),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "code"), [c[1:] for c in SHARED], ids=[c[0] for c in SHARED])
@pytest.mark.parametrize("path", [CHAT, COMP])
async def test_refused_by_both(server: Server, path, fields, param, code, is_stream) -> None:
    body = chat_body(**fields) if path == CHAT else comp_body(**fields)
    if is_stream and "stream" not in fields and "stream_options" not in fields:
        body["stream"] = True
    error = assert_error(await server.post(path, body), 400, param, ... if code is None else code)
    assert param.partition("[")[0] in error["message"] and len(error["message"]) < 500
    assert not server.client.requests


def one(**message: object) -> dict[str, object]:
    return {"messages": [message]}


def user(content: object) -> dict[str, object]:
    return one(role="user", content=content)


TOOL = {"type": "function", "function": {"name": "lamp_state"}}
CHAT_ONLY = [
    ("C026_max_tokens_zero", {"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ("C027_zero", {"max_completion_tokens": 0}, "max_completion_tokens", "integer_below_min_value"),
    ("C031_top_logprobs_21", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ("C031_top_logprobs_negative", {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "integer_below_min_value"),
    ("C031_without_logprobs", {"top_logprobs": 1}, "top_logprobs", None),
    ("C031_logprobs_false", {"logprobs": False, "top_logprobs": 1}, "top_logprobs", None),
    ("logprobs_number", {"logprobs": 1}, "logprobs", "invalid_type"),
    ("C035_absent", {"messages": ...}, "messages", "missing_required_parameter"),
    ("A_4_wrong_key", {"messages": ..., "message": []}, "messages", "missing_required_parameter"),
    ("A_1_messages_null", {"messages": None}, "messages", "missing_required_parameter"),
    ("C036_empty", {"messages": []}, "messages", "empty_array"),
    ("C037_string", {"messages": "hi"}, "messages", "invalid_type"),
    ("C038_item_string", {"messages": ["hi"]}, "messages[0]", "invalid_type"),
    ("H_5_item_null", {"messages": [None]}, "messages[0]", "invalid_type"),
    ("H_5_item_empty", {"messages": [{}]}, "messages[0].role", "missing_required_parameter"),
    ("C039_role_bogus", one(role="bogus", content="x"), "messages[0].role", "invalid_value"),
    ("C040_role_absent", one(content="x"), "messages[0].role", "missing_required_parameter"),
    ("role_number", one(role=5, content="x"), "messages[0].role", "invalid_type"),
    ("C041_content_number", user(7), "messages[0].content", "invalid_type"),
    ("C041_content_object", user({"a": 1}), "messages[0].content", "invalid_type"),
    ("C042_content_absent", one(role="user"), "messages[0].content", "missing_required_parameter"),
    (
        "C043_image",
        user([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}}]),
        "messages[0].content[0].type",
        None,
    ),
    (
        "E_6_audio",
        user([{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}]),
        "messages[0].content[1].type",
        None,
    ),
    ("C044_part_type", user([{"type": "nope"}]), "messages[0].content[0].type", "invalid_value"),
    ("part_type_absent", user([{}]), "messages[0].content[0].type", "missing_required_parameter"),
    ("part_number", user([7]), "messages[0].content[0]", "invalid_type"),
    ("C045_part_without_text", user([{"type": "text"}]), "messages[0].content[0].text", "missing_required_parameter"),
    ("part_text_number", user([{"type": "text", "text": 7}]), "messages[0].content[0].text", "invalid_type"),
    ("refusal_of_user", user([{"type": "refusal", "refusal": "no"}]), "messages[0].content[0].type", "invalid_value"),
    ("C047_tool_without_call", one(role="tool", content="x", tool_call_id="c"), "messages[0].role", None),
    ("function_without_name", one(role="function", content="x"), "messages[0].name", "missing_required_parameter"),
    ("tool_calls_string", one(role="assistant", tool_calls="x"), "messages[0].tool_calls", "invalid_type"),
    (
        "tool_call_without_function",
        one(role="assistant", tool_calls=[{"id": "c"}]),
        "messages[0].tool_calls[0].function",
        "missing_required_parameter",
    ),
    (
        "tool_call_arguments",
        one(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": 5}}]),
        "messages[0].tool_calls[0].function.arguments",
        "invalid_type",
    ),
    ("C048_empty", {"response_format": {}}, "response_format.type", "missing_required_parameter"),
    ("C048_bogus", {"response_format": {"type": "x"}}, "response_format.type", "invalid_value"),
    (
        "C048_no_schema",
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "missing_required_parameter",
    ),
    (
        "C048_no_name",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
        "missing_required_parameter",
    ),
    (
        "F_9_schema_number",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 7}}},
        "response_format.json_schema.schema",
        "invalid_type",
    ),
    ("C049_no_function", {"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    (
        "C049_no_name",
        {"tools": [{"type": "function", "function": {}}]},
        "tools[0].function.name",
        "missing_required_parameter",
    ),
    (
        "C049_blank_name",
        {"tools": [{"type": "function", "function": {"name": ""}}]},
        "tools[0].function.name",
        "empty_string",
    ),
    (
        "C049_bad_name",
        {"tools": [{"type": "function", "function": {"name": "bad name!"}}]},
        "tools[0].function.name",
        "invalid_value",
    ),
    ("tools_custom", {"tools": [{"type": "custom", "function": {"name": "x"}}]}, "tools[0].type", "invalid_value"),
    ("F_7_tools_twice", {"tools": [TOOL, TOOL]}, "tools[1].function.name", "invalid_value"),
    ("tools_and_functions", {"tools": [TOOL], "functions": [{"name": "f"}]}, "functions", None),
    (
        "F_8_forced_schema",
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "strin"}}}],
            "tool_choice": "required",
        },
        "tools[0].function.parameters",
        "invalid_grammar",
    ),
    (
        "F_8_strict_reference",
        {
            "tools": [
                TOOL,
                {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"$ref": "#/$defs/x"}}},
            ]
        },
        "tools[1].function.parameters",
        "invalid_grammar",
    ),
    (
        "strict_tool_unsupported",
        {
            "tools": [
                TOOL,
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "strict": True,
                        "parameters": {"properties": {"a": {"type": "array", "uniqueItems": True}}},
                    },
                },
            ]
        },
        "tools[1].function.parameters",
        "invalid_grammar",
    ),
    (
        "allowed_unknown",
        {
            "tools": [TOOL],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "nope"}}]},
            },
        },
        "tool_choice",
        "invalid_value",
    ),
    (
        "allowed_mode",
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": []}}},
        "tool_choice.allowed_tools.mode",
        "invalid_value",
    ),
    ("C050_bogus", {"tools": [TOOL], "tool_choice": "bogus"}, "tool_choice", "invalid_value"),
    (
        "C050_other_tool",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "tool_choice",
        "invalid_value",
    ),
    ("C050_required_alone", {"tool_choice": "required"}, "tool_choice", None),
    ("F_2_number", {"tool_choice": 5}, "tool_choice", "invalid_type"),
    (
        "F_2_no_name",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {}}},
        "tool_choice.function.name",
        "missing_required_parameter",
    ),
    (
        "F_2_no_function",
        {"tools": [TOOL], "tool_choice": {"type": "function"}},
        "tool_choice.function",
        "missing_required_parameter",
    ),
    ("F_2_type", {"tools": [TOOL], "tool_choice": {"type": "x"}}, "tool_choice.type", "invalid_value"),
    ("function_bad_name", {"functions": [{"name": "f!"}]}, "functions[0].name", "invalid_value"),
    ("function_call_unknown", {"function_call": {"name": "f"}}, "function_call", "invalid_value"),
    ("function_call_word", {"functions": [{"name": "f"}], "function_call": "must"}, "function_call", "invalid_value"),
    ("C052_metadata", {"metadata": "x"}, "metadata", "invalid_type"),
    ("C053_service_tier", {"service_tier": "bogus"}, "service_tier", "invalid_value"),
    ("kwargs_tools", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", None),
    ("kwargs_type", {"chat_template_kwargs": "x"}, "chat_template_kwargs", "invalid_type"),
    ("reasoning_effort", {"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ("verbosity", {"verbosity": "huge"}, "verbosity", "invalid_value"),
    ("modalities", {"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
    ("store", {"store": "yes"}, "store", "invalid_type"),
    ("web_search", {"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ("moderation", {"moderation": {}}, "moderation", "unsupported_parameter"),
    (
        "continued_and_begun",
        {"continue_final_message": True, "add_generation_prompt": True},
        "add_generation_prompt",
        None,
    ),
    (
        "continued_by_the_template",
        {"chat_template_kwargs": {"continue_final_message": True}},
        "chat_template_kwargs",
        None,
    ),
    ("template_refuses", user("REFUSE"), "messages", None),
]


@pytest.mark.parametrize(("fields", "param", "code"), [c[1:] for c in CHAT_ONLY], ids=[c[0] for c in CHAT_ONLY])
async def test_refused_by_chat(server: Server, fields, param, code) -> None:
    assert_error(await server.chat(**fields), 400, param, code)
    assert not server.client.requests


COMP_ONLY = [
    ("C157_logprobs_six", {"logprobs": 6}, "logprobs", "integer_above_max_value"),
    ("C157_logprobs_bool", {"logprobs": True}, "logprobs", "invalid_type"),
    ("C157_logprobs_negative", {"logprobs": -1}, "logprobs", "integer_below_min_value"),
    ("C159_absent", {"prompt": ...}, "prompt", "missing_required_parameter"),
    ("C159_null", {"prompt": None}, "prompt", "missing_required_parameter"),
    ("C159_empty", {"prompt": []}, "prompt", "empty_array"),
    ("C159_mixed", {"prompt": [1, "a"]}, "prompt", "invalid_type"),
    ("C159_empty_inner", {"prompt": [[]]}, "prompt", "empty_array"),
    ("prompt_bools", {"prompt": [True]}, "prompt", "invalid_type"),
    ("prompt_number", {"prompt": 5}, "prompt", "invalid_type"),
    ("prompt_negative_id", {"prompt": [1, -1]}, "prompt", "invalid_value"),
    ("prompt_foreign_id", {"prompt": [[1], [258]]}, "prompt", "invalid_value"),
    ("C160_best_of_below_n", {"best_of": 1, "n": 2}, "best_of", None),
    ("best_of_not_built", {"best_of": 3, "n": 2}, "best_of", "unsupported_parameter"),
    ("best_of_zero", {"best_of": 0}, "best_of", "integer_below_min_value"),
    ("C161_suffix", {"suffix": "x"}, "suffix", "unsupported_parameter"),
    ("suffix_number", {"suffix": 1}, "suffix", "invalid_type"),
]


@pytest.mark.parametrize(("fields", "param", "code"), [c[1:] for c in COMP_ONLY], ids=[c[0] for c in COMP_ONLY])
async def test_refused_by_completions(server: Server, fields, param, code) -> None:
    assert_error(await server.comp(**fields), 400, param, code)
    assert not server.client.requests


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
async def test_A_2_C010_numbers_that_are_none(server: Server, field: str, value: str) -> None:
    good = json.dumps(chat_body())
    assert_error(await server.post(CHAT, f'{good[:-1]},"{field}":{value}}}'.encode()), 400)


async def test_messages_show_field_rule_and_value(server: Server) -> None:
    error = assert_error(await server.chat(temperature=2.1), 400)
    assert error["message"] == "Invalid 'temperature': must be <= 2, got 2.1."
    error = assert_error(await server.chat(user=["x" * 1000]), 400)
    assert error["message"] == "Invalid 'user': must be a string, got an array."
    error = assert_error(await server.chat(verbosity="x" * 1000), 400)
    assert "'low', 'medium' or 'high'" in error["message"] and len(error["message"]) < 200


@pytest.mark.parametrize("name", ["no-such", "gpt-4o", MODEL.upper(), "../../etc", "C:\\x", "a\0b", "x" * 100_000])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_C004_I_1_I_2_unknown_model(server: Server, name: str, is_stream: bool) -> None:
    for response in (await server.chat(model=name, stream=is_stream), await server.comp(model=name, stream=is_stream)):
        error = assert_error(response, 404, None, "model_not_found")
        assert MODEL in error["message"] and len(error["message"]) < 400


async def test_model_is_checked_after_types(server: Server) -> None:
    assert_error(await server.chat(model="no-such", n="2"), 400, "n")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_C056_H_1_prompt_longer_than_context(server: Server, is_stream: bool) -> None:
    for content in ("x" * 999, "x" * 1200, "x" * 20_000):
        chat = await server.chat(messages=[{"role": "user", "content": content}], stream=is_stream, max_tokens=1)
        error = assert_error(chat, 400, "messages", "context_length_exceeded")
        assert "maximum context length is 1000 tokens" in error["message"]
        assert_error(await server.comp(prompt=content, stream=is_stream), 400, "prompt", "context_length_exceeded")
    assert_error(await server.comp(prompt=[5] * 1000), 400, "prompt", "context_length_exceeded")
    assert (await server.comp(prompt=[5] * 999)).status_code == 200


async def test_J_10_many_messages_and_long_texts_are_not_tokenized(server: Server) -> None:
    def encode(text: str, *, add_special_tokens: bool) -> list[int]:
        raise AssertionError("tokenized")

    server.tokenizer.encode = encode  # type: ignore[method-assign]
    many = [{"role": "user", "content": "x"}] * 60_000
    assert_error(await server.chat(messages=many), 400, "messages", "context_length_exceeded")
    long = [{"role": "user", "content": "x" * 5_000_000}]
    assert_error(await server.chat(messages=long), 400, "messages", "context_length_exceeded")
    assert_error(await server.comp(prompt="x" * 5_000_000), 400, "prompt", "context_length_exceeded")


async def test_I_5_model_without_chat_template(server: Server) -> None:
    server.service.chat_template = None
    assert "no chat template" in assert_error(await server.chat(), 400, "messages")["message"]
    assert (await server.comp()).status_code == 200


async def test_H_4_empty_prompt_needs_a_bos(server: Server) -> None:
    assert (await server.comp(prompt="")).json()["usage"]["prompt_tokens"] == 1
    server.tokenizer.bos_token_id = None
    for prompt in ("", [""], ["a", ""]):
        assert_error(await server.comp(prompt=prompt), 400, "prompt")
