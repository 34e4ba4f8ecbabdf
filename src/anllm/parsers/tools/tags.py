"""Calls with one tag for the function and one for each parameter, as Qwen3-Coder and MiniMax M2 write them:

<tool_call>                          <minimax:tool_call>
<function=lamp_state>                <invoke name="lamp_state">
<parameter=room>                     <parameter name="room">attic</parameter>
attic                                </invoke>
</parameter>                         </minimax:tool_call>
</function>
</tool_call>
"""

from __future__ import annotations

from dataclasses import dataclass

from anllm.parsers.lark import Lark
from anllm.parsers.parameters import ArgumentsWriter, parameters_rule
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool


@dataclass(frozen=True, slots=True)
class Tags:
    """outer, function, parameter: beginning and end of each. A name, in quotes or none, and > follow the beginning.

    pads: values stand on lines of their own. is_outer_each: each call has outer tags, and not all have them in common.
    """

    outer: tuple[str, str]
    function: tuple[str, str]
    parameter: tuple[str, str]
    quote: str = ""
    pads: bool = False
    is_outer_each: bool = False


class TaggedCalls:
    bare_opening = bare_pattern = ""

    def __init__(self, name: str, tags: Tags) -> None:
        begin, end = tags.outer
        self.name = name
        self.markers = frozenset({begin, end})
        self.openings = Markers([begin, tags.function[0]])
        self.section = Section("", begin, "\n") if tags.is_outer_each else Section(f"{begin}\n", "", "\n", f"\n{end}")
        self._tags = tags
        # Of a parameter that the model didn't close, the end of the call is the end.
        self._value_ends = Markers([tags.parameter[1], f"{tags.function[1]}\n{end}"])
        self._name_ends = Markers([">", "<", "\n"])
        self._parts = Markers([tags.parameter[0], tags.function[1], tags.function[0], begin, end])

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        tags = self._tags
        if (yield from reader.take_literal(tags.outer[0])):
            yield from reader.take_space()
        if not (yield from reader.take_literal(tags.function[0])):
            return False
        name = yield from self._take_name(reader)
        if not name:
            return False
        yield reader.begin_call(name)
        writer = ArgumentsWriter(reader, pads=tags.pads)
        while True:
            while (yield from reader.take_before(self._parts)):
                pass
            if (yield from reader.is_at_end()):
                return False
            if not (yield from reader.take_literal(tags.parameter[0])):
                yield from reader.take_literal(tags.function[1])
                yield writer.close()
                return True
            key = yield from self._take_name(reader)
            if key:
                yield from writer.parameter(key, types.kinds(name, key), self._value_ends)
            yield from reader.take_literal(tags.parameter[1])

    def _take_name(self, reader: Reader) -> Steps[str]:
        """A name and what ends it; "" if it is broken."""
        name = yield from reader.take_all_before(self._name_ends)
        is_ended = yield from reader.take_literal(">")
        return name.strip().strip("\"'") if is_ended else ""

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        tags, quote = self._tags, self._tags.quote
        parameters = parameters_rule(
            parameters_of(tool),
            lark,
            begin=(tags.parameter[0] + quote, f"{quote}>"),
            end=f"{tags.parameter[1]}\n",
            pads=tags.pads,
            without=self._value_ends.texts,
        )
        begin, end = ("\n", f"\n{tags.outer[1]}") if tags.is_outer_each else ("", "")
        head = f"{begin}{tags.function[0]}{quote}{name_of(tool)}{quote}>\n"
        return f"{lark.text(head)} {parameters} {lark.text(tags.function[1] + end)}"
