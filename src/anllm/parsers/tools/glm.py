"""Calls of GLM 4.5 and later, in tags for each name and value, with newlines between them or without:

<tool_call>lamp_state
<arg_key>room</arg_key>
<arg_value>attic</arg_value>
</tool_call>
"""

from __future__ import annotations

from anllm.parsers.json_text import CallEnds, read_call_object
from anllm.parsers.lark import Lark
from anllm.parsers.parameters import ArgumentsWriter, parameters_rule
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool


class Glm:
    """prefix: of the names of all tags. has_newlines: the form that grammars enforce. Both are read."""

    bare_opening = bare_pattern = ""

    def __init__(self, name: str, *, prefix: str = "", has_newlines: bool) -> None:
        self.name = name
        self._begin, self._end = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
        self._key, self._key_end = f"<{prefix}arg_key>", f"</{prefix}arg_key>"
        self._value, self._value_end = f"<{prefix}arg_value>", f"</{prefix}arg_value>"
        self._line = "\n" if has_newlines else ""
        self.markers = frozenset(
            {self._begin, self._end, self._key, self._key_end, self._value, self._value_end},
        )
        self.openings = Markers([self._begin])
        self.section = Section("", self._begin, self._line)
        self._name_ends = Markers(["<", "\n", "{"])
        self._key_ends = Markers([self._key_end, self._value, self._end])
        self._value_ends = Markers([self._value_end])
        self._parts = Markers([self._key, self._end, self._begin])
        self._ends = CallEnds([self._end], [self._begin])

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        yield from reader.take_literal(self._begin)
        yield from reader.take_space()
        if (yield from reader.peek()) == "{":  # as other models write it, which these sometimes do
            return (yield from read_call_object(reader, self._ends))
        name = (yield from reader.take_all_before(self._name_ends)).strip()
        if not name or " " in name or (yield from reader.is_at_end()):
            return False
        yield from reader.take_space()
        ahead = yield from reader.peek(2)
        if ahead not in (self._key[:2], self._end[:2]):
            if ahead == "<":
                reader.drop_cut_rest()
            return False
        yield reader.begin_call(name)
        writer = ArgumentsWriter(reader, pads=False)
        while True:
            while (yield from reader.take_before(self._parts)):
                pass
            if not (yield from reader.take_literal(self._key)):
                break
            key = (yield from reader.take_all_before(self._key_ends)).strip()
            yield from reader.take_literal(self._key_end)
            yield from reader.take_space()
            if (yield from reader.take_literal(self._value)):
                yield from writer.parameter(key, types.kinds(name, key), self._value_ends)
        if (yield from reader.is_at_end()):
            return False
        yield from reader.take_literal(self._end)
        yield writer.close()
        return True

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        parameters = parameters_rule(
            parameters_of(tool),
            lark,
            begin=lambda name, is_text: f"{self._key}{name}{self._key_end}{self._line}{self._value}",
            end=self._value_end + self._line,
            pads=False,
            without=self._value_ends.texts,
        )
        return f"{lark.text(name_of(tool) + self._line)} {parameters} {lark.text(self._end)}"
