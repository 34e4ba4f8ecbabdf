"""Errors that only HTTP can have, and the answer that every error becomes."""

from __future__ import annotations

import logging

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from anllm.errors import AnllmError, InvalidRequestError, reason_of
from anllm.logs import Fields
from anllm.server.context import RequestContext, get_context
from anllm.server.dialect import Dialect
from anllm.server.json_response import json_response

logger = logging.getLogger(__name__)


class BodyTooLargeError(InvalidRequestError):
    """The body is longer than max_body_bytes."""

    status = 413
    code = "request_too_large"


class BodyTimeoutError(InvalidRequestError):
    """The client stopped sending in the middle of the body."""

    status = 408
    code = "request_timeout"


class HeadTooLargeError(InvalidRequestError):
    """Method, URL and header fields are longer, or more, than is read of any request."""

    status = 431
    code = "request_header_fields_too_large"


class HeadTimeoutError(InvalidRequestError):
    """The client stopped sending in the middle of the head."""

    status = 408
    code = "request_timeout"


class UnsupportedMediaTypeError(InvalidRequestError):
    """A content type or content encoding that is not read here."""

    status = 415
    code = "unsupported_media_type"


class ForeignHostError(InvalidRequestError):
    """A Host header that is no name of this machine: a web page may be using the browser to reach us."""

    status = 403
    code = "host_not_allowed"


class MissingApiKeyError(InvalidRequestError):
    """The server has API keys, and the request brings none."""

    status = 401


class WrongApiKeyError(InvalidRequestError):
    """The request's API key is none of the server's."""

    status = 401
    code = "invalid_api_key"


class ForeignOriginError(InvalidRequestError):
    """A web page of another origin sent this through its reader's browser."""

    status = 403
    code = "origin_not_allowed"


class KeyLimitError(AnllmError):
    """One API key has as many requests open as it may have."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"
    retry_after_s = 1


class TooManyConnectionsError(AnllmError):
    """max_connections are open already."""

    status = 503
    code = "service_unavailable"
    retry_after_s = 2


class UnknownUrlError(InvalidRequestError):
    """No route has this path."""

    status = 404
    code = "unknown_url"


class ResponseNotFoundError(InvalidRequestError):
    """No response of this id is kept, or it is somebody else's."""

    status = 404

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Response with id '{response_id[:100]}' not found. Responses are kept for a while, in memory, unless "
            "'store' is false."
        )


class MethodNotAllowedError(InvalidRequestError):
    """The path exists, for other methods."""

    status = 405
    code = "method_not_allowed"


class ClientDisconnectedError(Exception):
    """Nobody is there to read an answer. Never reaches the wire."""


def internal_error() -> AnllmError:
    """What a client is told about a bug of ours; the traceback is in the log, under the request's id."""
    return AnllmError("The server had an error while processing your request.")


def error_response(
    error: AnllmError, request_id: str, dialect: Dialect, headers: dict[str, str] | None = None
) -> Response:
    """The whole answer, with Retry-After where it is worth trying again."""
    all_headers = dict(headers or {})
    if error.status == 408:
        all_headers["connection"] = "close"  # the rest of the body may never come
    if error.status == 401:
        all_headers["www-authenticate"] = "Bearer"
    if not error.may_retry:
        all_headers["x-should-retry"] = "false"  # OpenAI's clients obey it
    if error.retry_after_s is not None:
        all_headers["retry-after"] = str(error.retry_after_s)
    return json_response(dialect.error_object(error, request_id), dialect.status_of(error), all_headers)


def log_error(context: RequestContext, path: str, error: AnllmError) -> None:
    """One line, without the message, which may quote the request; and the reason of the refusal, to be counted by."""
    context.refusal = reason_of(error)
    logger.info(
        Fields(
            "request failed" if context.is_taken else "request refused",
            request_id=context.request_id,
            client=context.client,
            path=path[:100],
            status=error.status,
            error=type(error).__name__,
            param=error.param,
            code=error.code,
            duration_ms=round(context.elapsed_ms),
        )
    )


async def refuse(error: AnllmError, scope: Scope, receive: Receive, send: Send) -> None:
    """The whole answer to a request that comes no further."""
    context = get_context(scope)
    log_error(context, scope["path"], error)
    await error_response(error, context.request_id, context.dialect)(scope, receive, send)
