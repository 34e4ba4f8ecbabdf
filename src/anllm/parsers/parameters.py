"""Arguments of XML-like formats, which write each parameter as text between two tags, into JSON, and their grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping

from anllm.errors import InvalidRequestError
from anllm.parsers.lark import ANY_TEXT, OPTIONS, Lark
from anllm.parsers.pieces import CallArguments
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import STRING, Schema, cast, kinds_of, properties_of, resolve

# What a schema may say of the whole object that holds for whatever is written parameter by parameter, or is kept to.
OBJECT_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description"}
    | {"$schema", "$id", "$comment", "default", "examples", "strict", OPTIONS}
)
STRING_KEYWORDS = frozenset(
    {"type", "title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
    | {"enum", "const", "minLength", "maxLength", "pattern"}
)

MAX_BRANCHES = 64  # of the schema of one parameter, which references and anyOf may multiply
CDATA, CDATA_END = "<![CDATA[", "]]>"
CDATA_ENDS = Markers([CDATA_END])


class ArgumentsWriter:
    """The JSON object of a call's arguments, as its parameters come.

    pads: the template writes a newline on both sides of a value. takes_cdata: it may write a value as XML's CDATA.
    """

    def __init__(self, reader: Reader, *, pads: bool, takes_cdata: bool = False) -> None:
        self._reader = reader
        self._pads = pads
        self._takes_cdata = takes_cdata
        self._has_any = False

    def parameter(self, key: str, kinds: frozenset[str], ends: Markers) -> Steps[None]:
        """Reads a value up to one of `ends`. A string goes out as it comes, others when they are whole."""
        yield CallArguments(f"{', ' if self._has_any else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._has_any = True
        if self._pads:
            yield from self._reader.take_literal("\n")
        if self._takes_cdata and (yield from self._reader.take_literal(CDATA)):
            yield from self._value(kinds, CDATA_ENDS)
            yield from self._reader.take_literal(CDATA_END)
        else:
            yield from self._value(kinds, ends)

    def _value(self, kinds: frozenset[str], ends: Markers) -> Steps[None]:
        if kinds == STRING:
            yield from self._stream_string(ends)
            return
        text = yield from self._reader.take_all_before(ends)
        if not (yield from self._reader.is_at_end()):
            yield CallArguments(cast(text.removesuffix("\n") if self._pads else text, kinds))

    def _stream_string(self, ends: Markers) -> Steps[None]:
        yield CallArguments('"')
        held = ""
        while text := (yield from self._reader.take_before(ends)):
            text = held + text
            held = "\n" if self._pads and text.endswith("\n") else ""
            yield CallArguments(json.dumps(text.removesuffix(held), ensure_ascii=False)[1:-1])
        if not (yield from self._reader.is_at_end()):
            yield CallArguments('"')

    def close(self) -> CallArguments:
        """The call is whole."""
        return CallArguments("}" if self._has_any else "{}")


def parameters_rule(
    schema: Schema,
    lark: Lark,
    *,
    begin: Callable[[str, bool], str],
    end: str,
    pads: bool,
    without: Iterable[str],
) -> str:
    """A rule's body for all parameters of an object, the optional ones free, in the order of the schema.

    begin: what stands before a parameter's value, by its name and whether it is a text. end: what stands behind it.
    without: what a text must not have in it, lest it ends there.
    """
    parts = []
    line, ends_not = "\n" if pads else "", tuple(without)
    for name, value, is_required in _members(schema):
        bodies = []
        for branch in _branches(value, schema):
            is_text = (kinds_of(branch, schema) or STRING) == STRING
            if is_text:
                body = _string_rule(branch, lark, line + end, ends_not)
            else:
                body = f"{lark.json(_with_definitions(branch, schema))} {lark.text(line + end)}"
            bodies.append(f"{lark.text(begin(name, is_text) + line)} {body}")
        rule = lark.rule("parameter", " | ".join(bodies))
        parts.append(rule if is_required else f"{rule}?")
    return " ".join(parts)


def keywords_rule(schema: Schema, lark: Lark) -> str:
    """A rule's body for the keyword arguments of a Python call, with JSON values, in the order of the schema."""
    first = behind = lark.rule("none", '""')  # the rest where nothing stands before it, and where something does
    for name, value, is_required in reversed(_members(schema)):
        if not name.isidentifier():
            raise InvalidRequestError(f"The parameter {name!r} is no name that this model can write.", param="tools")
        rule = lark.rule("keyword", f"{lark.text(f'{name}=')} {lark.json(_with_definitions(value, schema))}")
        skips = ("", "") if is_required else (f" | {first}", f" | {behind}")
        first, behind = (
            lark.rule("first", f"{rule} {behind}{skips[0]}"),
            lark.rule("behind", f'", " {rule} {behind}{skips[1]}'),
        )
    return first


