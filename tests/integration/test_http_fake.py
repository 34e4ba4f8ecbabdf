"""HTTP request to fake model and back, through every room between: many at once, those that leave, slow ones, failures,
and the official client."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import httpx2
import openai
import pytest

from anllm.config import SchedulerConfig
from anllm.core.step import StepPlan
from anllm.testing.runner import scripted
from fake_server import RealServer, in_process, make_runner, text_alone
from server_harness import MODEL, FakeTemplate, assert_error, chat_body, chunks, comp_body, joined
from serving import PATIENCE_S, Gate, eventually
from stepping import letters_and_ends, nearby

CHAT, COMP = "/v1/chat/completions", "/v1/completions"
ONE_SEAT = SchedulerConfig(max_num_seqs=1)


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def bodies(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Chats and completions in turn, of which one half streams."""
    made = []
    for i in range(count):
        text = f"Request {i}: " + "word " * (i * 5 % 60)
        fields = {"max_tokens": 5 + i, "stream": i % 4 >= 2}
        path = CHAT if i % 2 else COMP
        made.append((path, chat_body(messages=message(text), **fields) if i % 2 else comp_body(prompt=text, **fields)))
    return made


def answer(response: httpx.Response) -> tuple[str, str]:
    """Text and finish reason, of a stream or not."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        parts = chunks(response.text)
        reasons = [c["finish_reason"] for part in parts for c in part["choices"] if c["finish_reason"]]
        assert len(reasons) == 1
        return joined(parts), reasons[0]
    choice = response.json()["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"], choice["finish_reason"]


# -- in process --------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("max_num_seqs", [3, 128])
async def test_G_3_64_requests_at_once_are_each_answered_as_alone(max_num_seqs: int) -> None:
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=100)
    async with in_process(make_runner(letters_and_ends), config) as server:
        requests = bodies(64)
        responses = await asyncio.gather(*(server.http.post(path, json=body) for path, body in requests))
        expected = [text_alone(body, letters_and_ends) for _, body in requests]
        assert [answer(response) for response in responses] == expected
        assert {reason for _, reason in expected} == {"stop", "length"}
        assert server.client.num_open == 0


@pytest.mark.anyio
async def test_usage_counts_the_tokens() -> None:
    async with in_process() as server:
        usage = (await server.comp(prompt="12345", max_tokens=7)).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 7, 12)


@pytest.mark.anyio
@pytest.mark.parametrize("is_stream", [False, True])
async def test_G_9_a_full_queue_is_429_with_retry_after_and_room_again_later(is_stream: bool) -> None:
    gate = Gate()
    config = SchedulerConfig(max_num_seqs=2, max_num_waiting=2)
    async with in_process(make_runner(before_run=gate), config) as server:
        gate.shut()
        calls = [asyncio.create_task(server.comp(prompt=str(i))) for i in range(4)]
        await eventually(lambda: server.client.num_open == 4)
        refused = await server.comp(prompt="x", stream=is_stream)
        assert_error(refused, 429, code="rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        gate.open()
        assert [(await call).status_code for call in calls] == [200] * 4
        assert (await server.comp(prompt="x")).status_code == 200


@pytest.mark.anyio
async def test_n_answers_that_can_never_all_fit_are_a_mistake_and_take_no_place() -> None:
    async with in_process(config=SchedulerConfig(max_num_seqs=2, max_num_waiting=2)) as server:
        assert_error(await server.comp(n=5), 400)
        assert server.client.num_open == 0
        assert len((await server.comp(n=4)).json()["choices"]) == 4


@pytest.mark.anyio
async def test_n_answers_that_dont_all_fit_now_are_refused_and_take_no_place() -> None:
    gate = Gate()
    config = SchedulerConfig(max_num_seqs=2, max_num_waiting=2)
    async with in_process(make_runner(before_run=gate), config) as server:
        gate.shut()
        first = asyncio.create_task(server.comp(max_tokens=2))
        await eventually(lambda: server.client.num_open == 1)
        assert_error(await server.comp(n=4), 429)
        assert server.client.num_open == 1
        gate.open()
        assert (await first).status_code == 200


@pytest.mark.anyio
async def test_n_answers_have_seeds_of_their_own_and_the_first_has_the_seed_given() -> None:
    async with in_process() as server:
        for n in (1, 3, 3):
            assert len((await server.chat(n=n, seed=42, max_tokens=2)).json()["choices"]) == n
        seeds: dict[int, int | None] = {}
        for plan in server.runner.plans:
            seeds.update({s.request_id: s.params.seed for s in plan.scheduled})
        one, first, second, third, *again = seeds.values()
        assert one == first == 42
        assert len({first, second, third}) == 3
        assert again == [first, second, third]


@pytest.mark.anyio
async def test_C090_C130_C156_logprobs_come_through_whole_and_streamed() -> None:
    text = "caf\u00e9 \U0001f600 STO and STOP here"
    prompt = tuple(FakeTemplate().render(message("hi")).encode())
    answers = scripted({prompt: (*text.encode(), 256), tuple(b"once"): (*text.encode(), 256)})
    async with in_process(make_runner(answers)) as server:
        fields = {"messages": message("hi"), "logprobs": True, "top_logprobs": 2, "stop": "STOP", "n": 2}
        whole = (await server.chat(**fields)).json()["choices"]
        parts = chunks((await server.chat(stream=True, **fields)).text)
        for choice in whole:
            entries = choice["logprobs"]["content"]
            assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"]
            assert {len(entry["top_logprobs"]) for entry in entries} == {2}
            own = [c for part in parts for c in part["choices"] if c["index"] == choice["index"] and c["logprobs"]]
            assert [entry for c in own for entry in c["logprobs"]["content"]] == entries
        comp = (await server.comp(prompt="once", logprobs=1, stop="STOP")).json()["choices"][0]
        assert len(comp["logprobs"]["tokens"]) == len(comp["text"].encode()) == len(entries)
        assert comp["logprobs"]["text_offset"][0] == len("once")
        assert (await server.comp(prompt="once")).json()["choices"][0]["logprobs"] is None


@pytest.mark.anyio
async def test_C030_C032_further_sampling_comes_through_to_the_plan() -> None:
    async with in_process() as server:
        fields = {"presence_penalty": 1.5, "frequency_penalty": -2, "top_k": 7, "min_p": 0.1, "min_tokens": 2}
        for call in (server.chat, server.comp):
            response = await call(**fields, repetition_penalty=1.25, logit_bias={"256": -100}, max_tokens=2)
            assert response.status_code == 200
        for params in (s.params for plan in server.runner.plans for s in plan.scheduled):
            assert {name: getattr(params, name) for name in fields} == fields
            assert (params.repetition_penalty, params.logit_bias) == (1.25, ((256, -100.0),))


@pytest.mark.anyio
async def test_without_a_seed_no_two_requests_have_the_same() -> None:
    async with in_process() as server:
        for _ in range(3):
            await server.chat(n=2, max_tokens=1)
        assert len({s.params.seed for plan in server.runner.plans for s in plan.scheduled}) == 6


@pytest.mark.anyio
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_stop_string_ends_the_generation(is_stream: bool) -> None:
    said = b"one two STOP " + b"and on it goes " * 400
    model = scripted({tuple(b"Speak"): tuple(said)})
    # a step takes a moment, so that the front gets its turns on a busy machine too
    async with in_process(make_runner(model, lambda plan: time.sleep(0.001))) as server:
        response = await server.comp(prompt="Speak", stop="STOP", max_tokens=5000, stream=is_stream)
        assert answer(response) == ("one two ", "stop")
        assert server.client.num_open == 0
        assert (await server.comp(prompt="next", max_tokens=1)).status_code == 200
        assert len(server.runner.plans) < 2500  # the engine may run ahead, but not to the end
        assert [s.params.stop for s in server.runner.plans[0].scheduled] == [()]


@pytest.mark.anyio
@pytest.mark.parametrize("endpoint", [CHAT, COMP])
async def test_G_1_a_failing_step_is_500_or_an_error_in_the_stream_and_the_others_go_on(endpoint: str) -> None:
    marker = tuple(b"BOOM")

    def fails(plan: StepPlan) -> bool:
        return any(marker == s.token_ids[i : i + 4] for s in plan.scheduled for i in range(len(s.token_ids)))

    gate = Gate(fails)
    async with in_process(make_runner(before_run=gate), SchedulerConfig(max_num_seqs=1)) as server:

        def body(text: str, **fields: object) -> dict[str, Any]:
            return chat_body(messages=message(text), **fields) if endpoint == CHAT else comp_body(prompt=text, **fields)

        requests = [body("a", max_tokens=9), body("BOOM"), body("b", max_tokens=9), body("BOOM", stream=True)]
        requests.append(body("c", stream=True, max_tokens=9))
        gate.shut()
        calls = []
        for number, request in enumerate(requests, 1):
            calls.append(asyncio.create_task(server.http.post(endpoint, json=request)))
            await eventually(lambda number=number: server.client.num_open == number)
        gate.open()
        good, bad, also_good, bad_stream, good_stream = await asyncio.gather(*calls)
        for response, request in ((good, requests[0]), (also_good, requests[2]), (good_stream, requests[4])):
            assert answer(response) == text_alone(request)
        assert "(request id: " in assert_error(bad, 500)["message"]
        error = chunks(bad_stream.text)[-1]["error"]
        assert error["type"] == "server_error"
        assert "(request id: " in error["message"]
        assert "this step fails" not in bad.text + bad_stream.text
        assert server.client.num_open == 0


@pytest.mark.anyio
async def test_J_3_health_and_models_answer_while_the_engine_is_busy() -> None:
    gate = Gate()
    async with in_process(make_runner(before_run=gate)) as server:
        gate.shut()
        call = asyncio.create_task(server.comp())
        await eventually(lambda: gate.arrived)
        assert (await server.http.get("/health")).json() == {"status": "ok"}
        assert (await server.http.get("/v1/models")).status_code == 200
        gate.open()
        assert (await call).status_code == 200


@pytest.mark.anyio
async def test_the_official_async_client() -> None:
    async with in_process(make_runner(letters_and_ends)) as server:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app))
        async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="x", http_client=http) as client:
            requests = [chat_body(messages=message(f"Hello {i}"), max_tokens=10 + i) for i in range(16)]

            async def whole(body: dict[str, Any]) -> tuple[str | None, str]:
                choice = (await client.chat.completions.create(**body)).choices[0]
                return choice.message.content, choice.finish_reason

            async def streamed(body: dict[str, Any]) -> tuple[str, str | None]:
                stream = await client.chat.completions.create(**body, stream=True)
                parts = [part async for part in stream]
                return "".join(p.choices[0].delta.content or "" for p in parts), parts[-1].choices[0].finish_reason

            answers = await asyncio.gather(*(whole(b) if i % 2 else streamed(b) for i, b in enumerate(requests)))
            assert answers == [text_alone(body, letters_and_ends) for body in requests]
            completion = await client.completions.create(**comp_body(prompt="abc"))
            assert completion.choices[0].text == text_alone(comp_body(prompt="abc"), letters_and_ends)[0]


# -- over a real socket ------------------------------------------------------------------------------------------------

Start = Callable[..., RealServer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server; ended after the test."""
    running = []

    def begin(config: SchedulerConfig | None = None, gate: Gate | None = None) -> RealServer:
        gate = gate or Gate()
        context = RealServer(make_runner(nearby, gate), gate, config or SchedulerConfig()).running()
        running.append(context)
        return context.__enter__()

    yield begin
    for context in running:
        context.__exit__(None, None, None)


