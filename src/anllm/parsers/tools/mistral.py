"""Calls of Mistral's models, in the older form a list, in the newer one a name before each object:

[TOOL_CALLS][{"name": "lamp_state", "arguments": {"room": "attic"}}]
[TOOL_CALLS]lamp_state[ARGS]{"room": "attic"}[TOOL_CALLS]ping[CALL_ID]abc123def[ARGS]{}
"""

from __future__ import annotations

import re

from anllm.parsers.json_text import CallEnds, stream_arguments
from anllm.parsers.lark import Lark
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool
from anllm.parsers.tools.json_object import object_rule, read_objects

BEGIN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
NAME = re.compile(r"[\w.\-]+")
ENDS = CallEnds(["</s>"], [BEGIN])


class Mistral:
    """is_list: the form that grammars enforce. Both are read."""

    name = "mistral"
    markers = frozenset({BEGIN, ARGUMENTS, CALL_ID})
    openings = Markers([BEGIN])
    bare_opening = bare_pattern = ""

    def __init__(self, *, is_list: bool) -> None:
        self.section = Section(f"{BEGIN}[", "", ", ", "]") if is_list else Section("", BEGIN)
        self._is_list = is_list

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        yield from reader.take_literal(BEGIN)
        yield from reader.take_space()
        if (yield from reader.peek()) in ("[", "{"):
            return (yield from read_objects(reader, ENDS))
        is_whole = yield from self._read_named(reader)
        while is_whole:  # a further name may follow without the marker
            yield from reader.take_space()
            if (yield from reader.peek()) in ("[", ""):
                break
            is_whole = yield from self._read_named(reader)
        return is_whole or not reader.is_call_open

    def _read_named(self, reader: Reader) -> Steps[bool]:
        name = yield from reader.take_run(NAME)
        yield from reader.take_space()
        if (yield from reader.take_literal(CALL_ID)):
            yield from reader.take_space()
            yield from reader.take_run(NAME)
            yield from reader.take_space()
        marker = yield from reader.take_literal(ARGUMENTS)
        yield from reader.take_space()
        if not name or not (marker or (yield from reader.peek()) == "{"):
            return False
        yield reader.begin_call(name)
        is_whole = yield from stream_arguments(reader, ENDS)
        reader.is_call_open = not is_whole
        return is_whole

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        if self._is_list:
            return object_rule(tool, lark, "arguments")
        return f"{lark.text(name_of(tool) + ARGUMENTS)} {lark.json(parameters_of(tool))}"
