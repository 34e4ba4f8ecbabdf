"""From the bytes of a request to a JSON object, with everything refused on the way that must not come further."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable
from typing import TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.types import Message, Receive

from anllm.config import ServerConfig
from anllm.errors import InvalidRequestError
from anllm.server.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    ClientDisconnectedError,
    UnsupportedMediaTypeError,
)

JsonObject = dict[str, object]
T = TypeVar("T")

# Below this, a thread costs more than it frees: checking and tokenizing 64 kB takes about 10 ms.
_LARGE_BODY_BYTES = 64 * 1024

MAX_JSON_DEPTH = 128  # serde_json's; much of what looks at bodies calls itself for each level

# Each costs 3 us of checking, in which nothing else runs: 0.2 s. A conversation of 10,000 messages has half as many.
MAX_JSON_CONTAINERS = 65_536
# Up to the next object or array, or to the end; never fails, which would make it slow.
_TO_CONTAINER = re.compile(
    rb'(?: [^"\[{]++ | "[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z) )*+ (?: ([\[{]) | \Z )', re.DOTALL | re.VERBOSE
)
# Slower than this for longer than the body timeout is no client but somebody who holds connections open.
MIN_BODY_BYTES_PER_S = 1024


async def read_body(request: Request, config: ServerConfig) -> bytes:
    """The whole body.

    Raises UnsupportedMediaTypeError; BodyTimeoutError if the client stops sending, or sends hardly anything; and, by
    Content-Length before a byte is read or else as soon as the limit is passed, BodyTooLargeError. What is left unread
    then, the connection reads and drops, so that a client that is still sending gets its answer and not a reset.
    """
    max_bytes = config.max_body_bytes
    _check_media_type(request)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > max_bytes):
        raise _too_large(max_bytes)
    body = bytearray()  # which costs as much as it holds, however small the pieces that come
    started_s = time.monotonic()
    while True:
        too_slow_s = started_s + config.body_timeout_s + len(body) / MIN_BODY_BYTES_PER_S
        message = await _receive_in_time(request.receive, config.body_timeout_s, too_slow_s - time.monotonic())
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        chunk: bytes = message.get("body", b"")
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        body += chunk
        if not message.get("more_body", False):
            return bytes(body)


async def _receive_in_time(receive: Receive, limit_s: float, left_s: float) -> Message:
    """limit_s: without a byte; left_s: until the whole body is too slow."""
    try:
        async with asyncio.timeout(min(limit_s, left_s)):
            return await receive()
    except TimeoutError:
        raise BodyTimeoutError(
            f"The request body did not come to its end: for {limit_s:g} seconds nothing more came, or less than "
            f"{MIN_BODY_BYTES_PER_S} bytes a second."
        ) from None


async def convert_body(raw: bytes, convert: Callable[[JsonObject], T], *, may_wait: bool = False) -> T:
    """convert(parsed body); in a thread if the body is large or it `may_wait`, for a template to be rendered, so that
    the event loop goes on serving the others."""
    if len(raw) <= _LARGE_BODY_BYTES and not may_wait:
        return convert(parse_object(raw))
    return await asyncio.to_thread(lambda: convert(parse_object(raw)))


def parse_object(raw: bytes) -> JsonObject:
    """Strict JSON (RFC 8259: no NaN, no trailing text, no half surrogate pairs) whose value is an object.

    Raises InvalidRequestError.
    """
    num_brackets = raw.count(b"{") + raw.count(b"[")  # those in strings too; nearly free
    if num_brackets > MAX_JSON_CONTAINERS and _has_more_containers_than(MAX_JSON_CONTAINERS, raw):
        raise InvalidRequestError(f"The JSON body must have at most {MAX_JSON_CONTAINERS} objects and arrays.")
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = str(error) if raw.strip() else "it is empty"
        raise InvalidRequestError(f"Could not parse the JSON body ({len(raw)} bytes): {detail}.") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("The JSON body must be an object.")
    # No more levels than brackets, which is mostly enough to know.
    if num_brackets > MAX_JSON_DEPTH and _is_deeper_than(MAX_JSON_DEPTH, value):
        raise _too_deep()
    return value


def _has_more_containers_than(most: int, raw: bytes) -> bool:
    """Outside of strings. Takes 0.25 s for 32 MB at most."""
    containers = (match for match in _TO_CONTAINER.finditer(raw) if match.lastindex)
    return sum(1 for _ in itertools.islice(containers, most + 1)) > most


def _is_deeper_than(max_depth: int, value: object) -> bool:
    """Level by level: what is parsed may be nested deeper than functions may call each other."""
    level = [value]
    for _ in range(max_depth):
        inner: list[object] = []
        for container in level:
            items = container.values() if isinstance(container, dict) else cast("list[object]", container)
            inner += [item for item in items if type(item) is dict or type(item) is list]
        if not inner:
            return False
        level = inner
    return True


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(
        f"The JSON body is nested too deeply: objects and arrays may stand in each other {MAX_JSON_DEPTH} times."
    )


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if media_type and not is_json:
        raise UnsupportedMediaTypeError(f"Content-Type must be application/json, got {media_type[:100]!r}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaTypeError(
            f"Content-Encoding {encoding[:100]!r} is not supported; send the body as it is."
        )


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body must be at most {max_bytes} bytes.")