def raw_request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode() + content


def read_all(connection: socket.socket) -> tuple[bytes, str]:
    """The head and the body of an answer that ends with the connection."""
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        whole = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            whole += rest[: int(size, 16)]
            body = rest[int(size, 16) + 2 :]
        body = whole
    return head, body.decode()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("endpoint", [CHAT, COMP])
def test_C135_G_5_a_client_that_leaves_while_it_is_answered_frees_its_slot(
    start: Start, endpoint: str, is_stream: bool
) -> None:
    server = start(ONE_SEAT, Gate(shuts_after=20))
    body = (chat_body if endpoint == CHAT else comp_body)(max_tokens=8000, stream=is_stream)
    with server.connect() as connection:
        connection.sendall(raw_request(endpoint, body))
        server.until(lambda: server.gate.arrived > 20)
        assert server.client.num_open == 1
    server.until(lambda: server.client.num_open == 0)
    server.gate.open()
    with server.http() as http:
        body = comp_body(prompt="next", max_tokens=3)
        assert answer(http.post(COMP, json=body)) == text_alone(body, nearby)
    server.until_idle()
    assert len(server.runner.plans) < 40


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_with_a_further_request_sent_ahead_frees_its_slot(start: Start, is_stream: bool) -> None:
    server = start(ONE_SEAT, Gate(shuts_after=20))
    with server.connect() as connection:
        kept = raw_request(COMP, comp_body(max_tokens=8000, stream=is_stream)).replace(b"connection: close\r\n", b"")
        connection.sendall(kept * 2)
        server.until(lambda: server.gate.arrived > 20)
    left_s = time.monotonic()
    server.until(lambda: server.client.num_open == 0)
    assert time.monotonic() < left_s + PATIENCE_S / 2, "it was the step that failed for want of patience"
    server.gate.open()
    server.until_idle()
    assert len(server.runner.plans) < 40


