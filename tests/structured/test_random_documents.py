"""Whatever is drawn from the masks of a schema is a document that an independent validator takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from anllm.structured.errors import GrammarError
from anllm.structured.grammar import json_schema
from anllm.structured.state import GrammarState, MaskComputer
from anllm.structured.vocabulary import Vocabulary
from anllm.testing.tokenizer import EOS

NUM_SCHEMAS = 60
MAX_BYTES = 400
CLOSING = b'"}]' + bytes([EOS - 1])  # ends strings, objects and arrays before they grow for ever


@pytest.fixture
def masks(vocabulary: Vocabulary) -> Iterator[MaskComputer]:
    masks = MaskComputer(vocabulary, num_threads=1)
    yield masks
    masks.close()


def random_schema(random: Random, depth: int = 3) -> dict[str, Any]:
    kinds = ["integer", "number", "string", "enum", "boolean"] + ["object", "array", "anyOf"] * (depth > 0)
    kind = random.choice(kinds)
    if kind == "object":
        names = random.sample(["a", "b", "größe", 'q"', "x y", "\n"], random.randint(0, 3))
        required = [name for name in names if random.random() < 0.6]
        properties = {name: random_schema(random, depth - 1) for name in names}
        return {"type": kind, "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        least = random.randint(0, 2)
        return {"type": kind, "items": random_schema(random, depth - 1), "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {kind: [random_schema(random, depth - 1) for _ in range(random.randint(1, 3))]}
    if kind == "integer":
        low = random.randint(-200, 200)
        return {"type": kind, "minimum": low, "maximum": low + random.randint(0, 500)}
    if kind == "number":
        return {"type": kind, "exclusiveMinimum": random.randint(-20, 0), "maximum": random.randint(1, 30) / 4}
    if kind == "string":
        bounds = {"minLength": random.randint(0, 3), "maxLength": random.randint(3, 6)}
        return {"type": kind, **random.choice([bounds, {"pattern": "^[a-f]{2}[0-9]*$"}, {"format": "date"}])}
    if kind == "enum":
        return {kind: random.sample([1, "zażółć", None, True, "北京", [1, {"a": 2}], 0.5], 3)}
    return {"type": kind}


def draw(masks: MaskComputer, state: GrammarState, random: Random) -> bytes | None:
    """Bytes to the end; None if they became too many."""
    written, rows = bytearray(), masks.rows(1)
    while len(written) < MAX_BYTES:
        masks.fill([state], rows)
        choices = np.flatnonzero(np.unpackbits(rows[0].view(np.uint8), bitorder="little")).tolist()
        closing = [token for token in choices if token == EOS or token in CLOSING]
        token = random.choice(closing if closing and random.random() < 0.3 else choices)
        assert state.accept(token)
        if token == EOS:
            return bytes(written)
        written.append(token)
    return None


def test_drawn_documents_are_valid(masks: MaskComputer) -> None:
    random, num_drawn = Random(7), 0
    for _ in range(NUM_SCHEMAS):
        schema = random_schema(random)
        try:
            grammar = json_schema(schema, strict=True).text
            states = [masks.begin(grammar).result(timeout=10) for _ in range(5)]
        except GrammarError:
            continue
        validator = jsonschema_rs.validator_for(schema, validate_formats=True)
        for state in states:
            text = draw(masks, state, random)
            if text is not None:
                num_drawn += 1
                assert validator.is_valid(json.loads(text)), f"{text!r} of {schema}"
    assert num_drawn > 2 * NUM_SCHEMAS
