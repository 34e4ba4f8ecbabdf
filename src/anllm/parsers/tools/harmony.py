"""The channels of gpt-oss (OpenAI, "OpenAI harmony response format"), which hold reasoning, content and calls alike:

    <|channel|>analysis<|message|>Lights, so...<|end|><|start|>assistant<|channel|>commentary to=functions.lamp_state
    <|constrain|>json<|message|>{"room": "attic"}<|call|>

An answer is a row of messages, each with a header. <|call|> and <|return|> end the answer.
"""

from __future__ import annotations

import re

from anllm.parsers.json_text import CallEnds, stream_arguments
from anllm.parsers.lark import Lark
from anllm.parsers.pieces import CallArguments, Content, Reasoning
from anllm.parsers.reader import Markers, Reader, Steps, Trimmed
from anllm.parsers.schema import ToolTypes, name_of, parameters_of
from anllm.parsers.tools.interface import Section, Tool

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
CONSTRAIN, CALL, RETURN = "<|constrain|>", "<|call|>", "<|return|>"
ROLE = "assistant"
NAMESPACE = "functions."
RECIPIENT = re.compile(r"\bto=([^\s<]+)")
CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
BODY_ENDS = Markers([END, CALL, RETURN, START, CHANNEL])
ARGUMENTS_ENDS = CallEnds(BODY_ENDS.texts)
CHANNEL_MARKER = Markers([CHANNEL])
HEADER_ENDS = Markers([MESSAGE, END, CALL, RETURN, START])
BREAK = "\n\n"  # between two messages of the same kind


class Harmony:
    """Reads whole answers, and is the format of reasoning, too."""

    name = "openai"
    markers = frozenset({START, CHANNEL, MESSAGE, END, CONSTRAIN, CALL, RETURN})
    openings = Markers([CHANNEL, START])
    bare_opening = bare_pattern = ""
    section = Section()

    def read_messages(self, reader: Reader, *, takes_calls: bool) -> Steps[None]:
        """The whole answer. What stands before the first header is content."""
        content, thoughts = Trimmed(), Trimmed(strips_start=True)
        yield from _read_text(reader, content, is_reasoning=False)
        while not (yield from reader.is_at_end()):
            header = yield from reader.take_all_before(HEADER_ENDS)
            if not (yield from reader.take_literal(MESSAGE)):
                if not reader.has_called:
                    yield Content(content.add(_text_without_channel(header)))
                yield from reader.take_literal(*HEADER_ENDS.texts)
                continue
            recipient = RECIPIENT.search(header)
            if recipient and takes_calls:
                yield from _read_call(reader, recipient[1].removeprefix(NAMESPACE))
            elif not recipient and _channel(header) == "analysis":
                yield from _read_text(reader, thoughts, is_reasoning=True)
            else:
                yield from _read_text(reader, content, is_reasoning=False)
            yield from reader.take_literal(END, CALL, RETURN)

    def read_calls(self, reader: Reader, types: ToolTypes) -> Steps[bool]:
        """Not used: calls can't be read without the messages around them, see read_messages()."""
        yield from ()
        return False

    def call_rule(self, tool: Tool, lark: Lark) -> str:
        head = f"{CHANNEL}commentary to={NAMESPACE}{name_of(tool)} {CONSTRAIN}json{MESSAGE}"
        return f"{lark.text(head)} {lark.json(parameters_of(tool))}"


def prompt_tail(prompt: str) -> str:
    """The header, or the beginning of one, that the prompt ends with."""
    start = prompt.rfind(START)
    return prompt[start:] if start > max(map(prompt.rfind, (END, CALL, RETURN))) else ""


def _text_without_channel(header: str) -> str:
    """What a model says that doesn't keep to its format and leaves the channel out."""
    text = header.removeprefix(ROLE)
    if text == header or CHANNEL in header or text.lstrip().startswith("to="):
        return ""
    text = text[: CHANNEL_MARKER.held_from(text, 0)]
    return "" if "to=".startswith(text.strip()) else text


def _channel(header: str) -> str:
    match = CHANNEL_NAME.search(header)
    return match[1] if match else ""


def _read_text(reader: Reader, text: Trimmed, *, is_reasoning: bool) -> Steps[None]:
    """A message, to its end. Whitespace at its end is dropped."""
    reader.is_reasoning = is_reasoning
    piece_type = Reasoning if is_reasoning else Content
    while piece := (yield from reader.take_before(BODY_ENDS)):
        if is_reasoning or not reader.has_called:
            yield piece_type(text.add(piece))
    text.break_with(BREAK)
    reader.is_reasoning = False


def _read_call(reader: Reader, name: str) -> Steps[None]:
    yield reader.begin_call(name)
    yield from reader.take_space()
    is_whole = True
    if (yield from reader.peek()) == "{":
        is_whole = yield from stream_arguments(reader, ARGUMENTS_ENDS)
        yield from reader.take_all_before(BODY_ENDS)
    else:
        text = yield from reader.take_all_before(BODY_ENDS)
        yield CallArguments(text.strip() or "{}")
    reader.is_call_open = not is_whole
