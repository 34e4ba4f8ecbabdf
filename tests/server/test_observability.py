"""/metrics, /v1/status, /load and /ping, with a scripted engine: each figure has just the value that it should."""

from __future__ import annotations

import json
import logging

import pytest

from anllm.core.events import EngineFigures, EngineInfo, MemoryUse, StepEvents
from anllm.engine.client import EngineState
from anllm.logs import Fields, JsonFormatter
from anllm.server.answer_schemas import Status
from anllm.testing import FakeClock
from exposition import Page
from server_harness import ANSWER, MODEL, Server, chat_body, comp_body

pytestmark = pytest.mark.anyio
PROMPT_TOKENS = 26  # of chat_body(), as FakeTemplate writes it
OUTPUT_TOKENS = len(ANSWER.encode()) + 1
INFO = EngineInfo("fake", "blas", 1000, 1, 1000, 258, "flattened", "bfloat16", (257,))


async def page(server: Server) -> Page:
    response = await server.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Page(response.text)


async def status(server: Server) -> dict[str, object]:
    response = await server.http.get("/v1/status")
    assert response.status_code == 200
    Status.model_validate(response.json(), strict=True)
    answer: dict[str, object] = response.json()
    return answer


async def test_after_n_requests_each_counter_has_its_value(server: Server) -> None:
    for _ in range(3):
        assert (await server.chat()).status_code == 200
    assert (await server.chat(stream=True)).status_code == 200
    assert (await server.comp(prompt="abc", max_tokens=5)).status_code == 200
    assert (await server.chat(n=3, max_tokens=2)).status_code == 200
    found = await page(server)
    num_prompt = (4 + 3) * PROMPT_TOKENS + 4  # a completion's begins with the token that begins a text
    assert found("vllm:prompt_tokens_total", model_name=MODEL, engine="0") == num_prompt
    assert found("vllm:prompt_tokens_cached_total") == 8 * 3
    assert found("vllm:generation_tokens_total") == 4 * OUTPUT_TOKENS + 5 + 3 * 2
    assert found("vllm:request_success_total", finished_reason="stop") == 4
    assert found("vllm:request_success_total", finished_reason="length") == 4
    assert found.sum("vllm:request_success_total") == 8
    assert found("vllm:time_to_first_token_seconds_count") == 8
    assert found("vllm:inter_token_latency_seconds_count") == 4 * (OUTPUT_TOKENS - 1) + 4 + 3
    assert found("vllm:e2e_request_latency_seconds_count") == 8
    assert found("vllm:request_prompt_tokens_sum") == num_prompt
    assert found("vllm:request_prompt_tokens_bucket", le="20.0") == 1
    assert found("vllm:request_generation_tokens_sum") == 4 * OUTPUT_TOKENS + 5 + 3 * 2
    assert found("vllm:request_prefill_kv_computed_tokens_sum") == num_prompt - 8 * 3
    assert (found("vllm:request_params_n_count"), found("vllm:request_params_n_sum")) == (6, 5 + 3)
    assert found("vllm:request_max_num_generation_tokens_sum") == 4 * OUTPUT_TOKENS + 5 + 2
    assert found.sum("anllm:request_rejections_total") == found.sum("anllm:request_aborts_total") == 0
    assert found.sum("anllm:request_failures_total") == 0
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "anllm:requests_open"):
        assert found(gauge) == 0


async def test_usage_and_counters_agree_for_answers_that_end_at_a_stop_string(server: Server) -> None:
    usage = (await server.chat(stop="there")).json()["usage"]
    found = await page(server)
    assert found("vllm:generation_tokens_total") == usage["completion_tokens"] == len("Hello there")
    assert found("vllm:request_success_total", finished_reason="stop") == 1
    assert found("vllm:request_success_total", finished_reason="abort") == 0, "that the engine is told to stop is ours"


