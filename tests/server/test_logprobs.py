"""Log probabilities, whole and streamed: contract C090-C092, C130, C156, C157, section 3.4 (f)."""

import json
import math

import pytest

from anllm.core.request import FinishReason
from server_harness import ANSWER, EOS, Server, assert_error, chat_body, chunks, comp_body, joined

pytestmark = pytest.mark.anyio
STOPS = [None, "there", ["\U0001f600"], ["Ann. \x01"], "Hello"]


def content(choice):
    return choice["logprobs"]["content"]


def raw(entries) -> bytes:
    return bytes(byte for entry in entries for byte in entry["bytes"])


# -- chat --------------------------------------------------------------------------------------------------------------


async def test_C090_entries(server: Server) -> None:
    choice = (await server.chat(logprobs=True, top_logprobs=3, temperature=0)).json()["choices"][0]
    assert choice["logprobs"].keys() == {"content", "refusal"} and choice["logprobs"]["refusal"] is None
    assert raw(content(choice)).decode() == choice["message"]["content"] == ANSWER
    assert len(content(choice)) == len(ANSWER.encode())  # without the end token
    for entry in content(choice):
        assert entry.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert isinstance(entry["token"], str) and -9999 <= entry["logprob"] <= 0
        top = entry["top_logprobs"]
        assert [t["logprob"] for t in top] == sorted((t["logprob"] for t in top), reverse=True) and len(top) == 3
        assert all(t.keys() == {"token", "logprob", "bytes"} for t in top)
        assert top[0] == {key: entry[key] for key in ("token", "logprob", "bytes")}
    assert server.client.requests[0].params.logprobs == 3


async def test_2_7_part_of_a_character_is_escaped(server: Server) -> None:
    entries = content((await server.chat(logprobs=True)).json()["choices"][0])
    at = len("Hello there, Ann. ")
    assert [entry["token"] for entry in entries[at : at + 4]] == ["\\xf0", "\\x9f", "\\x98", "\\x80"]
    assert [entry["bytes"] for entry in entries[at : at + 4]] == [[0xF0], [0x9F], [0x98], [0x80]]


async def test_C091_no_alternatives_and_C092_none_at_all(server: Server) -> None:
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        entries = content((await server.chat(**fields)).json()["choices"][0])
        assert entries and all(entry["top_logprobs"] == [] for entry in entries)
    for fields in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}):
        assert (await server.chat(**fields)).json()["choices"][0]["logprobs"] is None
        assert server.client.requests[-1].params.logprobs is None


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e30, 1e-9])
async def test_C090_D_2_logprobs_are_numbers_from_the_floor_to_zero(server: Server, value: float) -> None:
    server.client.logprob = lambda token: value
    expected = 0 if value == 1e-9 else -9999
    for body in ((await server.chat(logprobs=True, top_logprobs=1)), (await server.comp(logprobs=1))):
        logprobs = body.json()["choices"][0]["logprobs"]
        first = logprobs["content"][0]["logprob"] if "content" in logprobs else logprobs["token_logprobs"][0]
        assert first == expected
    for response in (await server.chat(logprobs=True, stream=True), await server.comp(logprobs=2, stream=True)):
        assert "NaN" not in response.text and "Infinity" not in response.text and chunks(response.text)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 20}, {"n": 2, "top_logprobs": 2}])
async def test_C130_D_6_stream_equals_whole_and_each_chunk_covers_its_text(server: Server, fields, stop) -> None:
    fields = {"logprobs": True, "stop": stop, **fields}
    whole = (await server.chat(**fields)).json()["choices"]
    parts = chunks((await server.chat(stream=True, **fields)).text)
    for choice in whole:
        own = [c for part in parts for c in part["choices"] if c["index"] == choice["index"]]
        first, *middle, last = own
        assert first["logprobs"] == {"content": [], "refusal": None} and last["logprobs"] is None
        assert all(c["logprobs"]["refusal"] is None and content(c) for c in middle)
        assert [entry for c in middle for entry in content(c)] == content(choice)
        for c in middle:
            assert raw(content(c)).decode(errors="replace")[0] == c["delta"]["content"][0]
            if "max_tokens" not in fields:
                assert raw(content(c)) == c["delta"]["content"].encode()


