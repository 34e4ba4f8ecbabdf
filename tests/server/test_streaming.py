"""Streams: contract C120-C140 and C163, C164, case groups b and j."""

import asyncio
import json

import pytest

from anllm.config import ServerConfig
from server_harness import ANSWER, EOS, MODEL, Server, assert_error, chat_body, chunks, comp_body, joined

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
USAGE = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}}


async def test_C120_headers(server: Server) -> None:
    response = await server.chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-length" not in response.headers and "content-encoding" not in response.headers


async def test_C122_C123_C124_C125_C126_sequence(server: Server) -> None:
    parts = chunks((await server.chat(stream=True)).text)
    assert {(p["object"], p["id"], p["created"], p["model"], p["system_fingerprint"]) for p in parts} == {
        ("chat.completion.chunk", parts[0]["id"], parts[0]["created"], MODEL, server.service.system_fingerprint)
    }
    assert all("usage" not in part and len(part["choices"]) == 1 for part in parts)
    first, *middle, last = (part["choices"][0] for part in parts)
    assert first == {
        "index": 0,
        "delta": {"role": "assistant", "content": "", "refusal": None},
        "logprobs": None,
        "finish_reason": None,
    }
    assert last == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all(c["delta"].keys() == {"content"} and c["delta"]["content"] for c in middle)
    assert all(c["finish_reason"] is None and c["logprobs"] is None for c in middle)
    assert joined(parts) == (await server.chat()).json()["choices"][0]["message"]["content"]


async def test_C127_B_3_usage_chunk(server: Server) -> None:
    *parts, last = chunks((await server.chat(**USAGE)).text)
    assert all(part["usage"] is None for part in parts)
    assert last["choices"] == [] and last["id"] == parts[0]["id"]
    assert last["usage"] == (await server.chat()).json()["usage"]


async def test_continuous_usage(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = chunks((await server.chat(stream=True, stream_options=options)).text)
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts[0] <= 1 and counts == sorted(counts) and counts[-1] == len(ANSWER.encode()) + 1


@pytest.mark.parametrize("order", [(100, 101, 102), (102, 101, 100)])
async def test_C128_several_choices(server: Server, order) -> None:
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(n=3, **USAGE))
    await call.until(lambda: server.client.num_open == 3)
    for request_id in order:
        server.client.emit(request_id, f"text {request_id}")
        server.client.finish(request_id)
    parts = chunks(await call.end())
    assert [part["choices"][0]["index"] for part in parts[:3]] == [0, 1, 2]
    assert all(part["choices"][0]["delta"]["role"] == "assistant" for part in parts[:3])
    assert sum("role" in c["delta"] for part in parts for c in part["choices"]) == 3
    ends = [c["index"] for part in parts for c in part["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert [joined(parts, i) for i in range(3)] == ["text 100", "text 101", "text 102"]
    assert sum(bool(part["usage"]) for part in parts) == 1


@pytest.mark.parametrize("stop", ["there", ["re, A"], ["\U0001f600"], ["end.\x01"], ["Hello"]])
async def test_C129_C_1_C_3_stop_strings(server: Server, stop) -> None:
    parts = chunks((await server.chat(stream=True, stop=stop)).text)
    choice = (await server.chat(stop=stop)).json()["choices"][0]
    assert joined(parts) == choice["message"]["content"]
    assert parts[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


async def test_C131_C140_B_1_characters_stay_whole(server: Server) -> None:
    text = (await server.chat(stream=True)).text
    assert "\ufffd" not in joined(chunks(text)) and "\\u2028" in text


async def test_C134_B_6_invalid_request_is_no_stream(server: Server) -> None:
    for fields in ({"temperature": 3}, {"n": 0}, {"messages": [{"role": "user", "content": "x" * 2000}]}):
        assert_error(await server.chat(stream=True, **fields), 400)
    assert_error(await server.chat(stream=True, model="x"), 404)


async def test_3_4_4_nothing_generated(server: Server) -> None:
    server.client.answer = lambda request: [EOS]
    parts = chunks((await server.chat(stream=True)).text)
    assert [part["choices"][0]["delta"] for part in parts][1:] == [{}]


async def test_C138_parallel_streams(server: Server) -> None:
    server.client.answer = lambda request: [*str(request.request_id).encode() * 5, EOS]
    answers = await asyncio.gather(*(server.chat(stream=True) for _ in range(5)))
    for i, answer in enumerate(answers):
        parts = chunks(answer.text)
        assert joined(parts) == str(100 + i) * 5 and len({part["id"] for part in parts}) == 1


async def test_C139_headers_and_role_come_at_admission(server: Server) -> None:
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True))
    await call.until_sent('"role":"assistant"')
    assert call.status == 200 and server.client.num_open == 1
    call.leave()
    await call.end()


async def test_B_7_keep_alive_while_silent() -> None:
    server = Server(ServerConfig(keep_alive_s=0.01))
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True))
    while call.body.count(b"\n\n: keep-alive\n\n") < 2:
        await asyncio.sleep(0.005)
    server.client.emit(100, "hi")
    server.client.finish(100)
    assert joined(chunks(await call.end())) == "hi"


