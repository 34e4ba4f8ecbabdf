"""Answers whole and streamed, from a scripted engine."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from server_harness import ANSWER, EOS, MODEL, Server, assert_error, check_always, chunks, joined
from serving import PATIENCE_S

pytestmark = pytest.mark.anyio
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EMOJI = "\U0001f469\u200d\U0001f4bb\U0001f1ef\U0001f1f5\u00e9\u6f22"


def finish_reasons(parts) -> list[str]:
    return [c["finish_reason"] for part in parts for c in part["choices"] if c["finish_reason"] is not None]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", b"{", 400),
        ("/v1/chat/completions", b'{"model":"x","messages":"hi"}', 400),
        ("/v1/chat/completions", b'{"model":"x","messages":[{"role":"user","content":"hi"}]}', 404),
        ("/v1/completions", b'{"model":"x","prompt":1}', 400),
        ("/v1/completions", b"[]", 400),
        ("/v1/responses", b'{"model":"x"}', 400),
        ("/v1/responses", b'{"model":"x","input":"hi"}', 404),
        ("/v1/responses/resp_x", b"{}", 405),
        ("/tokenize", b"{}", 400),
        ("/detokenize", b'{"tokens":[1.5]}', 400),
        ("/v1/nope", b"{}", 404),
        ("/v1/models", b"{}", 405),
    ],
)
async def test_C017_C098_errors_have_one_form_everywhere(server: Server, path: str, body: bytes, status: int) -> None:
    response = await server.post(path, body)  # which looks for `detail`, for 422 and for numbers that are none
    assert_error(response, status)


async def test_C098_answers_are_strict_json(server: Server) -> None:
    for response in (
        await server.chat(logprobs=True, top_logprobs=20),
        await server.comp(logprobs=5),
        await server.http.get("/v1/models"),
        await server.http.get("/openapi.json"),
    ):
        json.loads(response.content.decode("utf-8"), parse_constant=lambda name: pytest.fail(name))


async def test_C085_C086_same_request_same_parameters(server: Server) -> None:
    for fields in ({"temperature": 0}, {"temperature": 1, "seed": 7}):
        server.client.requests.clear()
        bodies = [(await server.chat(**fields)).json() for _ in range(2)]
        first, second = server.client.requests
        assert first.prompt_token_ids == second.prompt_token_ids
        if "seed" in fields:
            assert first.params == second.params
        assert bodies[0]["choices"] == bodies[1]["choices"]
        assert bodies[0]["system_fingerprint"] == bodies[1]["system_fingerprint"]


async def test_C087_no_hidden_limit(server: Server) -> None:
    server.client.answer = lambda request: [*b"x" * 600, EOS]
    body = (await server.chat()).json()
    assert body["choices"][0]["message"]["content"] == "x" * 600
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_C096_B_1_emoji_there_and_back(server: Server) -> None:
    server.client.answer = lambda request: [*EMOJI.encode(), EOS]
    messages = [{"role": "user", "content": f"Repeat exactly: {EMOJI}"}]
    response = await server.chat(messages=messages)
    assert response.json()["choices"][0]["message"]["content"] == EMOJI
    parts = chunks((await server.chat(messages=messages, stream=True)).text)
    assert joined(parts) == EMOJI
    for part in parts:
        part["choices"][0]["delta"].get("content", "").encode()  # no half of a pair
    assert EMOJI.encode() in bytes(server.client.requests[0].prompt_token_ids)


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 1}, {"stop": "there"}, {"n": 2}, {"logprobs": True}])
async def test_B_4_usage_is_the_same_whole_and_streamed(server: Server, fields) -> None:
    body = (await server.chat(**fields)).json()
    usage = body["usage"]
    assert chunks((await server.chat(**USAGE, **fields)).text)[-1]["usage"] == usage
    assert usage["prompt_tokens"] == len(server.client.requests[0].prompt_token_ids) > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    if "logprobs" in fields:  # the end token is counted and has no entry
        assert usage["completion_tokens"] == len(body["choices"][0]["logprobs"]["content"]) + 1
    if "n" in fields:
        assert usage["completion_tokens"] == 2 * (len(ANSWER.encode()) + 1)


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"tools": [], "tool_choice": "none"}, {"max_tokens": 1}])
async def test_B_5_first_and_later_chunks(server: Server, fields) -> None:
    parts = chunks((await server.chat(stream=True, **fields)).text)
    seen = set()
    for choice in (c for part in parts for c in part["choices"]):
        delta = choice["delta"]
        assert isinstance(delta, dict)
        if choice["index"] in seen:
            assert "role" not in delta
        else:
            assert (delta["role"], delta["content"]) == ("assistant", "")
        seen.add(choice["index"])
        assert (delta == {}) == (choice["finish_reason"] is not None)
    assert len(seen) == fields.get("n", 1)


@pytest.mark.parametrize(("fields", "reason"), [({}, "stop"), ({"max_tokens": 3}, "length"), ({"stop": "Ann"}, "stop")])
async def test_B_8_index_and_finish_reason(server: Server, fields, reason: str) -> None:
    """`chunks` sees to it that [DONE] comes last and once."""
    for call, text_of in (
        (server.chat, lambda c: c["message"]["content"]),
        (server.comp, lambda c: c["text"]),
    ):
        whole = (await call(**fields)).json()["choices"][0]
        parts = chunks((await call(stream=True, **fields)).text)
        assert {c["index"] for part in parts for c in part["choices"]} == {0}
        assert finish_reasons(parts) == [whole["finish_reason"]] == [reason]
        assert parts[-1]["choices"][0]["finish_reason"] == reason
        assert joined(parts) == text_of(whole)


async def test_C121_framing(server: Server) -> None:
    for call in (server.chat, server.comp):
        raw = (await call(stream=True, n=2)).content
        assert b"\r" not in raw and raw.endswith(b"\n\ndata: [DONE]\n\n")
        *events, done, rest = raw.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        for event in events:
            assert event.startswith(b"data: {") and b"\n" not in event
            assert isinstance(json.loads(event[6:]), dict)


async def test_I_3_model_names_like_on_a_hub_are_not_looked_up(server: Server, monkeypatch) -> None:
    def connect(self: socket.socket, address: object) -> None:
        raise AssertionError(f"connects to {address!r}")

    monkeypatch.setattr(socket.socket, "connect", connect)
    names = [f"some-org/some-model-{i}" for i in range(20)]
    async with asyncio.timeout(PATIENCE_S):
        for response in await asyncio.gather(*(server.chat(model=name) for name in names)):
            assert_error(response, 404, None, "model_not_found")


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/v1/embeddings", id="C175_embeddings"),
        pytest.param("/v1/audio/speech", id="audio"),
        pytest.param("/v1/images/generations", id="images"),
        pytest.param("/v1/files", id="files"),
        pytest.param("/v1/batches", id="batches"),
    ],
)
async def test_endpoints_that_are_not_there(server: Server, path: str, method: str) -> None:
    response = await server.http.request(method, path, json={"model": MODEL, "input": "hi"})
    check_always(response)
    assert_error(response, 404, None, "unknown_url")
