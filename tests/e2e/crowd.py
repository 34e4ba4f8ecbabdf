"""Many clients at once that cost little: each asks again and again on its connection, and looks at each answer.

crowd() and health() are for processes of their own, so that what one costs does not stand in what the other measures.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

END_S = 300.0  # after the last request was sent, for its answer


@dataclass
class Outcome:
    """num_refused: answered with 429, and asked again after Retry-After. errors: all else that was no whole answer."""

    num_whole: int = 0
    num_streamed: int = 0
    num_refused: int = 0
    num_open_at_once: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def num_answers(self) -> int:
        return self.num_whole + self.num_streamed


class Client(asyncio.Protocol):
    """One connection, one request after the other until `until_s` of the loop's clock."""

    def __init__(self, number: int, bodies: list[dict[str, Any]], until_s: float, outcome: Outcome) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._draw = random.Random(number)
        self._bodies = bodies
        self._until_s = until_s
        self._outcome = outcome
        self._data: list[bytes] = []
        self._tail = b""
        self._body: dict[str, Any] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._outcome.num_open_at_once += 1
        self._ask()

    def _ask(self) -> None:
        if self._loop.time() > self._until_s:
            self._finish()
            return
        self._body = {**self._draw.choice(self._bodies), "stream": self._draw.random() < 0.5, "user": "u"}
        raw = json.dumps(self._body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._data, self._tail = [], b""
        self._transport.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)

    def data_received(self, data: bytes) -> None:
        self._data.append(data)
        self._tail = (self._tail + data)[-5:]  # an end may come in two pieces
        if self._tail.endswith((b"0\r\n\r\n", b"}")):
            self._look(b"".join(self._data))

    def _look(self, data: bytes) -> None:
        head, _, content = data.partition(b"\r\n\r\n")
        is_stream = b"\r\ntransfer-encoding: chunked" in head.lower()
        if is_stream and not content.endswith(b"0\r\n\r\n"):
            return  # a piece that happened to end so
        if not is_stream and len(content) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return
        if head.startswith(b"HTTP/1.1 200 ") and is_stream == self._body["stream"]:
            self._check(content, is_stream)
            self._ask()
        elif head.startswith(b"HTTP/1.1 429 ") and b"\r\nretry-after: " in head:
            self._outcome.num_refused += 1
            self._loop.call_later(0.5 + self._draw.random(), self._ask)
        else:
            self._outcome.errors.append(data[:500].decode(errors="replace"))
            self._finish()

    def _check(self, content: bytes, is_stream: bool) -> None:
        if is_stream:
            is_good = b"data: [DONE]" in content and b'"error"' not in content and b'"finish_reason":"' in content
            self._outcome.num_streamed += is_good
        else:
            is_good = json.loads(content)["choices"][0]["finish_reason"] in ("stop", "length")
            self._outcome.num_whole += is_good
        if not is_good:
            self._outcome.errors.append(content[-500:].decode(errors="replace"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._outcome.errors.append(f"connection lost: {error!r}")
            self.done.set_result(None)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self._transport.close()


def crowd(port: int, num_clients: int, bodies: list[dict[str, Any]], seconds: float) -> Outcome:
    """What became of all they asked. Connections are made within a second or two, and kept."""
    return uvloop.run(_crowd(port, num_clients, bodies, seconds))


async def _crowd(port: int, num_clients: int, bodies: list[dict[str, Any]], seconds: float) -> Outcome:
    loop, outcome = asyncio.get_running_loop(), Outcome()
    until_s = loop.time() + seconds
    clients = []
    for number in range(num_clients):
        client = Client(number, bodies, until_s, outcome)
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
        clients.append(client)
    async with asyncio.timeout(seconds + END_S):
        await asyncio.gather(*(client.done for client in clients))
    return outcome


def health(port: int, seconds: float, interval_s: float = 0.02) -> list[float]:
    """Seconds that GET /health took, asked again and again on one connection. An AssertionError if it is not 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    until_s, times_s = time.monotonic() + seconds, []
    while time.monotonic() < until_s:
        started_s = time.perf_counter()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        times_s.append(time.perf_counter() - started_s)
        assert response.status == 200
        time.sleep(interval_s)
    connection.close()
    return times_s
