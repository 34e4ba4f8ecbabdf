"""One streamed answer, read as it comes: when its first piece came, when each further one, and what it says it used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    text: str | None = None

    @property
    def has_tokens(self) -> bool:
        d = self.delta
        return bool(self.text or (d and (d.content or d.reasoning_content or d.reasoning or d.tool_calls)))


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


_decoder = msgspec.json.Decoder(Chunk)


@dataclass(slots=True)
class Record:
    """One request. Times in seconds of time.perf_counter(), which all processes of a machine share.

    gaps_s: between pieces that have tokens. error: "" if all went well. num_tokens: of the answer, by its usage.
    """

    sent_s: float
    first_s: float | None = None
    last_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    error: str = ""


class Reader:
    """Feeds a Record from the bytes of a stream of events."""

    def __init__(self, record: Record, now: Callable[[], float], on_piece: Callable[[], None]) -> None:
        """on_piece: called for each piece that has tokens."""
        self._record = record
        self._now = now
        self._on_piece = on_piece
        self._tail = b""
        self.is_done = False

    def feed(self, data: bytes) -> None:
        """data: any part of the body, as it came."""
        now = self._now()
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def rest(self) -> bytes:
        """What came behind the last line; all of a body that is no stream."""
        return self._tail

    def _event(self, data: bytes, now: float) -> None:
        record = self._record
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = _decoder.decode(data)
        except msgspec.DecodeError as error:
            record.error = f"an event is not as OpenAI's: {error}"
            return
        if chunk.error:
            record.error = bytes(chunk.error).decode(errors="replace")[:200]
        if chunk.usage is not None:
            record.num_prompt_tokens = chunk.usage.prompt_tokens
            record.num_tokens = chunk.usage.completion_tokens
        if any(choice.has_tokens for choice in chunk.choices):
            if record.last_s is None:
                record.first_s = now
            else:
                record.gaps_s.append(now - record.last_s)
            record.last_s = now
            self._on_piece()