@pytest.mark.parametrize("is_stream", [False, True])
def test_G_6_a_client_that_leaves_during_prefill_frees_its_slot(start: Start, is_stream: bool) -> None:
    server = start(SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=16))
    server.gate.shut()
    with server.connect() as connection:
        connection.sendall(raw_request(COMP, comp_body(prompt="x" * 4000, stream=is_stream)))
        server.until(lambda: server.gate.arrived == 1)
    server.until(lambda: server.client.num_open == 0)
    server.gate.open()
    server.until_idle()
    assert len(server.runner.plans) == 1  # of 250
    with server.http() as http:
        assert http.post(COMP, json=comp_body(max_tokens=2)).status_code == 200


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_the_queue_is_never_computed(start: Start, is_stream: bool) -> None:
    server = start(ONE_SEAT)
    server.gate.shut()
    with server.connect() as first:
        first.sendall(raw_request(COMP, comp_body(prompt="first", max_tokens=5)))
        server.until(lambda: server.gate.arrived == 1)
        with server.connect() as queued:
            queued.sendall(raw_request(COMP, comp_body(prompt="queued", stream=is_stream)))
            server.until(lambda: server.client.num_open == 2)
        server.until(lambda: server.client.num_open == 1)
        server.gate.open()
        _, body = read_all(first)
    assert json.loads(body)["choices"][0]["text"] == text_alone(comp_body(prompt="first", max_tokens=5), nearby)[0]
    server.until_idle()
    assert {s.request_id for plan in server.runner.plans for s in plan.scheduled} == {0}


