"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from anllm.config import ServerConfig
from anllm.server.answer_schemas import ChatCompletion, answer_or_stream
from anllm.server.body import JsonObject, convert_body, read_body
from anllm.server.chat.convert import ChatPlan, plan_chat
from anllm.server.chat.protocol import ChatCompletionRequest
from anllm.server.chat.response import ChatAnswer
from anllm.server.context import get_context
from anllm.server.documentation import ERROR_RESPONSES, request_body
from anllm.server.field_support import NEUTRAL_CHAT_VALUES
from anllm.server.respond import respond
from anllm.server.service import Service


def chat_router(service: Service, config: ServerConfig) -> APIRouter:
    router = APIRouter(tags=["chat"])
    known_fields = ChatCompletionRequest.model_fields.keys() | NEUTRAL_CHAT_VALUES.keys()

    @router.post(
        "/v1/chat/completions",
        responses=answer_or_stream(ChatCompletion) | ERROR_RESPONSES,
        openapi_extra=request_body(ChatCompletionRequest),
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answers to a conversation, whole or as a stream of server-sent events."""
        model = service.require_ready()
        client = get_context(request.scope).client

        def plan(body: JsonObject) -> ChatPlan:
            service.unknown_fields.note(body, known_fields)
            return plan_chat(body, model, config, client)

        chat = await convert_body(await read_body(request, config), plan, may_wait=True)
        return await respond(
            request,
            chat,
            lambda generation: ChatAnswer(service, chat, generation),
            config=config,
            operation="chat",
            service=service,
        )

    return router
