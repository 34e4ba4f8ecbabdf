"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from anllm.config import ServerConfig
from anllm.server.answer_schemas import answer, answer_or_stream
from anllm.server.body import JsonObject, convert_body, read_body
from anllm.server.context import get_context
from anllm.server.documentation import ERROR_RESPONSES, request_body
from anllm.server.field_support import NEUTRAL_MESSAGES_VALUES
from anllm.server.json_response import json_response
from anllm.server.messages.answer_schemas import CountedTokens, MessageObject, MessagesError
from anllm.server.messages.convert import MessagesPlan, count_tokens, plan_messages
from anllm.server.messages.protocol import CountTokensRequest, MessagesRequest
from anllm.server.messages.response import MessageAnswer
from anllm.server.respond import respond
from anllm.server.service import Service

_ERRORS: dict[int | str, dict[str, object]] = {
    529 if status == 503 else status: {**told, "model": MessagesError} for status, told in ERROR_RESPONSES.items()
}


def messages_router(service: Service, config: ServerConfig) -> APIRouter:
    router = APIRouter(tags=["messages"])
    known_fields = MessagesRequest.model_fields.keys() | NEUTRAL_MESSAGES_VALUES.keys() | {"stop_sequences"}

    @router.post(
        "/v1/messages",
        responses=answer_or_stream(MessageObject) | _ERRORS,
        openapi_extra=request_body(MessagesRequest),
    )
    async def create_message(request: Request) -> Response:
        """An answer to a conversation, as Anthropic's API has it, whole or as a stream of server-sent events."""
        model = service.require_ready()
        client = get_context(request.scope).client

        def plan(body: JsonObject) -> MessagesPlan:
            service.unknown_fields.note(body, known_fields)
            return plan_messages(body, model, config, client)

        planned = await convert_body(await read_body(request, config), plan, may_wait=True)
        return await respond(
            request,
            planned,
            lambda generation: MessageAnswer(planned, generation),
            config=config,
            operation="chat",
            service=service,
        )

    @router.post(
        "/v1/messages/count_tokens",
        responses=answer(CountedTokens) | _ERRORS,
        openapi_extra=request_body(CountTokensRequest),
    )
    async def count_message_tokens(request: Request) -> Response:
        """How many tokens the prompt of such a request has."""
        model = service.require_ready()
        raw = await read_body(request, config)
        num_tokens = await convert_body(raw, lambda body: count_tokens(body, model), may_wait=True)
        return json_response({"input_tokens": num_tokens})

    return router
