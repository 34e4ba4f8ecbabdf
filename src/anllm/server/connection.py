"""One HTTP connection: uvicorn's, with limits on what it may cost, and our error object for what is no HTTP.

A connection is always waited for by a clock: for the head of a request, for the rest of a body that nobody reads, for
the next request, and for its reader to take something. (A body that is read has its clock in body.py, an answer that is
computed needs none.) What comes is bounded too: the head of a request, all that stands between two pieces of a body,
and requests sent ahead of their turn.

Little is written ahead of the reader. What it has not taken waits as text in its generation, where it is joined, and
not as a frame a token in the buffers of this process and of the kernel: a stream that falls behind gets fewer, larger
chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from http import HTTPStatus

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from anllm.config import ServerConfig
from anllm.errors import AnllmError, InvalidRequestError
from anllm.server.access import answer_crowded
from anllm.server.context import new_request_id
from anllm.server.dialect import Dialect
from anllm.server.errors import HeadTimeoutError, HeadTooLargeError

logger = logging.getLogger(__name__)

# What the kernel may hold that it has not put on the wire: some 60 chunks. What is on its way is not counted, so that a
# long line is still filled.
MAX_UNSENT_BYTES = 16 * 1024

# Of one request's head, and of what stands between two pieces of its body: sizes of chunks, trailers. As many fields as
# vLLM takes; proxies send heads of 8 to 32 kB at most.
MAX_HEAD_BYTES = 64 * 1024
MAX_NUM_FIELDS = 256

MAX_NUM_PIPELINED = 32  # requests on one connection that wait for the answer before them
CROWDED_S = 5.0  # in which a connection above max_connections must have had its answer
LINGER_S = 2.0  # for a client that still sends to see its refusal: closing at once would be a reset, which discards it


class _Next(Enum):
    """What has to come from the client next."""

    HEAD = auto()
    BODY = auto()
    NOTHING = auto()  # between requests


class HttpConnection(HttpToolsProtocol):
    """For uvicorn's `http` setting; with_limits() makes the class for given settings."""

    limits = ServerConfig()

    @classmethod
    def with_limits(cls, limits: ServerConfig) -> type[HttpConnection]:
        return type(cls.__name__, (cls,), {"limits": limits})

    # -- the connection ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._next = _Next.HEAD
        self._running: RequestResponseCycle | None = None  # what is answered now; `cycle` is the last that came
        self._is_deaf = False  # nothing that comes is looked at any more
        self._num_waiting_bytes = 0  # came since the parser last made something of it, but for the rest of that read
        self._num_head_bytes = 0
        self._num_fields = 0
        self._write_clock: asyncio.TimerHandle | None = None
        self._wait(self.limits.head_timeout_s, self._on_head_timeout)
        # What the kernel does not take at once makes send() wait. Under TLS, asyncio takes 0 for full when it is empty.
        transport.set_write_buffer_limits(high=1 if transport.get_extra_info("ssl_object") else 0)
        if len(self.connections) > self.limits.max_connections:
            self.app = partial(answer_crowded, self.app, self.limits.max_connections)
            self.loop.call_later(CROWDED_S, transport.abort)
        connection = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with contextlib.suppress(OSError):  # a kernel that does not know it, a socket that is no TCP
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it where the connection was reset
        self._stop_write_clock()
        if self._running is not None:  # uvicorn tells the last request alone, which may be one behind it
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._next is _Next.NOTHING and not self._has_open_request:
            self._await_head()
        self._num_waiting_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(_refusal_of(error))
        else:
            if self._num_waiting_bytes > MAX_HEAD_BYTES:
                self._refuse(_too_large())

    # -- what the parser finds -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_head_bytes = self._num_fields = 0
        if self._next is not _Next.HEAD:
            self._await_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._num_head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_fields += 1
        self._num_head_bytes += len(name) + len(value) + len(b": \r\n")
        if self._next is _Next.HEAD:  # else a trailer, which must not become part of a head that was looked at
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            return  # data_received() goes on
        is_first = not self._has_open_request
        super().on_headers_complete()
        self._next = _Next.BODY
        self._unset_keepalive_if_required()
        self._num_waiting_bytes = 0
        if is_first:
            self._running = self.cycle
        elif len(self.pipeline) <= MAX_NUM_PIPELINED:
            self.flow.resume_reading()  # a client that leaves is only noticed by reading

    def on_body(self, body: bytes) -> None:
        self._num_waiting_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._num_waiting_bytes = 0
        self._next = _Next.NOTHING
        if not self._has_open_request:  # it was answered before all of it came
            self._wait(self.limits.idle_timeout_s, self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        self._running = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self.transport.is_closing() or self._is_deaf:
            return
        if self._next is _Next.HEAD:
            self._await_head()
        elif not self._has_open_request:
            if self._next is _Next.BODY:  # nobody reads the rest; it has to come all the same, before the next request
                self._wait(self.limits.head_timeout_s, self.transport.close)
            else:
                self._wait(self.limits.idle_timeout_s, self.timeout_keep_alive_handler)

    @property
    def _has_open_request(self) -> bool:
        """Whether an answer is due."""
        return self.cycle is not None and not self.cycle.response_complete

    def _check_head(self) -> None:
        """Raises InvalidRequestError."""
        if self._num_head_bytes > MAX_HEAD_BYTES or self._num_fields > MAX_NUM_FIELDS:
            raise _too_large()
        if self._has_open_request and len(self.pipeline) >= MAX_NUM_PIPELINED:
            raise InvalidRequestError(f"At most {MAX_NUM_PIPELINED} requests may be sent ahead of their answers.")
        check_framing(self.parser.get_http_version(), self.headers)
        if self.parser.get_method() == b"CONNECT":
            raise InvalidRequestError("This is no proxy: CONNECT is not served.")

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """The client offers another protocol too, as Java's does with HTTP/2. That may be ignored (RFC 9110, 7.8); but
        the parser takes what follows for the other protocol, so another one gets the same head without the offer."""
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        line = b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)
        self.parser = httptools.HttpRequestParser(self)
        self._num_waiting_bytes = 0
        self.data_received(b"".join([line, *fields, b"\r\n", rest]))

    # -- clocks --------------------------------------------------------------------------------------------------------

    def _wait(self, seconds: float, on_timeout: Callable[[], None]) -> None:
        """In place of what was waited for until now. uvicorn's own timer, since uvicorn cancels it at the end."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(seconds, on_timeout)

    def _await_head(self) -> None:
        self._next = _Next.HEAD
        self._num_waiting_bytes = 0
        self._wait(self.limits.head_timeout_s, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        if not self._num_waiting_bytes:
            self.transport.close()  # a connection made in advance, as browsers do
        else:
            limit_s = self.limits.head_timeout_s
            self._refuse(HeadTimeoutError(f"The head of the request did not come to its end in {limit_s:g} seconds."))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_clock(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_clock()

    def _start_write_clock(self, num_bytes: int) -> None:
        self._stop_write_clock()
        self._write_clock = self.loop.call_later(self.limits.write_timeout_s, self._on_write_timeout, num_bytes)

    def _stop_write_clock(self) -> None:
        if self._write_clock is not None:
            self._write_clock.cancel()
            self._write_clock = None

    def _on_write_timeout(self, num_bytes_before: int) -> None:
        """num_bytes_before: what was not taken when the clock was started."""
        num_bytes = self.transport.get_write_buffer_size()
        if num_bytes < num_bytes_before:
            self._start_write_clock(num_bytes)
        else:
            logger.info("a client has taken nothing for %g seconds: disconnected", self.limits.write_timeout_s)
            self.transport.abort()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _refuse(self, error: AnllmError) -> None:
        """Nothing more is taken from this connection. Requests that came whole are answered before it closes; else the
        error is the answer."""
        logger.info("status=%d error=%s nothing more is read of this connection", error.status, type(error).__name__)
        self._is_deaf = True
        self._unset_keepalive_if_required()
        self.flow.resume_reading()  # to see the client leave
        waiting = [cycle for cycle, _ in reversed(self.pipeline)]
        unanswered = [self._running, *waiting] if self._running is not None else waiting
        broken = unanswered.pop() if self._next is _Next.BODY and unanswered else None
        if broken is not None:
            broken.disconnected = True
            broken.message_event.set()
            if waiting:
                self.pipeline.popleft()
        if unanswered:
            unanswered[-1].keep_alive = False
            return
        has_begun = broken is not None and broken.response_started
        if not has_begun and not (self._next is _Next.BODY and broken is None):  # that was answered already
            self.transport.write(_response(error))
            with contextlib.suppress(NotImplementedError, OSError, RuntimeError):
                self.transport.write_eof()
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_S, self.transport.close)


def check_framing(version: str, fields: list[tuple[bytes, bytes]]) -> None:
    """What the parser lets pass, and servers understand in different ways: a request that is seen as two by somebody on
    the way. Raises InvalidRequestError.

    fields: names in small letters.
    """
    if version not in ("1.0", "1.1"):
        raise InvalidRequestError(f"HTTP/{version} is not spoken here; send HTTP/1.1.")
    if sum(name == b"host" for name, _ in fields) > 1:
        raise InvalidRequestError("A request must have one Host field, got several.")
    for coding in (value for name, value in fields if name == b"transfer-encoding"):
        if version == "1.0":  # RFC 9112, 6.1
            raise InvalidRequestError("Transfer-Encoding is not part of HTTP/1.0; send Content-Length.")
        if coding.strip().lower() != b"chunked":
            raise InvalidRequestError(f"Transfer-Encoding must be chunked, got {coding[:100].decode('latin-1')!r}.")


def _refusal_of(error: httptools.HttpParserError) -> AnllmError:
    if isinstance(error.__context__, AnllmError):  # what one of the parser's callbacks raised
        return error.__context__
    if isinstance(error, httptools.HttpParserCallbackError):
        return InvalidRequestError("The URL of the request can't be read.")
    return InvalidRequestError(f"This is no HTTP request: {error}.")


def _too_large() -> HeadTooLargeError:
    return HeadTooLargeError(
        f"The head of a request must have at most {MAX_HEAD_BYTES} bytes and {MAX_NUM_FIELDS} fields."
    )


def _response(error: AnllmError) -> bytes:
    request_id = new_request_id()
    content = msgspec.json.encode(Dialect.OPENAI.error_object(error, request_id))
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(content)}\r\n"
        f"x-request-id: {request_id}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode("ascii") + content
