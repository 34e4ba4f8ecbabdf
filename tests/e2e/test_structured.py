"""Forms and forced calls on a real model, at temperature 1: whatever it draws, the text is right."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from jsonschema_rs import validator_for

from e2e.conftest import MODEL

pytestmark = [pytest.mark.real_model, pytest.mark.mlx, pytest.mark.timeout(600)]

NAMES = ["name", "größe", "価格", "is ok?", "tags", 'a"b', "🫠", "x_y", "id", "note"]
WORDS = ["red", "zażółć", "北京", "naïve", "a b", 'say "hi"', "", "🫠"]
LAMP: Any = {
    "type": "function",
    "function": {
        "name": "lamp_state",
        "parameters": {
            "type": "object",
            "properties": {
                "room": {"enum": ["attic", "cellar"]},
                "level": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["room", "level"],
            "additionalProperties": False,
        },
    },
}


def chat(client: openai.OpenAI, text: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "temperature": 1, **options})


def random_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """Of an object, with bounds, so that a document is short."""

    def value(depth: int) -> dict[str, Any]:
        simple: list[dict[str, Any]] = [
            {"type": "integer", "minimum": draw.randrange(-50, 0), "maximum": draw.randrange(1, 5000)},
            {"type": "number", "minimum": 0, "maximum": 10},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": draw.sample(WORDS, 3)},
            {"const": draw.choice(WORDS)},
            {"type": "string", "maxLength": draw.randrange(1, 16)},
            {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            {"type": "string", "format": "date"},
            {"$ref": "#/$defs/shared"},
        ]
        if depth > 2 or draw.random() < 0.6:
            return draw.choice(simple)
        nested: list[dict[str, Any]] = [
            made(depth + 1),
            {"type": "array", "items": value(depth + 1), "minItems": draw.randrange(2), "maxItems": 3},
            {"anyOf": [value(depth + 1), {"type": "null"}]},
            {"type": "array", "prefixItems": [value(depth + 1)], "items": False, "minItems": 1},
        ]
        return draw.choice(nested)

    def made(depth: int) -> dict[str, Any]:
        names = draw.sample(NAMES, draw.randrange(1, 4))
        return {
            "type": "object",
            "properties": {name: value(depth) for name in names},
            "required": draw.sample(names, draw.randrange(len(names) + 1)),
            "additionalProperties": False,
        }

    return {**made(depth), "$defs": {"shared": {"type": "string", "maxLength": 8}}}


def test_two_hundred_random_schemas_give_two_hundred_documents(client: openai.OpenAI) -> None:
    draw = random.Random(7)
    schemas = [random_schema(draw) for _ in range(200)]

    def document(schema: dict[str, Any]) -> str:
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        choice = chat(client, "Write some JSON.", response_format=form, seed=len(str(schema))).choices[0]
        assert choice.finish_reason == "stop", schema
        return str(choice.message.content)

    with ThreadPoolExecutor(24) as pool:
        documents = list(pool.map(document, schemas))
    for schema, text in zip(schemas, documents, strict=True):
        assert validator_for(schema).is_valid(json.loads(text)), (schema, text)
    assert len(set(documents)) > 150


def test_C094_json_object_gives_an_object(client: openai.OpenAI) -> None:
    # Lists of names and the like may go on for ever in a model of this size: the first that ends is looked at.
    choices = [
        chat(client, "A JSON object with a name.", response_format={"type": "json_object"}, max_tokens=200, seed=seed)
        for seed in range(4)
    ]
    ended = [c.choices[0].message.content for c in choices if c.choices[0].finish_reason == "stop"]
    assert ended and all(isinstance(json.loads(text), dict) for text in ended)


def test_C095_F_11_a_strict_schema_is_kept_whole_and_streamed(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "größe": {"enum": ["zażółć", "北京", "🫠", "naïve"]}},
        "required": ["a", "größe"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for seed in range(3):
        whole = chat(client, "Tell me of the sea.", response_format=form, seed=seed).choices[0]
        assert whole.finish_reason == "stop" and validator_for(schema).is_valid(json.loads(whole.message.content))
        streamed = chat(client, "Tell me of the sea.", response_format=form, seed=seed, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in streamed) == whole.message.content


def test_F_12_a_form_that_a_limit_cuts_ends_with_length(client: openai.OpenAI) -> None:
    texts = {name: {"type": "string", "minLength": 50} for name in ("a", "b", "c")}
    schema = {"type": "object", "properties": texts, "required": list(texts)}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = chat(client, "Hi.", response_format=form, max_tokens=10).choices[0]
    assert choice.finish_reason == "length" and choice.message.content.startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "lamp_state"}}])
def test_C110_C111_F_3_forced_calls_fit_whatever_is_asked(client: openai.OpenAI, choice: Any) -> None:
    validator = validator_for(LAMP["function"]["parameters"])

    def forced(seed: int) -> None:
        # One call each: left to itself, a model of this size goes on calling.
        made = chat(
            client, "What is your name?", tools=[LAMP], tool_choice=choice, parallel_tool_calls=False, seed=seed
        ).choices[0]
        assert made.finish_reason == "tool_calls" and not made.message.content
        (call,) = made.message.tool_calls
        assert call.function.name == "lamp_state" and validator.is_valid(json.loads(call.function.arguments))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(forced, range(8)))


def test_F_10_G_2_others_are_not_touched_by_forms_beside_them(client: openai.OpenAI) -> None:
    """The same seeded text, whether bound requests run beside it or not."""

    def plain(seed: int) -> str:
        return str(chat(client, "Tell me of the sea.", seed=seed, max_tokens=24).choices[0].message.content)

    def bound(pattern: str) -> str:
        return str(chat(client, "Hm.", extra_body={"guided_regex": pattern}, seed=3).choices[0].message.content)

    alone = [plain(seed) for seed in range(4)]
    with ThreadPoolExecutor(12) as pool:
        beside = [pool.submit(bound, f"[0-9a-f]{{{10 + i}}}") for i in range(8)]
        together = list(pool.map(plain, range(4)))
    assert together == alone
    assert [len(future.result()) for future in beside] == list(range(10, 18))
