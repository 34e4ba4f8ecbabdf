"""Calls of FunctionGemma and Gemma 4, with strings in quotes of their own:

<|tool_call>call:lamp_state{room:<|"|>attic<|"|>,level:3}<tool_call|>
<start_function_call>call:lamp_state{room:<escape>attic<escape>,level:3}<end_function_call>
"""

from __future__ import annotations

import re

from anllm.parsers.lark import Lark
from anllm.parsers.literals import Dialect, LiteralReader
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool

NAME = re.compile(r"[\w.\-]+")


class Gemma:
    bare_opening = bare_pattern = ""

    def __init__(self, name: str, begin: str, end: str, quote: str) -> None:
        self.name = name
        self.markers = frozenset({begin, end, quote})
        self.openings = Markers([begin])
        self.section = Section("", begin)
        self._begin, self._end = begin, end
        self._dialect = Dialect((quote, '"'), (quote,), (end, begin), ":")

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        yield from reader.take_literal(self._begin)
        yield from reader.take_space()
        if not (yield from reader.take_literal("call:")):
            return False
        name = yield from reader.take_run(NAME)
        yield from reader.take_space()
        if not name or not (yield from reader.take_literal("{")):
            return False
        yield reader.begin_call(name)
        return (yield from LiteralReader(reader, self._dialect).object())

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        """With plain JSON as arguments, which is read as well, since grammars of schemas write nothing else."""
        head = lark.text(f"call:{name_of(tool)}")
        return f"{head} {lark.json(parameters_of(tool))} {lark.text(self._end)}"
