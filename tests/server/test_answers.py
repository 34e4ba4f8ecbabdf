"""Whole answers: contract C080-C099 and C150-C164, case groups c and d."""

import asyncio
import time

import pytest

from server_harness import ANSWER, EOS, MODEL, Server, assert_error, chat_body, comp_body

pytestmark = pytest.mark.anyio
NUM_ANSWER_TOKENS = len(ANSWER.encode()) + 1  # with the end token


async def test_C080_C081_C082_shape(server: Server) -> None:
    response = await server.chat(service_tier="auto")
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    num_prompt = len(server.client.requests[0].prompt_token_ids)
    usage = body.pop("usage")
    identity = body.pop("id")
    assert identity.startswith("chatcmpl-") and len(identity) >= 33 and identity[9:].isalnum()
    assert abs(body.pop("created") - time.time()) < 5
    assert body == {
        "object": "chat.completion",
        "model": MODEL,
        "system_fingerprint": server.service.system_fingerprint,
        "service_tier": "default",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER, "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
    }
    assert usage == {
        "prompt_tokens": num_prompt,
        "completion_tokens": NUM_ANSWER_TOKENS,
        "total_tokens": num_prompt + NUM_ANSWER_TOKENS,
        "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


async def test_service_tier_is_only_echoed_when_sent(server: Server) -> None:
    assert "service_tier" not in (await server.chat()).json()


async def test_C083_C133_length(server: Server) -> None:
    body = (await server.chat(max_tokens=1)).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 1 and body["choices"][0]["message"]["content"] == "H"


async def test_C084_several_answers(server: Server) -> None:
    server.client.answer = lambda request: [*f"{request.request_id - 100}".encode(), EOS]
    body = (await server.chat(n=3)).json()
    assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [(0, "0"), (1, "1"), (2, "2")]
    assert body["usage"]["prompt_tokens"] == len(server.client.requests[0].prompt_token_ids)
    assert body["usage"]["completion_tokens"] == 6
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("there", "Hello "),
        (["zz", "re, A"], "Hello the"),
        ("Hello", ""),
        (["lo", "ll"], "He"),
        ("\U0001f600", "Hello there, Ann. "),
        ("end.\x01never", ANSWER),
        ("The code", ANSWER),
    ],
)
async def test_C088_C_1_C_3_stop_strings(server: Server, stop, text: str) -> None:
    body = (await server.chat(stop=stop)).json()
    assert body["choices"][0]["message"]["content"] == text
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_C_5_stop_string_ends_the_sequence_in_the_engine_at_once(server: Server) -> None:
    body = (await server.chat(stop="there")).json()
    assert body["usage"]["completion_tokens"] == len("Hello there")
    assert server.client.aborted == [100] and server.client.num_steps == len("Hello there")


async def test_C_5_stop_string_on_the_last_allowed_token(server: Server) -> None:
    choice = (await server.chat(stop="there", max_tokens=len("Hello there"))).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello ", "stop")


async def test_C_4_stop_text_in_the_prompt_does_not_match(server: Server) -> None:
    body = (await server.comp(prompt="ZEBRA ZEBRA", stop="ZEBRA", echo=True)).json()
    assert body["choices"][0]["text"] == "ZEBRA ZEBRA" + ANSWER


async def test_B_1_character_cut_by_the_limit_becomes_one_replacement(server: Server) -> None:
    cut = len("Hello there, Ann. ") + 2
    assert (await server.chat(max_tokens=cut)).json()["choices"][0]["message"]["content"][-1] == "\ufffd"


async def test_stop_token_and_ignore_eos(server: Server) -> None:
    server.client.answer = lambda request: [*b"ab", EOS, *b"cd"]
    choice = (await server.chat(ignore_eos=True, stop_token_ids=[ord("d")], max_tokens=5)).json()["choices"][0]
    assert choice["message"]["content"] == "ab"  # the script ends at the end token; the text is without it


async def test_C097_unique_ids(server: Server) -> None:
    answers = await asyncio.gather(*(server.chat() for _ in range(20)))
    assert len({a.json()["id"] for a in answers}) == len({a.headers["x-request-id"] for a in answers}) == 20


async def test_C099_openai_types(server: Server) -> None:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

    ChatCompletion.model_validate((await server.chat()).json())
    Completion.model_validate((await server.comp()).json())


