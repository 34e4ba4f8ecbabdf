"""What a connection may cost and how it ends: bytes that are no HTTP, that come slowly or never, that nobody reads.
Against a server in a process of its own, over real sockets."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from anllm.config import SchedulerConfig, ServerConfig
from anllm.server.body import MIN_BODY_BYTES_PER_S
from anllm.server.connection import LINGER_S, MAX_HEAD_BYTES, MAX_NUM_FIELDS, MAX_NUM_PIPELINED
from fake_process import FakeProcess
from fake_server import text_alone
from processes import num_descriptors, resident_bytes
from server_harness import chat_body, chunks, comp_body, joined
from serving import PATIENCE_S
from stepping import nearby

LIMITS = ServerConfig(head_timeout_s=1.0, body_timeout_s=2.0, idle_timeout_s=2.0, write_timeout_s=2.0)
SLACK_S = 30.0  # for a busy machine
BODY = json.dumps(comp_body(prompt="hi", max_tokens=3)).encode()
GET = b"GET /version HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"


def running(folder: Path, config: ServerConfig) -> Iterator[FakeProcess]:
    with FakeProcess(folder, config, SchedulerConfig(max_num_waiting=4000)) as process:
        yield process
        assert httpx.get(f"{process.url}/health", timeout=PATIENCE_S).status_code == 200
        assert "Traceback" not in process.log, process.log


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeProcess]:
    """With time for everybody, however slow the machine is."""
    yield from running(tmp_path_factory.mktemp("server"), ServerConfig())


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeProcess]:
    """With LIMITS."""
    yield from running(tmp_path_factory.mktemp("hasty"), LIMITS)


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the server closes, which it has to within the socket's patience."""
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    return data


def read_answers(connection: socket.socket, number: int) -> bytes:
    data = b""
    while data.count(b"HTTP/1.1 200") < number or not data.endswith(b"}"):
        part = connection.recv(1 << 16)
        assert part, data
        data += part
    return data


def assert_refused(data: bytes, status: int) -> str:
    """One answer, which is our error object and says that the connection ends."""
    head, _, content = data.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0].startswith(f"http/1.1 {status} "), data
    assert f"content-length: {len(content)}" in lines
    assert "connection: close" in lines
    assert any(line.startswith("x-request-id: req_") for line in lines)
    error = json.loads(content)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    message: str = error["message"]
    return message


# -- bytes -------------------------------------------------------------------------------------------------------------

