"""One HTTP connection: uvicorn's, with little written ahead of its reader.

What a reader has not taken then waits as text in its generation, where it is joined, and not as a frame a token in the
buffers of this process and of the kernel: a stream that falls behind gets fewer, larger chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# What the kernel may hold that it has not put on the wire: some 60 chunks. What is on its way is not counted, so that a
# long line is still filled.
MAX_UNSENT_BYTES = 16 * 1024


class HttpConnection(HttpToolsProtocol):
    """For uvicorn's `http` setting."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # what the kernel does not take at once makes send() wait
        connection = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with contextlib.suppress(OSError):  # a kernel that does not know it, a socket that is no TCP
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
