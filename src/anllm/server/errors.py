"""Errors that only HTTP can have, and how every error looks on the wire."""

from __future__ import annotations

from starlette.responses import Response

from anllm.errors import AnllmError, InvalidRequestError
from anllm.server.json_response import json_response


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


class UnknownUrlError(InvalidRequestError):
    """No route has this path."""

    status = 404
    code = "unknown_url"


class MethodNotAllowedError(InvalidRequestError):
    """The path exists, for other methods."""

    status = 405
    code = "method_not_allowed"


class ClientDisconnectedError(Exception):
    """Nobody is there to read an answer. Never reaches the wire."""


def internal_error() -> AnllmError:
    """What a client is told about a bug of ours; the traceback is in the log, under the request's id."""
    return AnllmError("The server had an error while processing your request.")


def error_object(error: AnllmError, request_id: str) -> dict[str, object]:
    """OpenAI's error object. Failures of the server name the request, so that it can be found in the log."""
    message = f"{error.message} (request id: {request_id})" if error.status == 500 else error.message
    return {"error": {"message": message, "type": error.type, "param": error.param, "code": error.code}}


def error_response(error: AnllmError, request_id: str, headers: dict[str, str] | None = None) -> Response:
    """The whole answer, with Retry-After where it is worth trying again."""
    all_headers = dict(headers or {})
    if error.status == 408:
        all_headers["connection"] = "close"  # the rest of the body may never come
    if error.retry_after_s is not None:
        all_headers["retry-after"] = str(error.retry_after_s)
    return json_response(error_object(error, request_id), error.status, all_headers)
