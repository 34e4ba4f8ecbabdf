"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from anllm.config import ServerConfig
from anllm.server.answer_schemas import DetokenizeAnswer, TokenizeAnswer, answer
from anllm.server.body import JsonObject, convert_body, read_body
from anllm.server.documentation import ERROR_RESPONSES, request_body
from anllm.server.field_support import NEUTRAL_TOKENIZE_VALUES
from anllm.server.json_response import json_response
from anllm.server.service import LoadedModel, Service
from anllm.server.tokenization import convert
from anllm.server.tokenization.protocol import DetokenizeRequest, TokenizeRequest


def tokenization_router(service: Service, config: ServerConfig) -> APIRouter:
    router = APIRouter(tags=["tokens"])
    tokenize_fields = TokenizeRequest.model_fields.keys() | NEUTRAL_TOKENIZE_VALUES.keys()

    async def respond(
        request: Request, known_fields: Collection[str], work: Callable[[JsonObject, LoadedModel], dict[str, object]]
    ) -> Response:
        model = service.require_ready()

        def convert_noted(body: JsonObject) -> dict[str, object]:
            service.unknown_fields.note(body, known_fields)
            return work(body, model)

        return json_response(await convert_body(await read_body(request, config), convert_noted, may_wait=True))

    @router.post(
        "/tokenize", responses=answer(TokenizeAnswer) | ERROR_RESPONSES, openapi_extra=request_body(TokenizeRequest)
    )
    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of messages as the chat template writes them."""
        return await respond(request, tokenize_fields, convert.tokenize)

    @router.post(
        "/detokenize",
        responses=answer(DetokenizeAnswer) | ERROR_RESPONSES,
        openapi_extra=request_body(DetokenizeRequest),
    )
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        return await respond(request, DetokenizeRequest.model_fields.keys(), convert.detokenize)

    return router