async def test_3_4_f_held_tokens_ride_with_the_chunk_that_releases_them(server: Server) -> None:
    server.client.is_manual = True
    call = server.open("/v1/chat/completions", chat_body(stream=True, logprobs=True, stop="abX"))
    await call.until_sent("role")
    server.client.emit(100, "1a")
    await call.until_sent('"content":"1"')
    server.client.emit(100, "b")
    server.client.emit(100, "c")
    await call.until_sent('"content":"abc"')
    server.client.emit(100, "ab")
    server.client.emit(100, [EOS])
    server.client.finish(100)
    told = [part["choices"][0] for part in chunks(await call.end())[1:-1]]
    assert [c["delta"]["content"] for c in told] == ["1", "abc", "ab"]
    assert [raw(content(c)) for c in told] == [b"1", b"abc", b"ab"]


async def test_2_7_tokens_in_a_stop_string_have_no_entry(server: Server) -> None:
    choice = (await server.chat(logprobs=True, stop="there")).json()["choices"][0]
    assert raw(content(choice)).decode() == choice["message"]["content"] == "Hello "


async def test_nothing_generated_gives_empty_lists(server: Server) -> None:
    server.client.answer = lambda request: [EOS]
    assert (await server.chat(logprobs=True)).json()["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    empty = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    assert (await server.comp(logprobs=1)).json()["choices"][0]["logprobs"] == empty
    assert (await server.comp(logprobs=1, max_tokens=0)).json()["choices"][0]["logprobs"] == empty


async def test_slow_reader_gets_all_entries(server: Server) -> None:
    server.client.is_manual = True
    call = server.open("/v1/chat/completions", chat_body(stream=True, logprobs=True))
    await call.until_sent("role")
    call.is_reading.clear()
    for _ in range(50):
        server.client.emit(100, "ab")
    call.is_reading.set()
    server.client.finish(100)
    parts = chunks(await call.end())
    entries = [entry for part in parts[1:-1] for entry in content(part["choices"][0])]
    assert raw(entries).decode() == joined(parts) == "ab" * 50


async def test_chunk_with_logprobs_equals_the_plain_encoder(server: Server) -> None:
    for path, body in (
        ("/v1/chat/completions", chat_body(stream=True, logprobs=True, top_logprobs=2)),
        ("/v1/completions", comp_body(stream=True, logprobs=2)),
    ):
        for event in (await server.post(path, body)).text.split("\n\n")[:-2]:
            assert event == "data: " + json.dumps(json.loads(event[6:]), separators=(",", ":"))


# -- completions -------------------------------------------------------------------------------------------------------


async def test_C156_four_arrays(server: Server) -> None:
    server.client.answer = lambda request: [*b"plain text", EOS]
    for prompt, offset in (("na\u00efve \U0001f600", 7), (list("\u00e9a".encode()), 2)):
        choice = (await server.comp(prompt=prompt, logprobs=2)).json()["choices"][0]
        logprobs = choice["logprobs"]
        assert logprobs.keys() == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
        assert {len(array) for array in logprobs.values()} == {len("plain text")}
        assert "".join(logprobs["tokens"]) == choice["text"]
        assert logprobs["text_offset"] == [offset + i for i in range(10)]
        assert all(
            token in top and len(top) in (2, 3)
            for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
        )
        assert all(logprob <= 0 for logprob in logprobs["token_logprobs"])


async def test_4_3_part_of_a_character_in_the_old_notation(server: Server) -> None:
    server.client.answer = lambda request: [*"a\U0001f600b".encode(), EOS]
    logprobs = (await server.comp(prompt="xyz", logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80", "b"]
    assert logprobs["text_offset"] == [3, 4, 4, 4, 4, 5]
    assert logprobs["top_logprobs"] is None and None not in logprobs["token_logprobs"]


async def test_4_3_sampled_token_is_always_there_and_the_better_of_equal_texts_counts(server: Server) -> None:
    server.tokenizer.token_bytes = lambda token: b"\x80" if token > 127 else bytes([token - token % 2])  # type: ignore[method-assign]
    server.client.answer = lambda request: [*b"ab", EOS]
    logprobs = (await server.comp(logprobs=2)).json()["choices"][0]["logprobs"]
    own = [-(token % 7) / 4 for token in b"ab"]
    assert logprobs["tokens"] == ["a", "b"]
    assert logprobs["token_logprobs"] == own
    assert logprobs["top_logprobs"][1] == {"b": own[1]}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("num_top", [0, 2])
async def test_C156_stream_equals_whole(server: Server, stop, num_top: int) -> None:
    fields = {"prompt": ["A\u00e9", "B"], "n": 2, "logprobs": num_top, "stop": stop}
    whole = (await server.comp(**fields)).json()["choices"]
    parts = chunks((await server.comp(stream=True, **fields)).text)
    for choice in whole:
        told = [c for part in parts for c in part["choices"] if c["index"] == choice["index"] and c["logprobs"]]
        for name, array in choice["logprobs"].items():
            if array is None:
                assert all(c["logprobs"][name] is None for c in told)
            else:
                assert [item for c in told for item in c["logprobs"][name]] == array
        assert all(c["text"] for c in told)


async def test_logprobs_reach_the_engine(server: Server) -> None:
    for value in (None, 0, 5, 3.0):
        await server.comp(logprobs=value)
    assert [request.params.logprobs for request in server.client.requests] == [None, 0, 5, 3]


# -- prompts -----------------------------------------------------------------------------------------------------------


async def test_C155_a_prompt_is_scored_and_nothing_generated(server: Server) -> None:
    for prompt, num_silent in (("h\u00e9, \U0001f600!", 1), (list("h\u00e9, \U0001f600!".encode()), 0)):
        response = await server.comp(prompt=prompt, echo=True, logprobs=1, max_tokens=0)
        choice = response.json()["choices"][0]
        logprobs = choice["logprobs"]
        assert choice["text"] == "h\u00e9, \U0001f600!" and choice["finish_reason"] == "length"
        assert logprobs["tokens"] == [
            *[""] * num_silent,
            *("h", "bytes:\\xc3", "bytes:\\xa9", ",", " "),
            *("bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98", "bytes:\\x80", "!"),
        ]
        assert {len(array) for array in logprobs.values()} == {10 + num_silent}
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert all(logprob <= 0 for logprob in logprobs["token_logprobs"][1:])
        assert logprobs["text_offset"] == [*[0] * num_silent, 0, 1, 1, 2, 3, 4, 4, 4, 4, 5]
        usage = response.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10 + num_silent, 0)


async def test_C155_all_of_many_token_lists_are_scored_as_lm_eval_asks_for_it(server: Server) -> None:
    """Each token has an entry, and so has the one that is generated, an end token too: they are counted."""
    prompts = [[1, 2, 3], [4], list(b"ab\xf0"), [256, 5, 257, 6]]
    for answer in (b"x", [EOS]):
        server.client.answer = lambda request, answer=answer: answer
        body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234}
        choices = (await server.comp(**body)).json()["choices"]
        for prompt, choice in zip(prompts, choices, strict=True):
            logprobs = choice["logprobs"]
            assert {len(array) for array in logprobs.values()} == {len(prompt) + 1}
            assert logprobs["token_logprobs"][0] is None
            assert logprobs["token_logprobs"][1:-1] == [-(token % 7) / 4 for token in prompt[1:]]
            told = zip(logprobs["top_logprobs"][1:-1], logprobs["token_logprobs"][1:-1], strict=True)
            assert all(max(top.values()) == min(own + 0.5, 0) for top, own in told)


async def test_C155_prompt_and_answer_stand_behind_each_other(server: Server) -> None:
    server.client.answer = lambda request: [*b" there", EOS]
    choice = (await server.comp(prompt="Hello", echo=True, logprobs=2)).json()["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"] == "Hello there"
    assert choice["logprobs"]["text_offset"] == [0, *range(11), 11]  # a begin token, and an end token
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [2] * 5 + [2] * 7


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 0}, {"prompt": ["A\u00e9", "x", "B"], "n": 2}, {"stop": "the"}])
async def test_C155_stream_equals_whole(server: Server, fields) -> None:
    fields = {"prompt": "Say", "echo": True, "logprobs": 2, **fields}
    whole = (await server.comp(**fields)).json()
    parts = chunks((await server.comp(stream=True, stream_options={"include_usage": True}, **fields)).text)
    assert parts[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        own = [c for part in parts for c in part["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        for name, array in choice["logprobs"].items():
            assert [item for c in own if c["logprobs"] for item in c["logprobs"][name]] == array
        assert own[0]["logprobs"]["token_logprobs"][0] is None and own[0]["text"] in choice["text"]


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_C155_a_reader_that_comes_late_gets_the_prompt_first(server: Server, max_tokens: int) -> None:
    server.client.is_manual = True
    body = comp_body(stream=True, echo=True, logprobs=0, prompt="ab", max_tokens=max_tokens)
    call = server.open("/v1/completions", body)
    await call.until(lambda: server.client.open_ids)
    server.client.score(100, 1)
    server.client.score(100, 5)
    server.client.emit(100, "c")
    server.client.finish(100, FinishReason.LENGTH)
    told = [part["choices"][0] for part in chunks(await call.end())]
    assert [c["text"] for c in told] == ["ab", "c" * max_tokens]
    assert [c["finish_reason"] for c in told] == [None, "length"]


async def test_prompt_logprobs_in_vllms_form(server: Server) -> None:
    server.client.answer = lambda request: [*b"ok", EOS]
    body = (await server.comp(prompt=[5, 200, 9], prompt_logprobs=2)).json()
    expected = [
        None,
        {"200": entry(200, 2, "\\xc8"), "201": {**entry(200, 1, "\\xc9"), "logprob": 0.0}},
        {"9": entry(9, 2, "\t"), "10": {**entry(9, 1, "\n"), "logprob": 0.0}},
    ]
    expected[1]["201"]["logprob"] = -(200 % 7) / 4 + 0.5  # type: ignore[index]
    assert body["choices"][0]["prompt_logprobs"] == expected
    assert body["choices"][0]["text"] == "ok" and body["choices"][0]["logprobs"] is None
    body = (await server.chat(prompt_logprobs=0)).json()
    assert body["prompt_logprobs"][0] is None
    assert all(len(told) == 1 for told in body["prompt_logprobs"][1:])
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in (await server.chat()).json()


def entry(token: int, rank: int, text: str) -> dict[str, object]:
    return {"logprob": -(token % 7) / 4, "rank": rank, "decoded_token": text}


async def test_prompt_logprobs_beside_echoed_ones_have_their_own_number(server: Server) -> None:
    for asked, echoed in ((2, 1), (0, 2)):
        fields = {"prompt": "abc", "echo": True, "logprobs": echoed, "prompt_logprobs": asked, "max_tokens": 0}
        choice = (await server.comp(**fields)).json()["choices"][0]
        assert server.client.requests[-1].params.prompt_logprobs == 2
        assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [max(echoed, 2)] * 3
        assert [len(told) for told in choice["prompt_logprobs"][1:]] == [max(asked, 1)] * 3


async def test_prompt_logprobs_are_not_for_streams(server: Server) -> None:
    for send in (server.chat, server.comp):
        error = assert_error(await send(prompt_logprobs=1, stream=True), 400, "prompt_logprobs")
        assert "'stream'" in error["message"]
        for value in (-1, 21, 1.5, "1", True):
            assert_error(await send(prompt_logprobs=value), 400, "prompt_logprobs")
    assert not server.client.requests
