"""Raw bytes over a real connection: what a client may do to HTTP itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from anllm.config import SchedulerConfig, ServerConfig
from fake_server import RealServer, make_runner
from server_harness import comp_body
from serving import PATIENCE_S, Gate
from stepping import nearby

BODY = json.dumps(comp_body(max_tokens=2)).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    gate = Gate()
    with RealServer(make_runner(nearby, gate), gate, SchedulerConfig(), ServerConfig()).running() as s:
        yield s


@pytest.fixture
def impatient() -> Iterator[RealServer]:
    """A server of its own, so that the others' bodies may come when they like."""
    gate = Gate()
    config = ServerConfig(body_timeout_s=0.3, drain_timeout_s=0.1)
    with RealServer(make_runner(nearby, gate), gate, SchedulerConfig(), config).running() as s:
        yield s


@pytest.fixture(autouse=True)
def probe(server: RealServer) -> Iterator[None]:
    """Afterwards the server answers as before, and nobody is left in it."""
    yield
    assert call(server, HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)[0] == 200
    server.until(lambda: server.client.num_open == 0)


def read_answer(connection: socket.socket) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        assert part, f"closed after {data!r}"
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines)
    while len(body) < int(headers.get(b"content-length", 0)):
        body += connection.recv(65536)
    return int(status.split()[1]), headers, body


def call(server: RealServer, data: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    with server.connect() as connection:
        connection.sendall(data)
        return read_answer(connection)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536) == b""
    except ConnectionResetError:
        return True


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, len(BODY)])
def test_J_8_chunked_upload(server: RealServer, size: int) -> None:
    pieces = [BODY[i : i + size] for i in range(0, len(BODY), size)]
    status, _, body = call(server, HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(*pieces))
    assert (status, len(json.loads(body)["choices"])) == (200, 1)


def test_J_8_length_and_chunked_together_end_the_connection(server: RealServer) -> None:
    """Servers in a row may disagree on where such a request ends: nothing behind it may be taken for a second one."""
    smuggled = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(BODY) + smuggled)
        status, _, _ = read_answer(connection)
        assert status in (200, 400)
        assert is_closed(connection)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) - 5) + BODY, id="J_8_longer_than_announced"),
        pytest.param(HEAD + b"content-length: -1\r\n\r\n" + BODY, id="J_8_negative_length"),
        pytest.param(HEAD + b"content-length: x\r\n\r\n" + BODY, id="J_8_length_that_is_none"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\nZZ\r\n" + BODY, id="J_8_chunk_size_that_is_none"),
        pytest.param(b"\x00\x01 nonsense\r\n\r\n", id="no_http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="https_to_the_http_port"),
    ],
)
def test_broken_http_is_told_and_ends_the_connection(server: RealServer, data: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(data)
        status, headers, body = read_answer(connection)
        assert (status, headers[b"content-type"], headers[b"connection"]) == (400, b"application/json", b"close")
        assert headers[b"x-request-id"].startswith(b"req_")
        error = json.loads(body)["error"]
        assert error.keys() == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
        assert is_closed(connection)


def test_broken_http_behind_a_stream_does_not_get_into_it(server: RealServer) -> None:
    body = json.dumps(comp_body(stream=True)).encode()
    server.gate.shut()  # the stream has begun, and does not end before the nonsense comes
    with server.connect() as connection:
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        received = connection.recv(65536)
        connection.sendall(b"\x00 nonsense\r\n\r\n")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):  # the stream is not ended for it
            connection.recv(65536)
        connection.settimeout(PATIENCE_S)
        server.gate.open()
        while part := connection.recv(65536):
            received += part
    assert received.count(b"HTTP/1.1") == 1 and b"invalid_request_error" not in received
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_J_8_body_that_never_comes_to_its_end(impatient: RealServer) -> None:
    with impatient.connect() as connection:
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) + 1) + BODY)
        status, headers, body = read_answer(connection)
        assert status == 408
        assert json.loads(body)["error"].items() >= {"type": "invalid_request_error", "code": "request_timeout"}.items()
        assert headers[b"connection"] == b"close"
        assert is_closed(connection)


def test_J_8_client_that_ends_its_side_early(server: RealServer) -> None:
    with server.connect() as connection:
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % (len(BODY) + 1) + BODY)
        connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection)


def test_J_8_expect_100_continue(server: RealServer) -> None:
    with server.connect() as connection:
        connection.sendall(HEAD + b"content-length: %d\r\nexpect: 100-continue\r\n\r\n" % len(BODY))
        assert read_answer(connection)[0] == 100
        connection.sendall(BODY)
        assert read_answer(connection)[0] == 200


def test_keep_alive_serves_many_on_one_connection_also_after_errors(server: RealServer) -> None:
    with server.connect() as connection:
        for content, status in [(BODY, 200), (b"{", 400), (b'{"model":"x"}', 400), (BODY, 200)] * 3:
            connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(content) + content)
            assert read_answer(connection)[0] == status


def test_C016_too_long_a_body_is_refused_unread_and_others_are_served(server: RealServer) -> None:
    limit = ServerConfig().max_body_bytes
    with server.connect() as connection:
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % (limit + 1) + b"x" * 1000)
        status, _, body = read_answer(connection)
        assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")
        assert call(server, HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)[0] == 200


def test_J_14_hosts_on_the_wire(server: RealServer) -> None:
    for host, status in [(b"localhost:%d" % server.port, 200), (b"[::1]", 200), (b"evil.example", 403)]:
        assert call(server, b"GET /v1/models HTTP/1.1\r\nhost: %s\r\n\r\n" % host)[0] == status
    assert call(server, b"GET /v1/models HTTP/1.0\r\n\r\n")[0] == 200


def test_J_6_no_redirect_whatever_a_proxy_says(server: RealServer) -> None:
    for path in (b"/v1/chat/completions/", b"//v1/chat/completions", b"/v1/v1/models/", b"/v1/models//"):
        status, headers, body = call(
            server, b"GET %s HTTP/1.1\r\nhost: localhost\r\nx-forwarded-proto: https\r\n\r\n" % path
        )
        assert status == 404 and b"location" not in headers
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