async def test_nothing_is_generated_where_nothing_is_asked_for(server: Server) -> None:
    await server.comp(max_tokens=0)
    await server.comp(max_tokens=0, echo=True, logprobs=1)
    found = await page(server)
    assert found("vllm:generation_tokens_total") == 0
    assert found("vllm:request_success_total", finished_reason="length") == 2
    assert found("vllm:inter_token_latency_seconds_count") == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/v1/chat/completions", chat_body(temperature=9), 400, "invalid_request"),
        ("/v1/chat/completions", b"{", 400, "invalid_request"),
        ("/v1/completions", comp_body(prompt="x" * 1000), 400, "context_length"),
        ("/v1/completions", comp_body(model="other"), 404, "model_not_found"),
        ("/v1/completions", comp_body(n=9), 429, "queue_full"),
        ("/v1/completions", b" " * 3000, 413, "body_too_large"),
        ("/v1/nothing", b"", 404, "not_found"),
        ("/v1/models", b"", 405, "method_not_allowed"),
    ],
)
async def test_a_refusal_is_counted_once_by_its_reason(path: str, body: object, status: int, reason: str) -> None:
    from anllm.config import ServerConfig

    server = Server(ServerConfig(max_body_bytes=2000))
    server.client.max_num_open = 8
    assert (await server.post(path, body)).status_code == status
    found = await page(server)
    assert found("anllm:request_rejections_total", reason=reason) == 1
    assert found.sum("anllm:request_rejections_total") == 1
    assert found("vllm:admission_rejections_total", reason="max_num_queued_reqs") == (status == 429)
    assert found.sum("vllm:request_success_total") == 0


async def test_while_it_loads_requests_are_refused_and_looking_is_no_refusal(server: Server) -> None:
    server.client.state = EngineState.LOADING
    assert (await server.chat()).status_code == 503
    assert (await server.http.get("/health")).status_code == 503
    assert (await server.http.get("/ping")).status_code == 503
    assert (await server.http.get("/v1/models/none")).status_code == 404
    found = await page(server)
    assert found("anllm:request_rejections_total", reason="not_ready") == 1
    assert found.sum("anllm:request_rejections_total") == 1
    assert found("anllm:state", state="loading") == found.sum("anllm:state") == 1
    assert (await status(server))["status"] == "loading"


async def test_a_foreign_host_is_a_refusal(server: Server) -> None:
    assert (await server.http.post("/v1/completions", headers={"host": "evil.example"})).status_code == 403
    assert (await page(server))("anllm:request_rejections_total", reason="foreign_host") == 1


async def test_a_bug_before_the_engine_has_it_is_a_refusal_for_internal_reasons(server: Server) -> None:
    server.template.render = lambda *args, **kwargs: 1 / 0  # type: ignore[method-assign, assignment]
    response = await server.http.post("/v1/chat/completions", json=chat_body())
    assert response.status_code == 500
    found = await page(server)
    assert found("anllm:request_rejections_total", reason="internal_server_error") == 1


