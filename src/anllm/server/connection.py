"""One HTTP connection: uvicorn's, with little written ahead of its reader, bounds for what comes before a body, and our
error object for what never gets to the app.

What a reader has not taken then waits as text in its generation, where it is joined, and not as a frame a token in the
buffers of this process and of the kernel: a stream that falls behind gets fewer, larger chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import socket
from functools import partial
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from anllm.errors import AnllmError, InvalidRequestError
from anllm.server.access import HEALTH_PATHS
from anllm.server.context import new_request_id
from anllm.server.errors import (
    HeadersTooLargeError,
    TooManyConnectionsError,
    UrlTooLongError,
    error_object,
    error_response,
)

# What the kernel may hold that it has not put on the wire: some 60 chunks. What is on its way is not counted, so that a
# long line is still filled.
MAX_UNSENT_BYTES = 16 * 1024

# As other servers have it: nginx takes URLs of 8 kB, and 64 kB of headers is what uvicorn's other parser takes.
MAX_URL_BYTES = 8 * 1024
MAX_HEAD_BYTES = 64 * 1024

CROWDED_S = 5.0  # in which a connection above max_connections must have had its answer


class HttpConnection(HttpToolsProtocol):
    """For uvicorn's `http` setting. max_connections: see SecurityConfig."""

    def __init__(self, *arguments: Any, max_connections: int | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._max_connections = max_connections
        self._head_bytes = 0  # of the request that is being read: its URL, headers and trailers
        self._unseen_bytes = 0  # since the parser last told us of something
        self._refusal: AnllmError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        # What the kernel does not take at once makes send() wait. Under TLS, asyncio takes 0 for full when it is empty.
        transport.set_write_buffer_limits(high=1 if transport.get_extra_info("ssl_object") else 0)
        connection = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with contextlib.suppress(OSError):  # a kernel that does not know it, a socket that is no TCP
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            self.app = partial(_answer_crowded, self.app, self._max_connections)
            self.loop.call_later(CROWDED_S, transport.abort)

    # -- what comes before a body --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unseen_bytes += len(data)
        super().data_received(data)
        # Half a header or trailer is kept by the parser, which tells of whole ones only.
        if self._unseen_bytes > MAX_HEAD_BYTES and self.parser is not None and not self.transport.is_closing():
            self._refusal = _headers_too_large()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._unseen_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        if self._head_bytes > MAX_URL_BYTES:
            self._refuse(UrlTooLongError(f"The URL must be at most {MAX_URL_BYTES} bytes long."))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)  # with colon, space and the end of the line
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_headers_too_large())
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unseen_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unseen_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unseen_bytes = 0
        super().on_message_complete()

    def _count(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        self._unseen_bytes = 0

    def _refuse(self, error: AnllmError) -> None:
        """Ends the parsing, which ends in send_400_response."""
        self._refusal = error
        raise ValueError(error.message)

    def send_400_response(self, msg: str) -> None:
        """For bytes that are no request. Nothing can be answered on this connection any more: it is closed."""
        is_answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not is_answering:  # else these bytes would become part of that answer
            self.transport.write(_refusal(self._refusal or InvalidRequestError(msg)))
        self.transport.close()


def _headers_too_large() -> HeadersTooLargeError:
    return HeadersTooLargeError(f"URL and headers together must be at most {MAX_HEAD_BYTES} bytes long.")


def _refusal(error: AnllmError) -> bytes:
    request_id = new_request_id()
    content = msgspec.json.encode(error_object(error, request_id))
    head = (
        f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(content)}\r\n"
        f"x-request-id: {request_id}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode("ascii") + content


async def _answer_crowded(app: ASGIApp, max_connections: int, scope: Scope, receive: Receive, send: Send) -> None:
    """On a connection too many: supervisors are answered, others sent away."""
    if scope["path"] in HEALTH_PATHS:
        await app(scope, receive, send)
        return
    error = TooManyConnectionsError(
        f"The server has {max_connections} connections open, which is all that it takes. Please try again later."
    )
    request_id = new_request_id()
    await error_response(error, request_id, {"connection": "close", "x-request-id": request_id})(scope, receive, send)
