"""Server-sent events, as OpenAI's clients want them: `data: ` + one line of ASCII JSON, comments, `[DONE]`.

No `id:`, `retry:` or `event:` lines: openai-python fails on the first two (openai/openai-python#2722).
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anllm.errors import AnllmError
from anllm.server.disconnect import while_connected
from anllm.server.errors import ClientDisconnectedError, error_object, internal_error
from anllm.server.generation import Generation, Update

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # not ": ping": Continue takes that for the end of the stream
HEADERS = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no", "connection": "keep-alive"}

# ASCII, since readers that use str.splitlines() would cut a line at U+0085, U+2028 and U+2029.
to_ascii_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Chunks(Protocol):
    """An endpoint's chunks, each a whole event."""

    def opening(self) -> bytes:
        """Sent at admission, before there is a token."""
        ...

    def update(self, update: Update) -> bytes: ...

    def closing(self) -> bytes:
        """Sent after the last end; b"" for nothing."""
        ...


class EventStreamResponse(Response):
    """Sends events as they come. Calls `on_close` exactly once, however it ends: done, broken or the client gone."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], on_close: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._events = events
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_events(send))
        except ClientDisconnectedError:
            pass
        finally:
            self._on_close()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events):
            async for events in self._events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(payload: Mapping[str, object]) -> bytes:
    return f"data: {to_ascii_json(payload)}\n\n".encode()


async def generation_events(
    generation: Generation, chunks: Chunks, keep_alive_s: float, request_id: str
) -> AsyncGenerator[bytes, None]:
    """The whole stream of a generation that has been submitted. An error becomes the last event before `[DONE]`."""
    yield chunks.opening()
    try:
        async with aclosing(generation.updates(keep_alive_s)) as batches:
            async for updates in batches:
                yield b"".join(map(chunks.update, updates)) or KEEP_ALIVE
        yield chunks.closing() + DONE
    except AnllmError as error:
        yield event(error_object(error, request_id)) + DONE
    except Exception:  # the status is sent: all that is left is to say so, and not to look like a finished stream
        logger.exception("request_id=%s failed in its stream", request_id)
        yield event(error_object(internal_error(), request_id)) + DONE
