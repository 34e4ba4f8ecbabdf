"""One HTTP connection: uvicorn's, with little written ahead of its reader, and our error object for what is no HTTP.

What a reader has not taken then waits as text in its generation, where it is joined, and not as a frame a token in the
buffers of this process and of the kernel: a stream that falls behind gets fewer, larger chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from anllm.config import ServerConfig
from anllm.errors import InvalidRequestError
from anllm.server.access import answer_crowded
from anllm.server.context import new_request_id
from anllm.server.errors import error_object

# What the kernel may hold that it has not put on the wire: some 60 chunks. What is on its way is not counted, so that a
# long line is still filled.
MAX_UNSENT_BYTES = 16 * 1024


CROWDED_S = 5.0  # in which a connection above max_connections must have had its answer


class HttpConnection(HttpToolsProtocol):
    """For uvicorn's `http` setting; with_limits() makes the class for given settings."""

    limits = ServerConfig()

    @classmethod
    def with_limits(cls, limits: ServerConfig) -> type[HttpConnection]:
        return type(cls.__name__, (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        # What the kernel does not take at once makes send() wait. Under TLS, asyncio takes 0 for full when it is empty.
        transport.set_write_buffer_limits(high=1 if transport.get_extra_info("ssl_object") else 0)
        if len(self.connections) > self.limits.max_connections:
            self.app = partial(answer_crowded, self.app, self.limits.max_connections)
            self.loop.call_later(CROWDED_S, transport.abort)
        connection = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with contextlib.suppress(OSError):  # a kernel that does not know it, a socket that is no TCP
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)

    def send_400_response(self, msg: str) -> None:
        """For bytes that are no request. Nothing can be answered on this connection any more: it is closed."""
        is_answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not is_answering:  # else these bytes would become part of that answer
            self.transport.write(_bad_request(msg))
        self.transport.close()


def _bad_request(message: str) -> bytes:
    request_id = new_request_id()
    content = msgspec.json.encode(error_object(InvalidRequestError(message), request_id))
    head = (
        "HTTP/1.1 400 Bad Request\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(content)}\r\n"
        f"x-request-id: {request_id}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode("ascii") + content
