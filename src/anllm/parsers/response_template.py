"""Answers read by the checkpoint's own `response_template` (tokenizer_config.json), with transformers' parser.

The template says which regions of an answer are content, reasoning and calls. A call goes out when its region ends,
whole. transformers' parser keeps the whole answer, and raises at what it can't read: all that follows is content then.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

from anllm.parsers.json_text import encodable, written_json
from anllm.parsers.pieces import CallArguments, Content, Piece, Reasoning
from anllm.parsers.reader import Markers, Reader, Steps, Trimmed

logger = logging.getLogger(__name__)

REASONING_FIELDS = frozenset({"reasoning_content", "reasoning", "thinking", "thinking_content"})
CALL_FIELD = "tool_calls"
BOUNDS = ("open", "close", "open_pattern", "close_pattern")
TOKEN = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
NO_MARKERS = Markers(())
# What ends with such a character may be markup. When the parser raises, the events of the text given last are lost, so
# it gets the text in parts that hold no more than one tag.
PARTS = re.compile(r"(?<=[>\]}|])")
Event = Mapping[str, object]


class ResponseParser(Protocol):
    """transformers' parser, as far as it is used here."""

    initial_events: list[Event]

    def feed(self, text: str) -> list[Event]: ...
    def finalize(self) -> tuple[object, list[Event]]: ...


def template_markers(template: Mapping[str, object]) -> frozenset[str]:
    """What may be a special token among the texts and patterns by which a template tells its regions apart."""
    fields = template.get("fields")
    regions = [field for field in fields.values() if isinstance(field, Mapping)] if isinstance(fields, Mapping) else []
    values = [region[key] for region in regions for key in BOUNDS if key in region]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    plain = [str(text).replace("\\", "") for text in texts]
    return frozenset(plain) | {found for text in plain for found in TOKEN.findall(text)}


def make_parser(template: Mapping[str, object], prompt: str, tools: Sequence[Mapping[str, object]]) -> ResponseParser:
    from transformers.utils.chat_parsing import ResponseParser as Parser  # takes over a second to import

    make = cast("Callable[..., ResponseParser]", Parser)
    return make(dict(template), prefix=prompt, tools=[dict(tool) for tool in tools])


def check_template(template: Mapping[str, object]) -> None:
    """Raises what transformers raises at a template that it can't use."""
    make_parser(template, "", ())


class TemplateReader:
    """Reads one answer."""

    def __init__(
        self,
        template: Mapping[str, object],
        prompt: str,
        tools: Sequence[Mapping[str, object]],
        *,
        takes_calls: bool,
    ) -> None:
        self._takes_calls = takes_calls
        self._content = Trimmed()
        self._thoughts = Trimmed(strips_start=True)
        self._unread: list[str] = []  # given to the parser, and not out as a piece
        self._has_failed = False
        self._make_parser = partial(make_parser, template, prompt, tools)

    def read(self, reader: Reader) -> Steps[None]:
        self._begin(reader)
        while text := (yield from reader.take_before(NO_MARKERS)):
            for part in PARTS.split(text):
                yield from self._feed(reader, part)
        if not self._has_failed:
            yield from self._pieces(reader, self._finalize)
        if not reader.has_called:
            yield Content(self._content.flush())

    def _begin(self, reader: Reader) -> None:
        """Makes the parser, which reads what the prompt has begun."""
        try:
            self._parser = self._make_parser()
        except Exception:  # noqa: BLE001 - as in _pieces
            logger.warning("The response_template of the model can't read a prompt; the answer is content.")
            self._has_failed = True
            return
        for event in self._parser.initial_events:
            reader.is_reasoning = event["type"] != "region_close" and event["field"] in REASONING_FIELDS

    def _finalize(self) -> list[Event]:
        return self._parser.finalize()[1]

    def _feed(self, reader: Reader, text: str) -> list[Piece]:
        if self._has_failed:
            return self._as_content(reader, text)
        self._unread.append(text)
        return self._pieces(reader, lambda: self._parser.feed(text))

    def _pieces(self, reader: Reader, step: Callable[[], list[Event]]) -> list[Piece]:
        """The pieces of the events that `step` gives."""
        pieces: list[Piece] = []
        try:
            for event in step():
                pieces.extend(self._of_event(reader, event))
        except Exception:  # noqa: BLE001 - the model's text and its maker's template: whatever it raises, the answer goes on
            logger.warning("The response_template of the model can't read an answer; the rest is content.")
            self._has_failed = True
            reader.is_reasoning = False
            pieces.extend(self._as_content(reader, "".join(self._unread)))
        return pieces

    def _as_content(self, reader: Reader, text: str) -> list[Piece]:
        return [] if reader.has_called else [Content(self._content.add(text))]

    def _of_event(self, reader: Reader, event: Event) -> list[Piece]:
        name, kind = event["field"], event["type"]
        is_reasoning, is_call = name in REASONING_FIELDS, name == CALL_FIELD and self._takes_calls
        if kind == "region_open":
            reader.is_reasoning = is_reasoning
        elif kind == "region_close":
            return self._closed(reader, is_reasoning, is_call, event.get("value"))
        elif not is_call:
            text = str(event["text"])
            self._unread = ["".join(self._unread).partition(text)[2]]
            return [Reasoning(self._thoughts.add(text))] if is_reasoning else self._as_content(reader, text)
        return []

    def _closed(self, reader: Reader, is_reasoning: bool, is_call: bool, value: object) -> list[Piece]:
        if is_reasoning:
            reader.is_reasoning = False
            self._content = Trimmed(strips_start=True)
        if not is_call:
            return []
        calls = [_call(call) for call in (value if isinstance(value, list) else [value])]
        self._unread = []
        pieces: list[Piece] = []
        for name, arguments in calls:
            pieces += [reader.begin_call(name), CallArguments(arguments)]
        reader.is_call_open = False
        return pieces


def _call(call: object) -> tuple[str, str]:
    """Name and arguments. Raises ValueError for what is no call."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(function, Mapping):
        raise ValueError("a call without a name")
    arguments = function.get("arguments")
    text = encodable(arguments) if isinstance(arguments, str) else written_json(arguments or {})
    return encodable(name), text or "{}"
