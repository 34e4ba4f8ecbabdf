"""One stream on its way to the client: from an admitted generation to its last event, in the event loop.

What is done for each token of each stream stands in few calls, since it is most of what this process does: one wake-up
a step, one rendering, one write. While the client does not take what was written, text waits in the generation, and
then goes out together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anllm.errors import AnllmError
from anllm.logs import Fields
from anllm.server.context import get_context
from anllm.server.disconnect import while_connected
from anllm.server.errors import ClientDisconnectedError, internal_error
from anllm.server.generation import Generation
from anllm.server.sse import HEADERS, Chunks

logger = logging.getLogger(__name__)


class EventStreamResponse(Response):
    """Sends the events of a generation that has been submitted. An error is told where the rest would have come.

    on_close: called exactly once, however it ends: done, broken or the client gone.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        chunks: Chunks,
        *,
        keep_alive_s: float,
        request_id: str,
        on_close: Callable[[], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._generation = generation
        self._chunks = chunks
        self._keep_alive_s = keep_alive_s
        self._request_id = request_id
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_all(send, get_context(scope).send))
        except ClientDisconnectedError:
            pass
        finally:
            self._on_close()

    async def _send_all(self, send_start: Send, send: Send) -> None:
        generation = self._generation
        await send_start({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._chunks.opening(), "more_body": True})
        silence = SilenceTimer(self._keep_alive_s, generation.wake)
        try:
            while True:
                if not generation.has_news:
                    await generation.news()
                events, is_last = self._next_events()
                if not events:  # what came is not told, or not yet
                    continue
                await send({"type": "http.response.body", "body": events, "more_body": not is_last})
                if is_last:
                    return
                silence.restart()
        finally:
            silence.cancel()

    def _next_events(self) -> tuple[bytes, bool]:
        """All that is new, and whether it is the end; without news a sign of life."""
        try:
            updates = self._generation.take()
            events = b"".join(map(self._chunks.update, updates))
            if self._generation.is_over:
                return events + self._chunks.closing(), True
            return events if updates else self._chunks.keep_alive, False
        except AnllmError as error:
            return self._chunks.failure(error, self._request_id), True
        except Exception:  # the status is sent: all that is left is to say so, and not to look like a finished stream
            logger.exception(Fields("stream failed", request_id=self._request_id))
            return self._chunks.failure(internal_error(), self._request_id), True


class SilenceTimer:
    """Calls `on_silence` whenever restart() was not called for so many seconds.

    restart() is called for each token, so it only notes the time, which the event loop's timer looks at when it fires.
    """

    def __init__(self, seconds: float, on_silence: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._on_silence = on_silence
        self._since_s = self._loop.time()
        self._handle = self._loop.call_at(self._since_s + seconds, self._look)

    def restart(self) -> None:
        self._since_s = self._loop.time()

    def cancel(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        if now_s >= self._since_s + self._seconds:
            self._since_s = now_s
            self._on_silence()
        self._handle = self._loop.call_at(self._since_s + self._seconds, self._look)
