"""Calls of DeepSeek V3 and R1, with a kind and a fence, and of V3.1, without. The bars in the tokens are full-width:

<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>lamp_state
```json
{"room": "attic"}
```<|tool▁call▁end|><|tool▁calls▁end|>

<|tool▁calls▁begin|><|tool▁call▁begin|>lamp_state<|tool▁sep|>{"room": "attic"}<|tool▁call▁end|><|tool▁calls▁end|>
"""

from __future__ import annotations

import re

from anllm.parsers.json_text import CallEnds, stream_arguments
from anllm.parsers.lark import Lark
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool

BAR = "\uff5c"
CALLS_BEGIN, CALLS_END = f"<{BAR}tool▁calls▁begin{BAR}>", f"<{BAR}tool▁calls▁end{BAR}>"
BEGIN, SEPARATOR, END = f"<{BAR}tool▁call▁begin{BAR}>", f"<{BAR}tool▁sep{BAR}>", f"<{BAR}tool▁call▁end{BAR}>"
NAME = re.compile(r"[^\s<{`]+")
ENDS = CallEnds([END, CALLS_END], [BEGIN, CALLS_END])


class DeepSeek:
    """has_fence: the form of V3, which grammars enforce then. Both are read."""

    markers = frozenset({CALLS_BEGIN, CALLS_END, BEGIN, SEPARATOR, END})
    openings = Markers([CALLS_BEGIN, BEGIN])
    bare_opening = bare_pattern = ""

    def __init__(self, name: str, *, has_fence: bool) -> None:
        self.name = name
        self.section = Section(CALLS_BEGIN, BEGIN, "\n" if has_fence else "", CALLS_END)
        self._has_fence = has_fence

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        if (yield from reader.take_literal(CALLS_BEGIN)):
            yield from reader.take_space()
        yield from reader.take_literal(BEGIN)
        yield from reader.take_space()
        name = yield from reader.take_run(NAME)
        yield from reader.take_space()
        if not name or not (yield from reader.take_literal(SEPARATOR)):
            return False
        yield from reader.take_space()
        if (yield from reader.peek()) not in ("{", ""):  # what came before was the kind
            name = yield from reader.take_run(NAME)
            yield from reader.take_space()
            if not name:
                return False
            if (yield from reader.take_literal("```json", "```")):
                yield from reader.take_space()
        yield reader.begin_call(name)
        return (yield from stream_arguments(reader, ENDS))

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        name, arguments = name_of(tool), lark.json(parameters_of(tool))
        if not self._has_fence:
            return f"{lark.text(name + SEPARATOR)} {arguments} {lark.text(END)}"
        head = f"function{SEPARATOR}{name}\n```json\n"
        end = f"\n```{END}"
        return f"{lark.text(head)} {arguments} {lark.text(end)}"
