"""One request at a time, in the calling thread. Closing an answer half read is how to stop it."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anllm.client.address import Address
from anllm.errors import RemoteError

CONNECT_TIMEOUT_S = 10.0
Json = dict[str, Any]


class PlainClient:
    """Opens a connection for each request. All methods raise RemoteError with what to do."""

    def __init__(self, address: Address, timeout_s: float | None = None) -> None:
        """timeout_s: the longest silence inside an answer; None waits as long as it takes."""
        self.address = address
        self._timeout_s = timeout_s

    def models(self) -> list[str]:
        """Ids of what is served."""
        return [entry["id"] for entry in self.get("/v1/models")["data"]]

    def get(self, path: str) -> Json:
        with self._request("GET", path, None) as response:
            return self._json(response)

    def post(self, path: str, body: Json) -> Json:
        with self._request("POST", path, body) as response:
            return self._json(response)

    def _json(self, response: http.client.HTTPResponse) -> Json:
        try:
            value = json.loads(response.read())
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise RemoteError(f"{self.address.url} did not answer in JSON: is it a server with OpenAI's API?")
        return value

    def stream(self, path: str, body: Json) -> Iterator[Json]:
        """The events of a streamed answer, as they come. Closed early, the request is taken back."""
        with self._request("POST", path, {**body, "stream": True}) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event: Json = json.loads(data)
                if "error" in event:
                    raise RemoteError(_message(event) or "The server ended the answer with an error.")
                yield event
        raise RemoteError("The answer broke off: the server closed the connection. Its log may say why.")

    @contextmanager
    def _request(self, method: str, path: str, body: Json | None) -> Iterator[http.client.HTTPResponse]:
        """An answer with status 200."""
        address = self.address
        connection: http.client.HTTPConnection
        if address.is_tls:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                address.host, address.port, timeout=CONNECT_TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_TIMEOUT_S)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise RemoteError(unreachable(address, error)) from error
            assert connection.sock is not None
            connection.sock.settimeout(self._timeout_s)
            content = None if body is None else json.dumps(body).encode()
            try:
                connection.request(method, address.prefix + path, content, address.headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise RemoteError(refusal(address, response.status, response.read()))
                yield response
            except TimeoutError as error:
                raise RemoteError(
                    f"{address.url} was silent for {self._timeout_s:g} seconds: it is busy, or hangs."
                ) from error
            except (OSError, http.client.HTTPException) as error:
                raise RemoteError(
                    f"The connection to {address.url} broke off ({error or type(error).__name__})."
                ) from error
        finally:
            connection.close()


def unreachable(address: Address, error: OSError) -> str:
    """What to do about a connection that can't be made."""
    if isinstance(error, ssl.SSLError):
        return (
            f"No TLS with {address.url} ({error.reason or error}): if it is http, write http://; if its certificate is "
            "your own, set SSL_CERT_FILE to it."
        )
    reason = error.strerror or str(error)
    return f"No server at {address.url} ({reason}): start one with 'anllm serve', name a MODEL, or give its --url."


def refusal(address: Address, status: int, body: bytes) -> str:
    """What an answer with an error status says, and what to do about it."""
    try:
        message = _message(json.loads(body))
    except ValueError:
        message = ""
    if status in (401, 403):
        return f"{address.url} asks for an API key ({status}): give --api-key, or set ANLLM_API_KEY. {message}".rstrip()
    if status == 404 and not message:
        return f"{address.url} has no OpenAI API (404): check the address."
    return message or f"{address.url} answered with status {status}."


def _message(value: object) -> str:
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""