def test_many_clients_that_leave_at_once_leave_nothing_behind(start: Start) -> None:
    server = start(SchedulerConfig(max_num_seqs=8))
    server.gate.shut()
    with ExitStack() as connections:
        for i in range(40):
            connection = connections.enter_context(server.connect())
            body = comp_body(prompt=f"{i} " * (i * 20 + 1), max_tokens=4000, stream=i % 2 == 0)
            connection.sendall(raw_request(COMP, body))
        server.until(lambda: server.client.num_open == 40)
        server.gate.open()
        server.until(lambda: len(server.runner.plans) > 20)  # some decode, some prefill, some wait
    server.until_idle()
    with server.http() as http:
        body = comp_body(prompt="after", max_tokens=20)
        assert answer(http.post(COMP, json=body)) == text_alone(body, nearby)


def test_J_9_a_slow_reader_holds_up_nobody_costs_little_and_gets_all_its_text(start: Start) -> None:
    server = start()
    slow_body, fast_body = (chat_body(messages=message(who), stream=True) for who in ("slow", "fast"))
    slow_body["max_tokens"], fast_body["max_tokens"] = 6000, 200
    with server.connect(receive_buffer_bytes=4096) as slow, server.http() as http:
        slow.sendall(raw_request(CHAT, slow_body))
        server.until(lambda: server.client.num_open == 1)
        assert answer(http.post(CHAT, json=fast_body)) == text_alone(fast_body, nearby)
        server.until(lambda: server.client.num_open == 0)  # its generation is done, though nobody has read it
        head, text = read_all(slow)
    assert b" 200 " in head.splitlines()[0]
    parts = chunks(text)
    assert joined(parts) == text_alone(slow_body, nearby)[0]
    assert len(parts) < 600  # what waited was sent in few pieces: no frame is kept for each token, nowhere


