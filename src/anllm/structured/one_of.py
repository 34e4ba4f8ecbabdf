"""`oneOf` whose branches exclude each other is `anyOf`, which the compiler supports. Any thread.

The compiler sees that for branches of different types, but not through references, which is how tagged unions are
usually written. Here two branches are known to exclude each other if their types differ, or if both are objects that
require the same property with other constants.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

from anllm.structured.schema import is_pointer, resolve, subschemas

# A schema may be hostile: the work stays linear in its size.
_MAX_REFERENCES = 10
_MAX_BRANCHES = 40
_MAX_TAGS = 100

_TYPES = {"number": {"number", "integer"}}  # what else is of a type


@dataclass(frozen=True)
class _Branch:
    """types: that a document may have. tags: required property -> the texts that it may have."""

    types: frozenset[str]
    tags: dict[str, frozenset[str]]

    def excludes(self, other: _Branch) -> bool:
        if self.types.isdisjoint(other.types):
            return True
        are_objects = self.types == other.types == {"object"}
        both = self.tags.keys() & other.tags.keys()
        return are_objects and any(self.tags[name].isdisjoint(other.tags[name]) for name in both)


def with_disjoint_one_of(schema: dict[str, object]) -> dict[str, object]:
    """The schema with `oneOf` renamed to `anyOf` where that allows the same. The schema given stays as it is."""
    if not any("oneOf" in part for part in _parts(schema)):
        return schema
    copy: dict[str, object] = json.loads(json.dumps(schema))
    known: dict[int, _Branch] = {}
    for part in list(_parts(copy)):
        branches = part.get("oneOf")
        if isinstance(branches, list) and "anyOf" not in part and _exclude_each_other(copy, branches, known):
            part["anyOf"] = part.pop("oneOf")
    return copy


def _parts(schema: dict[str, object]) -> Iterator[dict[str, object]]:
    pending: list[object] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            pending += [inner for _, inner in subschemas(part)]


def _exclude_each_other(root: dict[str, object], branches: list[object], known: dict[int, _Branch]) -> bool:
    """known: what was found out, by the identity of the schema; grows."""
    if len(branches) > _MAX_BRANCHES:
        return False
    described = []
    for branch in branches:
        target = _target(root, branch)
        if not isinstance(target, dict):
            return False
        if id(target) not in known:
            known[id(target)] = _Branch(_types(target), _tags(root, target))
        described.append(known[id(target)])
    return all(first.excludes(second) for first, second in itertools.combinations(described, 2))


def _target(root: dict[str, object], schema: object) -> object:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not is_pointer(reference := schema.get("$ref")):
            return schema
        try:
            schema = resolve(root, reference[1:])
        except LookupError:
            return None
    return None


def _types(schema: dict[str, object]) -> frozenset[str]:
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list):
        return frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
    return frozenset().union(*(_TYPES.get(name, {name}) for name in names))


def _tags(root: dict[str, object], schema: dict[str, object]) -> dict[str, frozenset[str]]:
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return {}
    found = {name: _texts(_target(root, properties.get(name))) for name in required[:_MAX_TAGS]}
    return {name: texts for name, texts in found.items() if texts}


def _texts(schema: object) -> frozenset[str]:
    """The texts that a schema allows, if it allows no more than a list of them."""
    if not isinstance(schema, dict):
        return frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or len(values) > _MAX_TAGS or not all(isinstance(value, str) for value in values):
        return frozenset()
    return frozenset(values)
