"""GET /health and /livez for supervisors and load balancers, and /version."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

import anllm
from anllm.errors import NotReadyError
from anllm.server.answer_schemas import Health, Version, answer
from anllm.server.json_response import json_response
from anllm.server.service import Service


def health_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.head("/health", include_in_schema=False)
    @router.get("/health", responses={**answer(Health), 503: {"model": Health, "description": "Not ready."}})
    async def health() -> Response:
        """200 when a completion would be answered now, else 503 with the reason as `status`."""
        status = service.status
        headers = {} if service.is_ready else {"retry-after": str(NotReadyError.retry_after_s)}
        return json_response({"status": status}, 200 if service.is_ready else 503, headers)

    @router.head("/livez", include_in_schema=False)
    @router.get("/livez", responses={**answer(Health), 503: {"model": Health, "description": "To be started again."}})
    async def livez() -> Response:
        """200 while this process is worth keeping, also while it loads, drains, or starts its engine again; 503 when
        only a new start helps."""
        return json_response({"status": service.status}, 200 if service.is_alive else 503, {})

    @router.get("/version", responses=answer(Version))
    async def version() -> Response:
        """The version of this server, as vLLM tells its own."""
        return json_response({"version": anllm.__version__})

    return router
