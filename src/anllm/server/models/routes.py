"""GET /v1/models and /v1/models/{id}. Answered from process start on, also while the model loads."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from anllm.errors import ModelNotFoundError
from anllm.server.answer_schemas import ModelList, ServedModel, answer
from anllm.server.context import get_context
from anllm.server.dialect import Dialect
from anllm.server.json_response import json_response
from anllm.server.messages.answer_schemas import MessagesModel, MessagesModelList
from anllm.server.protocol import ErrorResponse
from anllm.server.service import Service


def models_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", responses=answer(ModelList | MessagesModelList))
    async def list_models(request: Request) -> Response:
        """The served model. `max_model_len` is null until it has loaded. Anthropic's clients get Anthropic's form."""
        if get_context(request.scope).dialect is Dialect.ANTHROPIC:
            model_id = service.model_id
            page = {"has_more": False, "first_id": model_id, "last_id": model_id}
            return json_response({"data": [_anthropic_model(service)], **page})
        return json_response({"object": "list", "data": [_model(service)]})

    # :path, since ids hold slashes, and clients send them raw or as %2F
    @router.get(
        "/v1/models/{model_id:path}", responses={**answer(ServedModel | MessagesModel), 404: {"model": ErrorResponse}}
    )
    async def get_model(request: Request, model_id: str) -> Response:
        if model_id != service.model_id:
            raise ModelNotFoundError(f"The model '{model_id[:100]}' does not exist", param="model")
        is_anthropic = get_context(request.scope).dialect is Dialect.ANTHROPIC
        return json_response((_anthropic_model if is_anthropic else _model)(service))

    return router


def _anthropic_model(service: Service) -> dict[str, object]:
    return {
        "type": "model",
        "id": service.model_id,
        "display_name": service.model_id,
        "created_at": datetime.fromtimestamp(service.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": service.max_model_len,
        "max_tokens": service.max_model_len,
        "lifecycle": "active",
    }


def _model(service: Service) -> dict[str, object]:
    return {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "anllm",
        "max_model_len": service.max_model_len,
    }