async def test_C150_completion_shape(server: Server) -> None:
    body = (await server.comp(max_tokens=...)).json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-") and body["model"] == MODEL
    choice = {"index": 0, "text": ANSWER[:16], "logprobs": None, "finish_reason": "length"}
    assert body["choices"] == [choice]
    assert body["usage"]["completion_tokens"] == 16


async def test_C151_prompts_times_n(server: Server) -> None:
    server.client.answer = lambda request: [*request.prompt_token_ids[1:], EOS]
    body = (await server.comp(prompt=["A", "BB"], n=2)).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "A"), (1, "A"), (2, "BB"), (3, "BB")]
    assert body["usage"]["prompt_tokens"] == 2 + 3
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 6
    assert len({request.params.seed for request in server.client.requests}) == 4


async def test_C152_C153_token_prompts(server: Server) -> None:
    await server.comp(prompt=[256, 65, 66])
    await server.comp(prompt="AB")
    await server.comp(prompt=[[65], [66.0]])
    await server.comp(prompt=[256.0, 65])
    ids = [request.prompt_token_ids for request in server.client.requests]
    assert ids == [(256, 65, 66), (256, 65, 66), (65,), (66,), (256, 65)]
    assert all(type(token) is int for tokens in ids for token in tokens)


@pytest.mark.parametrize("prompt", ["AB", [256, 65, 66]])
async def test_C154_D_7_echo(server: Server, prompt) -> None:
    assert (await server.comp(prompt=prompt, echo=True)).json()["choices"][0]["text"] == "AB" + ANSWER


@pytest.mark.parametrize(("echo", "text"), [(True, "AB"), (False, "")])
async def test_max_tokens_zero(server: Server, echo: bool, text: str) -> None:
    body = (await server.comp(prompt=["AB", "AB"], max_tokens=0, echo=echo)).json()
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [(text, "length")] * 2
    assert body["usage"]["completion_tokens"] == 0 and not server.client.requests


async def test_C162_langchain_shape(server: Server) -> None:
    fields = {"prompt": ["hi"], "logprobs": None, "seed": None, "temperature": 0.7, "n": 1, "best_of": 1, "suffix": ""}
    assert (await server.comp(**fields, presence_penalty=0, frequency_penalty=0)).status_code == 200


async def test_queue_full_is_429_with_retry_after(server: Server) -> None:
    server.client.max_num_open = 2
    for response in (await server.chat(n=3), await server.chat(n=3, stream=True), await server.comp(n=3)):
        assert_error(response, 429, None, "rate_limit_exceeded")
        assert 1 <= int(response.headers["retry-after"]) <= 30


@pytest.mark.parametrize(
    ("name", "status"), [("StepError", 500), ("EngineDeadError", 500), ("NotReadyError", 503), ("Nonsense", 500)]
)
async def test_G_1_failed_sequence(server: Server, name: str, status: int) -> None:
    server.client.is_manual = True
    call = server.open("/v1/chat/completions", chat_body(n=2))
    await call.until(lambda: server.client.num_open == 2)
    server.client.fail(100, name, "It broke.")
    body = await call.end()
    assert call.status == status and '"message":"It broke.' in body
    assert server.client.aborted == [101]


async def test_disconnect_aborts(server: Server) -> None:
    server.client.is_manual = True
    for path, body in (("/v1/chat/completions", chat_body(n=2)), ("/v1/completions", comp_body(prompt=["a", "b"]))):
        call = server.open(path, body)
        await call.until(lambda: server.client.num_open == 2)
        call.leave()
        await call.end()
        assert server.client.num_open == 0 and call.status == 0
    assert server.client.aborted == [100, 101, 102, 103]


async def test_finished_request_is_one_log_line_without_texts(server: Server, caplog) -> None:
    caplog.set_level("INFO", "anllm")
    response = await server.chat()
    (line,) = [r.getMessage() for r in caplog.records]
    assert f"request_id={response.headers['x-request-id']} " in line
    assert "finish_reason=stop" in line and f"completion_tokens={NUM_ANSWER_TOKENS}" in line and "ttft_ms=" in line
    assert "Hello" not in line and "Say hi" not in line


async def test_bug_in_text_reaches_the_client_and_frees_the_engine(server: Server, caplog) -> None:
    server.client.is_manual = True
    call = server.open("/v1/chat/completions", chat_body())
    await call.until(lambda: server.client.num_open)
    server.client.emit(100, [-1])  # no byte: the fake detokenizer raises
    body = await call.end()
    assert call.status == 500 and "server_error" in body and "Traceback" not in body and "byte" not in body
    assert server.client.aborted == [100] and "Traceback" in caplog.text
