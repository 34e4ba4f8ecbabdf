"""A whole JSON answer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


def json_response(
    payload: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """UTF-8, without the charset that JSON has no use for."""
    return Response(msgspec.json.encode(payload), status, headers, media_type="application/json")
