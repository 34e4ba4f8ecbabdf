"""Who comes in: API keys, how much one key may have open, and what happens on a connection too many.

Pure ASGI; decided before a byte of a body is read.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from anllm.errors import InvalidRequestError
from anllm.server.api_keys import ApiKeys
from anllm.server.context import get_context, new_request_id
from anllm.server.dialect import dialect_of
from anllm.server.errors import (
    KeyLimitError,
    MissingApiKeyError,
    TooManyConnectionsError,
    WrongApiKeyError,
    error_response,
    refuse,
)

# What needs no key: signs of life for supervisors, and the files of the web page, which then asks for the key.
HEALTH_PATHS = frozenset({"/health", "/livez", "/ping"})
_PAGE_PATHS = frozenset({"/", "/favicon.ico", "/favicon.svg", "/manifest.webmanifest"})
_PAGE_FOLDERS = ("/assets/",)


def is_open(method: str, path: str) -> bool:
    """Whether everybody may ask for it. OPTIONS does nothing, and browsers never send a key with it."""
    return method == "OPTIONS" or path in HEALTH_PATHS or path in _PAGE_PATHS or path.startswith(_PAGE_FOLDERS)


async def answer_crowded(app: ASGIApp, max_connections: int, scope: Scope, receive: Receive, send: Send) -> None:
    """On a connection too many, in place of `app`: supervisors are answered by it, others sent away."""
    if scope["path"] in HEALTH_PATHS:
        await app(scope, receive, send)
        return
    error = TooManyConnectionsError(
        f"The server has {max_connections} connections open, which is all that it takes. Please try again later."
    )
    request_id = new_request_id()
    headers = {"connection": "close", "x-request-id": request_id}
    await error_response(error, request_id, dialect_of(scope), headers)(scope, receive, send)


class ApiKeyMiddleware:
    """Lets nobody pass without a key, and tells everything inside whose it was (RequestContext.client)."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["method"], scope["path"]):
            try:
                client = self._client(Headers(scope=scope))
            except InvalidRequestError as error:
                await refuse(error, scope, receive, send)
                return
            get_context(scope).client = client
        await self._app(scope, receive, send)

    def _client(self, headers: Headers) -> str:
        """Raises MissingApiKeyError, WrongApiKeyError."""
        if len(headers.getlist("authorization")) > 1:  # a proxy may have looked at another one
            raise WrongApiKeyError("Several Authorization headers were sent; send one.")
        given = [key for key in (_bearer(headers), headers.get("x-api-key", "").strip()) if key]
        if not given:
            raise MissingApiKeyError(
                "You didn't provide an API key. This server needs one, in the header 'Authorization: Bearer YOUR_KEY' "
                "or 'x-api-key: YOUR_KEY'."
            )
        for key in given:
            name = self._keys.name_of(key)
            if name is not None:
                return name
        raise WrongApiKeyError("Incorrect API key provided. Use one of the keys that this server was started with.")


def _bearer(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


class KeyLimitMiddleware:
    """Bounds the POST requests that one key has open at a time, from their headers to the end of their answers."""

    def __init__(self, app: ASGIApp, *, max_requests: int) -> None:
        self._app = app
        self._max_requests = max_requests
        self._num_open: dict[str, int] = {}  # none is 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = get_context(scope).client if scope["type"] == "http" and scope["method"] == "POST" else ""
        if not client:
            await self._app(scope, receive, send)
            return
        num_open = self._num_open.get(client, 0)
        if num_open >= self._max_requests:
            error = KeyLimitError(
                f"The API key {client} has {num_open} requests open, and may have {self._max_requests} at a time. "
                "Please wait until one has ended, then try again."
            )
            await refuse(error, scope, receive, send)
            return
        self._num_open[client] = num_open + 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_open[client] -= 1
            if not self._num_open[client]:
                del self._num_open[client]
