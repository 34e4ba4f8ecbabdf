"""What the tools of a request say of their parameters, and texts of XML-like formats into JSON of those types.

Schemas come from clients: anything in them may be missing or of the wrong type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from anllm.parsers.json_text import written_json
from anllm.parsers.literals import literal_value

Schema = Mapping[str, object]
STRING = frozenset({"string"})
MAX_DEPTH = 32  # of anyOf in anyOf, beyond which a schema's types are not looked for


def function_of(tool: Mapping[str, object]) -> Mapping[str, object]:
    """The function of a tool as requests give it."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}


def name_of(tool: Mapping[str, object]) -> str:
    return str(function_of(tool).get("name", ""))


def parameters_of(tool: Mapping[str, object]) -> Schema:
    """The schema of the arguments, an object's; without parameters that of an empty object."""
    parameters = function_of(tool).get("parameters")
    if not isinstance(parameters, Mapping):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **parameters}


def is_strict(tool: Mapping[str, object]) -> bool:
    """Whether the arguments have to fit the schema even where the call is the model's own choice."""
    return function_of(tool).get("strict") is True


def properties_of(schema: Schema) -> Mapping[str, object]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


class ToolTypes:
    """Types of parameters by the names of tool and parameter."""

    def __init__(self, tools: Iterable[Mapping[str, object]] | None) -> None:
        self._parameters = {name_of(tool): parameters_of(tool) for tool in tools or ()}

    def kinds(self, tool: str, parameter: str) -> frozenset[str]:
        """The JSON types that the parameter may have; empty if its schema names none. Unknown ones are strings."""
        root = self._parameters.get(tool, {})
        schema = properties_of(root).get(parameter)
        return kinds_of(schema, root) if isinstance(schema, Mapping) else STRING


def kinds_of(schema: Schema, root: Schema) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says. root: what its references point into."""
    return frozenset(_kinds(schema, root, set(), MAX_DEPTH))


def _kinds(schema: object, root: Schema, seen: set[str], depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        yield from _kinds(resolve(reference, root), root, seen, depth - 1)
    declared = schema.get("type")
    if isinstance(declared, str):
        yield declared
    elif isinstance(declared, list):
        yield from (kind for kind in declared if isinstance(kind, str))
    else:
        values = schema.get("enum")
        values = values if isinstance(values, list) else []
        yield from map(kind_of, [*values, *([schema["const"]] if "const" in schema else [])])
    for word in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(word)
        for branch in branches if isinstance(branches, list) else []:
            yield from _kinds(branch, root, seen, depth - 1)


def resolve(reference: str, root: Schema) -> object:
    """What a reference within the same schema points at; None if there is nothing."""
    target: object = root
    if not reference.startswith("#"):
        return None
    for part in reference[1:].split("/")[1:]:
        target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return target


def kind_of(value: object) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, Sequence) else "object"


def cast(text: str, kinds: frozenset[str]) -> str:
    """JSON of one of these types for the text of a value; a string if it can't be read as any other of them."""
    if kinds == STRING:
        return json.dumps(text, ensure_ascii=False)
    stripped = text.strip()
    for value in _readings(stripped, kinds):
        kind = kind_of(value)
        with suppress(ValueError):
            if kind == "integer" and ("integer" in kinds or "number" in kinds):
                return written_json(int(value) if isinstance(value, float) else value)
            if kind in kinds or (not kinds and kind in ("object", "array")):
                return written_json(value)
    return json.dumps(text, ensure_ascii=False)


def _readings(text: str, kinds: frozenset[str]) -> Iterator[object]:
    """What the text may mean, the likeliest first."""
    with suppress(ValueError, RecursionError):
        yield json.loads(text, strict=False, parse_constant=_refuse)
    word = text.lower()
    if "boolean" in kinds and word in ("true", "false", "1", "0"):
        yield word in ("true", "1")
    if "null" in kinds and word in ("null", "none"):
        yield None
    if text[:1] in ("{", "[", "(") and kinds & {"object", "array"}:
        with suppress(ValueError, RecursionError):
            yield literal_value(text)


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
