"""Calls that are odd or broken, by format."""

from __future__ import annotations

import pytest

from anllm.parsers.stream import CallBegun, Content
from parsers.samples import BAR, TOOLS, Answer, answer_of, deepseek, make_parser, pieces_of, raw_calls, read, text_of


def dsml(text: str) -> str:
    for short, tag in (("|i", "|DSML|invoke"), ("|p", "|DSML|parameter")):
        text = text.replace(short, tag.replace("|", BAR))
    return text


# Broken before the name is known: all of it is content.
CONTENT = [
    ("hermes", "<tool_call>nothing</tool_call>"),
    ("hermes", '<tool_call>{"nom": "ping"}</tool_call>'),
    ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>{'name': 'ping', 'arguments': {}}</tool_call>"),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {"a": [}</tool_call> and'),
    ("hermes", "<tool_call><tool_call>"),
    ("hermes", "I write <tool_call> often"),
    ("hermes", '<tool_call>\n{"name": "pi'),
    ("llama3_json", '{"name": "Ann", "age": 3}'),
    ("llama3_json", '{"name": "Ann"}'),
    ("llama3_json", '{"a": {"name": "f", "parameters": {}}}'),
    ("llama3_json", '<|python_tag|>brave_search.call(query="x")'),
    ("llama3_json", 'Text {"name": "ping", "parameters": {}}'),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] of mine [ARGS]"),
    ("mistral", "[TOOL_CALLS][1, 2]"),
    ("deepseek_v3", deepseek("<|tool▁calls▁begin|>what")),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0 {}"),
    ("glm45", "<tool_call>two words\n<arg_key>"),
    ("glm45", "<tool_call>ping"),
    ("glm45", "<tool_call>ping\nmore"),
    ("gemma4", "<|tool_call>ping{}<tool_call|>"),
    ("gemma4", "<|tool_call>call:{}<tool_call|>"),
    ("minimax_m2", "<minimax:tool_call>\nnothing\n</minimax:tool_call>"),
    ("minimax_m2", "<minimax:tool_call>\n<invoke name=>\n</invoke>"),
    ("qwen3_coder", "<tool_call>\n<function=>\n</function>"),
    ("qwen3_coder", "<tool_call>\n<function=ping"),
    ("pythonic", "<|tool_call_start|>[ping]<|tool_call_end|>"),
    ("pythonic", "[see (this)]"),
    ("llama4_pythonic", "[1, 2, 3]"),
    ("llama4_pythonic", "[f(x)]"),
    ("llama4_pythonic", "[text](https://example.org)"),
]


@pytest.mark.parametrize(("name", "text"), CONTENT)
def test_what_has_no_name_is_content(name: str, text: str) -> None:
    assert pieces_of(text, tool_parser=name) == [Content(text)]
    assert read(make_parser(name), text) == [Content(text)]