async def test_a_client_that_leaves_is_an_abort(server: Server) -> None:
    server.client.is_manual = True
    call = server.open("/v1/chat/completions", chat_body(stream=True, n=2))
    await call.until(lambda: len(server.client.open_ids) == 2)
    first, _ = server.client.open_ids
    server.client.start(first, 0)
    server.client.emit(first, "a")
    await call.until_sent('"a"')
    assert (await server.http.get("/load")).json() == {"server_load": 1}
    call.leave()
    await call.end()
    found = await page(server)
    assert (
        found("anllm:request_aborts_total", stage="decode") == found("anllm:request_aborts_total", stage="waiting") == 1
    )
    assert found("vllm:request_success_total", finished_reason="abort") == found.sum("vllm:request_success_total") == 2
    assert found("anllm:requests_open") == found("vllm:num_requests_waiting") == 0
    assert (await server.http.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_failure_is_counted_once_and_is_no_refusal(server: Server, is_stream: bool) -> None:
    server.client.is_manual = True
    call = server.open("/v1/chat/completions", chat_body(stream=is_stream, n=2))
    await call.until(lambda: len(server.client.open_ids) == 2)
    server.client.fail(server.client.open_ids[0], "EngineDeadError")
    await call.end()
    found = await page(server)
    assert found("anllm:request_failures_total", reason="engine_dead") == 2, "both answers"
    assert found("vllm:request_success_total", finished_reason="error") == found.sum("vllm:request_success_total") == 2
    assert found.sum("anllm:request_rejections_total") == found.sum("anllm:request_aborts_total") == 0


async def test_a_bug_in_the_middle_is_a_failure(server: Server) -> None:
    server.client.answer = lambda request: [-1]  # no byte: the fake detokenizer raises
    response = await server.http.post("/v1/chat/completions", json=chat_body())
    assert response.status_code == 500
    found = await page(server)
    assert found("anllm:request_failures_total", reason="internal") == 1
    assert found.sum("anllm:request_rejections_total") == 0


async def test_what_the_engine_found_out_and_tells(server: Server) -> None:
    server.client.info, server.client.num_restarts, server.client.load_s = INFO, 2, 1.5  # type: ignore[assignment]
    figures = EngineFigures(0, 0, 0, kv_used_bytes=250, kv_kept_bytes=500, memory=MemoryUse(10, 30, 20))
    server.client.on_frame(StepEvents(figures=figures))
    found = await page(server)
    assert found("vllm:kv_cache_usage_perc") == 0.0, "nobody is there who could use it"
    assert found("vllm:cache_config_info", block_size="256", num_gpu_blocks="3", enable_prefix_caching="True") == 1
    assert found("anllm:kv_budget_bytes") == 1000
    assert (found("anllm:kv_used_bytes"), found("anllm:kv_kept_bytes")) == (0, 500)
    assert found("anllm:engine_restarts_total") == 2
    assert found("anllm:load_time_seconds") == 1.5
    assert found("anllm:info", backend="fake", execution="flattened", weights="bfloat16") == 1
    assert found("anllm:mlx_active_memory_bytes") == 10
    assert found("anllm:mlx_peak_memory_bytes") == 30
    assert found("anllm:mlx_cache_memory_bytes") == 20
    told = await status(server)
    assert told["engine"] == {
        "state": "ready",
        "restarts": 2,
        "load_s": 1.5,
        "backend": "fake",
        "execution": "flattened",
        "weights": "bfloat16",
        "max_model_len": 1000,
    }
    assert told["memory"] == {
        "kv_budget_bytes": 1000,
        "kv_used_bytes": 0,
        "kv_kept_bytes": 500,
        "kv_usage": 0.0,
        "active_bytes": 10,
        "peak_bytes": 30,
        "cached_bytes": 20,
    }


async def test_memory_that_requests_hold(server: Server) -> None:
    server.client.info, server.client.is_manual = INFO, True  # type: ignore[assignment]
    call = server.open("/v1/chat/completions", chat_body())
    await call.until(lambda: server.client.num_open)
    server.client.on_frame(StepEvents(figures=EngineFigures(1, 0, 0, kv_used_bytes=250, kv_kept_bytes=0)))
    found = await page(server)
    assert (found("vllm:kv_cache_usage_perc"), found("anllm:kv_used_bytes")) == (0.25, 250)
    memory = (await status(server))["memory"]
    assert isinstance(memory, dict) and (memory["kv_used_bytes"], memory["kv_usage"]) == (250, 0.25)
    call.leave()
    await call.end()
    assert (await page(server))("vllm:kv_cache_usage_perc") == 0


async def test_two_apps_count_apart() -> None:
    one, other = Server(), Server()
    await one.chat()
    assert (await page(one))("vllm:generation_tokens_total") == OUTPUT_TOKENS
    assert (await page(other))("vllm:generation_tokens_total") == 0


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
        "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;"
        "escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.6,text/plain;version=0.0.4;q=0.5",
        "text/plain;version=1.0.0;escaping=underscores;q=0.6",
    ],
    ids=["Prometheus 2", "Prometheus 3", "escaped by underscores", "text, escaped"],
)
async def test_names_are_the_same_whoever_scrapes(server: Server, accept: str) -> None:
    def names(page: str) -> set[str]:
        found = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if line and line[0] != "#"}
        return {name.removesuffix("_created") for name in found}

    plain = names((await server.http.get("/metrics")).text)
    scraped = names((await server.http.get("/metrics", headers={"accept": accept})).text)
    assert "vllm:num_requests_running" in scraped
    assert scraped == plain


async def test_openmetrics_for_who_asks_for_it(server: Server) -> None:
    await server.chat()
    headers = {"accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"}
    response = await server.http.get("/metrics", headers=headers)
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert response.text.endswith("# EOF\n")


