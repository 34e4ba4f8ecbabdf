"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from anllm.config import ServerConfig
from anllm.server.body import JsonObject, convert_body, read_body
from anllm.server.documentation import ERROR_RESPONSES, request_body
from anllm.server.field_support import NEUTRAL_TOKENIZE_VALUES
from anllm.server.service import Service
from anllm.server.tokenization import convert
from anllm.server.tokenization.protocol import DetokenizeRequest, TokenizeRequest


def tokenization_router(service: Service, config: ServerConfig) -> APIRouter:
    router = APIRouter(tags=["tokens"])
    tokenize_fields = TokenizeRequest.model_fields.keys() | NEUTRAL_TOKENIZE_VALUES.keys()

    @router.post("/tokenize", responses=ERROR_RESPONSES, openapi_extra=request_body(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of messages as the chat template writes them."""
        model = service.require_ready()

        def answer(body: JsonObject) -> dict[str, object]:
            service.unknown_fields.note(body, tokenize_fields)
            return convert.tokenize(body, model)

        return _json(await convert_body(await read_body(request, config.max_body_bytes), answer))

    @router.post("/detokenize", responses=ERROR_RESPONSES, openapi_extra=request_body(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        model = service.require_ready()

        def answer(body: JsonObject) -> dict[str, object]:
            service.unknown_fields.note(body, DetokenizeRequest.model_fields.keys())
            return convert.detokenize(body, model)

        return _json(await convert_body(await read_body(request, config.max_body_bytes), answer))

    return router


def _json(payload: dict[str, object]) -> Response:
    return Response(msgspec.json.encode(payload), media_type="application/json")