def simplified(schema: Schema) -> Schema:
    """The schema without what parameters_rule and keywords_rule refuse, for tools that need not be kept to strictly."""
    kept = {key: value for key, value in schema.items() if key in OBJECT_KEYWORDS}
    properties: dict[str, object] = {}
    for name, value in properties_of(schema).items():
        simple = value if isinstance(value, Mapping) else {}
        kinds = kinds_of(simple, schema)
        if not kinds or "string" in kinds:
            simple = {key: item for key, item in simple.items() if key in ("type", "enum", "const")}
        properties[name] = simple
    return {**kept, "properties": properties}


def _members(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Name, schema and whether it is required, of each parameter."""
    _refuse_unknown(schema, OBJECT_KEYWORDS, "parameters")
    properties, required = properties_of(schema), schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    values = {name: properties.get(name) for name in dict.fromkeys([*properties, *names])}
    return [(name, value if isinstance(value, Mapping) else {}, name in names) for name, value in values.items()]


def _with_definitions(schema: Schema, root: Schema) -> Schema:
    return {**{key: root[key] for key in ("$defs", "definitions", OPTIONS) if key in root}, **schema}


def _branches(schema: Schema, root: Schema) -> list[Schema]:
    """Schemas of one type each, or without string, that together allow the same."""
    found: list[Schema] = []
    waiting = [schema]
    for _ in range(MAX_BRANCHES):
        if not waiting:
            return found
        choices = _choices(waiting[-1], root)
        if choices is None:
            found.append(waiting.pop())
        else:
            waiting[-1:] = reversed(choices)
    raise _refusal("anyOf", "a text, as it has too many branches,")


def _choices(schema: Schema, root: Schema) -> list[Schema] | None:
    """What a schema splits into; None if it is of one type, or without string."""
    kinds = kinds_of(schema, root)
    if "string" not in kinds or (len(kinds) == 1 and not {"$ref", "anyOf", "oneOf", "allOf"} & schema.keys()):
        return None
    if "$ref" in schema:
        target = resolve(str(schema["$ref"]), root)
        return [target] if isinstance(target, Mapping) else [{}]
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        if isinstance(choices, list):
            return [choice for choice in choices if isinstance(choice, Mapping)]
    if "allOf" in schema:
        raise _refusal("allOf", "a text")
    values = schema.get("enum")
    if isinstance(values, list):
        texts = [value for value in values if isinstance(value, str)]
        return [{"enum": texts}, {"enum": [value for value in values if not isinstance(value, str)]}]
    return [{**schema, "type": kind} for kind in sorted(kinds)]


def _string_rule(schema: Schema, lark: Lark, end: str, without: tuple[str, ...]) -> str:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        texts = [value for value in values if isinstance(value, str) and not any(part in value for part in without)]
        if not texts:
            raise _refusal("enum", "a text")
        return f"({' | '.join(lark.text(text + end) for text in texts)})"
    _refuse_unknown(schema, STRING_KEYWORDS, "a text")
    text, pattern = _length_terminal(schema), schema.get("pattern")
    if isinstance(pattern, str):
        text = f"{text} & {_pattern_terminal(pattern)}"
    return lark.text_before(end, text, without=without)


def _length_terminal(schema: Schema) -> str:
    bounds = [schema.get("minLength", 0), schema.get("maxLength", "")]
    if not all(isinstance(bound, int) and bound >= 0 for bound in bounds if bound != ""):
        raise _refusal("minLength or maxLength", "a text")
    return ANY_TEXT if bounds == [0, ""] else f"/(?s:.{{{bounds[0]},{bounds[1]}}})/"


def _pattern_terminal(pattern: str) -> str:
    """A pattern matches anywhere in a text unless it says otherwise."""
    is_anchored = (pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$"))
    inner = pattern[is_anchored[0] : len(pattern) - is_anchored[1]]
    if any(is_anchored) and _has_bare_bar(inner):  # then each alternative has anchors of its own
        raise _refusal("pattern", "a text")
    before, after = ("" if anchored else "(?s:.*)" for anchored in is_anchored)
    written = re.sub(r"(?<!\\)/", r"\/", inner).replace("\n", r"\n")
    return f"/{before}({written}){after}/"


def _has_bare_bar(pattern: str) -> bool:
    """Whether alternatives stand outside of all brackets."""
    depth = 0
    for character in re.sub(r"\\.|\[[^\]]*\]", "", pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            return True
    return False


def _refuse_unknown(schema: Schema, known: frozenset[str], where: str) -> None:
    unknown = sorted(schema.keys() - known)
    if unknown:
        raise _refusal(unknown[0], where)


def _refusal(keyword: str, where: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The keyword {keyword!r} in the schema of {where} can't be enforced in the way this model writes tool calls.",
        param="tools",
    )
