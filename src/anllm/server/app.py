"""create_app: routes, middleware and one place where every error becomes an error object."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

import anllm
from anllm.config import SecurityConfig, ServerConfig
from anllm.errors import AnllmError, InvalidRequestError
from anllm.server.access import ApiKeyMiddleware, KeyLimitMiddleware
from anllm.server.api_keys import ApiKeys
from anllm.server.chat.protocol import ChatCompletionRequest
from anllm.server.chat.routes import chat_router
from anllm.server.completions.protocol import CompletionRequest
from anllm.server.completions.routes import completions_router
from anllm.server.context import get_context
from anllm.server.cross_site import CrossSiteMiddleware, cors_settings
from anllm.server.documentation import DocumentedFastAPI
from anllm.server.errors import MethodNotAllowedError, UnknownUrlError, error_response, log_error
from anllm.server.health import health_router
from anllm.server.messages.protocol import CountTokensRequest, MessagesRequest
from anllm.server.messages.routes import messages_router
from anllm.server.middleware import HostMiddleware, RequestContextMiddleware, is_loopback
from anllm.server.models.routes import models_router
from anllm.server.observability import observability_router
from anllm.server.prefix_cache import prefix_cache_router
from anllm.server.responses.protocol import ResponsesRequest
from anllm.server.responses.routes import responses_router
from anllm.server.service import Service
from anllm.server.tokenization.protocol import DetokenizeRequest, TokenizeRequest
from anllm.server.tokenization.routes import tokenization_router
from anllm.server.webui.routes import webui_router


def create_app(service: Service, config: ServerConfig, security: SecurityConfig | None = None) -> FastAPI:
    """The ASGI application. Starts nothing; `service` may still be loading. Raises ConfigError for an API key file that
    can't be read."""
    app = DocumentedFastAPI(
        title="anllm",
        version=anllm.__version__,
        redirect_slashes=False,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.request_models = (
        ChatCompletionRequest,
        CompletionRequest,
        ResponsesRequest,
        MessagesRequest,
        CountTokensRequest,
        TokenizeRequest,
        DetokenizeRequest,
    )
    app.limits = {
        "n": {"integer": {"maximum": config.max_n}},
        "stop": {"array": {"maxItems": config.max_stop_strings}},
        "stop_sequences": {"array": {"maxItems": config.max_stop_strings}},
    }
    app.include_router(health_router(service))
    app.include_router(models_router(service))
    app.include_router(chat_router(service, config))
    app.include_router(completions_router(service, config))
    app.include_router(responses_router(service, config))
    app.include_router(messages_router(service, config))
    app.include_router(tokenization_router(service, config))
    app.include_router(prefix_cache_router(service))
    app.include_router(observability_router(service))
    app.include_router(webui_router())
    app.add_exception_handler(AnllmError, _on_anllm_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    _guard(app, service, config, security or SecurityConfig())
    return app


def _guard(app: FastAPI, service: Service, config: ServerConfig, security: SecurityConfig) -> None:
    """What a request passes before a route sees it. Each is added around those before it."""
    if security.has_api_keys:
        keys = ApiKeys(security.api_keys, security.api_key_file)
        if security.max_requests_per_key is not None:
            app.add_middleware(KeyLimitMiddleware, max_requests=security.max_requests_per_key)
        app.add_middleware(ApiKeyMiddleware, keys=keys)
    if "*" not in security.allowed_origins:
        app.add_middleware(CrossSiteMiddleware, allowed_origins=security.allowed_origins)
    if security.allowed_origins:
        app.add_middleware(CORSMiddleware, **cors_settings(security.allowed_origins))
    if is_loopback(config.host) or security.allowed_hosts:
        app.add_middleware(HostMiddleware, allowed_hosts=security.allowed_hosts)
    app.add_middleware(RequestContextMiddleware, service=service)


async def _on_anllm_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnllmError)
    context = get_context(request.scope)
    log_error(context, request.scope["path"], error)
    return error_response(error, context.request_id, context.dialect)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such path, no such method."""
    assert isinstance(error, HTTPException)
    context = get_context(request.scope)
    url = f"{request.method} {request.scope['path'][:100]}"
    if error.status_code == 404:
        return error_response(UnknownUrlError(f"Invalid URL ({url})"), context.request_id, context.dialect)
    if error.status_code == 405:
        allowed = dict(error.headers or {})
        text = f"Not allowed to {url}; allowed: {allowed.get('Allow', 'other methods')}."
        return error_response(MethodNotAllowedError(text), context.request_id, context.dialect, allowed)
    refusal = InvalidRequestError(str(error.detail))
    refusal.status = error.status_code
    return error_response(refusal, context.request_id, context.dialect)
