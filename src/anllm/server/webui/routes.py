"""GET / for browsers and for programs, and the files of the page. Open without a key: the page asks for one.

The headers keep the page to itself: it runs no script and loads nothing but its own files, talks to this server only,
and can't be put into another page. So an answer of a model, which the page shows as formatted text, can do no harm
even if it got past the page's own cleaning.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from anllm.server.errors import UnknownUrlError
from anllm.server.json_response import json_response
from anllm.server.webui.bundle import INDEX, WebFile, web_files

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
_FOR_GOOD = "public, max-age=31536000, immutable"


def webui_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.head("/")
    @router.get("/")
    async def index(request: Request) -> Response:
        """The chat for whoever asks for HTML, as browsers do; for others, where to find what."""
        if _wants_html(request):
            response = await _answer(request, INDEX)
        else:
            response = json_response({"name": "anllm", "models": "/v1/models", "health": "/health", "docs": "/docs"})
        response.headers["vary"] = "accept, accept-encoding"
        return response

    @router.head("/assets/{name}")
    @router.get("/assets/{name}")
    async def asset(request: Request, name: str) -> Response:
        return await _answer(request, f"assets/{name}")

    return router


async def _answer(request: Request, name: str) -> Response:
    """Raises UnknownUrlError for what is not one of the files: the name is looked up and never made a path."""
    file = (await run_in_threadpool(web_files)).get(name)
    if file is None:
        raise UnknownUrlError(f"Invalid URL ({request.method} {request.scope['path'][:100]})")
    headers = {
        **_HEADERS,
        "cache-control": _FOR_GOOD if file.is_hashed else "no-cache",
        "etag": file.etag,
        "vary": "accept-encoding",
    }
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return _with_content(file, headers, request.headers.get("accept-encoding", ""))


def _with_content(file: WebFile, headers: dict[str, str], accepted: str) -> Response:
    if file.compressed is not None and "gzip" in accepted:
        return Response(file.compressed, media_type=file.media_type, headers={**headers, "content-encoding": "gzip"})
    return Response(file.content, media_type=file.media_type, headers=headers)


def _wants_html(request: Request) -> bool:
    ranges = (part.replace(" ", "").lower().split(";") for part in request.headers.get("accept", "").split(","))
    return any(kind == "text/html" and "q=0" not in parameters for kind, *parameters in ranges)
