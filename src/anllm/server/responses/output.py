"""The items of an answer while they come: opened, grown and closed one after the other, in the order of the pieces.

Both the stream and the whole answer are made of this. Knows nothing of JSON text or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from anllm.core.request import FinishReason
from anllm.parsers.pieces import CallArguments, CallBegun, Content, Piece, Reasoning
from anllm.server.answers import new_call_id, new_id, token_logprob
from anllm.server.responses.store import Item
from anllm.server.responses.thoughts import encrypted
from anllm.server.responses.tools import OfferedTools
from anllm.text.alignment import TextToken

COMPLETED, IN_PROGRESS, INCOMPLETE = "completed", "in_progress", "incomplete"


class Kind(Enum):
    MESSAGE = "message"
    REASONING = "reasoning"
    FUNCTION_CALL = "function_call"
    CUSTOM_CALL = "custom_tool_call"


@dataclass(slots=True)
class OutputItem:
    """One item. text: of the message or thought, or the arguments of the call, in JSON for a custom tool too.

    fields: what is known of it from the beginning.
    is_summary: a thought is told as a summary. is_encrypted: it is also told in the form that clients give back.
    """

    kind: Kind
    index: int
    id: str
    fields: dict[str, object]
    is_summary: bool = False
    is_encrypted: bool = False
    status: str = IN_PROGRESS
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, object]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def custom_input(self) -> str:
        """The text that a custom tool is called with: out of its arguments, or what the model wrote in their place."""
        try:
            arguments = msgspec.json.decode(self.text)  # which refuses half surrogates, that no client could read
        except (msgspec.DecodeError, RecursionError):
            return self.text
        given = arguments.get("input") if isinstance(arguments, dict) else None
        return given if isinstance(given, str) else self.text

    def opened(self) -> Item:
        """As it is told of when it begins: without what comes."""
        empty: dict[Kind, Item] = {
            Kind.MESSAGE: {"content": []},
            Kind.REASONING: {"summary": [], "content": [], "encrypted_content": None},
            Kind.FUNCTION_CALL: {"arguments": ""},
            Kind.CUSTOM_CALL: {"input": ""},
        }
        return {**self._head(), **empty[self.kind]}

    def so_far(self) -> Item:
        """With all that came."""
        match self.kind:
            case Kind.MESSAGE:
                return {**self._head(), "content": [self.text_part()]}
            case Kind.REASONING:
                return {**self._head(), **self._thought()}
            case Kind.FUNCTION_CALL:
                return {**self._head(), "arguments": self.text}
            case Kind.CUSTOM_CALL:
                return {**self._head(), "input": self.custom_input}

    def text_part(self) -> Item:
        """Of a message."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def _thought(self) -> Item:
        text = self.text
        return {
            "summary": [{"type": "summary_text", "text": text}] if self.is_summary else [],
            "content": [] if self.is_summary else [{"type": "reasoning_text", "text": text}],
            "encrypted_content": encrypted(text) if self.is_encrypted else None,
        }

    def _head(self) -> Item:
        return {"id": self.id, "type": self.kind.value, "status": self.status, **self.fields}


@dataclass(frozen=True, slots=True)
class Opened:
    item: OutputItem


@dataclass(slots=True)  # freezing would cost as much as all the rest, for each token
class Grown:
    """text: what is new. logprobs: of a message, entries of the tokens that came with it."""

    item: OutputItem
    text: str
    logprobs: Sequence[dict[str, object]] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    item: OutputItem


Change = Opened | Grown | Closed


class Output:
    """All items of one answer.

    tools: whose calls are told in the client's names. has_summary: thoughts are told as summaries. is_encrypted: and in
    the form that clients give back.
    """

    def __init__(self, tools: OfferedTools, *, has_summary: bool = False, is_encrypted: bool = False) -> None:
        self.items: list[OutputItem] = []
        self._tools = tools
        self._has_summary = has_summary
        self._is_encrypted = is_encrypted
        self._open: OutputItem | None = None
        self._waiting: list[dict[str, object]] = []  # log probabilities that no text has taken

    def add(self, pieces: Sequence[Piece], tokens: Sequence[TextToken] = ()) -> Iterator[Change]:
        """tokens: of the content among the pieces, if they were asked for."""
        if tokens:
            self._waiting += map(token_logprob, tokens)
        for piece in pieces:
            match piece:
                case Content():
                    if self._open is None or self._open.kind is not Kind.MESSAGE:
                        yield from self._begin_text(Kind.MESSAGE)
                    logprobs, self._waiting = self._waiting, []
                    yield self._grow(piece.text, logprobs)
                case Reasoning():
                    if self._open is None or self._open.kind is not Kind.REASONING:
                        yield from self._begin_text(Kind.REASONING)
                    yield self._grow(piece.text)
                case CallBegun():
                    yield from self._close(COMPLETED)
                    yield self._begin_call(piece.name)
                case CallArguments():
                    yield self._grow(piece.text)

    def finish(self, reason: FinishReason) -> Iterator[Change]:
        """What was open is whole, or cut by a limit. An answer with nothing to read or to do is an empty message."""
        is_cut = reason is FinishReason.LENGTH
        has_answer = any(item.kind is not Kind.REASONING for item in self.items)
        if not has_answer and not (is_cut and self.items):
            yield from self._begin_text(Kind.MESSAGE)
        if self._waiting and self._open is not None and self._open.kind is Kind.MESSAGE:
            yield self._grow("", self._waiting)
        yield from self._close(INCOMPLETE if is_cut else COMPLETED)

    def fail(self) -> None:
        """What was open stays as it is."""
        if self._open is not None:
            self._open.status = INCOMPLETE

    def _begin_text(self, kind: Kind) -> Iterator[Change]:
        yield from self._close(COMPLETED)
        prefix = {Kind.MESSAGE: "msg_", Kind.REASONING: "rs_"}[kind]
        fields: dict[str, object] = {"role": "assistant"} if kind is Kind.MESSAGE else {}
        yield self._begin(kind, prefix, fields)

    def _begin_call(self, name: str) -> Change:
        tool = self._tools.called(name)
        fields: dict[str, object] = {"call_id": new_call_id(), "name": name if tool is None else tool.name}
        if tool is not None and tool.namespace is not None:
            fields["namespace"] = tool.namespace
        if tool is not None and tool.is_custom:
            return self._begin(Kind.CUSTOM_CALL, "ctc_", fields)
        return self._begin(Kind.FUNCTION_CALL, "fc_", fields)

    def _begin(self, kind: Kind, prefix: str, fields: dict[str, object]) -> Change:
        self._open = OutputItem(
            kind,
            len(self.items),
            new_id(prefix),
            fields,
            is_summary=self._has_summary,
            is_encrypted=self._is_encrypted,
        )
        self.items.append(self._open)
        return Opened(self._open)

    def _grow(self, text: str, logprobs: Sequence[dict[str, object]] = ()) -> Change:
        assert self._open is not None
        self._open.pieces.append(text)
        self._open.logprobs += logprobs
        return Grown(self._open, text, logprobs)

    def _close(self, status: str) -> Iterator[Change]:
        if self._open is not None:
            self._open.status = status
            yield Closed(self._open)
            self._open = None
