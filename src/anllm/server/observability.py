"""What operators, scrapers and routers ask for: /metrics, /v1/status, /load and /ping. Answered in every state."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from anllm.errors import NotReadyError
from anllm.metrics.prometheus import Exposition, Facts
from anllm.server.answer_schemas import Load, Status, answer
from anllm.server.json_response import json_response
from anllm.server.service import Service
from anllm.server.status import status_of

_PAGE: dict[str, Any] = {
    "description": "The metrics.",
    "content": {"text/plain": {"schema": {"type": "string"}}, "application/openmetrics-text": {}},
}


def observability_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["observability"])
    exposition = Exposition(service.recorder, lambda: facts_of(service))

    @router.get("/metrics", response_class=Response, responses={200: _PAGE})
    async def metrics(request: Request) -> Response:
        """What Prometheus scrapes; docs/observability.md names each metric."""
        page, content_type = exposition.page(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    @router.get("/v1/status", responses=answer(Status))
    async def status() -> Response:
        """How the server is doing: queue, open requests, memory, and rates of the last minute. Without their texts."""
        return json_response(status_of(service))

    @router.get("/load", responses=answer(Load))
    async def load() -> Response:
        """Requests that are being answered, waiting ones included, as vLLM tells it."""
        return json_response({"server_load": service.recorder.num_open_requests})

    @router.post("/ping", include_in_schema=False)
    @router.head("/ping", include_in_schema=False)
    @router.get("/ping", response_class=Response, responses={503: {"description": "Not ready."}})
    async def ping() -> Response:
        """/health without a body, as SageMaker asks for it."""
        if service.is_ready:
            return Response(status_code=200)
        return Response(status_code=503, headers={"retry-after": str(NotReadyError.retry_after_s)})

    return router


def facts_of(service: Service) -> Facts:
    client = service.client
    return Facts(
        model_id=service.model_id,
        state=service.status,
        num_restarts=client.num_restarts,
        load_s=client.load_s,
        info=client.info,
    )