# Broken behind the name: the arguments are what was written, as far as the markup lets tell.
RAW = [
    ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {'a': 'b'}}</tool_call>", "{'a': 'b'}"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\d"}}</tool_call>', '{"a": "\\d"}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', '{"a": 1'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b</tool_call>', '{"a": "b'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b}}\n</tool_call>\n', '{"a": "b}}\n'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}}}</tool_call>', '{"a": 1}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', '{"a": 1}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}} and more', '{"a": 1}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": oops}</tool_call>', "oops"),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "{}"),
    ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', "{}"),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', '{"a": 1}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1, {"b": 2}]}</tool_call>', '[1, {"b": 2}]'),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "{}"),
    ("hermes", '<tool_call>{"name": "f"', ""),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', '{"a": 1}'),
    ("hermes", '<tool_call>{"id": 7, "name": "f", "parameters": {"a": 1}, "x": []}</tool_call>', '{"a": 1}'),
    ("hermes", '<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>', '{"a": 1}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>', '{"a": "</tool_call>"}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\n"}}</tool_call>', '{"a": "\n"}'),
    ("llama3_json", '{"parameters": {"a": 1}, "name": "f"}', '{"a": 1}'),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1', '{"a": 1'),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', '{"a": 1}'),
    ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}', '{"a": 1}'),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": "{\\"a\\": 1}"}]', '{"a": 1}'),
    ("mistral", "[TOOL_CALLS]f[ARGS]", ""),
    ("deepseek_v3", deepseek('<|tool▁call▁begin|>f<|tool▁sep|>{"a": 1<|tool▁call▁end|>'), '{"a": 1'),
    ("kimi_k2", '<|tool_call_begin|>f<|tool_call_argument_begin|>{"a": 1', '{"a": 1'),
    ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b", '{"a": "b'),
    ("glm45", "<tool_call>f\n<arg_key>a</arg_key>junk</tool_call>", "{}"),
    ("glm45", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', '{"a": 1}'),
    ("qwen3_coder", "<function=f>\n<parameter=a>\nb\n</parameter>\n</function>", '{"a": "b"}'),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nb\n</function>\n</tool_call>", '{"a": "b"}'),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>b</parameter></function></tool_call>", '{"a": "b"}'),
    ("qwen3_coder", "<tool_call>\n<function=f>\nnoise<parameter=a>\nb</parameter>", '{"a": "b"'),
    ("minimax_m2", "<minimax:tool_call><invoke name='f'><parameter name=a>b</parameter></invoke>", '{"a": "b"}'),
    ("minicpm5", '<function name="f"><param name="a"><![CDATA[</param>]]></param></function>', '{"a": "</param>"}'),
    ("minicpm5", '<function name="f"><param name="a"><![CDATA[b', '{"a": "b'),
    ("deepseek_v32", dsml('<|i name="f"><|p name="a" string="false">[1]</|p></|i>'), '{"a": [1]}'),
    ("deepseek_v32", dsml('<|i name="f"><|p name="a" string="true">1</|p></|i>'), '{"a": "1"}'),
    ("deepseek_v32", dsml('<|i name="f"><|p name="a" string="false">x</|p></|i>'), '{"a": "x"}'),
    ("gemma4", '<|tool_call>call:f{a:<|"|>b', '{"a": "b'),
    ("gemma4", '<|tool_call>call:f{a:{b:[1,{c:<|"|>}<|"|>},],},x:hello there}<tool_call|>',
     '{"a": {"b": [1, {"c": "}"}]}, "x": "hello there"}'),
    ("gemma4", '<|tool_call>call:f{"a": "b\\n\\u00e9", "c": null}<tool_call|>', '{"a": "b\\n\\u00e9", "c": null}'),
    ("pythonic", "[f(a='it's', b=\"say 'no'\", c={'k': (1, None)},)]",
     '{"a": "it\'s", "b": "say \'no\'", "c": {"k": [1, null]}}'),
    ("pythonic", "[f(a='\\x41\\'\\d\\u00e9', b=-1.5e3, c=true, d=[])]",
     '{"a": "\\u0041\'\\\\d\\u00e9", "b": -1.5e3, "c": true, "d": []}'),
    ("pythonic", "<|tool_call_start|>[f(a=1<|tool_call_end|>", '{"a": 1'),
    ("openai", "<|start|>assistant<|channel|>commentary to=functions.f<|message|>", "{}"),
    ("openai", "<|start|>assistant<|channel|>commentary to=f<|message|>oops <|call|>", "oops"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "arguments"), RAW)
def test_what_is_written_behind_the_name_are_the_arguments(name: str, text: str, arguments: str) -> None:
    assert raw_calls(pieces_of(text, tool_parser=name)) == (("f", arguments),)
    assert raw_calls(read(make_parser(name), text)) == (("f", arguments),)


def test_a_broken_call_is_content_before_a_good_one_and_dropped_behind_it() -> None:
    good = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    broken = "<tool_call>oops</tool_call>"
    assert answer_of(pieces_of(f"A {broken} {good}")) == Answer(f"A {broken}", (("ping", {}),))
    assert answer_of(pieces_of(f"A {good} {broken} B {good}")) == Answer("A", (("ping", {}), ("ping", {})))


