"""Calls of Kimi K2, whose names come with a prefix and a number:

<|tool_calls_section_begin|><|tool_call_begin|>functions.lamp_state:0<|tool_call_argument_begin|>{"room": "attic"}
<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from anllm.parsers.json_text import CallEnds, stream_arguments
from anllm.parsers.lark import Lark
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool

CALLS_BEGIN, CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
NAME = re.compile(r"[^\s<{]+")
PREFIX, NUMBER = "functions.", re.compile(r":\d+\Z")
ENDS = CallEnds([END, CALLS_END], [BEGIN, CALLS_END])


class KimiK2:
    name = "kimi_k2"
    markers = frozenset({CALLS_BEGIN, CALLS_END, BEGIN, ARGUMENTS, END})
    openings = Markers([CALLS_BEGIN, BEGIN])
    bare_opening = bare_pattern = ""
    section = Section(CALLS_BEGIN, BEGIN, "", CALLS_END)

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        if (yield from reader.take_literal(CALLS_BEGIN)):
            yield from reader.take_space()
        yield from reader.take_literal(BEGIN)
        yield from reader.take_space()
        written = yield from reader.take_run(NAME)
        yield from reader.take_space()
        name = NUMBER.sub("", written.removeprefix(PREFIX))
        if not name or not (yield from reader.take_literal(ARGUMENTS)):
            return False
        yield reader.begin_call(name)
        yield from reader.take_space()
        return (yield from stream_arguments(reader, ENDS))

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        number = lark.rule("NUMBER", "/[0-9]{1,2}/")
        head = lark.text(f"{PREFIX}{name_of(tool)}:")
        return f"{head} {number} {lark.text(ARGUMENTS)} {lark.json(parameters_of(tool))} {lark.text(END)}"
