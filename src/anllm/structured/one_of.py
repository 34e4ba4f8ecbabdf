"""`oneOf` whose branches exclude each other is `anyOf`, which the compiler supports. Any thread.

The compiler sees that for branches of different types, but not through references, which is how tagged unions are
usually written. Here two branches are known to exclude each other if their types differ, or if both are objects that
require the same property with other constants.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

from anllm.structured.schema import is_pointer, resolve, subschemas

_MAX_REFERENCES = 10
_TYPES = {"number": {"number", "integer"}}  # what else is of a type


def with_disjoint_one_of(schema: dict[str, object]) -> dict[str, object]:
    """The schema with `oneOf` renamed to `anyOf` where that allows the same. The schema given stays as it is."""
    if not any("oneOf" in part for part in _parts(schema)):
        return schema
    copy: dict[str, object] = json.loads(json.dumps(schema))
    for part in list(_parts(copy)):
        branches = part.get("oneOf")
        if isinstance(branches, list) and "anyOf" not in part and _exclude_each_other(copy, branches):
            part["anyOf"] = part.pop("oneOf")
    return copy


def _parts(schema: dict[str, object]) -> Iterator[dict[str, object]]:
    pending: list[object] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            pending += [inner for _, inner in subschemas(part)]


def _exclude_each_other(root: dict[str, object], branches: list[object]) -> bool:
    """Quadratic in the branches, so that hundreds of them are left to the compiler."""
    targets = [_target(root, branch) for branch in branches]
    if len(targets) > 100 or not all(isinstance(target, dict) for target in targets):
        return False
    kinds = [_types(target) for target in targets]
    tags = [_tags(root, target) for target in targets]
    return all(
        kinds[a].isdisjoint(kinds[b]) or (kinds[a] == kinds[b] == {"object"} and _differ(tags[a], tags[b]))
        for a, b in itertools.combinations(range(len(targets)), 2)
    )


def _target(root: dict[str, object], schema: object) -> object:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not is_pointer(reference := schema.get("$ref")):
            return schema
        try:
            schema = resolve(root, reference[1:])
        except LookupError:
            return None
    return None


def _types(schema: object) -> set[str]:
    """Types that a document may have; all of them where the schema does not say."""
    named = schema.get("type") if isinstance(schema, dict) else None
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list):
        return {"array", "boolean", "integer", "null", "number", "object", "string"}
    return set().union(*(_TYPES.get(name, {name}) for name in names))


def _tags(root: dict[str, object], schema: object) -> dict[str, set[str]]:
    """Required property -> its constants, where they are strings."""
    assert isinstance(schema, dict)
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return {}
    found = {name: _constants(_target(root, properties.get(name))) for name in required}
    return {name: constants for name, constants in found.items() if constants}


def _constants(schema: object) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return set(values) if isinstance(values, list) and all(isinstance(value, str) for value in values) else set()


def _differ(first: dict[str, set[str]], second: dict[str, set[str]]) -> bool:
    return any(constants.isdisjoint(second[name]) for name, constants in first.items() if name in second)
