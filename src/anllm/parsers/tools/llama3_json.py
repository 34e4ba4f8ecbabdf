"""Calls of Llama 3: a bare object that is the whole answer, after a special token or none, several with ; between:

<|python_tag|>{"name": "lamp_state", "parameters": {"room": "attic"}}; {"name": "ping", "parameters": {}}
"""

from __future__ import annotations

from anllm.parsers.json_text import CallEnds, read_call_object
from anllm.parsers.lark import Lark
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes
from anllm.parsers.tools.interface import Section, Tool
from anllm.parsers.tools.json_object import object_rule

BEGIN = "<|python_tag|>"
ENDS = CallEnds(["<|eom_id|>", "<|eot_id|>"])


class Llama3Json:
    name = "llama3_json"
    markers = frozenset({BEGIN})
    openings = Markers([BEGIN])
    bare_opening, bare_pattern = "{", r"\s*\{"
    section = Section(between="; ")

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        yield from reader.take_literal(BEGIN)
        yield from reader.take_space()
        is_whole = yield from read_call_object(reader, ENDS, is_bare=True)
        while is_whole:
            yield from reader.take_space()
            if not (yield from reader.take_literal(";")):
                break
            yield from reader.take_space()
            if (yield from reader.peek()) != "{":
                break
            is_whole = yield from read_call_object(reader, ENDS, is_bare=True)
        return is_whole

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        return object_rule(tool, lark, "parameters")
