"""create_app: routes, middleware and one place where every error becomes OpenAI's error object."""

from __future__ import annotations

import logging

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import anllm
from anllm.config import ServerConfig
from anllm.errors import AnllmError, InvalidRequestError, reason_of
from anllm.logs import Fields
from anllm.server.chat.protocol import ChatCompletionRequest
from anllm.server.chat.routes import chat_router
from anllm.server.completions.protocol import CompletionRequest
from anllm.server.completions.routes import completions_router
from anllm.server.context import get_context
from anllm.server.documentation import DocumentedFastAPI
from anllm.server.errors import MethodNotAllowedError, UnknownUrlError, error_response
from anllm.server.health import health_router
from anllm.server.middleware import LoopbackHostMiddleware, RequestContextMiddleware, is_loopback
from anllm.server.models.routes import models_router
from anllm.server.observability import observability_router
from anllm.server.prefix_cache import prefix_cache_router
from anllm.server.service import Service
from anllm.server.tokenization.protocol import DetokenizeRequest, TokenizeRequest
from anllm.server.tokenization.routes import tokenization_router
from anllm.server.webui.routes import webui_router

logger = logging.getLogger(__name__)


def create_app(service: Service, config: ServerConfig) -> FastAPI:
    """The ASGI application. Starts nothing; `service` may still be loading."""
    app = DocumentedFastAPI(
        title="anllm",
        version=anllm.__version__,
        redirect_slashes=False,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.request_models = (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
    app.limits = {
        "n": {"integer": {"maximum": config.max_n}},
        "stop": {"array": {"maxItems": config.max_stop_strings}},
    }
    app.include_router(health_router(service))
    app.include_router(models_router(service))
    app.include_router(chat_router(service, config))
    app.include_router(completions_router(service, config))
    app.include_router(tokenization_router(service, config))
    app.include_router(prefix_cache_router(service))
    app.include_router(observability_router(service))
    app.include_router(webui_router())
    app.add_exception_handler(AnllmError, _on_anllm_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    if is_loopback(config.host):
        app.add_middleware(LoopbackHostMiddleware)
    app.add_middleware(RequestContextMiddleware, service=service)  # added last, so outermost
    return app


async def _on_anllm_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnllmError)
    context = get_context(request.scope)
    context.refusal = reason_of(error)
    # without the message, which may quote the request
    logger.info(
        Fields(
            "request refused" if not context.is_taken else "request failed",
            request_id=context.request_id,
            path=request.scope["path"][:100],
            status=error.status,
            error=type(error).__name__,
            param=error.param,
            code=error.code,
            duration_ms=round(context.elapsed_ms),
        )
    )
    return error_response(error, context.request_id)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such path, no such method."""
    assert isinstance(error, HTTPException)
    request_id = get_context(request.scope).request_id
    url = f"{request.method} {request.scope['path'][:100]}"
    if error.status_code == 404:
        return error_response(UnknownUrlError(f"Invalid URL ({url})"), request_id)
    if error.status_code == 405:
        allowed = dict(error.headers or {})
        text = f"Not allowed to {url}; allowed: {allowed.get('Allow', 'other methods')}."
        return error_response(MethodNotAllowedError(text), request_id, allowed)
    refusal = InvalidRequestError(str(error.detail))
    refusal.status = error.status_code
    return error_response(refusal, request_id)
