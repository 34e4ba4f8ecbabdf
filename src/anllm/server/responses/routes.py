"""POST /v1/responses, and those that are kept: /v1/responses/{id} and what follows."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from anllm.config import ServerConfig
from anllm.errors import InvalidRequestError
from anllm.server.answer_schemas import (
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseObject,
    answer,
    answer_or_stream,
)
from anllm.server.body import JsonObject, convert_body, read_body
from anllm.server.context import get_context
from anllm.server.documentation import ERROR_RESPONSES, request_body
from anllm.server.errors import ResponseNotFoundError
from anllm.server.field_support import NEUTRAL_RESPONSES_VALUES
from anllm.server.json_response import json_response
from anllm.server.protocol import ErrorResponse
from anllm.server.respond import respond
from anllm.server.responses.convert import ResponsePlan, plan_response
from anllm.server.responses.listing import page_of
from anllm.server.responses.protocol import ResponsesRequest
from anllm.server.responses.response import ResponseAnswer
from anllm.server.responses.store import ResponseNotKeptError, ResponseStore
from anllm.server.service import Service


def responses_router(service: Service, config: ServerConfig) -> APIRouter:
    router = APIRouter(tags=["responses"])
    known_fields = ResponsesRequest.model_fields.keys() | NEUTRAL_RESPONSES_VALUES.keys()
    store = ResponseStore(config.max_stored_responses, config.max_stored_bytes, config.stored_response_ttl_s)
    of_one: dict[int | str, dict[str, object]] = {
        404: {"model": ErrorResponse, "description": "No response of this id is kept for this API key."}
    }

    async def planned(request: Request) -> ResponsePlan:
        model = service.require_ready()
        client = get_context(request.scope).client

        def plan(body: JsonObject) -> ResponsePlan:
            service.unknown_fields.note(body, known_fields)
            return plan_response(body, model, config, client, store)

        return await convert_body(await read_body(request, config), plan, may_wait=True)

    @router.post(
        "/v1/responses",
        responses=answer_or_stream(ResponseObject) | ERROR_RESPONSES,
        openapi_extra=request_body(ResponsesRequest),
    )
    async def create_response(request: Request) -> Response:
        """An answer to a conversation, whole or as a stream of server-sent events."""
        plan = await planned(request)
        client = get_context(request.scope).client
        return await respond(
            request,
            plan,
            lambda generation: ResponseAnswer(plan, generation, store, client),
            config=config,
            operation="chat",
            service=service,
        )

    @router.post(
        "/v1/responses/input_tokens",
        responses=answer(InputTokens) | ERROR_RESPONSES,
        openapi_extra=request_body(ResponsesRequest),
    )
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the prompt of such a request has."""
        plan = await planned(request)
        return json_response({"object": "response.input_tokens", "input_tokens": len(plan.prompts.token_ids[0])})

    @router.get("/v1/responses/{response_id}", responses={**answer(ResponseObject), **of_one})
    async def get_response(request: Request, response_id: str) -> Response:
        """A response that is kept."""
        if request.query_params.get("stream", "false").lower() == "true":
            raise InvalidRequestError(
                "A response that is kept can't be streamed, only one that is being made. Leave 'stream' out.",
                param="stream",
                code="unsupported_parameter",
            )
        try:
            body = store.body(get_context(request.scope).client, response_id)
        except ResponseNotKeptError:
            raise ResponseNotFoundError(response_id) from None
        return Response(body, media_type="application/json")

    @router.delete("/v1/responses/{response_id}", responses={**answer(DeletedResponse), **of_one})
    async def delete_response(request: Request, response_id: str) -> Response:
        """Forget it."""
        try:
            store.delete(get_context(request.scope).client, response_id)
        except ResponseNotKeptError:
            raise ResponseNotFoundError(response_id) from None
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.get(
        "/v1/responses/{response_id}/input_items",
        responses={**answer(InputItemList), **of_one, 400: ERROR_RESPONSES[400]},
    )
    async def list_input_items(request: Request, response_id: str) -> Response:
        """What it was asked with, page by page."""
        client = get_context(request.scope).client

        def page() -> dict[str, object]:
            return page_of(store.input_items(client, response_id), request.query_params)

        try:
            return json_response(await asyncio.to_thread(page))  # a conversation may be long
        except ResponseNotKeptError:
            raise ResponseNotFoundError(response_id) from None

    @router.post("/v1/responses/{response_id}/cancel", responses={**of_one, 400: ERROR_RESPONSES[400]})
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Refused: only responses in the background can be cancelled. Others end when their connection is closed."""
        try:
            store.body(get_context(request.scope).client, response_id)
        except ResponseNotKeptError:
            raise ResponseNotFoundError(response_id) from None
        raise InvalidRequestError(
            "Only responses with 'background' can be cancelled, which this server does not have. Close the connection "
            "of a response that is being made, and it ends."
        )

    return router
