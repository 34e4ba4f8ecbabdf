"""The way from a checked request to its HTTP answer, for every endpoint that generates."""

from __future__ import annotations

import logging
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from anllm.server.context import RequestContext, get_context
from anllm.server.disconnect import while_connected
from anllm.server.generation import Answer, Generation
from anllm.server.sse import Chunks
from anllm.server.stream import EventStreamResponse

logger = logging.getLogger(__name__)


class AnswerShape(Protocol):
    """How an endpoint writes answers down."""

    def whole(self, answers: list[Answer]) -> bytes:
        """The JSON body."""
        ...

    def chunks(self) -> Chunks: ...


async def respond(
    request: Request, generation: Generation, shape: AnswerShape, *, model: str, is_stream: bool, keep_alive_s: float
) -> Response:
    """Submit and answer. What goes wrong before the first byte is raised; a client that leaves aborts the generation.

    Raises AnllmError, ClientDisconnectedError.
    """
    context = get_context(request.scope)

    def close() -> None:
        generation.abort()
        _log_finished(context, generation, model, is_stream)

    generation.submit()
    if is_stream:
        return EventStreamResponse(
            generation, shape.chunks(), keep_alive_s=keep_alive_s, request_id=context.request_id, on_close=close
        )
    try:
        answers = await while_connected(request.receive, generation.answers())
        return Response(shape.whole(answers), media_type="application/json")
    finally:
        close()


def _log_finished(context: RequestContext, generation: Generation, model: str, is_stream: bool) -> None:
    first_s = generation.first_token_s
    ttft_ms = "" if first_s is None else f"{(first_s - context.started_s) * 1000:.0f}"
    usage = generation.usage
    logger.info(
        "request_id=%s client=%s model=%s stream=%s prompt_tokens=%d cached_tokens=%d completion_tokens=%d ttft_ms=%s "
        "duration_ms=%.0f finish_reason=%s",
        context.request_id,
        context.client,
        model,
        is_stream,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        ttft_ms,
        context.elapsed_ms,
        generation.outcome,
    )
