"""What web pages of other origins may do: nothing that changes anything, unless their origin is allowed.

A page can have its reader's browser send a POST to any server that the browser reaches, also to one on the reader's own
machine or network. Browsers say where such a request comes from, by rules that pages can't bend.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from anllm.server.errors import ForeignOriginError, refuse

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PREFLIGHT_AGE_S = 600


class CrossSiteMiddleware:
    """Refuses what changes state and comes from a page of another origin.

    As Go's net/http.CrossOriginProtection has it: Sec-Fetch-Site where the browser sends it, else Origin beside Host.
    Requests with neither are no browser's. Origins that are no website's (app:, vscode-webview:, an extension's) are
    programs that the user has installed.
    """

    def __init__(self, app: ASGIApp, *, allowed_origins: Collection[str] = ()) -> None:
        self._app = app
        self._allowed = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in _SAFE_METHODS:
            headers = Headers(scope=scope)
            origin = headers.get("origin", "")
            if origin not in self._allowed and _is_cross_site(headers, origin):
                error = ForeignOriginError(
                    f"Web pages of {origin[:100] or 'another site'!r} may not use this server. If they are to, start "
                    "it with their origin in --allowed-origins."
                )
                await refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_cross_site(headers: Headers, origin: str) -> bool:
    if origin and origin != "null" and not origin.startswith(("http://", "https://")):
        return False
    site = headers.get("sec-fetch-site", "")
    if site:
        return site not in ("same-origin", "none")
    return bool(origin) and origin.partition("://")[2] != headers.get("host", "").lower()


def cors_settings(allowed_origins: Sequence[str]) -> dict[str, Any]:
    """For Starlette's CORSMiddleware. Keys are sent in headers, never by the browser of itself, so no credentials."""
    return {
        "allow_origins": allowed_origins,
        "allow_methods": ("GET", "HEAD", "POST", "DELETE"),
        "allow_headers": ("*",),
        "expose_headers": ("x-request-id", "openai-processing-ms", "retry-after"),
        "allow_private_network": True,
        "max_age": _PREFLIGHT_AGE_S,
    }
