"""A span for each request, for OpenTelemetry, with the attributes of its GenAI conventions.

Spans are made when a request is over, from the moments that were noted anyway, so traces cost nothing meanwhile. What
was asked and answered is never in them. Needs the extra `otel`; imported by nobody who does without.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import anllm
from anllm.metrics.calls import FinishedCall

logger = logging.getLogger(__name__)

FLUSH_S = 3.0  # for what has not been sent when the server ends
Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class OpenTelemetryTracer:
    """A Tracer (calls.py)."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("anllm", anllm.__version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def from_environment(cls) -> OpenTelemetryTracer:
        """Sends to where OpenTelemetry's own variables say, from a thread of its own."""
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "anllm"}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def finished(self, call: FinishedCall, headers: Mapping[str, str]) -> None:
        record = call.record
        moments = (
            ("queue", min((s.submitted_s for s in record.sequences), default=None)),
            ("prefill", min((s.admitted_s for s in record.sequences if s.admitted_s is not None), default=None)),
            ("decode", record.first_token_s),
        )
        self._span(
            f"{call.operation} {call.model}",
            headers,
            record.arrived_s,
            _attributes(call),
            error=call.error,
            moments=[(name, moment_s) for name, moment_s in moments if moment_s is not None],
        )

    def refused(
        self, operation: str, headers: Mapping[str, str], arrived_s: float, request_id: str, status: int, error: str
    ) -> None:
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "anllm",
            "http.response.status_code": status,
            "anllm.request_id": request_id,
        }
        self._span(operation, headers, arrived_s, attributes, error=error)

    def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, name="anllm-traces-end", daemon=True)
        closing.start()
        closing.join(FLUSH_S)
        if closing.is_alive():
            logger.warning("the last traces could not be sent within %g seconds", FLUSH_S)

    def _span(
        self,
        name: str,
        headers: Mapping[str, str],
        begun_s: float,
        attributes: Attributes,
        *,
        error: str | None,
        moments: Sequence[tuple[str, float]] = (),
    ) -> None:
        offset_ns = time.time_ns() - time.monotonic_ns()

        def wall_ns(moment_s: float) -> int:
            return int(moment_s * 1e9) + offset_ns

        span = self._tracer.start_span(
            name,
            # from nothing but the headers, whatever else is being traced in this process
            context=self._propagator.extract(headers, Context()),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=wall_ns(begun_s),
        )
        for moment, moment_s in moments:
            span.add_event(moment, timestamp=wall_ns(moment_s))
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(wall_ns(time.monotonic()))


def _attributes(call: FinishedCall) -> Attributes:
    sampling, record = call.sampling, call.record
    known: dict[str, str | bool | int | float | Sequence[str] | None] = {
        "gen_ai.operation.name": call.operation,
        "gen_ai.provider.name": "anllm",
        "gen_ai.request.model": call.model,
        "gen_ai.request.stream": call.is_stream,
        "gen_ai.request.choice.count": sampling.n if sampling.n > 1 else None,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.seed": None if sampling.seed is None else _int64(sampling.seed),
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.response.model": call.model,
        "gen_ai.response.id": call.response_id,
        "gen_ai.response.finish_reasons": call.finish_reasons,
        "gen_ai.response.time_to_first_chunk": record.ttft_s,
        "gen_ai.usage.input_tokens": call.input_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": call.reasoning_tokens or None,
        "anllm.request_id": record.id,
    }
    return {name: value for name, value in known.items() if value is not None}


def _int64(value: int) -> int:
    """As an attribute holds it: 64 bits with a sign."""
    return (value + 2**63) % 2**64 - 2**63
