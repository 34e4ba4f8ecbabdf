"""What holds for every request, in pure ASGI so that streams pass through untouched: ids, timing, the Host header.

What concerns bodies stands in body.py, since only a route that reads one needs it.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anllm.logs import Fields, current_request_id
from anllm.server.context import RequestContext, new_request_id, put_context
from anllm.server.dialect import Dialect, dialect_of
from anllm.server.errors import ClientDisconnectedError, ForeignHostError, error_response, internal_error, refuse
from anllm.server.service import Service

logger = logging.getLogger(__name__)

_MAX_CLIENT_ID_CHARS = 128
_OPERATIONS = {  # for traces
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
}


class RequestContextMiddleware:
    """Outermost: gives the request its id, reports the time until the answer began, answers for bugs of ours, and has
    refusals counted."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext(_request_id(Headers(scope=scope)), send, dialect_of(scope))
        put_context(scope, context)
        current_request_id.set(context.request_id)
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                self._count_refusal(scope, context, message["status"])
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = context.request_id
                if context.dialect is Dialect.ANTHROPIC:
                    headers["request-id"] = context.request_id
                headers["openai-processing-ms"] = str(int(context.elapsed_ms))
                headers["x-content-type-options"] = "nosniff"
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnectedError:
            logger.debug(Fields("client left", request_id=context.request_id, status=499))
        except Exception:
            logger.exception(Fields("request failed", request_id=context.request_id, status=500))
            if has_started:
                raise
            await error_response(internal_error(), context.request_id, context.dialect)(
                scope, receive, send_with_headers
            )

    def _count_refusal(self, scope: Scope, context: RequestContext, status: int) -> None:
        """Of what can be answered with a generation or another piece of work, which is always posted."""
        if status >= 400 and scope["method"] == "POST" and not context.is_taken:
            reason = context.refusal or HTTPStatus(status).name.lower()
            self._service.recorder.refused(reason)
            operation = _OPERATIONS.get(scope["path"])
            if self._service.tracer is not None and operation is not None:
                headers = Headers(scope=scope)
                self._service.tracer.refused(operation, headers, context.started_s, context.request_id, status, reason)


class HostMiddleware:
    """Refuses names in Host that are not this machine's, nor among allowed_hosts.

    By DNS rebinding a web page could else talk to a server on the loopback interface through the user's browser. A
    request without Host passes: no browser sends one.
    """

    def __init__(self, app: ASGIApp, *, allowed_hosts: Collection[str] = ()) -> None:
        self._app = app
        self._allowed = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if not host or self._is_allowed(_without_port(host)):
            await self._app(scope, receive, send)
            return
        names = ", ".join(["localhost, 127.0.0.1, [::1]", *sorted(self._allowed)])
        error = ForeignHostError(
            f"The host {host[:100]!r} is not served: Host must be one of {names}. Further names are allowed by "
            "--allowed-hosts."
        )
        await refuse(error, scope, receive, send)

    def _is_allowed(self, name: str) -> bool:
        return is_loopback(name) or name.lower() in self._allowed


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`, a name or an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _request_id(headers: Headers) -> str:
    """The client's own id if it is fit for headers and logs."""
    given = headers.get("x-request-id", "")
    if given and len(given) <= _MAX_CLIENT_ID_CHARS and all("!" <= char <= "~" for char in given):
        return given
    return new_request_id()
