"""Calls as JSON objects between two tags, as Hermes and Qwen write them, and many after them:

    <tool_call>
    {"name": "lamp_state", "arguments": {"room": "attic"}}
    </tool_call>

Some write a list of such objects between the tags.
"""

from __future__ import annotations

import json
from functools import cached_property

from anllm.parsers.json_text import CallEnds, read_call_object
from anllm.parsers.lark import Lark
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool


class JsonObjects:
    """begin, end: the tags. end may be "". is_list: objects stand in a list between them, as the model was taught."""

    bare_opening = bare_pattern = ""

    def __init__(self, name: str, begin: str, end: str, *, is_list: bool = False, key: str = "arguments") -> None:
        self.name = name
        self.markers = frozenset({begin, end} - {""})
        self.openings = Markers([begin])
        self.section = Section(f"{begin}[", "", ", ", f"]{end}") if is_list else Section("", begin, "\n")
        self._begin, self._end = begin, end
        self._is_list = is_list
        self._key = key

    @cached_property
    def _ends(self) -> CallEnds:
        return CallEnds([self._end] if self._end else [], [self._begin])

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        yield from reader.take_literal(self._begin)
        yield from reader.take_space()
        return (yield from read_objects(reader, self._ends))

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        rule = object_rule(tool, lark, self._key)
        end = lark.text(f"\n{self._end}")
        return rule if self._is_list else f'"\\n" {rule} {end}'


def read_objects(reader: Reader, ends: CallEnds) -> Steps[bool]:
    """One call object, or a list of them. Returns whether the last is whole."""
    if not (yield from reader.take_literal("[")):
        return (yield from read_call_object(reader, ends))
    yield from reader.take_space()
    is_whole = yield from read_call_object(reader, ends)
    while is_whole:
        yield from reader.take_space()
        if not (yield from reader.take_literal(",")):
            break
        yield from reader.take_space()
        if (yield from reader.peek()) != "{":
            break
        is_whole = yield from read_call_object(reader, ends)
    return is_whole


def object_rule(tool: Tool, lark: Lark, key: str) -> str:
    head = f'{{"name": {json.dumps(name_of(tool))}, "{key}": '
    return f"{lark.text(head)} {lark.json(parameters_of(tool))} {lark.text('}')}"
