"""Which tokens may be looked up instead of decoded."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models

from anllm.text.token_bytes import TokenBytes
from anllm.text.whole_texts import WholeTexts


def make_whole_texts(backend: Tokenizer) -> WholeTexts:
    special = frozenset(id for id, token in backend.get_added_tokens_decoder().items() if token.special)
    return WholeTexts(backend, special, TokenBytes(backend, special))


def test_a_word_has_its_text_and_its_space(backend: Tokenizer) -> None:
    whole_texts = make_whole_texts(backend)
    token_ids = backend.encode("Hello world hello world", add_special_tokens=False).ids
    texts = [whole_texts[token_id] for token_id in token_ids]
    assert "".join(text or "?" for text in texts).endswith("ello world hello world")
    assert len(whole_texts) == len(set(token_ids))


def test_special_tokens_bytes_and_what_is_no_token_have_none(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    for backend, names in ((byte_level, ["<s>", "</s>", "Ã"]), (byte_fallback, ["<s>", "<0x0A>", "<0xE4>"])):
        whole_texts = make_whole_texts(backend)
        assert [whole_texts[backend.token_to_id(name)] for name in names] == [None] * len(names)
        assert whole_texts[99_999] is None


def test_a_decoder_that_looks_at_neighbours_has_none() -> None:
    tokens = ["a", "##b", ".", "c"]
    backend = Tokenizer(models.WordPiece({token: index for index, token in enumerate(tokens)}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    whole_texts = make_whole_texts(backend)
    assert [whole_texts[token_id] for token_id in range(4)] == [None] * 4


def test_a_decoder_that_strips_the_end_has_none(byte_fallback: Tokenizer) -> None:
    backend = Tokenizer.from_str(byte_fallback.to_str())
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 1)])
    assert make_whole_texts(backend)[backend.token_to_id("▁w")] is None