async def test_status_lists_what_is_open_without_texts(server: Server) -> None:
    clock = FakeClock(server.service.recorder.now_s)
    server.service.recorder._clock = server.service.recorder.recent._clock = clock
    server.client.is_manual = True
    call = server.open("/v1/chat/completions", chat_body(n=2, messages=[{"role": "user", "content": "SECRET"}]))
    await call.until(lambda: len(server.client.open_ids) == 2)
    first, second = server.client.open_ids
    clock.advance(0.5)
    server.client.start(first, 3)
    server.client.emit(first, "SECRET")
    response = await server.http.get("/v1/status")
    assert "SECRET" not in response.text
    told = response.json()
    assert told["queue"] == {"requests": 1, "running": 0, "waiting": 2}
    assert [(row["stage"], row["cached_tokens"], row["output_tokens"]) for row in told["rows"]] == [
        ("decode", 3, 6),
        ("waiting", 0, 0),
    ]
    assert all(row["request_id"].startswith("req_") and row["age_s"] >= 0 for row in told["rows"])
    for request_id in (first, second):
        server.client.finish(request_id)
    await call.end()
    told = (await server.http.get("/v1/status")).json()
    assert (told["rows"], told["queue"]) == ([], {"requests": 0, "running": 0, "waiting": 0})
    assert told["last_minute"]["finished"] == 2
    assert told["last_minute"]["output_tokens_per_s"] == 6
    assert told["last_minute"]["ttft_ms"]["p50"] == pytest.approx(500, rel=0.03)
    assert told["last_minute"]["itl_ms"] == {"p50": None, "p95": None, "p99": None}


async def test_ping_is_health_without_a_body(server: Server) -> None:
    for response in (await server.http.get("/ping"), await server.http.post("/ping")):
        assert (response.status_code, response.content) == (200, b"")
    server.service.draining = True
    response = await server.http.get("/ping")
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")


async def test_one_line_for_each_request_with_figures_and_no_texts(server: Server, caplog) -> None:
    caplog.set_level("INFO", "anllm")
    await server.http.post("/v1/chat/completions", json=chat_body(), headers={"x-request-id": "mine"})
    (record,) = caplog.records
    assert isinstance(record.msg, Fields)
    line = json.loads(JsonFormatter("api").format(record))
    assert line["request_id"] == "mine"
    assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (
        PROMPT_TOKENS,
        3,
        OUTPUT_TOKENS,
    )
    assert line["finish_reason"] == "stop"
    assert line["ttft_ms"] >= 0 and line["itl_ms"] >= 0 and line["duration_ms"] >= line["ttft_ms"]
    assert "Hello" not in json.dumps(line) and "Say" not in json.dumps(line)
    assert "request_id=mine client= model=" in record.getMessage()


async def test_every_line_about_a_request_has_its_id(server: Server, caplog) -> None:
    caplog.set_level(logging.DEBUG, "anllm")
    server.client.answer = lambda request: [-1]
    for fields in ({}, {"stream": True}, {"temperature": 9}):
        await server.http.post(
            "/v1/chat/completions", content=json.dumps(chat_body(**fields)), headers={"x-request-id": "mine"}
        )
    lines = [
        json.loads(JsonFormatter("api").format(record)) for record in caplog.records if record.name.startswith("anllm")
    ]
    assert len(lines) >= 5
    assert all(line["request_id"] == "mine" for line in lines)


async def test_the_engine_knows_the_id_too(server: Server) -> None:
    await server.http.post("/v1/chat/completions", json=chat_body(n=2), headers={"x-request-id": "mine"})
    assert [request.log_id for request in server.client.requests] == ["mine", "mine"]


async def test_a_slow_reader_is_open_until_it_has_all(server: Server) -> None:
    call = server.open("/v1/chat/completions", chat_body(stream=True))
    call.is_reading.clear()
    await call.until(lambda: server.client.requests and not server.client.num_open)
    await call.until(lambda: server.service.recorder.ends["stop"])
    found = await page(server)
    assert found("vllm:request_success_total", finished_reason="stop") == 1
    assert (found("anllm:requests_open"), found("vllm:num_requests_running")) == (1, 0)
    call.is_reading.set()
    await call.end()
    assert (await page(server))("anllm:requests_open") == 0


async def test_lines_of_other_rooms_have_the_id_of_the_request_too(server: Server) -> None:
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter("api").format(record))

    handler, logger = Handler(), logging.getLogger("anllm")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    try:
        for name in ("one", "two"):
            body = chat_body(
                **{f"unknown_{name}": 1}, messages=[{"role": "user", "content": "x" * 70_000 * (name == "two")}]
            )
            await server.http.post("/v1/chat/completions", json=body, headers={"x-request-id": name})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    told = [(line["request_id"], line["message"]) for line in map(json.loads, lines)]
    assert [request_id for request_id, message in told if "unknown" in message] == ["one", "two"], "in a thread too"
    assert {request_id for request_id, _ in told} == {"one", "two"}
