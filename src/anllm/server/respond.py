"""The way from a checked request to its HTTP answer, for every endpoint that generates."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from anllm.config import ServerConfig
from anllm.logs import Fields
from anllm.metrics.calls import FinishedCall
from anllm.metrics.records import RequestRecord
from anllm.server.context import RequestContext, get_context
from anllm.server.deadline import call_when_over, timeout_s
from anllm.server.disconnect import while_connected
from anllm.server.generation import Answer, Generation, Prompts
from anllm.server.protocol import SampledRequest
from anllm.server.service import Service
from anllm.server.sse import Chunks
from anllm.server.stream import EventStreamResponse
from anllm.server.structured import Structure, bind

logger = logging.getLogger(__name__)


class AnswerShape(Protocol):
    """How an endpoint writes answers down."""

    @property
    def id(self) -> str:
        """Of the answer."""
        ...

    def whole(self, answers: list[Answer]) -> bytes:
        """The JSON body."""
        ...

    def chunks(self) -> Chunks: ...


class Plan(Protocol):
    """What an endpoint makes of a request's body. structure: a grammar to compile before the prompts can be
    submitted."""

    @property
    def request(self) -> SampledRequest: ...

    @property
    def prompts(self) -> Prompts: ...

    @property
    def structure(self) -> Structure | None: ...


async def respond(
    request: Request,
    plan: Plan,
    shape_of: Callable[[Generation], AnswerShape],
    *,
    config: ServerConfig,
    operation: str,
    service: Service,
) -> Response:
    """Submit and answer. What goes wrong before the first byte is raised; a client that leaves aborts the generation.

    operation: for traces, as OpenTelemetry calls it. Raises AnllmError, ClientDisconnectedError.
    """
    loaded, is_stream = service.require_ready(), bool(plan.request.stream)
    prompts = await bind(plan.prompts, plan.structure, service.grammars)
    generation = Generation(service.client, loaded.tokenizer, prompts, service.recorder)
    shape, model = shape_of(generation), loaded.id
    context = get_context(request.scope)
    record = RequestRecord(context.request_id, context.started_s)
    limit_s = timeout_s(request.headers, config.request_timeout_s)

    def close() -> None:
        generation.abort()
        if timer is not None:
            timer.cancel()
        service.recorder.closed(record)
        _log_finished(context, generation, record, model, is_stream)
        if service.tracer is not None:
            call = _finished_call(generation, record, model, operation, shape.id, is_stream=is_stream)
            service.tracer.finished(call, request.headers)

    generation.submit(record)
    timer = call_when_over(limit_s, context.elapsed_ms / 1000, generation.fail)
    context.is_taken = True
    if is_stream:
        return EventStreamResponse(
            generation, shape.chunks(), keep_alive_s=config.keep_alive_s, request_id=context.request_id, on_close=close
        )
    try:
        answers = await while_connected(request.receive, generation.answers())
        return Response(shape.whole(answers), media_type="application/json")
    finally:
        close()


def _log_finished(
    context: RequestContext, generation: Generation, record: RequestRecord, model: str, is_stream: bool
) -> None:
    usage = generation.usage
    logger.info(
        Fields(
            "request finished",
            request_id=context.request_id,
            client=context.client,
            model=model,
            stream=is_stream,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            queue_ms=_ms(record.queue_s),
            ttft_ms=_ms(record.ttft_s),
            itl_ms=_ms(record.mean_itl_s),
            duration_ms=round(context.elapsed_ms, 1),
            finish_reason=generation.outcome,
        )
    )


def _finished_call(
    generation: Generation, record: RequestRecord, model: str, operation: str, response_id: str, *, is_stream: bool
) -> FinishedCall:
    usage = generation.usage
    return FinishedCall(
        operation=operation,
        model=model,
        response_id=response_id,
        is_stream=is_stream,
        sampling=generation.sampling,
        record=record,
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        finish_reasons=tuple(str(sequence.finish_reason) for sequence in record.sequences),
        error=generation.error_reason,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
