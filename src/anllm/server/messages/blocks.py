"""The content blocks of an answer while they come: opened, grown and closed one after the other.

Both the stream and the whole answer are made of this. Knows nothing of JSON text or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec
import pydantic_core

from anllm.parsers.pieces import CallArguments, CallBegun, Content, Piece, Reasoning
from anllm.server.answers import new_id


class Kind(Enum):
    TEXT = "text"
    THINKING = "thinking"
    TOOL_USE = "tool_use"


@dataclass(slots=True)
class Block:
    """pieces: of the text or thought, or of the JSON of what a tool is called with. name: of the tool."""

    kind: Kind
    index: int
    name: str = ""
    id: str = ""
    pieces: list[str] = field(default_factory=list)

    def opened(self) -> dict[str, object]:
        """As it is told of when it begins: without what comes."""
        return self._fields("", {})

    def so_far(self) -> dict[str, object]:
        """With all that came."""
        text = "".join(self.pieces)
        return self._fields(text, _input_of(text) if self.kind is Kind.TOOL_USE else {})

    def _fields(self, text: str, given: dict[str, object]) -> dict[str, object]:
        match self.kind:
            case Kind.TEXT:
                return {"type": "text", "text": text}
            case Kind.THINKING:
                return {"type": "thinking", "thinking": text, "signature": ""}
            case Kind.TOOL_USE:
                return {"type": "tool_use", "id": self.id, "name": self.name, "input": given}


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(slots=True)  # freezing would cost as much as all the rest, for each token
class Grown:
    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    block: Block


Change = Opened | Grown | Closed


class ContentBlocks:
    """All blocks of one answer. shows_thoughts: what the model thought becomes a block too."""

    def __init__(self, *, shows_thoughts: bool) -> None:
        self.blocks: list[Block] = []
        self._shows_thoughts = shows_thoughts
        self._open: Block | None = None

    @property
    def has_calls(self) -> bool:
        return any(block.kind is Kind.TOOL_USE for block in self.blocks)

    def add(self, pieces: Sequence[Piece]) -> Iterator[Change]:
        for piece in pieces:
            match piece:
                case Content():
                    yield from self._grow(Kind.TEXT, piece.text)
                case Reasoning():
                    if self._shows_thoughts:
                        yield from self._grow(Kind.THINKING, piece.text)
                case CallBegun():
                    yield from self._close()
                    yield self._begin(Kind.TOOL_USE, piece.name, new_id("toolu_"))
                case CallArguments():
                    yield from self._grow(Kind.TOOL_USE, piece.text)

    def continue_text(self, text: str) -> bool:
        """Adds to a text that has begun; False if none has. For streams of nothing but text: `add` takes three times as
        long."""
        if self._open is None or self._open.kind is not Kind.TEXT:
            return False
        self._open.pieces.append(text)
        return True

    def finish(self) -> Iterator[Change]:
        """An answer with nothing to read or to do is an empty text, which clients can take for one."""
        if all(block.kind is Kind.THINKING for block in self.blocks):
            yield from self._close()
            yield self._begin(Kind.TEXT)
        yield from self._close()

    def _grow(self, kind: Kind, text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind is not kind:
            yield from self._close()
            yield self._begin(kind)
        assert self._open is not None
        self._open.pieces.append(text)
        yield Grown(self._open, text)

    def _begin(self, kind: Kind, name: str = "", block_id: str = "") -> Change:
        self._open = Block(kind, len(self.blocks), name, block_id)
        self.blocks.append(self._open)
        return Opened(self._open)

    def _close(self) -> Iterator[Change]:
        if self._open is not None:
            yield Closed(self._open)
            self._open = None


def _input_of(text: str) -> dict[str, object]:
    """What a tool is called with, which has to be an object: of JSON that was cut, what came; of what is no object, its
    text under a name that the tool will refuse."""
    try:
        given = msgspec.json.decode(text or "{}")  # which refuses half surrogates, that no client could read
    except (msgspec.DecodeError, RecursionError):
        try:
            given = pydantic_core.from_json(text, allow_partial="trailing-strings")
        except ValueError:
            given = None
    return given if isinstance(given, dict) else {"arguments": text}
