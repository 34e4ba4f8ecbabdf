"""The events of a streamed response: each named by its type, and numbered without gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anllm.core.request import FinishReason
from anllm.errors import AnllmError
from anllm.parsers.pieces import Content, Piece
from anllm.server.answers import quote
from anllm.server.dialect import Dialect
from anllm.server.generation import Update
from anllm.server.responses.output import Change, Grown, Kind, Opened, OutputItem
from anllm.server.sse import DONE, KEEP_ALIVE, named_event, to_ascii_json

if TYPE_CHECKING:
    from anllm.server.responses.response import ResponseAnswer


class ResponseEvents:
    """Opens with response.created and response.in_progress; ends with response.completed, incomplete or failed."""

    keep_alive = KEEP_ALIVE

    def __init__(self, answer: ResponseAnswer) -> None:
        self._answer = answer
        self._num_events = 0
        self._finish_reason: FinishReason | None = None
        self._growing = -1  # index of the item that the frame below is of
        self._delta_frame = ("", "")

    def opening(self) -> bytes:
        begun = self._answer.begun()
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def update(self, update: Update) -> bytes:
        pieces: Sequence[Piece] = [Content(update.text)] if update.text else update.pieces
        events = [self._change(change) for change in self._answer.output.add(pieces, update.tokens)]
        if update.finish_reason is not None:
            self._finish_reason = update.finish_reason
            events += [self._change(change) for change in self._answer.output.finish(update.finish_reason)]
        return b"".join(events)

    def closing(self) -> bytes:
        assert self._finish_reason is not None
        response = self._answer.finished(self._finish_reason)
        self._answer.kept(response)  # before the client knows that it may go on from it
        return self._event(f"response.{response['status']}", response=response) + DONE

    def failure(self, error: AnllmError, request_id: str) -> bytes:
        """An error in both shapes that readers know, and the response as far as it came."""
        told: Any = Dialect.OPENAI.error_object(error, request_id)["error"]
        flat = {"code": told["code"] or told["type"], "message": told["message"], "param": told["param"]}
        nested = {"error": {"type": told["type"], **flat}}
        return (
            self._event("error", **flat, **nested)
            + self._event("response.failed", response=self._answer.failed(told))
            + DONE
        )

    # -- changes of items ----------------------------------------------------------------------------------------------

    def _change(self, change: Change) -> bytes:
        if isinstance(change, Grown):
            return self._grown(change)
        return self._opened(change.item) if isinstance(change, Opened) else self._closed(change.item)

    def _opened(self, item: OutputItem) -> bytes:
        added = self._event("response.output_item.added", output_index=item.index, item=item.opened())
        match item.kind:
            case Kind.MESSAGE:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                return added + self._part("response.content_part.added", item, part)
            case Kind.REASONING if item.is_summary:
                part = {"type": "summary_text", "text": ""}
                return added + self._part("response.reasoning_summary_part.added", item, part)
            case Kind.REASONING:
                return added + self._part("response.content_part.added", item, {"type": "reasoning_text", "text": ""})
            case Kind.FUNCTION_CALL | Kind.CUSTOM_CALL:
                return added

    def _grown(self, change: Grown) -> bytes:
        """Put together by hand, since it is most of what a stream is made of. What a custom tool is called with is
        known at its end, when the JSON around it is whole."""
        item = change.item
        if item.kind is Kind.CUSTOM_CALL:
            return b""
        if item.index != self._growing:
            self._growing, self._delta_frame = item.index, _delta_frame(item)
        start, middle = self._delta_frame
        number, self._num_events = self._num_events, self._num_events + 1
        logprobs = ""
        if item.kind is Kind.MESSAGE:
            logprobs = f',"logprobs":{to_ascii_json(change.logprobs)}' if change.logprobs else ',"logprobs":[]'
        return f"{start}{number}{middle}{quote(change.text)}{logprobs}}}\n\n".encode()

    def _closed(self, item: OutputItem) -> bytes:
        place = {"item_id": item.id, "output_index": item.index}
        match item.kind:
            case Kind.MESSAGE:
                done = self._event(
                    "response.output_text.done", **place, content_index=0, text=item.text, logprobs=item.logprobs
                ) + self._part("response.content_part.done", item, item.text_part())
            case Kind.REASONING if item.is_summary:
                done = self._event("response.reasoning_summary_text.done", **place, summary_index=0, text=item.text)
                part = {"type": "summary_text", "text": item.text}
                done += self._part("response.reasoning_summary_part.done", item, part)
            case Kind.REASONING:
                done = self._event("response.reasoning_text.done", **place, content_index=0, text=item.text)
                part = {"type": "reasoning_text", "text": item.text}
                done += self._part("response.content_part.done", item, part)
            case Kind.FUNCTION_CALL:
                done = self._event(
                    "response.function_call_arguments.done", **place, name=item.fields["name"], arguments=item.text
                )
            case Kind.CUSTOM_CALL:
                given = item.custom_input
                done = self._event("response.custom_tool_call_input.delta", **place, delta=given)
                done += self._event("response.custom_tool_call_input.done", **place, input=given)
        return done + self._event("response.output_item.done", output_index=item.index, item=item.so_far())

    # -- frames --------------------------------------------------------------------------------------------------------

    def _part(self, kind: str, item: OutputItem, part: Mapping[str, object]) -> bytes:
        index = "summary_index" if item.kind is Kind.REASONING and item.is_summary else "content_index"
        return self._event(kind, item_id=item.id, output_index=item.index, **{index: 0}, part=part)

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(kind, sequence_number=number, **fields)


def _delta_frame(item: OutputItem) -> tuple[str, str]:
    """What stands before the number of a delta's event, and between that and its text."""
    match item.kind:
        case Kind.MESSAGE:
            kind, part = "response.output_text.delta", ',"content_index":0'
        case Kind.REASONING if item.is_summary:
            kind, part = "response.reasoning_summary_text.delta", ',"summary_index":0'
        case Kind.REASONING:
            kind, part = "response.reasoning_text.delta", ',"content_index":0'
        case _:
            kind, part = "response.function_call_arguments.delta", ""
    start = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'
    return start, f',"item_id":"{item.id}","output_index":{item.index}{part},"delta":'
