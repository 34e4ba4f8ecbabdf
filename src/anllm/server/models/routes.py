"""GET /v1/models and /v1/models/{id}. Answered from process start on, also while the model loads."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from anllm.errors import ModelNotFoundError
from anllm.server.answer_schemas import ModelList, ServedModel, answer
from anllm.server.json_response import json_response
from anllm.server.protocol import ErrorResponse
from anllm.server.service import Service


def models_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["models"])

    @router.get("/v1/models", responses=answer(ModelList))
    async def list_models() -> Response:
        """The served model. `max_model_len` is null until it has loaded."""
        return json_response({"object": "list", "data": [_model(service)]})

    # :path, since ids hold slashes, and clients send them raw or as %2F
    @router.get("/v1/models/{model_id:path}", responses={**answer(ServedModel), 404: {"model": ErrorResponse}})
    async def get_model(model_id: str) -> Response:
        if model_id != service.model_id:
            raise ModelNotFoundError(f"The model '{model_id[:100]}' does not exist", param="model")
        return json_response(_model(service))

    return router


def _model(service: Service) -> dict[str, object]:
    return {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "anllm",
        "max_model_len": service.max_model_len,
    }