def test_a_call_without_end_is_followed_by_another() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "b</tool_call>\n<tool_call>{"name": "g", "arguments": {}}'
    assert raw_calls(pieces_of(text)) == (("f", '{"a": "b'), ("g", "{}"))
    parser = make_parser()
    read(parser, [text])
    assert parser.num_calls == 2


@pytest.mark.parametrize(
    ("value", "parameter", "expected"),
    [
        ("3", "level", "3"),
        ("3.0", "level", "3"),
        ("three", "level", '"three"'),
        ("True", "on", "true"),
        ("FALSE", "on", "false"),
        ("maybe", "on", '"maybe"'),
        ('["a", "b"]', "tags", '["a", "b"]'),
        ("['a', True]", "tags", '["a", true]'),
        ("[", "tags", '"["'),
        ('["\\ud800"]', "tags", '["\\ud800"]'),
        ("[1e999]", "tags", '"[1e999]"'),
        ("1e999", "level", '"1e999"'),
        ("1" * 400, "level", "1" * 400),
        ("3", "room", '"3"'),
        ("null", "room", '"null"'),
        ("3", "unknown", '"3"'),
        ('say "hi"\n\té\\', "room", '"say \\"hi\\"\\n\\té\\\\"'),
        ("", "room", '""'),
    ],
)
def test_texts_of_parameters_become_values_of_their_types(value: str, parameter: str, expected: str) -> None:
    texts = {
        "qwen3_coder": f"<tool_call>\n<function=lamp_state>\n<parameter={parameter}>\n{value}\n</parameter>\n"
        "</function>\n</tool_call>",
        "glm45": f"<tool_call>lamp_state\n<arg_key>{parameter}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>",
        "minimax_m2": f'<minimax:tool_call>\n<invoke name="lamp_state">\n<parameter name="{parameter}">{value}'
        "</parameter>\n</invoke>\n</minimax:tool_call>",
    }
    for name, text in texts.items():
        assert raw_calls(pieces_of(text, tool_parser=name)) == (("lamp_state", f'{{"{parameter}": {expected}}}'),)
        assert raw_calls(read(make_parser(name), text)) == (("lamp_state", f'{{"{parameter}": {expected}}}'),)


def test_an_odd_schema_does_no_harm() -> None:
    schemas: list[object] = [
        None, {}, [], {"properties": None}, {"properties": {"a": None}},
        {"properties": {"a": {"type": ["integer", 5]}}},
        {"properties": {"a": {"$ref": "#/$defs/x"}}}, {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, 3]}}},
        {"properties": {"a": {"enum": 3}}}, {"properties": {"a": {"enum": [1, None, "x"]}}},
    ]  # fmt: skip
    text = "<function=f>\n<parameter=a>\n5\n</parameter>\n</function>"
    for schema in schemas:
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}, {}, {"function": None}]
        ((name, arguments),) = raw_calls(pieces_of(text, tool_parser="qwen3_coder", tools=tools))
        assert (name, arguments) in (("f", '{"a": 5}'), ("f", '{"a": "5"}'))


def test_half_a_surrogate_pair_does_not_come_through() -> None:
    """It could not be sent."""
    text = '<tool_call>{"name": "\\ud800f", "arguments": "{\\"a\\": \\"\\udc00\\"}"}</tool_call>'
    assert raw_calls(pieces_of(text)) == (("\ufffdf", '{"a": "\ufffd"}'),)


def test_a_name_that_the_model_invented_is_kept() -> None:
    pieces = pieces_of('<tool_call>{"name": "open door", "arguments": {}}</tool_call>')
    assert pieces[0] == CallBegun("open door")
    assert "open door" not in [tool["function"]["name"] for tool in TOOLS]
    assert text_of(pieces, Content) == ""