def test_bad_requests_do_not_disturb_a_running_stream(start: Start) -> None:
    server = start()
    body = chat_body(messages=message("tell"), stream=True, max_tokens=1000)
    bad: list[tuple[str, bytes]] = [
        (CHAT, b"{"),
        (CHAT, b'{"model": 5}'),
        (CHAT, json.dumps(chat_body(messages=[])).encode()),
        (CHAT, json.dumps(chat_body(messages=message("REFUSE"))).encode()),
        (CHAT, json.dumps(chat_body(model="other")).encode()),
        (COMP, json.dumps(comp_body(prompt="x" * 9000)).encode()),
        (COMP, json.dumps(comp_body(n=10_000)).encode()),
        (COMP, b"\xff" * 100_000),
        ("/nope", b""),
    ]
    with server.http() as http, server.http() as other, http.stream("POST", CHAT, json=body) as stream:
        server.until(lambda: len(server.runner.plans) > 5)
        for path, content in bad * 3:
            response = other.post(path, content=content, headers={"content-type": "application/json"})
            assert 400 <= response.status_code < 500
        with server.connect() as garbage:
            garbage.sendall(b"\x00\x01 nonsense\r\n\r\n")
            garbage.recv(1000)
        stream.read()
        assert answer(stream) == text_alone(body, nearby)
    server.until_idle()


def test_G_3_64_real_connections_are_each_answered_as_alone(start: Start) -> None:
    server = start(SchedulerConfig(max_num_seqs=16))
    requests, answers = bodies(64), dict[int, tuple[str, str]]()

    def call(number: int) -> None:
        path, body = requests[number]
        with server.connect() as connection:
            connection.sendall(raw_request(path, body))
            head, text = read_all(connection)
        answers[number] = answer(httpx.Response(200, headers={"content-type": content_type(head)}, text=text))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: text_alone(body, nearby) for number, (_, body) in enumerate(requests)}
    server.until_idle()


def content_type(head: bytes) -> str:
    return next(line.split(b": ")[1] for line in head.lower().splitlines() if line.startswith(b"content-type")).decode()


def test_the_official_client(start: Start) -> None:
    server = start()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        body = chat_body(messages=message("Hello"), max_tokens=40)
        completion = client.chat.completions.create(**body)
        choice = completion.choices[0]
        assert (choice.message.content, choice.finish_reason) == text_alone(body, nearby)
        assert completion.model == MODEL

        parts = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == text_alone(body, nearby)[0]
        assert parts[-1].usage
        assert parts[-1].usage.completion_tokens == 40

        legacy = comp_body(prompt="abc", n=2)
        texts = [choice.text for choice in client.completions.create(**legacy).choices]
        assert texts == [text_alone(legacy, nearby)[0]] * 2
        streamed = client.completions.create(**comp_body(prompt="abc"), stream=True)
        assert "".join(part.choices[0].text for part in streamed) == texts[0]

        assert [model.id for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(**comp_body(prompt="x" * 9000))
        assert caught.value.code == "context_length_exceeded"


def test_the_official_client_may_leave_a_stream_early(start: Start) -> None:
    server = start(ONE_SEAT)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        with client.chat.completions.create(**chat_body(max_tokens=8000), stream=True) as stream:
            for number, _ in enumerate(stream):
                if number == 3:
                    break
        server.until_idle()
        assert client.completions.create(**comp_body(max_tokens=2)).choices[0].text


def test_the_official_client_sees_a_full_queue_as_rate_limit(start: Start) -> None:
    server = start(SchedulerConfig(max_num_seqs=1, max_num_waiting=1))
    server.gate.shut()
    holder = server.connect()
    holder.sendall(raw_request(COMP, comp_body(max_tokens=2)))
    server.until(lambda: server.client.num_open == 1)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**comp_body(n=2))
        assert caught.value.response.headers["retry-after"] == "1"
    server.gate.open()
    holder.close()


def test_the_official_client_retries_a_full_queue_until_there_is_room(start: Start) -> None:
    server = start(SchedulerConfig(max_num_seqs=1, max_num_waiting=1))
    server.gate.shut()
    holders = [server.connect() for _ in range(2)]
    for holder in holders:
        holder.sendall(raw_request(COMP, comp_body(max_tokens=2)))
    server.until(lambda: server.client.num_open == 2)

    def open_after_a_refusal() -> None:
        server.until(lambda: server.recorder.rejections.total())
        server.gate.open()

    opening = threading.Thread(target=open_after_a_refusal)
    opening.start()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=3) as client:
        body = comp_body(prompt="late", max_tokens=5)
        assert client.completions.create(**body).choices[0].text == text_alone(body, nearby)[0]
    opening.join()
    for holder in holders:
        holder.close()
