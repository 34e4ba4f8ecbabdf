"""Figures of the real engine, with a fake model: they are what they are, return to zero, and outlive an engine."""

from __future__ import annotations

import asyncio
import itertools
import json

import httpx
import pytest

from anllm.config import SchedulerConfig
from anllm.core.step import StepPlan
from exposition import Page
from fake_server import InProcess, in_process, make_runner
from server_harness import comp_body
from serving import Gate, eventually
from stepping import nearby

pytestmark = pytest.mark.anyio
BUDGET = 1 << 15


async def page(server: InProcess) -> Page:
    return Page((await server.http.get("/metrics")).text)


async def test_running_waiting_and_memory_are_what_they_are_and_return_to_zero() -> None:
    gate = Gate(shuts_after=15)
    runner = make_runner(nearby, gate, kv_budget_tokens=BUDGET)
    async with in_process(runner, SchedulerConfig(max_num_seqs=2)) as server:
        gate.shut()
        asking = [asyncio.create_task(server.comp(prompt=f"{i} " * 50, max_tokens=20)) for i in range(5)]
        await eventually(lambda: gate.arrived == 1 and server.client.num_open == 5)
        gate.open()
        await eventually(lambda: gate.arrived == 16)
        await eventually(lambda: server.recorder.num_running == 2)
        found = await page(server)
        assert found("vllm:num_requests_running") == 2
        assert found("vllm:num_requests_waiting") == 3
        assert found("anllm:requests_open") == 5
        assert found("anllm:kv_used_bytes") == 2 * 256
        gate.open()
        for answer in await asyncio.gather(*asking):
            assert answer.status_code == 200
        await eventually(lambda: server.recorder.kv_used_bytes == 0)
        found = await page(server)
        for gauge in (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "anllm:kv_used_bytes",
            "anllm:requests_open",
        ):
            assert found(gauge) == 0, gauge
        assert found("vllm:prompt_tokens_total") == 5 * 100
        assert found("vllm:generation_tokens_total") == 5 * 20
        assert found("vllm:request_success_total", finished_reason="length") == 5
        assert found("vllm:request_queue_time_seconds_count") == 5
        # The first token of an answer comes of its prompt, the last one is never computed itself.
        assert found("vllm:iteration_tokens_total_sum") == 5 * (100 + 19)
        assert found("anllm:step_time_seconds_count") == len(runner.plans) == found("anllm:batch_size_count")
        assert found("anllm:batch_size_sum") == sum(len(plan.scheduled) for plan in runner.plans)
        assert found("anllm:kv_budget_bytes") == BUDGET


async def test_memory_while_a_request_runs() -> None:
    gate = Gate(shuts_after=3)
    async with in_process(make_runner(nearby, gate, kv_budget_tokens=BUDGET)) as server:
        asking = asyncio.create_task(server.comp(prompt="x" * 300, max_tokens=10))
        await eventually(lambda: gate.arrived == 4)
        await eventually(lambda: server.recorder.kv_used_bytes)
        found = await page(server)
        assert (found("vllm:num_requests_running"), found("vllm:num_requests_waiting")) == (1, 0)
        assert found("vllm:kv_cache_usage_perc") == 512 / BUDGET
        (row,) = (await server.http.get("/v1/status")).json()["rows"]
        assert (row["stage"], row["prompt_tokens"]) == ("decode", 300)
        gate.open()
        await asking


async def test_times_of_requests_add_up() -> None:
    gate = Gate()
    async with in_process(make_runner(nearby, gate), SchedulerConfig(max_num_seqs=1)) as server:
        gate.shut()
        asking = [asyncio.create_task(server.comp(max_tokens=5)) for _ in range(3)]
        await eventually(lambda: server.client.num_open == 3)
        await asyncio.sleep(0.05)
        gate.open()
        await asyncio.gather(*asking)
        found = await page(server)
        queue, prefill, decode, inference, whole = (
            found(f"vllm:{name}_seconds_sum")
            for name in (
                "request_queue_time",
                "request_prefill_time",
                "request_decode_time",
                "request_inference_time",
                "e2e_request_latency",
            )
        )
        assert inference == pytest.approx(prefill + decode)
        assert 0.1 < queue < whole, "two of them waited for the first"
        assert queue + inference <= whole
        assert found("vllm:time_to_first_token_seconds_sum") <= whole


