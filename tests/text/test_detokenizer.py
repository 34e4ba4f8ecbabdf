"""Text from tokens one by one, against decoding all at once."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from anllm.text.detokenizer import REPLACEMENT, IncrementalDetokenizer
from anllm.text.token_bytes import TokenBytes
from anllm.text.whole_texts import WholeTexts

TEXTS = [
    "Hello world",
    "  two leading spaces,  two inside  ",
    "你好世界。日本語",
    "😀👩‍👩‍👧 naïve café Привет",
    "def f(x):\n\n\treturn x",
    "\ufffd in the middle \ufffd\ufffd and more",
]
bounded = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_detokenizer(backend: Tokenizer, *, decodes_all: bool = False) -> IncrementalDetokenizer:
    special = frozenset(id for id, token in backend.get_added_tokens_decoder().items() if token.special)
    if decodes_all:
        return IncrementalDetokenizer(backend, special)
    return IncrementalDetokenizer(backend, special, WholeTexts(backend, special, TokenBytes(backend, special)))


def join(backend: Tokenizer, token_ids: list[int]) -> str:
    """The same whether tokens are looked up or decoded, after each of them."""
    detokenizer, plain = make_detokenizer(backend), make_detokenizer(backend, decodes_all=True)
    pieces = [detokenizer.add([token_id]) for token_id in token_ids]
    assert pieces == [plain.add([token_id]) for token_id in token_ids]
    end = detokenizer.finish()
    assert end == plain.finish()
    return "".join([*pieces, end])


def with_one_replacement_at_end(text: str) -> str:
    return text.rstrip(REPLACEMENT) + REPLACEMENT if text.endswith(REPLACEMENT) else text


def is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(character in rest for character in short)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_whole(backend: Tokenizer, text: str) -> None:
    token_ids = backend.encode(text).ids
    assert join(backend, token_ids) == backend.decode(token_ids)
    assert backend.decode(token_ids) == text


@given(text=st.text(max_size=30))
@bounded
def test_any_text_joins_to_what_decode_gives(backend: Tokenizer, text: str) -> None:
    token_ids = backend.encode(text).ids
    assert join(backend, token_ids) == with_one_replacement_at_end(backend.decode(token_ids))


@given(data=st.data())
@bounded
def test_any_byte_level_tokens_join_to_what_decode_gives(byte_level: Tokenizer, data: st.DataObject) -> None:
    token_ids = data.draw(st.lists(st.integers(0, byte_level.get_vocab_size() + 3), max_size=60))
    assert with_one_replacement_at_end(join(byte_level, token_ids)) == with_one_replacement_at_end(
        byte_level.decode(token_ids)
    )


@given(data=st.data())
@bounded
def test_any_byte_fallback_tokens_lose_no_text(byte_fallback: Tokenizer, data: st.DataObject) -> None:
    token_ids = data.draw(st.lists(st.integers(0, byte_fallback.get_vocab_size() + 3), max_size=60))
    whole = byte_fallback.decode(token_ids)
    joined = join(byte_fallback, token_ids)
    if REPLACEMENT not in whole:
        assert joined == whole
    assert is_subsequence(whole.replace(REPLACEMENT, ""), joined)
    assert len(joined) <= len(whole) + len(re.findall(f"{REPLACEMENT}+", whole))


def test_a_broken_run_behind_a_space_that_is_out_gets_one_replacement_more(byte_fallback: Tokenizer) -> None:
    token_ids = [byte_fallback.token_to_id(token) for token in ("<0x00>", "<0x20>", "<0x80>", "h")]
    assert byte_fallback.decode(token_ids) == "\ufffd\ufffd\ufffdh"
    assert join(byte_fallback, token_ids) == "\x00 \ufffd\ufffdh"


def test_the_calls_may_group_tokens_in_any_way(backend: Tokenizer) -> None:
    token_ids = backend.encode("Hello 世界 😀!").ids
    for size in range(1, len(token_ids) + 1):
        detokenizer = make_detokenizer(backend)
        groups = [token_ids[i : i + size] for i in range(0, len(token_ids), size)]
        assert "".join(map(detokenizer.add, groups)) + detokenizer.finish() == backend.decode(token_ids)


def test_half_a_character_never_goes_out(backend: Tokenizer) -> None:
    detokenizer = make_detokenizer(backend)
    for token_id in backend.encode("a 𐍈 😀 世 ё").ids:
        assert REPLACEMENT not in detokenizer.add([token_id])


def test_an_incomplete_character_at_the_end_is_one_replacement(byte_fallback: Tokenizer) -> None:
    detokenizer = make_detokenizer(byte_fallback)
    token_ids = [byte_fallback.token_to_id(token) for token in ("lo", "<0xF0>", "<0x9F>", "<0x98>")]
    assert detokenizer.add(token_ids) == "lo"
    assert detokenizer.finish() == REPLACEMENT


def test_characters_that_are_out_stay_when_their_run_of_bytes_breaks(byte_fallback: Tokenizer) -> None:
    detokenizer = make_detokenizer(byte_fallback)
    tokens = ["lo", "<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "el"]
    added = [detokenizer.add([byte_fallback.token_to_id(token)]) for token in tokens]
    assert added == ["lo", "", "", "你", "", "\ufffdel"]


def test_special_tokens_between_the_bytes_of_a_character_do_no_harm(byte_level: Tokenizer) -> None:
    end = byte_level.token_to_id("</s>")
    token_ids = [token_id for token in byte_level.encode("a 𐍈 b").ids for token_id in (token, end)]
    assert join(byte_level, token_ids) == "a 𐍈 b"


def test_nothing_added_is_nothing(backend: Tokenizer) -> None:
    detokenizer = make_detokenizer(backend)
    assert detokenizer.add([]) == ""
    assert detokenizer.finish() == ""


def test_a_decoder_that_knows_the_last_token_joins_exactly() -> None:
    vocabulary = {"hel": 0, "lo</w>": 1, "world</w>": 2, "!</w>": 3}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.BPEDecoder()
    assert join(backend, [0, 1, 2, 3, 0, 1]) == "hello world ! hello"


@pytest.mark.parametrize("token", ["<s>", "<0xFF>", "<0x80>", "<0xE4>"])
def test_a_long_run_of_tokens_without_text_costs_little_per_token(byte_fallback: Tokenizer, token: str) -> None:
    token_ids = [byte_fallback.token_to_id(token)] * 20_000
    start_s = time.process_time()
    joined = join(byte_fallback, [*token_ids, byte_fallback.token_to_id("lo")])
    assert time.process_time() - start_s < 5  # quadratic would take minutes
    assert joined.endswith("lo")


def test_a_long_run_of_broken_bytes_does_not_wait_for_its_end(byte_level: Tokenizer) -> None:
    detokenizer = make_detokenizer(byte_level)
    lone_byte = byte_level.token_to_id("ÿ")
    assert detokenizer.add([lone_byte] * 100).startswith(REPLACEMENT * 50)


def test_special_tokens_are_written_out_where_none_is_to_be_skipped(backend: Tokenizer) -> None:
    token_ids = backend.encode("one</s>two</s></s> three").ids
    detokenizer = IncrementalDetokenizer(backend)
    text = "".join([*(detokenizer.add([token_id]) for token_id in token_ids), detokenizer.finish()])
    assert text == backend.decode(token_ids, skip_special_tokens=False)
    assert text.count("</s>") == 3
