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

import re
from dataclasses import dataclass

from anllm.parsers.lark import Lark
from anllm.parsers.parameters import CDATA, ArgumentsWriter, parameters_rule
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import STRING, ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool

QUOTED = re.compile(r"""\s*(["'])(.*?)\1(.*)""", re.DOTALL)
NO_TEXT = frozenset({"integer", "number", "boolean", "null", "array", "object"})


@dataclass(frozen=True, slots=True)
class Tags:
    """outer, function, parameter: beginning and end of each. A name, in quotes or none, and > follow the beginning.

    outer: ("", "") if there are none. is_outer_each: each call has its own, and not all have them in common.
    pads: values stand on lines of their own. tells_text: a parameter says whether its value is a text.
    takes_cdata: values may stand in CDATA.
    """

    outer: tuple[str, str]
    function: tuple[str, str]
    parameter: tuple[str, str]
    quote: str = ""
    pads: bool = False
    is_outer_each: bool = False
    tells_text: bool = False
    takes_cdata: bool = False


class TaggedCalls:
    bare_opening = bare_pattern = ""

    def __init__(self, name: str, tags: Tags) -> None:
        begin, end = tags.outer
        self.name = name
        self.markers = frozenset({begin, end} - {""})
        self.openings = Markers({begin, tags.function[0]} - {""})
        self.section = Section("", begin or tags.function[0], "\n")
        if begin and not tags.is_outer_each:
            self.section = Section(f"{begin}\n", "", "\n", f"\n{end}")
        self._tags = tags
        # Of a parameter that the model didn't close, the end of the call is the end.
        self._value_ends = Markers({tags.parameter[1], f"{tags.function[1]}\n{end}" if end else tags.parameter[1]})
        self._name_ends = Markers([">", "<", "\n"])
        self._parts = Markers({tags.parameter[0], tags.function[1], tags.function[0], begin, end} - {""})

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        tags = self._tags
        if tags.outer[0] and (yield from reader.take_literal(tags.outer[0])):
            yield from reader.take_space()
        if not (yield from reader.take_literal(tags.function[0])):
            return False
        name, _ = yield from self._take_name(reader)
        if not name:
            return False
        yield reader.begin_call(name)
        writer = ArgumentsWriter(reader, pads=tags.pads, takes_cdata=tags.takes_cdata)
        while True:
            while (yield from reader.take_before(self._parts)):
                pass
            if (yield from reader.is_at_end()):
                return False
            if not (yield from reader.take_literal(tags.parameter[0])):
                yield from reader.take_literal(tags.function[1])
                yield writer.close()
                return True
            key, attributes = yield from self._take_name(reader)
            if key:
                kinds = _told_kinds(types.kinds(name, key), attributes) if tags.tells_text else types.kinds(name, key)
                yield from writer.parameter(key, kinds, self._value_ends)
            yield from reader.take_literal(tags.parameter[1])

    def _take_name(self, reader: Reader) -> Steps[tuple[str, str]]:
        """A name and what else stands in the tag, which is taken to its end; no name if it is broken."""
        written = yield from reader.take_all_before(self._name_ends)
        if not (yield from reader.take_literal(">")):
            return "", ""
        quoted = QUOTED.match(written)
        return (quoted[2], quoted[3]) if quoted else (written.strip(), "")

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        tags, quote = self._tags, self._tags.quote
        parameters = parameters_rule(
            parameters_of(tool),
            lark,
            begin=self._parameter_begin,
            end=f"{tags.parameter[1]}\n",
            pads=tags.pads,
            without=[*self._value_ends.texts, *([CDATA] if tags.takes_cdata else [])],
        )
        begin, end = ("\n", f"\n{tags.outer[1]}") if tags.is_outer_each else ("", "")
        function = "" if self.section.opening == tags.function[0] else tags.function[0]
        head = f"{begin}{function}{quote}{name_of(tool)}{quote}>\n"
        return f"{lark.text(head)} {parameters} {lark.text(tags.function[1] + end)}"

    def _parameter_begin(self, name: str, is_text: bool) -> str:
        tags = self._tags
        attribute = f' string="{str(is_text).lower()}"' if tags.tells_text else ""
        return f"{tags.parameter[0]}{tags.quote}{name}{tags.quote}{attribute}>"


def _told_kinds(kinds: frozenset[str], attributes: str) -> frozenset[str]:
    """The types that are left when the model says whether a value is a text."""
    if 'string="true"' in attributes:
        return STRING
    return (kinds - STRING) or NO_TEXT