async def test_what_the_prefix_cache_finds_is_in_counters_as_in_usage() -> None:
    async with in_process() as server:
        cached = 0
        for _ in range(3):
            usage = (await server.comp(prompt="y" * 100, max_tokens=3)).json()["usage"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
        found = await page(server)
        assert cached == 2 * 99
        assert found("vllm:prompt_tokens_cached_total") == found("vllm:prefix_cache_hits_total") == cached
        assert found("vllm:prefix_cache_queries_total") == 3 * 99
        assert found("vllm:request_prefill_kv_computed_tokens_sum") == 300 - cached
        assert found("anllm:kv_kept_bytes") > 0
        await server.http.post("/reset_prefix_cache")
        await eventually(lambda: server.recorder.kv_kept_bytes == 0)


async def test_a_client_that_leaves_while_nobody_else_runs_leaves_zeros() -> None:
    gate = Gate(shuts_after=5)
    async with in_process(make_runner(nearby, gate)) as server:
        asking = asyncio.create_task(server.comp(max_tokens=4000))
        await eventually(lambda: gate.arrived == 6)
        asking.cancel()
        await eventually(lambda: server.client.num_open == 0)
        gate.open()
        await eventually(lambda: server.recorder.kv_used_bytes == 0)
        found = await page(server)
        assert found("vllm:num_requests_running") == found("vllm:kv_cache_usage_perc") == 0
        assert found("vllm:request_success_total", finished_reason="abort") == 1
        assert found("anllm:request_aborts_total", stage="decode") == 1


async def test_preemptions_are_counted() -> None:
    gate = Gate()
    async with in_process(make_runner(nearby, gate, kv_budget_tokens=8192)) as server:
        gate.shut()
        asking = [asyncio.create_task(server.comp(prompt=f"{i}" * 3000, max_tokens=1500)) for i in range(3)]
        await eventually(lambda: server.client.num_open == 3)
        gate.open()
        assert all(answer.status_code == 200 for answer in await asyncio.gather(*asking))
        found = await page(server)
        assert found("vllm:num_preemptions_total") >= 1
        assert found("vllm:prompt_tokens_total") == 9000, "a prompt counts once, however often it is computed"
        assert found("vllm:request_queue_time_seconds_count") == 3


async def test_counters_go_on_when_the_engine_is_started_again() -> None:
    numbers = itertools.count()

    def factory():
        number = next(numbers)

        def before_run(plan: StepPlan) -> None:
            if number == 0 and any(b"BOOM"[0] in s.token_ids for s in plan.scheduled):
                raise RuntimeError("boom")

        return make_runner(nearby, before_run)

    async with in_process(factory, restart_delays_s=(0.0,)) as server:  # type: ignore[arg-type]
        assert (await server.comp(prompt="a" * 40, max_tokens=5)).status_code == 200
        before = await page(server)
        # Three failed steps in a row end the engine.
        for _ in range(3):
            assert (await server.comp(prompt="BOOM", max_tokens=5)).status_code == 500
        await eventually(lambda: server.client.num_restarts == 1 and server.service.is_ready)
        during = await page(server)
        assert (await server.comp(prompt="a" * 40, max_tokens=5)).status_code == 200
        after = await page(server)
    assert after("anllm:engine_restarts_total") == 1
    assert after("vllm:request_success_total", finished_reason="length") == 2
    assert after("vllm:request_success_total", finished_reason="error") == 3
    assert after.sum("anllm:request_failures_total") == 3
    assert after("vllm:prompt_tokens_total") == 80
    assert during("vllm:num_requests_running") == during("vllm:kv_cache_usage_perc") == 0
    for earlier, later in ((before, during), (during, after)):
        for name in sorted(earlier.names):
            if name.endswith(("_total", "_count", "_sum", "_bucket")) and not name.startswith("process_"):
                assert earlier.sum(name) <= later.sum(name), name


async def test_a_grammar_that_is_compiled_is_waited_for() -> None:
    gate = Gate()
    async with in_process(make_runner(nearby, gate)) as server:
        gate.shut()
        busy = asyncio.create_task(server.comp(max_tokens=3))
        await eventually(lambda: gate.arrived)
        bound = asyncio.create_task(server.comp(max_tokens=3, structured_outputs={"regex": "[a-z]+"}))
        await eventually(lambda: server.client.num_open == 2)
        found = await page(server)
        assert found.sum("vllm:num_requests_waiting_by_reason") == found("vllm:num_requests_waiting")
        gate.open()
        await asyncio.gather(busy, bound)
        found = await page(server)
        assert found("vllm:request_success_total", finished_reason="length") == 2
        assert found.sum("vllm:num_requests_waiting_by_reason") == 0


async def test_streams_at_once_are_counted_to_the_token() -> None:
    async with in_process(make_runner(nearby)) as server:

        async def ask(i: int) -> int:
            body = comp_body(prompt=f"{i} word", max_tokens=3 + i, stream=True, stream_options={"include_usage": True})
            response: httpx.Response = await server.http.post("/v1/completions", json=body)
            usage = json.loads(response.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
            return int(usage["completion_tokens"])

        told = await asyncio.gather(*(ask(i) for i in range(40)))
        found = await page(server)
        assert found("vllm:generation_tokens_total") == sum(told) == sum(3 + i for i in range(40))
        assert found("vllm:inter_token_latency_seconds_count") == sum(2 + i for i in range(40))
        assert found("vllm:time_to_first_token_seconds_count") == 40
