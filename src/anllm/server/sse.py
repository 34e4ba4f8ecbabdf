"""Server-sent events, as OpenAI's clients want them: `data: ` + one line of ASCII JSON, comments, `[DONE]`.

No `id:` or `retry:` lines: openai-python fails on them (openai/openai-python#2722). `event:` lines only where an API
names its events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from anllm.errors import AnllmError
from anllm.server.generation import Update

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # not ": ping": Continue takes that for the end of the stream
HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no", "connection": "keep-alive"}

# ASCII, since readers that use str.splitlines() would cut a line at U+0085, U+2028 and U+2029.
to_ascii_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Chunks(Protocol):
    """An endpoint's chunks, each a whole event."""

    @property
    def keep_alive(self) -> bytes:
        """Sent while there is nothing to tell."""
        ...

    def opening(self) -> bytes:
        """Sent at admission, before there is a token."""
        ...

    def update(self, update: Update) -> bytes: ...

    def closing(self) -> bytes:
        """Sent after the last end."""
        ...

    def failure(self, error: AnllmError, request_id: str) -> bytes:
        """Sent in place of all that was to come."""
        ...


def named_event(name: str, /, **fields: object) -> bytes:
    """An event whose name stands in its JSON too."""
    return f"event: {name}\ndata: {to_ascii_json({'type': name, **fields})}\n\n".encode()


def event(payload: Mapping[str, object]) -> bytes:
    return f"data: {to_ascii_json(payload)}\n\n".encode()
