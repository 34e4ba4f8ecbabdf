"""Messages of the compiler get a place, also through references and beside parts that are sound."""

from typing import Any

import pytest
from llguidance import LLTokenizer

from anllm.structured.compile import compile_grammar
from anllm.structured.errors import GrammarError
from anllm.structured.grammar import json_schema
from anllm.structured.locate import locate

NOT = {"not": {"type": "string"}}
SOUND = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}, "b": {"enum": [1]}}, "$defs": {"b": {}}}


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        (NOT, "", "not"),
        ({"type": "object", "properties": {"a": {}, "b": {"items": NOT}}}, "/properties/b/items", "not"),
        ({**SOUND, "$defs": {"b": {"$ref": "#/$defs/c"}, "c": NOT}}, "/$defs/c", "not"),
        ({**SOUND, "anyOf": [{"required": ["a"]}, {"type": "string", "format": "zz"}]}, "/anyOf/1", "format"),
        ({"properties": {"a/b": {"type": "string", "pattern": "(["}}}, "/properties/a~1b", "pattern"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "/properties/a", "pattern"),
        ({"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "/items", "oneOf"),
        ({"items": {"properties": {"a": {}, "b": {}}, "minProperties": 1}}, "/items", "minProperties"),
        ({"items": {"patternProperties": {"a": {}, "b": {}}}}, "/items", "patternProperties"),
        ({"items": {"$ref": "#/nowhere"}}, "/items", "$ref"),
        ({"items": {"$ref": "http://127.0.0.1:9/x"}}, "/items", "$ref"),
        ({"$id": "http://example.org/x", "items": NOT}, "/items", "not"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": NOT}, "/items", "not"),
    ],
)
def test_the_innermost_cause_is_found(
    tokenizer: LLTokenizer, schema: dict[str, Any], pointer: str, keyword: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_grammar(tokenizer, json_schema(schema, strict=True).text)
    assert locate(schema, caught.value.reason) == (pointer, keyword)
