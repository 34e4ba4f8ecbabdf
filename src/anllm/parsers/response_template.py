"""Answers read by the checkpoint's own `response_template` (tokenizer_config.json), with transformers' parser.

The template says which regions of an answer are content, reasoning and calls. A call goes out when its region ends,
whole. transformers' parser keeps the whole answer, and raises at what it can't read: all that follows is content then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, cast

from anllm.parsers.pieces import CallArguments, Content, Piece, Reasoning
from anllm.parsers.reader import Markers, Reader, Steps, Trimmed

logger = logging.getLogger(__name__)

REASONING_FIELDS = frozenset({"reasoning_content", "reasoning", "thinking", "thinking_content"})
CALL_FIELD = "tool_calls"
NO_MARKERS = Markers(())
Event = Mapping[str, object]


class ResponseParser(Protocol):
    """transformers' parser, as far as it is used here."""

    initial_events: list[Event]

    def feed(self, text: str) -> list[Event]: ...
    def finalize(self) -> tuple[object, list[Event]]: ...


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
        self._parser = make_parser(template, prompt, tools)
        self._takes_calls = takes_calls
        self._content = Trimmed()
        self._thoughts = Trimmed(strips_start=True)
        self._region: list[str] = []

    def read(self, reader: Reader) -> Steps[None]:
        for event in self._parser.initial_events:  # what the prompt wrote is no part of the answer
            reader.is_reasoning = event["type"] != "region_close" and event["field"] in REASONING_FIELDS
        has_failed = False
        while text := (yield from reader.take_before(NO_MARKERS)):
            pieces, has_failed = self._feed(reader, text, has_failed)
            yield from pieces
        if not has_failed:
            pieces, _ = self._finish(reader)
            yield from pieces
        if not reader.has_called:
            yield Content(self._content.flush())

    def _feed(self, reader: Reader, text: str, has_failed: bool) -> tuple[list[Piece], bool]:
        if has_failed:
            return self._as_content(reader, text), True
        return self._pieces(reader, lambda: self._parser.feed(text), text)

    def _finish(self, reader: Reader) -> tuple[list[Piece], bool]:
        return self._pieces(reader, lambda: self._parser.finalize()[1], "")

    def _pieces(self, reader: Reader, step: Callable[[], list[Event]], text: str) -> tuple[list[Piece], bool]:
        """The pieces of the events that `step` gives, and whether the parser failed."""
        try:
            return [piece for event in step() for piece in self._of_event(reader, event)], False
        except Exception:  # noqa: BLE001 - the model's text and its maker's template: whatever it raises, the answer goes on
            logger.warning("The response_template of the model can't read an answer; the rest is content.")
            reader.is_reasoning = False
            return self._as_content(reader, "".join(self._region) + text), True

    def _as_content(self, reader: Reader, text: str) -> list[Piece]:
        return [] if reader.has_called else [Content(self._content.add(text))]

    def _of_event(self, reader: Reader, event: Event) -> Iterator[Piece]:
        name, kind = event["field"], event["type"]
        is_reasoning = name in REASONING_FIELDS
        if kind == "region_open":
            reader.is_reasoning = is_reasoning
            self._region = []
        elif kind == "region_chunk":
            text = str(event["text"])
            if is_reasoning:
                yield Reasoning(self._thoughts.add(text))
            elif name != CALL_FIELD or not self._takes_calls:
                yield from self._as_content(reader, text)
            else:
                self._region.append(text)
        else:
            yield from self._closed(reader, is_reasoning, name == CALL_FIELD and self._takes_calls, event.get("value"))

    def _closed(self, reader: Reader, is_reasoning: bool, is_call: bool, value: object) -> Iterator[Piece]:
        self._region = []
        if is_reasoning:
            reader.is_reasoning = False
            self._content = Trimmed(strips_start=True)
        if is_call:
            for call in value if isinstance(value, list) else [value]:
                yield from _call_pieces(reader, call)
            reader.is_call_open = False


def _call_pieces(reader: Reader, call: object) -> Iterator[Piece]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(function, Mapping):
        raise ValueError("a call without a name")
    arguments = function.get("arguments")
    yield reader.begin_call(name)
    if isinstance(arguments, str):
        yield CallArguments(arguments or "{}")
    else:
        yield CallArguments(json.dumps(arguments or {}, ensure_ascii=False))
