"""The bytes of single tokens, against decoding them together."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from anllm.testing import ByteTokenizer
from anllm.text.tokenizer import HFTokenizer

bounded = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_tokenizer(backend: Tokenizer) -> HFTokenizer:
    return HFTokenizer(Tokenizer.from_str(backend.to_str()), bos_token_id=None, eos_token_ids=frozenset())


def special_ids(backend: Tokenizer) -> set[int]:
    return {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}


@bounded
@given(data=st.data())
def test_joined_bytes_of_any_byte_level_tokens_are_the_text(byte_level: Tokenizer, data: st.DataObject) -> None:
    tokenizer = make_tokenizer(byte_level)
    plain = sorted(set(range(tokenizer.vocab_size)) - special_ids(byte_level))
    token_ids = data.draw(st.lists(st.sampled_from(plain), max_size=20))
    joined = b"".join(map(tokenizer.token_bytes, token_ids))
    assert joined.decode(errors="replace") == tokenizer.decode(token_ids)


@bounded
@given(token_ids=st.lists(st.integers(0, 255), max_size=20))
def test_joined_bytes_of_the_testing_tokenizer_are_the_text(token_ids: list[int]) -> None:
    tokenizer = ByteTokenizer()
    assert b"".join(map(tokenizer.token_bytes, token_ids)).decode(errors="replace") == tokenizer.decode(token_ids)
    assert tokenizer.token_bytes(256) == b"<eos>"


@bounded
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁<"), min_size=1, max_size=20))
def test_joined_bytes_of_a_text_are_its_utf8_but_for_a_stripped_space(backend: Tokenizer, text: str) -> None:
    tokenizer = make_tokenizer(backend)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, token_ids)) in (text.encode(), b" " + text.encode())


def test_byte_tokens_are_bytes_only_where_the_decoder_says_so(byte_fallback: Tokenizer) -> None:
    tokenizer = make_tokenizer(byte_fallback)
    assert tokenizer.token_bytes(byte_fallback.token_to_id("<0xF0>")) == b"\xf0"
    assert tokenizer.token_bytes(byte_fallback.token_to_id("▁h")) == b" h"
    plain = Tokenizer(models.BPE(vocab={"<0xF0>": 0, "▁": 1}, merges=[]))
    assert make_tokenizer(plain).token_bytes(0) == b"<0xF0>"
    assert make_tokenizer(plain).token_bytes(1) == "▁".encode()


def test_metaspace_is_a_space() -> None:
    backend = Tokenizer(models.BPE(vocab={"▁a": 0}, merges=[]))
    backend.decoder = decoders.Metaspace()
    assert make_tokenizer(backend).token_bytes(0) == b" a"


def test_added_and_special_tokens_are_their_content(byte_level: Tokenizer) -> None:
    backend = Tokenizer.from_str(byte_level.to_str())
    backend.add_tokens([AddedToken("  two spaces ▁"), AddedToken("<tool>")])
    backend.add_special_tokens([AddedToken("<ünd>", special=True)])
    tokenizer = make_tokenizer(backend)
    for text in ("  two spaces ▁", "<tool>", "<ünd>", "</s>"):
        assert tokenizer.token_bytes(backend.token_to_id(text)) == text.encode()


def test_an_id_that_is_no_token_has_no_bytes(backend: Tokenizer) -> None:
    assert make_tokenizer(backend).token_bytes(10**6) == b""