NO_HTTP = {
    "every byte": bytes(range(256)) * 4,
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(30),
    "HTTP/2.0": b"GET /version HTTP/2.0\r\nhost: localhost\r\n\r\n",
    "HTTP/1.2": b"GET /version HTTP/1.2\r\nhost: localhost\r\n\r\n",
    "HTTP/9.9": b"GET /version HTTP/9.9\r\nhost: localhost\r\n\r\n",
    "bare LF": b"GET /version HTTP/1.1\nhost: localhost\n\n",
    "bare CR": b"GET /version HTTP/1.1\r\nhost: localhost\rx: y\r\n\r\n",
    "NUL in a field": GET + b"x: a\0b\r\n\r\n",
    "NUL in the URL": b"GET /ver\0sion HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "UTF-8 in the URL": "GET /versi\u00f3n HTTP/1.1\r\nhost: localhost\r\n\r\n".encode(),
    "space before colon": b"GET /version HTTP/1.1\r\nhost : localhost\r\n\r\n",
    "folded line": GET + b"x: a\r\n b\r\n\r\n",
    "two hosts": GET + b"Host: example.org\r\n\r\n",
    "URL without path": b"GET http://localhost HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "CONNECT": b"CONNECT localhost:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "unknown method": b"BREW /version HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "length and chunks": POST + LENGTH + CHUNKED + CHUNKS,
    "chunks and length": POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n" + CHUNKS,
    "two lengths": POST + LENGTH + b"content-length: 5\r\n\r\n" + BODY,
    "the same length twice": POST + LENGTH + LENGTH + b"\r\n" + BODY,
    **{f"length {n!r}": POST + b"content-length: %b\r\n\r\n" % n + BODY for n in (b"5, 5", b"+5", b"-5", b"0x5", b"")},
    "length of 23 digits": POST + b"content-length: 99999999999999999999999\r\n\r\n" + BODY,
    **{
        f"coding {coding!r}": POST + b"transfer-encoding: %b\r\n\r\n" % coding + CHUNKS
        for coding in (b"xchunked", b"identity", b"gzip, chunked", b"chunked, identity", b"\x0bchunked", b"")
    },
    "two codings": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n" + CHUNKS,
    "chunks in HTTP/1.0": POST.replace(b"/1.1", b"/1.0") + CHUNKED + CHUNKS,
    "negative chunk": POST + CHUNKED + b"-5\r\nabcde\r\n0\r\n\r\n",
    "huge chunk": POST + CHUNKED + b"f" * 18 + b"\r\nabcde\r\n0\r\n\r\n",
    "chunk longer than it says": POST + CHUNKED + b"2\r\nabcde\r\n0\r\n\r\n",
    "chunks with bare LF": POST + CHUNKED + CHUNKS.replace(b"\r\n", b"\n"),
}


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
def test_what_is_no_http_is_400_and_the_end(server: FakeProcess, data: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(data)
        message = assert_refused(read_to_end(connection), 400)
    assert len(message) > 30


def test_the_reason_is_told(server: FakeProcess) -> None:
    with server.connect() as connection:
        connection.sendall(NO_HTTP["two lengths"])
        assert "Content-Length" in assert_refused(read_to_end(connection), 400)


TAKEN = {
    "plain": (POST + LENGTH + b"\r\n" + BODY, 1),
    "empty lines before": (b"\r\n\r\n" + GET + b"\r\n", 1),
    "absolute URL": (b"GET http://localhost/version HTTP/1.1\r\nhost: localhost\r\n\r\n", 1),
    "chunk extension": (POST + CHUNKED + b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY), 1),
    "five ahead": ((GET + b"\r\n") * 5, 5),
    "as many ahead as may be": ((GET + b"\r\n") * (MAX_NUM_PIPELINED + 1), MAX_NUM_PIPELINED + 1),
    "bodies ahead": ((POST + LENGTH + b"\r\n" + BODY) * 5, 5),
    "offer of HTTP/2": (POST + H2C + LENGTH + b"\r\n" + BODY, 1),
    "offer of HTTP/2, chunked": (POST + H2C + CHUNKED + CHUNKS, 1),
    "offer of HTTP/2 twice": ((POST + H2C + LENGTH + b"\r\n" + BODY) * 2, 2),
    "WebSocket": (GET + b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n", 1),
}


@pytest.mark.parametrize(("data", "number"), TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("is_bytewise", [False, True])
def test_what_is_http_is_answered(server: FakeProcess, data: bytes, number: int, is_bytewise: bool) -> None:
    with server.connect() as connection:
        for piece in [data[i : i + 1] for i in range(len(data))] if is_bytewise else [data]:
            connection.sendall(piece)
        assert read_answers(connection, number).count(b"HTTP/1.1 ") == number
        connection.sendall(GET + b"connection: close\r\n\r\n")  # and it goes on
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")


def test_a_trailer_is_no_field(server: FakeProcess) -> None:
    with server.connect() as connection:
        connection.sendall(POST + b"connection: close\r\n" + CHUNKED)
        connection.sendall(CHUNKS[:-2] + b"x-request-id: of-the-trailer\r\nhost: example.org\r\n\r\n")
        data = read_to_end(connection)
    assert data.startswith(b"HTTP/1.1 200 ")
    assert b"of-the-trailer" not in data


def test_the_body_is_asked_for_when_it_is_read(server: FakeProcess) -> None:
    with server.connect() as connection:
        connection.sendall(POST + LENGTH + b"expect: 100-continue\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_answers(connection, 1)
    with server.connect() as connection:
        connection.sendall(POST + b"content-length: 99999999999\r\nexpect: 100-continue\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


ENDLESS = {
    "URL": (b"GET /", b"a" * 10_000),
    "name of a field": (GET, b"a" * 10_000),
    "value of a field": (GET + b"x: ", b"a" * 10_000),
    "fields": (GET, b"x: y\r\n" * 1000),
    "empty lines": (b"", b"\r\n" * 5000),
    "size of a chunk": (POST + CHUNKED + b"1;", b"a" * 10_000),
    "trailer": (POST + CHUNKED + b"%x\r\n%b\r\n0\r\nx: " % (len(BODY), BODY), b"a" * 10_000),
}


@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS)
def test_what_has_no_end_is_431_and_not_kept(server: FakeProcess, start: bytes, more: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(start)
        for _ in range(8 * MAX_HEAD_BYTES // len(more)):  # all of it, though it was refused meanwhile
            connection.sendall(more)
        assert_refused(read_to_end(connection), 431)


def test_head_of_one_piece_is_measured_too(server: FakeProcess) -> None:
    for fields in (b"x: %b\r\n" % (b"a" * MAX_HEAD_BYTES), b"x: y\r\n" * MAX_NUM_FIELDS):
        with server.connect() as connection:
            connection.sendall(GET + fields + b"\r\n")
            assert_refused(read_to_end(connection), 431)
    with server.connect() as connection:
        connection.sendall(GET + b"x: %b\r\n" % (b"a" * (MAX_HEAD_BYTES - 2000)) + b"y: z\r\n" * 200 + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


# -- time --------------------------------------------------------------------------------------------------------------


def trickle(connection: socket.socket, piece: bytes, interval_s: float = 0.1) -> tuple[bytes, float]:
    """What comes while pieces are sent without end, and the seconds until the server ended it."""
    started_s, data = time.monotonic(), b""
    connection.settimeout(interval_s)
    while time.monotonic() < started_s + 60:
        try:
            connection.sendall(piece)
            part = connection.recv(1 << 16)
            if not part:
                break
            data += part
        except TimeoutError:
            pass
        except OSError:
            break
    return data, time.monotonic() - started_s


def test_a_connection_that_says_nothing_is_closed_without_a_word(hasty: FakeProcess) -> None:
    started_s = time.monotonic()
    with hasty.connect() as connection:
        assert read_to_end(connection) == b""
    seconds = time.monotonic() - started_s
    assert LIMITS.head_timeout_s - 0.1 <= seconds < LIMITS.head_timeout_s + SLACK_S


def test_between_requests_it_may_be_idle_for_longer(hasty: FakeProcess) -> None:
    with hasty.connect() as connection:
        started_s = time.monotonic()
        connection.sendall(GET + b"\r\n")
        read_answers(connection, 1)
        assert read_to_end(connection) == b""
    seconds = time.monotonic() - started_s
    assert LIMITS.idle_timeout_s - 0.1 <= seconds < LIMITS.idle_timeout_s + SLACK_S


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"], ids=["first request", "second request"])
@pytest.mark.parametrize("piece", [b"x", b"\r\n"], ids=["field", "empty lines"])
def test_a_head_that_trickles_is_408(hasty: FakeProcess, before: bytes, piece: bytes) -> None:
    with hasty.connect() as connection:
        if before:
            connection.sendall(before)
            read_answers(connection, 1)
        if piece == b"x":
            connection.sendall(GET)
        data, seconds = trickle(connection, piece)
    assert "seconds" in assert_refused(data, 408)
    assert seconds < LIMITS.head_timeout_s + LINGER_S + SLACK_S


@pytest.mark.parametrize("framing", [b"content-length: 100000\r\n\r\n", CHUNKED], ids=["length", "chunked"])
def test_a_body_that_trickles_is_408(hasty: FakeProcess, framing: bytes) -> None:
    with hasty.connect() as connection:
        connection.sendall(POST + framing)
        data, seconds = trickle(connection, b"1\r\n \r\n" if framing == CHUNKED else b" ")
    assert b"HTTP/1.1 408 " in data and f"{MIN_BODY_BYTES_PER_S} bytes a second" in data.decode()
    assert seconds < LIMITS.body_timeout_s + SLACK_S


def test_a_slow_body_that_is_no_trickle_is_taken(hasty: FakeProcess) -> None:
    padded = BODY + b" " * 5000
    with hasty.connect() as connection:
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(padded))
        for i in range(0, len(padded), 250):
            connection.sendall(padded[i : i + 250])
            time.sleep(0.1)
        assert read_answers(connection, 1)


@pytest.mark.parametrize("request_line", [b"GET /version HTTP/1.1", b"POST /nowhere HTTP/1.1"])
def test_the_rest_of_a_body_that_nobody_reads_has_its_time_too(
    hasty: FakeProcess, server: FakeProcess, request_line: bytes
) -> None:
    with hasty.connect() as connection:
        connection.sendall(request_line + b"\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 ")
        _, seconds = trickle(connection, b" ")
    assert seconds < LIMITS.head_timeout_s + SLACK_S
    with server.connect() as connection:  # one that comes is read, and the connection is good again
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 404 ")
        connection.sendall(b" " * 1000 + GET + b"\r\n")
        read_answers(connection, 1)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_reader_that_takes_nothing_is_disconnected(hasty: FakeProcess, is_stream: bool) -> None:
    until(lambda: not hasty.num_connections(), 60)
    body = json.dumps(comp_body(prompt="long", max_tokens=3000, stream=is_stream, logprobs=2)).encode()
    with hasty.connect(receive_buffer_bytes=4096) as connection:
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        connection.recv(1)
        until(lambda: not hasty.num_connections(), 60)


def test_a_reader_that_takes_something_is_not(hasty: FakeProcess) -> None:
    body = chat_body(stream=True, max_tokens=2000)
    content = json.dumps(body).encode()
    data = b""
    with hasty.connect(receive_buffer_bytes=4096) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(content) + content
        )
        while part := connection.recv(2048):
            data += part
            if len(data) < 60_000:
                time.sleep(0.1)
    text = httpx.Response(200, content=unchunked(data)).text
    assert joined(chunks(text)) == text_alone(body, nearby)[0]


def unchunked(data: bytes) -> bytes:
    body = data.partition(b"\r\n\r\n")[2]
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole, body = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return whole


def until(condition: Callable[[], object], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.05)


# -- what stands behind a request --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behind", [b"\0\1\2 nonsense", (GET + b"\r\n") * (MAX_NUM_PIPELINED + 50), POST + CHUNKED + b"zz\r\n"]
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_garbage_behind_a_request_comes_after_its_answer(server: FakeProcess, behind: bytes, is_stream: bool) -> None:
    body = chat_body(stream=is_stream, max_tokens=300)
    content = json.dumps(body).encode()
    with server.connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(content) + content + behind
        )
        data = read_to_end(connection)
    assert b" 400 " not in data
    first = data.partition(b"\r\n\r\n")[2]
    text = text_alone(body, nearby)[0]
    if is_stream:
        end = first.index(b"0\r\n\r\n") + 5
        assert joined(chunks(unchunked(b"\r\n\r\n" + first[:end]).decode())) == text
    else:
        assert json.loads(first.partition(b"HTTP/1.1")[0])["choices"][0]["message"]["content"] == text


# -- all of it ---------------------------------------------------------------------------------------------------------


class Hostile:
    """Clients that do all that is above and worse, at random."""

    def __init__(self, server: FakeProcess, seed: int) -> None:
        self._server = server
        self._draw = random.Random(seed)
        self.num_done = 0

    def run(self, number: int) -> None:
        acts = (self._garbage, self._mutated, self._reset, self._half_open, self._upload_killed, self._never_reads)
        for _ in range(number):
            try:
                with self._server.connect() as connection:
                    self._draw.choice(acts)(connection)
            except OSError:
                pass  # closed while it still sent
            self.num_done += 1

    def _garbage(self, connection: socket.socket) -> None:
        connection.sendall(self._draw.randbytes(self._draw.randrange(1, 3000)))
        self._peek(connection)

    def _mutated(self, connection: socket.socket) -> None:
        data = bytearray(self._draw.choice([*NO_HTTP.values(), *(data for data, _ in TAKEN.values())]))
        for _ in range(self._draw.randrange(4)):
            at = self._draw.randrange(len(data))
            data[at : at + self._draw.randrange(3)] = self._draw.randbytes(self._draw.randrange(3))
        cut = self._draw.randrange(len(data) + 1)
        connection.sendall(data[:cut])
        connection.sendall(data[cut:])
        self._peek(connection)

    def _stream(self, connection: socket.socket, **fields: object) -> None:
        content = json.dumps(comp_body(max_tokens=500, stream=True, **fields)).encode()
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(content) + content)

    def _reset(self, connection: socket.socket) -> None:
        self._stream(connection)
        if self._draw.random() < 0.5:
            connection.sendall((GET + b"\r\n") * self._draw.randrange(5))
        time.sleep(self._draw.random() / 50)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _half_open(self, connection: socket.socket) -> None:
        self._stream(connection)
        connection.shutdown(socket.SHUT_WR)
        self._peek(connection)

    def _upload_killed(self, connection: socket.socket) -> None:
        connection.sendall(POST + b"content-length: 10000000\r\n\r\n" + bytes(self._draw.randrange(300_000)))

    def _never_reads(self, connection: socket.socket) -> None:
        connection.sendall((GET + b"\r\n") * self._draw.randrange(1, 60))
        time.sleep(self._draw.random() / 50)

    def _peek(self, connection: socket.socket) -> None:
        connection.settimeout(0.01)
        data = connection.recv(1 << 16)
        assert b"HTTP/1.1 5" not in data, data


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors and memory are read from /proc")
def test_hostile_clients_leave_nothing_behind_and_disturb_nobody(tmp_path: Path) -> None:
    body = chat_body(stream=True, max_tokens=4000)
    with FakeProcess(tmp_path, LIMITS, SchedulerConfig(max_num_waiting=4000)) as server:
        Hostile(server, 0).run(200)  # what is made once
        until(lambda: server.num_connections() == 0, 60)
        before_bytes, num_before = resident_bytes(server.process.pid), num_descriptors(server.process.pid)
        clients = [Hostile(server, seed) for seed in range(1, 5)]
        threads = [threading.Thread(target=client.run, args=(200,)) for client in clients]
        for thread in threads:
            thread.start()
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
            num_streams = 0
            while any(thread.is_alive() for thread in threads):
                response = http.post("/v1/chat/completions", json=body)
                assert joined(chunks(response.text)) == text_alone(body, nearby)[0]
                num_streams += 1
        assert [client.num_done for client in clients] == [200] * 4
        assert num_streams
        until(lambda: server.num_connections() == 0, 60)
        assert num_descriptors(server.process.pid) <= num_before
        assert resident_bytes(server.process.pid) < before_bytes + 8e6
        assert server.is_ready()
        assert "Traceback" not in server.log, server.log
