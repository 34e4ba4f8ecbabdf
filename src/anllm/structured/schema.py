"""What is wrong with a JSON schema in itself, found before anything is compiled. Any thread.

The compiler takes some invalid schemas without a word and names no place for others. Here the form of each keyword is
checked, with the JSON pointer of the subschema that breaks it. Which keywords are supported is the compiler's affair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeGuard

from anllm.structured.errors import GrammarError

MAX_DEPTH = 100
"""Levels of JSON in a schema. The compiler's own limit lies at 127, and it counts what is wrapped around as well."""

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_MAPS = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")  # name -> schema
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_JOINS = {"allOf", "dependencies", "dependentSchemas", "else", "if", "not", "then", "unevaluatedProperties"}
_UNIONS = {"$ref", "anyOf", "oneOf"}
_OTHERS = {"additionalProperties", "patternProperties", "propertyNames", "minProperties"}
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_BOUNDS = (
    ("minimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
)


def check_schema(schema: object) -> None:
    """Raises GrammarError for the first subschema that no JSON schema may hold. Follows no reference out of it."""
    check_depth(schema)
    pending = [("", schema)]
    sound: set[str] = set()
    while pending:
        pointer, subschema = pending.pop()
        if isinstance(subschema, bool):
            continue
        if not isinstance(subschema, dict):
            raise GrammarError(f"a schema must be an object or a boolean, got {_shown(subschema)}.", pointer=pointer)
        for keyword, rule in _RULES.items():
            if keyword in subschema and (broken := rule(subschema[keyword])):
                raise _error(pointer, keyword, f"{broken}, got {_shown(subschema[keyword])}")
        _check_bounds(pointer, subschema)
        _check_reference(schema, pointer, subschema, sound)
        pending += [(pointer + suffix, inner) for suffix, inner in subschemas(subschema)][::-1]


def check_depth(value: object) -> None:
    """Raises GrammarError where JSON is nested so deep that parsers refuse it or run out of stack."""
    level, depth = [value], 0
    while level := [inner for outer in level for inner in _values(outer)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise GrammarError(f"the schema must not be nested deeper than {MAX_DEPTH} levels.", pointer="")


def subschemas(schema: dict[str, object]) -> Iterator[tuple[str, object]]:
    """(pointer from here, subschema) for each schema right inside this one. Values of enum and the like are none."""
    for keyword, value in schema.items():
        if keyword in _MAPS and isinstance(value, dict):
            yield from ((f"/{keyword}/{_escaped(name)}", inner) for name, inner in value.items())
        elif keyword == "dependencies" and isinstance(value, dict):
            named = ((name, inner) for name, inner in value.items() if not isinstance(inner, list))
            yield from ((f"/{keyword}/{_escaped(name)}", inner) for name, inner in named)
        elif (keyword in _LISTS or keyword == "items") and isinstance(value, list):
            yield from ((f"/{keyword}/{index}", inner) for index, inner in enumerate(value))
        elif keyword in _SINGLE:
            yield f"/{keyword}", value


def is_pointer(reference: object) -> TypeGuard[str]:
    """Whether a $ref names a part of its own document by its place."""
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")


def without_look_around(schema: dict[str, object]) -> dict[str, object]:
    """The schema without patterns that look around or back, which ECMA's regexes may and the compiler's can't."""

    def inner(value: object) -> object:
        if isinstance(value, list):
            return [inner(item) for item in value]
        return without_look_around(value) if isinstance(value, dict) else value

    pattern = schema.get("pattern")
    dropped = {"pattern"} if isinstance(pattern, str) and _LOOKS_AROUND.search(pattern) else set()
    values = {"enum", "const"}  # no schemas
    return {name: value if name in values else inner(value) for name, value in schema.items() if name not in dropped}


def closed(schema: dict[str, object]) -> dict[str, object]:
    """The schema, whose objects may have no properties but those that it names, where it says nothing of others.

    What fits it fits the schema as well. Models that know a function by its schema give no other arguments; small ones,
    let free, make up more and more of them. Schemas whose parts bind the same object stay as they are.
    """
    pending: list[object] = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if _JOINS & part.keys() or ("properties" in part and _UNIONS & part.keys()):
                return schema
            pending += [inner for _, inner in subschemas(part)]
    return _closed(schema)


def _closed(schema: dict[str, object]) -> dict[str, object]:
    inner = dict(schema)
    for keyword, value in schema.items():
        if keyword in ("$defs", "definitions", "properties") and isinstance(value, dict):
            inner[keyword] = {name: _closed(part) if isinstance(part, dict) else part for name, part in value.items()}
        elif keyword in ("items", "additionalProperties") and isinstance(value, dict):
            inner[keyword] = _closed(value)
        elif keyword in ("anyOf", "oneOf", "prefixItems", "items") and isinstance(value, list):
            inner[keyword] = [_closed(part) if isinstance(part, dict) else part for part in value]
    named, required = schema.get("properties"), schema.get("required", [])
    is_whole = isinstance(named, dict) and isinstance(required, list) and all(name in named for name in required)
    if is_whole and not _OTHERS & schema.keys():
        inner["additionalProperties"] = False
    return inner


def resolve(root: object, pointer: str) -> object:
    """What a JSON pointer names (RFC 6901). Raises LookupError where there is nothing."""
    value = root
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value[name]
        elif isinstance(value, list) and name.isdecimal():
            value = value[int(name)]
        else:
            raise LookupError(pointer)
    return value


def _check_bounds(pointer: str, schema: dict[str, object]) -> None:
    for low, high in _BOUNDS:
        least, most = schema.get(low), schema.get(high)
        if _is_number(least) and _is_number(most) and least > most:  # type: ignore[operator] # both are numbers
            raise _error(pointer, low, f"must not be above {high}, got {least} and {most}")


def _check_reference(root: object, pointer: str, schema: dict[str, object], sound: set[str]) -> None:
    """A $ref whose target is nothing but a $ref, and so on round in a circle, means nothing.

    sound: references that lead to an end; grows, so that no way is gone twice.
    """
    seen: list[str] = []
    target: object = schema
    while isinstance(target, dict) and is_pointer(reference := target.get("$ref")):
        if reference in sound:
            break
        if reference in seen:
            raise _error(pointer, "$ref", f"goes round in a circle: {' to '.join([*seen, reference])}")
        seen.append(reference)
        if len(seen) > MAX_DEPTH:
            raise _error(pointer, "$ref", f"must not lead through more than {MAX_DEPTH} further references")
        try:
            target = resolve(root, reference[1:])
        except LookupError:
            break  # the compiler says that it is missing
    sound.update(seen)


def _error(pointer: str, keyword: str, rule: str) -> GrammarError:
    return GrammarError(f"{keyword} {rule}.", pointer=pointer, keyword=keyword)


def _values(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = "an object" if isinstance(value, dict) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _type_rule(value: object) -> str:
    names = value if isinstance(value, list) else [value]
    is_valid = bool(names) and all(name in _TYPES for name in names)
    return "" if is_valid else f"must be one of {', '.join(_TYPES)}, or a list of them"


def _must(rule: str, is_met: Callable[[object], bool]) -> Callable[[object], str]:
    return lambda value: "" if is_met(value) else rule


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]


def _is_list_of_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_filled_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _is_positive(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator]


_RULES: dict[str, Callable[[object], str]] = {
    "type": _type_rule,
    "enum": _must("must be a list with at least one value", _is_filled_list),
    "required": _must("must be a list of property names", _is_list_of_strings),
    "multipleOf": _must("must be a number above 0", _is_positive),
    **{name: _must("must be a string", lambda value: isinstance(value, str)) for name in ("$ref", "pattern", "format")},
    **{name: _must("must be an object", lambda value: isinstance(value, dict)) for name in _MAPS},
    **{name: _must("must be a list with at least one schema", _is_filled_list) for name in _LISTS},
    **{name: _must("must be a whole number, 0 or more", _is_count) for name in _COUNTS},
    # a boolean is how draft 4 writes the exclusive ones
    **{name: _must("must be a number", lambda value: isinstance(value, int | float)) for name in _NUMBERS},
}
