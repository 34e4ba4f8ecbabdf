"""A span for each request: whose child it is, what it says, and what it does not say."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from anllm.cli.serve import traces_are_wanted
from anllm.core.events import Admitted, EngineFigures, StepEvents
from anllm.launch import make_tracer
from anllm.metrics.traces import OpenTelemetryTracer
from server_harness import ANSWER, MODEL, Server, chat_body, comp_body

pytestmark = pytest.mark.anyio
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = "/v1/chat/completions"


class Traced:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.server = Server()
        self.server.service.tracer = OpenTelemetryTracer(provider)

    @property
    def span(self) -> ReadableSpan:
        """There is one."""
        (span,) = self._exporter.get_finished_spans()
        return span

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.span.attributes or {})


@pytest.fixture
def traced() -> Traced:
    return Traced()


async def test_a_request_is_a_span_with_what_was_asked_and_what_it_took(traced: Traced) -> None:
    body = chat_body(temperature=0.5, top_p=0.9, top_k=5, seed=7, max_tokens=100, presence_penalty=1)
    response = await traced.server.http.post(CHAT, json=body, headers={"x-request-id": "mine"})
    assert (traced.span.name, traced.span.kind) == (f"chat {MODEL}", SpanKind.SERVER)
    assert traced.span.status.status_code is StatusCode.UNSET
    told = traced.attributes
    assert told.pop("gen_ai.response.time_to_first_chunk") > 0
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anllm",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 1.0,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.id": response.json()["id"],
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 26,
        "gen_ai.usage.output_tokens": len(ANSWER.encode()) + 1,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "anllm.request_id": "mine",
    }


async def test_it_is_the_child_of_traceparent(traced: Traced) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "a=b"}
    await traced.server.http.post(CHAT, json=chat_body(stream=True), headers=headers)
    assert traced.span.context is not None and traced.span.parent is not None
    assert format(traced.span.context.trace_id, "032x") == TRACE_ID
    assert format(traced.span.parent.span_id, "016x") == PARENT_ID
    assert traced.span.context.trace_state["a"] == "b"
    assert traced.attributes["gen_ai.request.stream"] is True


@pytest.mark.parametrize("header", ["nonsense", "00-0-0-0", f"ff-{TRACE_ID}-{PARENT_ID}-01"])
async def test_a_traceparent_that_is_none_is_as_if_absent(traced: Traced, header: str) -> None:
    assert (await traced.server.http.post(CHAT, json=chat_body(), headers={"traceparent": header})).status_code == 200
    assert traced.span.parent is None


async def test_what_is_not_sampled_by_the_caller_is_not_sent() -> None:
    traced = Traced()
    await traced.server.http.post(CHAT, json=chat_body(), headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"})
    with pytest.raises(ValueError, match="not enough values"):
        _ = traced.span


async def test_queue_prefill_and_decode_are_events_in_order(traced: Traced) -> None:
    server = traced.server
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(n=2, seed=2**64 - 1))
    await call.until(lambda: len(server.client.open_ids) == 2)
    ids = server.client.open_ids
    server.client.on_frame(StepEvents(figures=EngineFigures(1, 0, 0, 0, 0, admitted=(Admitted(ids[0], 0.0),))))
    for request_id in ids:
        server.client.start(request_id, 0)
        server.client.emit(request_id, "a")
        server.client.finish(request_id)
    await call.end()
    span = traced.span
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]
    moments = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
    assert moments == sorted(moments)  # type: ignore[type-var]
    assert traced.attributes["gen_ai.request.choice.count"] == 2
    assert traced.attributes["gen_ai.request.seed"] == -1, "64 bits with a sign"
    assert traced.attributes["gen_ai.response.finish_reasons"] == ("stop", "stop")


async def test_a_failure_has_its_kind(traced: Traced) -> None:
    traced.server.client.is_manual = True
    call = traced.server.open("/v1/completions", comp_body(stream=True))
    await call.until(lambda: traced.server.client.num_open)
    traced.server.client.fail(100, "EngineDeadError")
    await call.end()
    assert traced.span.name == f"text_completion {MODEL}"
    assert traced.span.status.status_code is StatusCode.ERROR
    assert traced.attributes["error.type"] == "engine_dead"
    assert traced.attributes["gen_ai.response.finish_reasons"] == ("error",)


async def test_a_client_that_leaves(traced: Traced) -> None:
    traced.server.client.is_manual = True
    call = traced.server.open(CHAT, chat_body())
    await call.until(lambda: traced.server.client.num_open)
    call.leave()
    await call.end()
    assert traced.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert traced.span.status.status_code is StatusCode.UNSET


async def test_a_refusal_is_a_span_too(traced: Traced) -> None:
    await traced.server.chat(temperature=9)
    assert traced.span.name == "chat"
    assert traced.attributes["error.type"] == "invalid_request"
    assert traced.attributes["http.response.status_code"] == 400
    await traced.server.post("/v1/nothing", b"")
    await traced.server.http.get("/metrics")
    assert traced.span.name == "chat", "the only one still"


async def test_a_response_is_a_chat(traced: Traced) -> None:
    response = await traced.server.respond()
    assert traced.span.name == f"chat {MODEL}"
    assert traced.attributes["gen_ai.response.id"] == response.json()["id"]


async def test_a_response_that_is_refused_is_a_chat_too(traced: Traced) -> None:
    await traced.server.respond(temperature=9)
    assert traced.span.name == "chat" and traced.attributes["error.type"] == "invalid_request"


async def test_no_texts(traced: Traced) -> None:
    body = chat_body(messages=[{"role": "user", "content": "SECRET"}], stop=["SECRET"], user="SECRET")
    await traced.server.http.post(CHAT, json=body, headers={"authorization": "Bearer SECRET"})
    assert "SECRET" not in traced.span.to_json()
    assert "Hello" not in traced.span.to_json()


class Collector(BaseHTTPRequestHandler):
    bodies: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


async def test_spans_arrive_at_a_collector_by_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[tuple[str, bytes]] = []
    handler = type("Handler", (Collector,), {"bodies": bodies})
    with HTTPServer(("127.0.0.1", 0), handler) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        server = Server()
        server.service.tracer = make_tracer()
        assert server.service.tracer is not None
        await server.chat()
        server.service.tracer.close()
        collector.shutdown()
    ((path, body),) = bodies
    assert path == "/v1/traces"
    (told,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert {a.key: a.value.string_value for a in told.resource.attributes}["service.name"] == "anllm"
    assert [span.name for scope in told.scope_spans for span in scope.spans] == [f"chat {MODEL}"]


def test_without_the_packages_the_server_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "anllm.metrics.traces", None)
    with caplog.at_level(logging.WARNING):
        assert make_tracer() is None
    assert "extra 'otel'" in caplog.text


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_on_where_a_place_for_them_is_named(environment: dict[str, str], wanted: bool) -> None:
    assert traces_are_wanted(environment) is wanted
