"""Schemas that are wrong in themselves are refused with the place and the keyword."""

from typing import Any

import pytest

from anllm.structured.errors import GrammarError
from anllm.structured.schema import MAX_DEPTH, check_schema, closed, resolve

INVALID: list[tuple[Any, str, str | None]] = [
    ({"type": "strin"}, "", "type"),
    ({"type": []}, "", "type"),
    ({"type": {"a": 1}}, "", "type"),
    ({"type": "object", "properties": 5}, "", "properties"),
    ({"properties": {"a": 7}}, "/properties/a", None),
    ({"properties": {"a/b~": None}}, "/properties/a~1b~0", None),
    ({"enum": []}, "", "enum"),
    ({"enum": 5}, "", "enum"),
    ({"items": {"pattern": 5}}, "/items", "pattern"),
    ({"items": [{}, "x"]}, "/items/1", None),
    ({"anyOf": []}, "", "anyOf"),
    ({"anyOf": [{"type": "integer", "minimum": 5, "maximum": 1}]}, "/anyOf/0", "minimum"),
    ({"minLength": 2, "maxLength": 1}, "", "minLength"),
    ({"minItems": -1}, "", "minItems"),
    ({"maxItems": 1.5}, "", "maxItems"),
    ({"maximum": "9"}, "", "maximum"),
    ({"multipleOf": 0}, "", "multipleOf"),
    ({"required": "a"}, "", "required"),
    ({"$ref": 5}, "", "$ref"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$defs/a", "$ref"),
    ({"properties": {"a": {"$ref": "#/properties/a"}}}, "/properties/a", "$ref"),
    (7, "", None),
    (None, "", None),
    ("object", "", None),
    ([], "", None),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), INVALID)
def test_an_invalid_schema_is_refused_with_its_place(schema: Any, pointer: str, keyword: str | None) -> None:
    with pytest.raises(GrammarError) as caught:
        check_schema(schema)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
    assert f"#{pointer}" in caught.value.message and (keyword or "schema") in caught.value.message


def test_the_error_is_one_of_the_request() -> None:
    error = GrammarError("it is wrong.", pointer="/items", keyword="format")
    assert (error.status, error.type, error.code) == (400, "invalid_request_error", "invalid_grammar")
    assert error.message == "Invalid schema at #/items: format: it is wrong."


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": ["string", "null"], "description": 5, "title": None, "x-order": [1]},
        {"properties": {"type": {"type": "string"}, "enum": {"enum": [[]]}, "minimum": {}}},
        {"const": {"type": "strin"}, "enum": [{"properties": 5}], "default": {"enum": []}, "examples": [{"$ref": 1}]},
        {"minimum": 1.0, "maximum": 1.0, "exclusiveMaximum": True, "minLength": 2.0},
        {"$defs": {"t": {"properties": {"kids": {"items": {"$ref": "#/$defs/t"}}}}}, "$ref": "#/$defs/t"},
        {"$ref": "#anchor"},
        {"dependencies": {"a": ["b"], "c": {}}},
    ],
)
def test_a_valid_schema_passes(schema: Any) -> None:
    check_schema(schema)


def test_a_schema_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(50_000):
        schema = {"items": schema}
    with pytest.raises(GrammarError, match=f"deeper than {MAX_DEPTH} levels"):
        check_schema(schema)


def test_a_pointer_names_a_part() -> None:
    document = {"a/b": [{"~": 5}]}
    assert resolve(document, "/a~1b/0/~0") == 5
    for pointer in ("/x", "/a~1b/1", "/a~1b/x", "/a~1b/0/~0/c"):
        with pytest.raises(LookupError):
            resolve(document, pointer)


def test_objects_that_say_nothing_of_others_are_closed_at_every_level() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
    schema = {
        "type": "object",
        "properties": {"a": inner, "l": {"type": "array", "items": inner}, "u": {"anyOf": [inner, {"type": "null"}]}},
        "$defs": {"d": inner},
    }
    shut = {**inner, "additionalProperties": False}
    assert closed(schema) == {
        "type": "object",
        "properties": {"a": shut, "l": {"type": "array", "items": shut}, "u": {"anyOf": [shut, {"type": "null"}]}},
        "$defs": {"d": shut},
        "additionalProperties": False,
    }
    assert "additionalProperties" not in inner


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"properties": {"a": {}}, "minProperties": 3},
        {"properties": {"a": {}}, "anyOf": [{"required": ["b"]}]},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]},
        {"properties": {"n": {"properties": {"x": {}}, "if": {"required": ["y"]}, "then": {"required": ["z"]}}}},
    ],
)
def test_objects_that_others_speak_of_stay_open(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_what_is_told_of_a_schema_is_short_however_long_its_keys_are() -> None:
    with pytest.raises(GrammarError) as caught:
        check_schema({"properties": {"k" * 100_000: 5}})
    assert len(caught.value.message) < 1000
    assert caught.value.message.startswith("Invalid schema at #/properties/kkk")
