"""The message object, and an answer as one: whole, or as the events of a stream."""

from __future__ import annotations

import msgspec

from anllm.core.request import FinishReason
from anllm.errors import AnllmError
from anllm.parsers.pieces import Content
from anllm.server.answers import new_id, quote
from anllm.server.dialect import Dialect
from anllm.server.generation import Answer, Generation, Update, Usage
from anllm.server.messages.blocks import Block, Change, Closed, ContentBlocks, Grown, Kind, Opened
from anllm.server.messages.convert import MessagesPlan
from anllm.server.sse import named_event

_DELTAS = {  # the type of each kind's deltas, and the key of their text
    Kind.TEXT: ("text_delta", "text"),
    Kind.THINKING: ("thinking_delta", "thinking"),
    Kind.TOOL_USE: ("input_json_delta", "partial_json"),
}


class MessageAnswer:
    def __init__(self, plan: MessagesPlan, generation: Generation) -> None:
        self._plan = plan
        self._generation = generation
        self._id = new_id("msg_")

    @property
    def id(self) -> str:
        return self._id

    def whole(self, answers: list[Answer]) -> bytes:
        (answer,) = answers
        content = ContentBlocks(shows_thoughts=self._plan.shows_thoughts)
        for _ in (*content.add(answer.pieces or ([Content(answer.text)] if answer.text else ())), *content.finish()):
            pass
        return msgspec.json.encode(
            {
                **self._head(),
                "content": [block.so_far() for block in content.blocks],
                **_end(answer.finish_reason, answer.stop_string, content),
                "usage": _usage_fields(self._generation.usage),
            }
        )

    def chunks(self) -> MessageEvents:
        begun = {
            **self._head(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage_fields(self._generation.usage),
        }
        return MessageEvents(begun, self._generation, ContentBlocks(shows_thoughts=self._plan.shows_thoughts))

    def _head(self) -> dict[str, object]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._plan.request.model}


class MessageEvents:
    """message_start, the blocks one after the other, message_delta with why it ended, message_stop.

    Silence is broken by an event, since comments are no sign of life to Claude Code.
    """

    keep_alive = named_event("ping")

    def __init__(self, begun: dict[str, object], generation: Generation, content: ContentBlocks) -> None:
        """begun: the message before there is anything of it."""
        self._begun = begun
        self._generation = generation
        self._content = content
        self._end: dict[str, object] = {}
        self._growing = -1  # index of the block that the frame below is of
        self._delta_frame = ""

    def opening(self) -> bytes:
        return named_event("message_start", message=self._begun)

    def update(self, update: Update) -> bytes:
        if update.text and update.finish_reason is None and self._content.continue_text(update.text):
            return self._delta(update.text)
        pieces = [Content(update.text)] if update.text else update.pieces
        events = [self._change(change) for change in self._content.add(pieces)]
        if update.finish_reason is not None:
            events += [self._change(change) for change in self._content.finish()]
            self._end = _end(update.finish_reason, update.stop_string, self._content)
        return b"".join(events)

    def closing(self) -> bytes:
        usage = _usage_fields(self._generation.usage)
        return named_event("message_delta", delta=self._end, usage=usage) + named_event("message_stop")

    def failure(self, error: AnllmError, request_id: str) -> bytes:
        told = Dialect.ANTHROPIC.error_object(error, request_id)
        return named_event("error", error=told["error"], request_id=told["request_id"])

    def _change(self, change: Change) -> bytes:
        match change:
            case Grown():
                return self._grown(change)
            case Opened(block):
                return named_event("content_block_start", index=block.index, content_block=block.opened())
            case Closed(block):
                return self._signed(block) + named_event("content_block_stop", index=block.index)

    def _signed(self, block: Block) -> bytes:
        """Nothing is signed here, but the AI SDK gives back only those thoughts of a stream that had this event."""
        if block.kind is not Kind.THINKING:
            return b""
        return named_event("content_block_delta", index=block.index, delta={"type": "signature_delta", "signature": ""})

    def _grown(self, change: Grown) -> bytes:
        """Put together by hand, since it is most of what a stream is made of."""
        index = change.block.index
        if index != self._growing:
            kind, key = _DELTAS[change.block.kind]
            start = f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{index}'
            self._growing, self._delta_frame = index, f'{start},"delta":{{"type":"{kind}","{key}":'
        return self._delta(change.text)

    def _delta(self, text: str) -> bytes:
        """More of the block that the last one was of."""
        return f"{self._delta_frame}{quote(text)}}}}}\n\n".encode()


def _end(reason: FinishReason, stop_string: str, content: ContentBlocks) -> dict[str, object]:
    if reason is FinishReason.LENGTH:
        told = "max_tokens"
    elif content.has_calls:
        told = "tool_use"
    else:
        told = "stop_sequence" if stop_string else "end_turn"
    return {"stop_reason": told, "stop_sequence": stop_string if told == "stop_sequence" else None}


def _usage_fields(usage: Usage) -> dict[str, object]:
    """Tokens that were found in the prefix cache are counted by themselves."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
