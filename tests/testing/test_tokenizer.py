"""Bytes as tokens."""

import pytest

from anllm.testing import ByteTokenizer
from anllm.testing.tokenizer import EOS

TEXTS = ["", "plain", "h\u00e9llo \u4e16\u754c", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "a\x00b\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    token_ids = tokenizer.encode(text)
    assert token_ids == list(text.encode())
    assert tokenizer.decode(token_ids) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_detokenizer_gives_whole_characters_only_and_all_of_the_text(text: str) -> None:
    detokenizer = ByteTokenizer().detokenizer()
    pieces = [detokenizer.add([token_id]) for token_id in text.encode()]
    assert "".join([*pieces, detokenizer.finish()]) == text
    assert "\ufffd" not in "".join(pieces)


def test_half_a_character_at_the_end_becomes_a_replacement_character() -> None:
    detokenizer = ByteTokenizer().detokenizer()
    assert detokenizer.add([*b"a", 0xE4, 0xB8]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_the_end_token_is_shown_only_if_asked_for() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([*b"ab", EOS, *b"c"]) == "abc"
    assert tokenizer.decode([*b"ab", EOS, *b"c"], skip_special_tokens=False) == "ab<eos>c"
    assert tokenizer.detokenizer().add([97, EOS, 98]) == "ab"
    assert tokenizer.eos_token_ids == {EOS}
    assert tokenizer.vocab_size == EOS + 1
