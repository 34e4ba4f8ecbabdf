"""The face of a tool-call format, and the reading of an answer with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from anllm.parsers.lark import Lark
from anllm.parsers.pieces import Content
from anllm.parsers.reader import Markers, Reader, Steps, Trimmed
from anllm.parsers.schema import ToolTypes

Tool = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Section:
    """What a model writes around its calls: before the first, at the beginning of each, between two, after the last."""

    begin: str = ""
    opening: str = ""
    between: str = ""
    end: str = ""


class ToolFormat(Protocol):
    """How a family of models writes calls. Holds no state."""

    @property
    def name(self) -> str:
        """The name that flags know it by."""
        ...

    @property
    def markers(self) -> frozenset[str]:
        """Texts that may be special tokens, without which calls can't be read."""
        ...

    @property
    def openings(self) -> Markers:
        """The markup that a call may begin with, anywhere in the answer."""
        ...

    @property
    def bare_opening(self) -> str:
        """A character that a call may begin with, but only at the start of an answer; "" if none."""
        ...

    @property
    def bare_pattern(self) -> str:
        """A pattern for the beginnings of answers that may be read as such a call; "" if none."""
        ...

    @property
    def section(self) -> Section: ...

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        """Reads one call or more from an opening on, which it takes in any case. Returns whether the last is whole.

        Returns before it begins a call if there is none; what it has taken then is content."""
        ...

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        """A rule's body for one call of this tool, behind the section's opening.

        Every text that it matches is read as that call, with arguments that fit the tool's schema. Raises
        InvalidRequestError for what it can't enforce."""
        ...


def read_answer(reader: Reader, tool_format: ToolFormat, types: ToolTypes, *, strips_start: bool) -> Steps[None]:
    """Content and calls, to the end. strips_start: whitespace before the content is dropped."""
    content = Trimmed(strips_start=strips_start)
    space = yield from reader.take_space()
    content.add(space)
    opening = tool_format.bare_opening
    if opening and (yield from reader.peek()) == opening:
        yield from _try_calls(reader, tool_format, types, content)
    while True:
        while text := (yield from reader.take_before(tool_format.openings)):
            if not reader.has_called:
                yield Content(content.add(text))
        if (yield from reader.is_at_end()):
            break
        yield from _try_calls(reader, tool_format, types, content)
    if not reader.has_called:
        yield Content(content.flush())


def _try_calls(reader: Reader, tool_format: ToolFormat, types: ToolTypes, content: Trimmed) -> Steps[None]:
    """What turns out to be no call is content, unless it comes behind one."""
    reader.begin_record()
    is_whole = yield from tool_format.read_calls(reader, types)
    is_call = not reader.is_recording
    raw = reader.end_record()
    if is_call:
        reader.is_call_open = not is_whole
    elif not reader.has_called and not (
        reader.is_cut and (yield from reader.is_at_end()) and _is_marked(raw, tool_format)
    ):
        yield Content(content.add(raw))


def _is_marked(raw: str, tool_format: ToolFormat) -> bool:
    """Whether a beginning is a call's beyond doubt, as it has its markup."""
    return raw.startswith(tool_format.openings.texts)