async def test_C135_G_5_disconnect_aborts(server: Server, caplog) -> None:
    caplog.set_level("INFO", "anllm")
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True, n=2))
    await call.until_sent("role")
    server.client.emit(100, "some text")
    await call.until_sent("some text")
    call.leave()
    await call.end()
    assert server.client.aborted == [100, 101] and b"[DONE]" not in call.body
    assert "finish_reason=abort" in caplog.records[-1].getMessage()


async def test_G_5_disconnect_of_a_client_that_does_not_read(server: Server) -> None:
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True))
    call.is_reading.clear()
    await call.until(lambda: server.client.num_open)
    call.leave()
    await call.end()
    assert server.client.aborted == [100]


async def test_cancelled_by_the_http_server(server: Server) -> None:
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True))
    await call.until_sent("role")
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert server.client.aborted == [100]


async def test_J_9_slow_reader_gets_all_text_in_few_chunks(server: Server) -> None:
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True))
    await call.until_sent("role")
    call.is_reading.clear()
    for _ in range(500):
        server.client.emit(100, "ab")
        await asyncio.sleep(0)
    call.is_reading.set()
    server.client.finish(100)
    parts = chunks(await call.end())
    assert joined(parts) == "ab" * 500 and len(parts) <= 5


async def test_stop_string_frees_the_engine_though_the_reader_is_slow(server: Server) -> None:
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True, stop="END"))
    await call.until_sent("role")
    call.is_reading.clear()
    server.client.emit(100, "text EN")
    server.client.emit(100, "D and more")
    assert server.client.aborted == [100]
    call.is_reading.set()
    parts = chunks(await call.end())
    assert joined(parts) == "text " and parts[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["StepError", "EngineDeadError"])
async def test_B_6_error_after_the_first_event(server: Server, name: str) -> None:
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(n=2, **USAGE))
    await call.until_sent("role")
    server.client.emit(100, "half")
    await call.until_sent("half")
    server.client.fail(100, name, "It broke.")
    *parts, last = chunks(await call.end())
    assert last["error"].keys() == {"message", "type", "param", "code"}
    assert last["error"]["message"].startswith("It broke.") and last["error"]["type"] == "server_error"
    assert all(c["finish_reason"] is None for part in parts for c in part["choices"])
    assert server.client.aborted == [101]


async def test_bug_after_the_first_event(server: Server, caplog) -> None:
    server.client.is_manual = True
    call = server.open(CHAT, chat_body(stream=True))
    await call.until_sent("role")
    server.client.emit(100, [-1])  # no byte: the fake detokenizer raises
    *_, last = chunks(await call.end())
    assert last["error"]["type"] == "server_error" and "byte" not in last["error"]["message"]
    assert "Traceback" in caplog.text


async def test_C163_completion_stream(server: Server) -> None:
    *parts, last = chunks((await server.comp(**USAGE)).text)
    body = (await server.comp()).json()
    assert joined(parts) == body["choices"][0]["text"] and last["usage"] == body["usage"] and last["choices"] == []
    assert all(part["object"] == "text_completion" and part["usage"] is None for part in parts)
    assert [c["finish_reason"] for part in parts for c in part["choices"] if c["finish_reason"]] == ["stop"]


async def test_C164_prompts_times_n_in_a_stream(server: Server) -> None:
    server.client.answer = lambda request: [*request.prompt_token_ids[1:], EOS]
    parts = chunks((await server.comp(prompt=["A", "B"], n=2, echo=True, stream=True)).text)
    assert [joined(parts, i) for i in range(4)] == ["AA", "AA", "BB", "BB"]
    assert [part["choices"][0]["text"] for part in parts[:4]] == ["A", "A", "B", "B"]
    assert sorted(c["index"] for part in parts for c in part["choices"] if c["finish_reason"]) == [0, 1, 2, 3]


async def test_chunk_equals_the_plain_encoder(server: Server) -> None:
    """The pre-rendered frame gives byte for byte what json gives for the whole object."""
    for path, body in ((CHAT, chat_body(service_tier="auto", **USAGE)), ("/v1/completions", comp_body(**USAGE))):
        text = (await server.post(path, body)).text
        for event in text.split("\n\n")[:-2]:
            assert event == "data: " + json.dumps(json.loads(event[6:]), separators=(",", ":"))


async def test_C136_openai_stream_helper(server: Server) -> None:
    openai = pytest.importorskip("openai")
    httpx2 = pytest.importorskip("httpx2")  # what the client speaks through
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app))
    client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="x", http_client=http)
    messages = [{"role": "user", "content": "hi"}]
    for n in (1, 2):
        options = {"include_usage": True}
        manager = client.chat.completions.stream(model=MODEL, messages=messages, n=n, stream_options=options)
        async with manager as stream:
            final = await stream.get_final_completion()
        assert [c.message.content for c in final.choices] == [ANSWER] * n
        assert {c.message.role for c in final.choices} == {"assistant"} and final.usage is not None
