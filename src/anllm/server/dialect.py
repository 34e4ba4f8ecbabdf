"""Whose API a request speaks, OpenAI's or Anthropic's, and how the same error looks in each."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from enum import Enum
from types import MappingProxyType
from typing import Any

from starlette.datastructures import Headers

from anllm.errors import AnllmError

_ANTHROPIC_PATH = "/v1/messages"
_OVERLOADED = 529  # Anthropic's, for what is 503 elsewhere
_ANTHROPIC_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)


class Dialect(Enum):
    OPENAI = "openai"
    ANTHROPIC = "anthropic"

    def status_of(self, error: AnllmError) -> int:
        return _OVERLOADED if self is Dialect.ANTHROPIC and error.status == 503 else error.status

    def error_object(self, error: AnllmError, request_id: str) -> dict[str, object]:
        """The whole body. Failures of the server name the request, so that it can be found in the log."""
        message = f"{error.message} (request id: {request_id})" if error.status == 500 else error.message
        if self is Dialect.OPENAI:
            return {"error": {"message": message, "type": error.type, "param": error.param, "code": error.code}}
        kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        told: dict[str, object] = {"type": kind, "message": message}
        if error.code is not None:
            told["details"] = {"error_code": error.code}
        return {"type": "error", "error": told, "request_id": request_id}


def dialect_of(scope: MutableMapping[str, Any]) -> Dialect:
    """By the path; elsewhere by the header that Anthropic's clients send with everything."""
    path: str = scope["path"]
    is_anthropic = path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/")
    return Dialect.ANTHROPIC if is_anthropic or "anthropic-version" in Headers(scope=scope) else Dialect.OPENAI
