"""Which subschema a compiler's message is about. Runs where compiling may fail (compile_process.py)."""

from __future__ import annotations

import json
import re

from llguidance import LLMatcher

from anllm.structured.compile import SCHEMA_LIMITS, first_words
from anllm.structured.schema import is_pointer, resolve, subschemas

_INSIDE = "x-schema"

# How a message begins -> the keyword that it does not name as the schema does.
_MEANT = (
    ("regex", "pattern"),
    ("lookarounds", "pattern"),
    ("Unable to determine if regex", "pattern"),
    ("patternProperty", "patternProperties"),
    ("Pointer", "$ref"),
    ("Resource", "$ref"),
    ("min/max", "minProperties"),
    ("min/max", "maxProperties"),
)


def locate(schema: dict[str, object], reason: str) -> tuple[str, str | None]:
    """(JSON pointer, keyword) of the innermost subschema that fails by itself for the same reason.

    The root's pointer where parts can't be tried alone; None where no keyword of the subschema fits the reason.
    """
    inside = _moved(schema)
    pointer, seen = "", {""}
    while True:
        subschema = resolve(schema, pointer)
        inner = [pointer + suffix for suffix, _ in subschemas(subschema)] if isinstance(subschema, dict) else []
        inner += [target for target in _reference(schema, subschema) if target not in seen]
        failing = next((candidate for candidate in inner if _reason(inside, candidate) == reason), None)
        if failing is None:
            return pointer, _keyword(subschema, reason)
        pointer = failing
        seen.add(pointer)


def _moved(schema: dict[str, object]) -> dict[str, object]:
    """A document that is no schema but holds this one, so that a $ref can choose a part of it to be compiled alone."""
    root = {keyword: value for keyword, value in schema.items() if keyword not in ("$id", "id", "$schema")}
    draft = {"$schema": schema["$schema"]} if "$schema" in schema else {}
    return {**draft, _INSIDE: _with_references_moved(root)}


def _with_references_moved(value: object) -> object:
    if isinstance(value, list):
        return [_with_references_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _with_references_moved(item) for name, item in value.items()}
    reference = moved.get("$ref")
    if is_pointer(reference):
        moved["$ref"] = f"#/{_INSIDE}{reference[1:]}"
    return moved


def _reason(inside: dict[str, object], pointer: str) -> str:
    """Why this part of the schema does not compile, or ""."""
    document = {**inside, "$ref": f"#/{_INSIDE}{pointer}"}
    message = LLMatcher.validate_grammar(f"start: %json {json.dumps(document)}", limits=SCHEMA_LIMITS)
    return first_words(message).replace(f"/{_INSIDE}", "") if message else ""


def _reference(schema: dict[str, object], subschema: object) -> list[str]:
    reference = subschema.get("$ref") if isinstance(subschema, dict) else None
    if not is_pointer(reference):
        return []
    try:
        resolve(schema, reference[1:])
    except LookupError:
        return []
    return [reference[1:]]


def _keyword(subschema: object, reason: str) -> str | None:
    """The longest keyword that the reason names, or one that it means."""
    if not isinstance(subschema, dict):
        return None
    meant = (word for sign, word in _MEANT if reason.startswith(sign) and word in subschema)
    named = [word for word in subschema if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", reason)]
    return next(meant, None) or max(named, key=len, default=None)
