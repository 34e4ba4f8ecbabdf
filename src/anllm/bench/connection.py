"""One connection of HTTP/1.1 that costs next to nothing: who measures must not be slower than what is measured.

An asyncio protocol over httptools, which is what uvicorn parses with. General clients take 0.1 ms and more for each
piece of an answer, which is a whole processor at the speed of one GPU; this one takes a tenth of that
(benchmarks/bench_client.py).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

import httptools

from anllm.client.address import Address

OnBody = Callable[[bytes], None]


class Connection(asyncio.Protocol):
    """Takes one request after the other. Belongs to one event loop."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._on_body: OnBody = lambda data: None
        self._answer: asyncio.Future[int] | None = None
        self._keeps_alive = True

    @classmethod
    async def open(cls, address: Address, context: ssl.SSLContext | None) -> Connection:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, address.host, address.port, ssl=context)
        return connection

    @property
    def is_usable(self) -> bool:
        return self._keeps_alive and self._transport is not None and not self._transport.is_closing()

    async def request(self, head: bytes, body: bytes, on_body: OnBody) -> int:
        """Send head and body, call on_body with each piece of the answer's body as it comes; returns its status.

        Raises ConnectionError if the connection ends before the answer does, ValueError if that is no HTTP.
        """
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._on_body = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(head + body)
        try:
            return await self._answer
        finally:
            self._answer = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- of asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._settle(ValueError(f"the server's answer is no HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._keeps_alive = False
        self._settle(ConnectionError("the server closed the connection before the answer ended"))

    # -- of httptools --------------------------------------------------------------------------------------------------

    def on_body(self, body: bytes) -> None:
        self._on_body(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self._keeps_alive = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._parser.get_status_code())

    def _settle(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def head_of(address: Address, path: str, body: bytes) -> bytes:
    """The lines before a POST's body."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"POST {address.prefix}{path} HTTP/1.1", f"Host: {host}:{address.port}"]
    lines += [f"{name}: {value}" for name, value in address.headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("latin-1")
