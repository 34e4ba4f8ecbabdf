"""What a client of ours makes of answers, good and bad. The other end is a socket that a test writes to."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from anllm.client.address import Address
from anllm.client.plain import PlainClient
from anllm.errors import RemoteError

Answering = Callable[[bytes], PlainClient]
received: list[bytes] = []


def http(status: int, body: bytes, kind: str = "application/json") -> bytes:
    return (
        b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (status, kind.encode(), len(body)) + body
    )


def read_request(connection: socket.socket) -> bytes:
    """All of it: closing a socket that has unread bytes cuts off what was sent."""
    data = b""
    while (part := connection.recv(65536)) and (data := data + part):
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if not data.startswith((b"GET ", b"POST ")):  # no HTTP at all
            break
        if end and len(body) >= (int(length[1]) if length else 0):
            break
    return data


def events(*lines: str, is_whole: bool = True) -> bytes:
    """Without a length: it ends when the connection does."""
    text = "".join(f"{line}\n\n" for line in (*lines, *(["data: [DONE]"] if is_whole else [])))
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + text.encode()


@pytest.fixture
def answering() -> Iterator[Answering]:
    """A client of a server that answers one request with these bytes, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    received.clear()

    def answer(content: bytes) -> PlainClient:
        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                received.append(read_request(connection))
                connection.sendall(content)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return PlainClient(Address.parse(f"http://127.0.0.1:{listener.getsockname()[1]}/base", "sk-1"), timeout_s=60)

    yield answer
    for thread in threads:
        thread.join(60)
    listener.close()


def test_models_are_asked_for_below_the_prefix_with_the_key(answering: Answering) -> None:
    client = answering(http(200, b'{"data": [{"id": "a"}, {"id": "b"}]}'))
    assert client.models() == ["a", "b"]
    assert received[0].startswith(b"GET /base/v1/models HTTP/1.1\r\n")
    assert b"Authorization: Bearer sk-1\r\n" in received[0]


def test_a_stream_comes_event_by_event(answering: Answering) -> None:
    client = answering(events(": keep-alive", 'data: {"n": 1}', 'data: {"n": 2}'))
    assert [event["n"] for event in client.stream("/v1/x", {"a": 1})] == [1, 2]
    assert json.loads(received[0].partition(b"\r\n\r\n")[2]) == {"a": 1, "stream": True}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            http(401, b'{"error": {"message": "Wrong key."}}'),
            r"asks for an API key \(401\): give --api-key, .* Wrong key\.",
        ),
        (http(404, b"<html>", "text/html"), r"has no OpenAI API \(404\)"),
        (http(404, b'{"error": {"message": "No model x."}}'), r"^No model x\.$"),
        (http(503, b'{"error": {"message": "The model loads."}}'), r"^The model loads\.$"),
        (http(500, b"oops"), "answered with status 500"),
        (http(200, b"oops"), "did not answer in JSON"),
        (b"220 smtp ready\r\n", "broke off"),
        (b"", "broke off"),
    ],
)
def test_bad_answers_say_what_to_do(answering: Answering, content: bytes, message: str) -> None:
    with pytest.raises(RemoteError, match=message):
        answering(content).models()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (events('data: {"n": 1}', 'data: {"error": {"message": "The engine ended."}}'), r"^The engine ended\.$"),
        (events('data: {"n": 1}', is_whole=False), "The answer broke off"),
    ],
)
def test_a_stream_that_ends_badly_is_an_error_after_what_came(
    answering: Answering, content: bytes, message: str
) -> None:
    stream = answering(content).stream("/v1/x", {})
    assert next(stream) == {"n": 1}
    with pytest.raises(RemoteError, match=message):
        next(stream)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = PlainClient(Address.parse(f"127.0.0.1:{listener.getsockname()[1]}"), timeout_s=0.1)
        with pytest.raises(RemoteError, match=r"was silent for 0\.1 seconds"):
            client.models()


def test_tls_to_a_server_without_it_is_told(answering: Answering) -> None:
    plain = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(RemoteError, match=r"No TLS with https://.*write http://.*SSL_CERT_FILE"):
        PlainClient(Address.parse(plain.address.url.replace("http://", "https://"))).models()
