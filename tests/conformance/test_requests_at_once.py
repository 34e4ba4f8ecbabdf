"""Many requests beside each other, through every room between HTTP and a fake model."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from anllm.config import SchedulerConfig
from fake_server import MAX_MODEL_LEN, RealServer, in_process, make_runner, text_alone
from server_harness import assert_error, chat_body, chunks, comp_body, joined
from serving import Gate, eventually
from stepping import letters_and_ends, nearby

COMP, CHAT = "/v1/completions", "/v1/chat/completions"


def running(gate: Gate, config: SchedulerConfig) -> Any:
    return RealServer(make_runner(nearby, gate), gate, config).running()


def test_C203_G_9_fifty_requests_of_ten_clients_are_answered_or_refused_at_once() -> None:
    gate = Gate()
    with running(gate, SchedulerConfig(max_num_seqs=2, max_num_waiting=2)) as server:

        def client(number: int) -> list[httpx.Response]:
            with server.http() as http:
                return [http.post(COMP, json=comp_body(prompt=f"{number} {i}", max_tokens=200)) for i in range(5)]

        with ThreadPoolExecutor(10) as pool:
            responses = [response for found in pool.map(client, range(10)) for response in found]
        assert len(responses) == 50
        assert {response.status_code for response in responses} <= {200, 429}
        assert any(response.status_code == 200 for response in responses)
        for response in responses:
            if response.status_code == 429:
                assert_error(response, 429, None, "rate_limit_exceeded")
                assert 1 <= int(response.headers["retry-after"]) <= 30
        server.until_idle()
        with server.http() as http:
            body = comp_body(prompt="after", max_tokens=5)
            assert http.post(COMP, json=body).json()["choices"][0]["text"] == text_alone(body, nearby)[0]


@pytest.mark.anyio
async def test_G_2_G_3_rows_of_all_kinds_in_one_batch_answer_as_alone() -> None:
    draw = random.Random(7)
    extras: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 1},
        {"logit_bias": {"97": -5}},
        {"logprobs": 2},
        {"min_p": 0.1, "top_k": 3},
        {"min_tokens": 3},
        {"stream": True},
    ]
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=100)
    async with in_process(make_runner(letters_and_ends), config) as server:
        bodies = [
            comp_body(prompt=f"{i} " + "x" * draw.randrange(10, 600), max_tokens=20, **draw.choice(extras))
            for i in range(60)
        ]

        async def call(body: dict[str, Any]) -> httpx.Response:
            await asyncio.sleep(draw.random() / 10)
            return await server.http.post(COMP, json=body)

        for body, response in zip(bodies, await asyncio.gather(*map(call, bodies)), strict=True):
            assert response.status_code == 200
            text = joined(chunks(response.text)) if "stream" in body else response.json()["choices"][0]["text"]
            assert text == text_alone(body, letters_and_ends)[0]
        wanted = {(b.get("repetition_penalty", 1), b.get("presence_penalty", 0), b.get("logprobs")) for b in bodies}
        rows = {s.request_id: s.params for plan in server.runner.plans for s in plan.scheduled}.values()
        assert {(p.repetition_penalty, p.presence_penalty, p.logprobs) for p in rows} == wanted


@pytest.mark.anyio
async def test_G_7_E_10_a_long_prompt_holds_up_neither_streams_nor_short_requests() -> None:
    gate = Gate()
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, decode_token_budget=64)
    long = [{"role": "system", "content": "y" * 5000}, {"role": "user", "content": "Go."}]
    async with in_process(make_runner(nearby, gate), config) as server:
        gate.shut()
        calls = []
        for call in (
            server.comp(prompt="stream", max_tokens=1000, stream=True),
            server.comp(prompt="another", max_tokens=1000, stream=True),
            server.chat(messages=long, max_tokens=3),
            server.comp(prompt="short", max_tokens=3),
        ):
            calls.append(asyncio.create_task(call))
            await eventually(lambda: server.client.num_open == len(calls))
        gate.open()
        responses = [await call for call in calls]
        assert [response.status_code for response in responses] == [200] * 4

        sampled: dict[int, list[int]] = {}  # request -> the steps in which it got a token
        for step, plan in enumerate(server.runner.plans):
            for scheduled in plan.scheduled:
                if scheduled.sample:
                    sampled.setdefault(scheduled.request_id, []).append(step)
        one, two, slow, quick = (sampled[request_id] for request_id in sorted(sampled))
        assert quick[-1] < slow[0], "the short one is done before the long prompt is"
        assert slow[0] > 50, "the long prompt is computed in pieces"
        for steps in (one, two):
            assert steps[0] < 5
            meanwhile = [step for step in steps if step <= slow[0]]
            assert len(meanwhile) == slow[0] - steps[0] + 1, "a stream gets a token in every step"

        again = await server.chat(messages=long, max_tokens=3)
        assert again.json()["choices"] == responses[2].json()["choices"]


@pytest.mark.anyio
@pytest.mark.parametrize("chunk", [16, 64, 256, 2048])
async def test_H_6_prompt_lengths_around_chunks_and_size_classes(chunk: int) -> None:
    config = SchedulerConfig(max_num_batched_tokens=chunk)
    async with in_process(make_runner(nearby), config) as server:
        for size in (16, 64, 256, 512, 2048):
            for length in (size - 1, size, size + 1, 2 * size):
                body = comp_body(prompt="p" * length, max_tokens=8)
                answers = [(await server.http.post(COMP, json=body)).json() for _ in range(2)]
                for answer in answers:
                    assert answer["choices"][0]["text"] == text_alone(body, nearby)[0]
                    assert answer["usage"]["prompt_tokens"] == length


@pytest.mark.anyio
async def test_H_2_H_7_the_context_ends_an_answer_and_nobody_elses() -> None:
    async with in_process(make_runner(nearby)) as server:
        other = asyncio.create_task(server.comp(prompt="other", max_tokens=500, stream=True))
        for fields in ({"max_tokens": 10**9}, {"max_completion_tokens": None}):
            length = 8192 - 20 - len("<user>" + '""' + "<assistant>")
            response = await server.chat(messages=[{"role": "user", "content": "c" * length}], **fields)
            body = response.json()
            assert body["choices"][0]["finish_reason"] == "length"
            assert body["usage"]["total_tokens"] == 8192
            assert body["usage"]["completion_tokens"] == 20
        assert joined(chunks((await other).text)) == text_alone(comp_body(prompt="other", max_tokens=500), nearby)[0]


def test_J_9_clients_that_read_nothing_hold_up_nobody_and_leave_nothing() -> None:
    gate = Gate()
    with running(gate, SchedulerConfig(max_num_seqs=32)) as server, ExitStack() as connections:
        gate.shut()
        for i in range(20):
            connection = connections.enter_context(server.connect(receive_buffer_bytes=4096))
            content = json.dumps(chat_body(stream=True, max_tokens=4000, seed=i)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)
        server.until(lambda: server.client.num_open == 20)
        with server.http() as http, ThreadPoolExecutor(1) as pool:
            body = chat_body(messages=[{"role": "user", "content": "quick"}], stream=True, max_tokens=100)
            quick = pool.submit(http.post, CHAT, json=body)
            server.until(lambda: server.client.num_open == 21)
            gate.shut_before(lambda plan: gate.arrived > 1000)  # of the 4000 steps that the others take
            gate.open()
            assert joined(chunks(quick.result().text)) == text_alone(body, nearby)[0]
            assert http.get("/health").status_code == 200
            assert server.client.num_open == 20
        server.until(lambda: not gate.is_open)
        gate.open()
        server.until(lambda: server.client.num_open == 0)
        connections.close()
        server.until_idle()


@pytest.mark.anyio
async def test_G_10_memory_levels_off() -> None:
    """Answered, refused and streamed requests, with prompts that never come again. The prefix cache is full soon."""
    async with in_process(make_runner(nearby, kv_budget_tokens=2 * MAX_MODEL_LEN)) as server:
        numbers = iter(range(10**9))

        async def round_of_requests() -> int:
            for _ in range(60):
                text = f"{next(numbers)} " * 20
                await server.comp(prompt=text, max_tokens=3)
                await server.comp(prompt=text, max_tokens=3, stream=True, n=2)
                await server.comp(prompt=text, max_tokens=-1)
                await server.chat(messages=[{"role": "user", "content": text}], max_tokens=3, logprobs=True)
            server.runner.plans.clear()  # which the fake keeps for the tests
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            await round_of_requests()
            sizes = [await round_of_requests() for _ in range(3)]
        finally:
            tracemalloc.stop()
        assert sizes[-1] - sizes[0] < 100_000, f"bytes after each round: {sizes}"  # 480 requests lie between
