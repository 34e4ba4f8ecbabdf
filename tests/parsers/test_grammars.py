"""Whatever a grammar lets a model write is read back as calls that fit their schemas. Needs llguidance."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest

from anllm.errors import InvalidRequestError
from anllm.parsers.choose import OutputFormat
from anllm.parsers.stream import Content, Piece, Reasoning
from anllm.parsers.tools.table import TOOL_FORMATS
from parsers.samples import calls_of, output_format, pieces_of, read, text_of
from parsers.walk import ByteVocabulary, accepts, matcher, walk

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "room": {"type": "string"},
        "level": {"type": "integer", "minimum": 0, "maximum": 50},
        "mode": {"enum": ["on", "off"]},
        "kind": {"enum": ["a", 1, None]},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]$"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
        "point": {"$ref": "#/$defs/point"},
    },
    "required": ["room", "tags"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "number"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS = {"lamp_state": SCHEMA, "ping": {"type": "object", "maxProperties": 0}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "lamp_state", "strict": True, "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "ping", "strict": True}},
]
# What walks must be offered to get anywhere: markup that isn't forced.
HINTS = [
    "\n</parameter>\n", "</parameter>\n", "</arg_value>\n", "</arg_value>", "</longcat_arg_value>\n",
    "</param>\n", "</\uff5cDSML\uff5cparameter>\n",
    "<|end|><|start|>assistant", "</think>", "<tool_call>", "[TOOL_CALLS]", "<minimax:tool_call>", '"',
    "<|tool_calls_section_begin|>", "<function=", "</tool_call>", "\n", "</function>",
]  # fmt: skip
PROMPT = "<|start|>assistant"
FORMATS = sorted({found.name for found in TOOL_FORMATS.values()})
EACH = pytest.mark.parametrize("has_specials", [False, True], ids=["letters", "special tokens"])


def vocabulary(found: OutputFormat, has_specials: bool) -> ByteVocabulary:
    return ByteVocabulary(found.markers if has_specials else ())


def check_calls(pieces: list[Piece], text: str) -> int:
    calls = calls_of(pieces)
    for name, arguments in calls:
        assert jsonschema_rs.is_valid(SCHEMAS[name], arguments), (text, name, arguments)
    return len(calls)


@EACH
@pytest.mark.parametrize("name", FORMATS)
def test_enforced_calls_are_read_back(name: str, has_specials: bool) -> None:
    found = output_format(name)
    words = vocabulary(found, has_specials)
    grammar = found.call_grammar(PROMPT, TOOLS, special_id=words.special_id)
    for seed in range(15):
        text = walk(grammar, words, seed, HINTS)
        parser = found.parser(PROMPT, TOOLS, takes_calls=True)
        pieces = read(parser, [text])
        assert check_calls(pieces, text) >= 1
        assert text_of(pieces, Content) == ""
        assert not parser.is_call_open


@EACH
@pytest.mark.parametrize("name", FORMATS)
def test_calls_in_free_text_fit(name: str, has_specials: bool) -> None:
    found = output_format(name)
    words = vocabulary(found, has_specials)
    grammar = found.free_grammar(PROMPT, TOOLS, special_id=words.special_id)
    for seed in range(15):
        text = walk(grammar, words, seed, HINTS)
        check_calls(read(found.parser(PROMPT, TOOLS, takes_calls=True), [text]), text)


@pytest.mark.parametrize("name", FORMATS)
def test_free_text_may_be_anything_but_a_call_that_does_not_fit(name: str) -> None:
    found = output_format(name)
    words = vocabulary(found, True)
    grammar = found.free_grammar(PROMPT, TOOLS, special_id=words.special_id)
    head = "<|channel|>final<|message|>" if name == "openai" else ""
    assert accepts(grammar, words, f"{head}It is <b>off</b>, I'd say: 3 > 2.\n")
    call = found.call_grammar(PROMPT, TOOLS[1:], max_calls=1, special_id=words.special_id)
    text = walk(call, words, 1, HINTS)
    if name == "openai":
        return
    prose = "" if name in ("llama3_json", "llama4_pythonic") else "Ok\n"
    assert accepts(grammar, words, prose + text)
    assert not accepts(grammar, words, prose + text.replace("ping", "pong"))


def test_a_tool_that_is_not_strict_takes_anything_in_free_text() -> None:
    found = output_format("hermes")
    words = vocabulary(found, False)
    tools = [{"type": "function", "function": {"name": "lamp_state", "parameters": {**SCHEMA, "not": {}}}}]
    grammar = found.free_grammar("", tools, special_id=words.special_id)
    for arguments in ('{"room": 3}', "{}", '{"more": [null]}'):
        text = f'<tool_call>\n{{"name": "lamp_state", "arguments": {arguments}}}\n</tool_call>'
        assert accepts(grammar, words, text), arguments


@pytest.mark.parametrize("name", ["hermes", "mistral", "kimi_k2", "minimax_m2", "llama3_json", "pythonic", "jamba"])
def test_the_number_of_calls_is_kept(name: str) -> None:
    found = output_format(name)
    words = vocabulary(found, True)
    for minimum, maximum in ((1, 1), (2, 2), (1, 2), (3, None)):
        grammar = found.call_grammar("", TOOLS[1:], min_calls=minimum, max_calls=maximum, special_id=words.special_id)
        counts = {check_calls(pieces_of(walk(grammar, words, seed), tool_parser=name), "") for seed in range(12)}
        assert min(counts) == minimum
        assert max(counts) == maximum or maximum is None


@EACH
@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1", "gemma4", "mistral"])
def test_thoughts_may_come_before_what_is_enforced(reasoning: str, has_specials: bool) -> None:
    found = output_format("hermes", reasoning)
    words = vocabulary(found, has_specials)
    tags = found.reasoning
    assert tags is not None
    begin, end = tags.begin + (f"{tags.begin_line}\n" if tags.begin_line else ""), tags.end
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    for grammar, answer in (
        (lambda prompt: found.call_grammar(prompt, TOOLS, special_id=words.special_id), call),
        (lambda prompt: found.answer_grammar(prompt, '%json {"type": "object"}', special_id=words.special_id), "{}"),
        (lambda prompt: found.free_grammar(prompt, TOOLS, special_id=words.special_id), f"Ok\n{call}"),
    ):
        assert accepts(grammar(""), words, f"{begin}So <b> it {{is}}.{end}\n\n{answer}")
        assert accepts(grammar(begin), words, f"So.\n{end}{answer}")
        assert accepts(grammar(begin + end), words, answer)
        assert not tags.is_always_on or not accepts(grammar(begin), words, answer) or answer.startswith("Ok")
        if answer == "{}":
            assert not accepts(grammar(begin), words, answer)
            assert accepts(grammar(""), words, answer) == (not tags.is_always_on)
            assert not accepts(grammar(begin + end), words, "no")


@EACH
def test_an_answer_of_gpt_oss_goes_into_its_channel(has_specials: bool) -> None:
    found = output_format("openai")
    words = vocabulary(found, has_specials)
    grammar = found.answer_grammar(PROMPT, '%json {"type": "object"}', special_id=words.special_id)
    for seed in range(8):
        text = walk(grammar, words, seed, HINTS)
        if "<|" in text.rpartition("final<|message|>")[2]:  # in letters, which no model writes
            continue
        pieces = read(found.parser(PROMPT, None, takes_calls=False), [text])
        assert isinstance(json.loads(text_of(pieces, Content)), dict)
    thoughts = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    text = f'{thoughts}<|channel|>final<|message|>{{"a": 1}}'
    assert accepts(grammar, words, text)
    assert text_of(read(found.parser(PROMPT, None, takes_calls=False), text), Reasoning) == "Hm."


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2", "pythonic"])
@pytest.mark.parametrize("parameters", [{"minProperties": 1}, {"anyOf": [{"required": ["a"]}]}])
def test_what_can_not_be_enforced_is_refused(name: str, parameters: dict[str, object]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}]
    with pytest.raises(InvalidRequestError, match="can't be enforced") as refused:
        output_format(name).call_grammar("", tools, special_id=lambda text: None)
    assert refused.value.param == "tools"


def test_a_text_of_a_format_is_refused_where_values_are_plain_text() -> None:
    parameters = {"properties": {"a": {"type": "string", "format": "date"}}}
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}]
    with pytest.raises(InvalidRequestError, match="'format'"):
        output_format("qwen3_coder").call_grammar("", tools, special_id=lambda text: None)
    assert output_format("hermes").call_grammar("", tools, special_id=lambda text: None)


HARD: list[dict[str, Any]] = [
    {"type": "string", "format": "date"},
    {"type": "string", "minLength": "x"},
    {"type": "string", "pattern": "^a|b$"},
    {"allOf": [{"type": "string"}]},
    {"$ref": "#/$defs/loop"},
    {"$ref": "#/$defs/many0"},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
]
DEFINITIONS: dict[str, Any] = {
    "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "string"}]},
    **{f"many{i}": {"anyOf": [{"$ref": f"#/$defs/many{i + 1}"}] * 4} for i in range(20)},
    "many20": {"type": "string"},
}


@pytest.mark.parametrize("schema", HARD, ids=str)
def test_what_is_too_hard_is_refused_of_a_strict_tool_and_left_out_of_another(schema: dict[str, Any]) -> None:
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": DEFINITIONS}
    function = {"name": "f", "parameters": parameters}
    found, words = output_format("qwen3_coder"), ByteVocabulary(())
    with pytest.raises(InvalidRequestError):
        found.call_grammar(
            "", [{"type": "function", "function": {**function, "strict": True}}], special_id=words.special_id
        )
    grammar = found.call_grammar("", [{"type": "function", "function": function}], special_id=words.special_id)
    for seed in range(5):
        ((name, arguments), *_) = calls_of(pieces_of(walk(grammar, words, seed, HINTS), tool_parser="qwen3_coder"))
        assert name == "f"
        assert isinstance(arguments["a"], str)


@pytest.mark.parametrize("pattern", ["^[A-Z]{2}$", "a/b", r"a\/b", "x|y", "^(x|y)$", r"^a\$", "[|]"])
def test_patterns_hold_in_plain_text(pattern: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]
    found, words = output_format("qwen3_coder"), ByteVocabulary(())
    grammar = found.call_grammar("", tools, special_id=words.special_id)
    for seed in range(6):
        text = walk(grammar, words, seed, [*HINTS, "a/b"])
        for _, arguments in calls_of(pieces_of(text, tool_parser="qwen3_coder")):
            assert re.search(pattern, arguments["a"])


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "pythonic"])
def test_words_that_the_engine_does_not_know_are_left_out_of_a_tool_that_is_not_strict(name: str) -> None:
    value = {"type": "object", "properties": {"x": {"type": "integer", "not": {"const": 3}}}, "propertyNames": {}}
    parameters = {"properties": {"a": value}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    found, words = output_format(name), ByteVocabulary(())
    text = walk(found.call_grammar("", tools, special_id=words.special_id), words, 1, HINTS)
    assert isinstance(calls_of(pieces_of(text, tool_parser=name, tools=tools))[0][1]["a"], dict)
    tools[0]["function"]["strict"] = True  # type: ignore[index]
    with pytest.raises(AssertionError, match="not"):
        matcher(found.call_grammar("", tools, special_id=words.special_id), words)


def test_tools_without_schemas_take_none_or_any_arguments() -> None:
    found = output_format("hermes")
    words = vocabulary(found, False)
    for parameters, accepted, refused in (
        (None, "{}", '{"a": 1}'),
        ({}, '{"a": 1}', "3"),
        ({"type": "object"}, '{"a": 1}', "[]"),
    ):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        grammar = found.call_grammar("", tools, special_id=words.special_id)
        assert accepts(grammar, words, f'<tool_call>\n{{"name": "f", "arguments": {accepted}}}\n</tool_call>')
        assert not accepts(grammar, words, f'<tool_call>\n{{"name": "f", "arguments": {refused}}}\n</tool_call>')


def test_names_with_quotes_and_special_letters_are_written_as_they_are() -> None:
    for name in ("hermes", "qwen3_coder", "glm45"):
        found = output_format(name)
        words = vocabulary(found, False)
        tools = [{"type": "function", "function": {"name": "héllo-1.x"}}]
        text = walk(found.call_grammar("", tools, max_calls=1, special_id=words.special_id), words, 3, HINTS)
        assert calls_of(pieces_of(text, tool_parser=name)) == (("héllo-1.x", {}),)


def test_a_grammar_that_is_none_is_noticed_here() -> None:
    with pytest.raises(AssertionError, match="no_such_rule"):
        matcher("start: no_such_rule", ByteVocabulary(()))
