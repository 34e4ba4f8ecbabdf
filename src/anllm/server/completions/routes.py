"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from anllm.config import ServerConfig
from anllm.server.answer_schemas import Completion, answer_or_stream
from anllm.server.body import JsonObject, convert_body, read_body
from anllm.server.completions.convert import CompletionPlan, plan_completion
from anllm.server.completions.protocol import CompletionRequest
from anllm.server.completions.response import CompletionAnswer
from anllm.server.context import get_context
from anllm.server.documentation import ERROR_RESPONSES, request_body
from anllm.server.field_support import NEUTRAL_COMPLETION_VALUES
from anllm.server.respond import respond
from anllm.server.service import Service


def completions_router(service: Service, config: ServerConfig) -> APIRouter:
    router = APIRouter(tags=["completions"])
    known_fields = CompletionRequest.model_fields.keys() | NEUTRAL_COMPLETION_VALUES.keys()

    @router.post(
        "/v1/completions",
        responses=answer_or_stream(Completion) | ERROR_RESPONSES,
        openapi_extra=request_body(CompletionRequest),
    )
    async def create_completion(request: Request) -> Response:
        """Continuations of texts or token lists, whole or as a stream of server-sent events."""
        model = service.require_ready()
        client = get_context(request.scope).client

        def plan(body: JsonObject) -> CompletionPlan:
            service.unknown_fields.note(body, known_fields)
            return plan_completion(body, model, config, client)

        completion = await convert_body(await read_body(request, config), plan)
        return await respond(
            request,
            completion,
            lambda generation: CompletionAnswer(service, completion, generation),
            config=config,
            operation="text_completion",
            service=service,
        )

    return router
