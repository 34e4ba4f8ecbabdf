"""POST /reset_prefix_cache, as vLLM has it: for measurements that are to begin without what earlier ones left."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from anllm.server.service import Service


def prefix_cache_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["cache"])

    @router.post("/reset_prefix_cache", response_class=Response)
    async def reset_prefix_cache() -> Response:
        """Forget what was computed for earlier prompts. Requests that run are not disturbed."""
        service.require_ready()
        service.client.reset_prefix_cache()
        return Response(status_code=200)

    return router
