"""Log probabilities, whole and streamed: contract C090-C092, C130, C156, C157, section 3.4 (f)."""

import json
import math

import pytest

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


async def test_C156_echo_with_logprobs_is_refused_for_now(server: Server) -> None:
    for value in (0, 1):
        error = assert_error(await server.comp(echo=True, logprobs=value), 400, "logprobs", "unsupported_parameter")
        assert "'echo'" in error["message"]
    assert not server.client.requests
    assert (await server.comp(echo=False, logprobs=1)).status_code == 200
