"""Calls as a list of Python calls, which Llama 4 writes bare and LFM2 between tokens:

<|tool_call_start|>[lamp_state(room="attic"), ping()]<|tool_call_end|>
"""

from __future__ import annotations

import re

from anllm.parsers.lark import Lark
from anllm.parsers.literals import Dialect, LiteralReader
from anllm.parsers.parameters import keywords_rule
from anllm.parsers.pieces import CallArguments
from anllm.parsers.reader import Markers, Reader, Steps
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool

NAME = re.compile(r"[\w.]+")
MAX_NAME_CHARS = 128  # of a keyword, which must be seen before a call is one


class Pythonic:
    """begin, end: the tokens. is_bare: the model was taught to write none."""

    def __init__(self, name: str, begin: str, end: str, *, is_bare: bool) -> None:
        self.name = name
        self.markers = frozenset({begin, end})
        self.openings = Markers([begin])
        self.bare_opening = "["
        # Where grammars let calls begin with a mere bracket, no other text may, as that must tell the two apart.
        self.bare_pattern = r"\s*\[" if is_bare else r"\s*\[\s*[\w.]+\s*\("
        self.section = Section("[", "", ", ", "]") if is_bare else Section(f"{begin}[", "", ", ", f"]{end}")
        self._begin = begin
        self._dialect = Dialect(('"', "'"), (), (end, begin), "=")

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        yield from reader.take_literal(self._begin)
        yield from reader.take_space()
        yield from reader.take_literal("[")
        is_whole = False
        while True:
            yield from reader.take_space()
            name = yield from reader.take_run(NAME)
            yield from reader.take_space()
            if not name or not (yield from reader.take_literal("(")):
                return is_whole
            yield from reader.take_space()
            is_whole = yield from self._read_arguments(reader, name)
            yield from reader.take_space()
            if not is_whole or not (yield from reader.take_literal(",")):
                return is_whole

    def _read_arguments(self, reader: Reader, name: str) -> Steps[bool]:
        """From behind the bracket on. No call is begun unless a keyword or the closing bracket follows."""
        if (yield from reader.take_literal(")")):
            yield reader.begin_call(name)
            yield CallArguments("{}")
            return True
        if not (yield from self._has_keyword(reader)):
            return False
        yield reader.begin_call(name)
        return (yield from LiteralReader(reader, self._dialect).object())

    def _has_keyword(self, reader: Reader) -> Steps[bool]:
        for length in range(1, MAX_NAME_CHARS):
            ahead = yield from reader.peek(length)
            if len(ahead) < length:
                reader.drop_cut_rest()
                return False
            if not (ahead[-1].isalnum() or ahead[-1] == "_"):
                return ahead[-1] == "=" and length > 1
        return False

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        """Values are JSON, which these models read as well."""
        head = lark.text(f"{name_of(tool)}(")
        return f"{head} {keywords_rule(parameters_of(tool), lark)} {lark.text(')')}"
