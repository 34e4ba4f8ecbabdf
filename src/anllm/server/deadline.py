"""Until when a request's answer must be whole: by the server's limit, or by less that the request asks for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from starlette.datastructures import Headers

from anllm.errors import InvalidRequestError, RequestTimeoutError

HEADER = "x-request-timeout"


def timeout_s(headers: Headers, limit_s: float | None) -> float | None:
    """Seconds from the request's arrival; None for no limit. Raises InvalidRequestError for a header that is no number
    of seconds."""
    given = headers.get(HEADER)
    if given is None:
        return limit_s
    try:
        wanted_s = float(given)
    except ValueError:
        wanted_s = math.nan
    if not 0 < wanted_s < math.inf:
        raise InvalidRequestError(
            f"The header {HEADER} must be a number of seconds above 0, got {given[:100]!r}.", param=HEADER
        )
    return wanted_s if limit_s is None else min(wanted_s, limit_s)


def call_when_over(
    seconds: float | None, elapsed_s: float, fail: Callable[[Exception], None]
) -> asyncio.TimerHandle | None:
    """Has fail(RequestTimeoutError) called when that time is over. elapsed_s: of it, what is gone already."""
    if seconds is None:
        return None
    error = RequestTimeoutError(
        f"The answer was not whole after {seconds:g} seconds, which is the limit of this request. Ask for fewer "
        f"tokens, or allow more time (header {HEADER}, the server's setting --request-timeout)."
    )
    return asyncio.get_running_loop().call_later(max(seconds - elapsed_s, 0.0), fail, error)
