"""Checks of the contract that only a real model can show; see tests/conformance/README.md."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from anllm.text.interface import Tokenizer
from e2e.conftest import MODEL
from e2e.servers import RunningServer

pytestmark = [pytest.mark.real_model, pytest.mark.mlx, pytest.mark.timeout(300)]

LA = {"prompt": "la la la la la la la la", "max_tokens": 30, "temperature": 0}
EMOJI = "Repeat exactly, nothing else: \U0001f9d1\u200d\U0001f680\U0001fae0 \u017c\u00f3\u0142\u0107 \u65e5\u672c\u8a9e"


def complete(client: openai.OpenAI, **options: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": "The sky is", "max_tokens": 8, **options})


def chat(client: openai.OpenAI, text: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "max_tokens": 8, **options})


def test_C087_no_hidden_limit(client: openai.OpenAI) -> None:
    made = chat(client, "Count from 1 to 60 separated by commas.", temperature=0, max_tokens=openai.omit)
    assert made.usage.completion_tokens > 64 or made.choices[0].finish_reason == "stop"


def test_C093_D_4_a_bias_bans_a_token_and_forces_one(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    plain = complete(client, temperature=0, logprobs=0, extra_body={"return_token_ids": True}).choices[0]
    first = plain.token_ids[0]
    banned = complete(client, temperature=0, logit_bias={str(first): -100}, extra_body={"return_token_ids": True})
    assert first not in banned.choices[0].token_ids
    forced = tokenizer.encode(" pear", add_special_tokens=False)[0]
    pears = complete(client, temperature=0, logit_bias={str(forced): 100}, max_tokens=5)
    assert pears.choices[0].text == tokenizer.decode([forced] * 5)


@pytest.mark.parametrize(
    "penalty",
    [{"frequency_penalty": 2}, {"presence_penalty": 2}, {"extra_body": {"repetition_penalty": 1.5}}],
    ids=lambda penalty: next(iter(penalty)),
)
def test_D_8_penalties_lower_the_share_of_what_is_repeated(client: openai.OpenAI, penalty: dict[str, Any]) -> None:
    plain, penalised = (complete(client, **LA, **fields).choices[0].text for fields in ({}, penalty))

    def share(text: str) -> float:
        words = text.split()
        return 1 - len(set(words)) / max(1, len(words))

    assert penalised != plain
    assert share(penalised) < share(plain)


def test_D_2_logprobs_beside_a_ban_and_a_narrow_top_p_are_numbers(server: RunningServer) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4, "logprobs": True}
    banned = {"top_logprobs": 20, "logit_bias": {str(i): -100 for i in range(50)}}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, **banned}, timeout=60)
    legacy = {"model": MODEL, "prompt": "The sky is", "logprobs": 5, "top_p": 0.01, "temperature": 1, "max_tokens": 4}
    narrow = httpx.post(f"{server.url}/v1/completions", json=legacy, timeout=60)
    for response in (answer, narrow):
        assert response.status_code == 200
        json.loads(response.text, parse_constant=pytest.fail)
    for entry in answer.json()["choices"][0]["logprobs"]["content"]:
        logprobs = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(logprobs) == 20 and min(logprobs) >= -9999 and max(logprobs) <= 0


def test_C096_B_1_B_2_characters_of_many_tokens_stay_whole(client: openai.OpenAI) -> None:
    for options in ({"max_tokens": 60}, {"max_tokens": 60, "seed": 1, "temperature": 1.5}, {"max_tokens": 1}):
        options = {"temperature": 0, **options}
        whole = chat(client, EMOJI, **options).choices[0].message.content
        deltas = [c.choices[0].delta.content or "" for c in chat(client, EMOJI, stream=True, **options)]
        assert "".join(deltas) == whole
        assert sum(delta.count("\ufffd") for delta in deltas) == whole.count("\ufffd")
        whole.encode()  # no half of a surrogate pair


def test_B_4_D_6_entries_and_usage_agree(client: openai.OpenAI, server: RunningServer) -> None:
    def forget() -> None:  # what the same prompt left: its last bits would be others, and so would cached_tokens
        assert httpx.post(f"{server.url}/reset_prefix_cache").status_code == 200

    forget()
    options = {"temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 3}
    whole = chat(client, "What is the capital of France?", **options)
    entries = whole.choices[0].logprobs.content
    forget()
    *parts, last = chat(
        client, "What is the capital of France?", stream=True, stream_options={"include_usage": True}, **options
    )
    streamed = [e for part in parts if part.choices[0].logprobs for e in part.choices[0].logprobs.content]
    assert streamed == entries
    assert last.usage == whole.usage
    assert 0 <= whole.usage.completion_tokens - len(entries) <= 1
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == whole.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.top_logprobs[0].token == entry.token


def test_C134_G_1_G_2_G_8_everything_at_once_and_greedy_answers_as_alone(client: openai.OpenAI) -> None:
    """Rows with and without penalties, bias, logprobs, draws and mistakes; prompts of all lengths."""
    draw = random.Random(3)
    prompts = [f"Number {i}: " + "one two three four five " * draw.randrange(20) for i in range(6)]
    alone = [complete(client, prompt=prompt, temperature=0, max_tokens=12).choices[0].text for prompt in prompts]
    kinds: list[dict[str, Any]] = [
        {"extra_body": {"repetition_penalty": 1.2}},
        {"logit_bias": {"300": 5}},
        {"logprobs": 3},
        {"temperature": 1, "seed": 5},
        {"frequency_penalty": 1},
        {"extra_body": {"min_tokens": 12}, "stop": ["zzz"]},
        {"temperature": 5},
    ]

    def one(index: int) -> str:
        if index % 2 == 0:
            return str(complete(client, prompt=prompts[index // 2 % 6], temperature=0, max_tokens=12).choices[0].text)
        kind = kinds[index // 2 % len(kinds)]
        options = {"prompt": prompts[index % 6], "max_tokens": 12, "temperature": 0, **kind}
        if options["temperature"] > 2:
            with pytest.raises(openai.BadRequestError):
                complete(client, **options)
            return ""
        return str(complete(client, **options))

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(48)))
    for index in range(0, 48, 2):
        assert found[index] == alone[index // 2 % 6]


def test_I_6_the_tokens_of_a_chat_have_one_beginning(server: RunningServer, tokenizer: Tokenizer) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    tokens = httpx.post(f"{server.url}/tokenize", json=body, timeout=60).json()["tokens"]
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}, timeout=60).json()["prompt"]
    assert tokenizer.encode(text, add_special_tokens=True) == tokens
    assert text.count("<|im_start|>user") == 1
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "max_tokens": 1}, timeout=60).json()
    assert answer["usage"]["prompt_tokens"] == len(tokens)


def test_I_7_the_end_of_the_turn_ends_the_answer(client: openai.OpenAI) -> None:
    made = chat(client, "Say hi.", temperature=0, max_tokens=300)
    assert made.choices[0].finish_reason == "stop"
    assert made.usage.completion_tokens < 300
    assert "<|im_end|>" not in made.choices[0].message.content
    on = chat(client, "Say hi.", temperature=0, max_tokens=60, extra_body={"ignore_eos": True})
    assert (on.choices[0].finish_reason, on.usage.completion_tokens) == ("length", 60)


def test_the_second_turn_of_a_chat_finds_the_first(server: RunningServer, client: openai.OpenAI) -> None:
    """And answers as it would without."""
    first = "Tell me about the sea, about fish, about ships and about those who live at the coast, in a few words."
    answer = chat(client, first, temperature=0, max_tokens=20).choices[0].message.content
    turns = [("user", first), ("assistant", answer), ("user", "And now about mountains.")]
    body = {
        "model": MODEL,
        "messages": [{"role": role, "content": content} for role, content in turns],
        "temperature": 0,
        "max_tokens": 20,
    }
    found = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    httpx.post(f"{server.url}/reset_prefix_cache")
    fresh = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (found, fresh)]
    assert cached[0] > 0.6 * found["usage"]["prompt_tokens"]
    assert cached[1] == 0
    assert found["choices"] == fresh["choices"]
