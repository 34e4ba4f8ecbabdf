"""Any tokenizer's tokens as a vocabulary: several ends, special tokens, logits wider than the tokenizer."""

import numpy as np
import pytest
from llguidance import LLTokenizer

from anllm.structured.compile import compile_grammar
from anllm.structured.grammar import choice, regex
from anllm.structured.vocabulary import Vocabulary
from anllm.testing.tokenizer import EOS, ByteTokenizer

TOKENS = [b"a", b"b", b"ab", b"<end>", b"<turn>", b"<image>", b"", b"abc"]


def make_vocabulary(width: int = 40) -> Vocabulary:
    return Vocabulary(TOKENS, special_token_ids=frozenset({5}), eos_token_ids=frozenset({3, 4}), width=width)


def allowed(tokenizer: LLTokenizer, text: str, tokens: list[int] | None = None) -> set[int]:
    matcher = compile_grammar(tokenizer, text)
    assert matcher.consume_tokens(tokens or [])
    mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


def test_every_token_that_leads_to_the_text_is_allowed() -> None:
    assert allowed(make_vocabulary().build(), choice(["abab"]).text) == {0, 2}


def test_each_end_token_is_allowed_at_the_end_and_only_there() -> None:
    tokenizer = make_vocabulary().build()
    assert allowed(tokenizer, regex("a{1,2}").text) == {0}
    assert allowed(tokenizer, regex("a{1,2}").text, [0]) == {0, 3, 4}


def test_special_tokens_and_ids_without_a_token_are_never_allowed() -> None:
    tokenizer = make_vocabulary().build()
    assert tokenizer.vocab_size == 40
    assert allowed(tokenizer, regex("(?s:.)*").text) == {0, 1, 2, 3, 4, 7}


def test_a_grammar_may_name_a_special_token() -> None:
    assert allowed(make_vocabulary().build(), 'start: <image> "a"\n%llguidance {"no_forcing": true}\n') == {5}


def test_a_tokenizer_of_bytes_is_enough() -> None:
    vocabulary = Vocabulary.of(ByteTokenizer()).fitted(300)
    assert (len(vocabulary.tokens), vocabulary.num_mask_words) == (257, 10)
    assert allowed(vocabulary.build(), regex("[0-2]").text) == {48, 49, 50}


def test_tokens_beyond_the_logits_are_left_out() -> None:
    class WithImages(ByteTokenizer):
        vocab_size = 1000
        special_token_ids = frozenset({EOS, 999})

    tokens = Vocabulary.of(WithImages()).fitted(257)
    assert tokens.special_token_ids == {EOS}
    assert len(tokens.tokens) == tokens.width == 257


def test_special_tokens_that_the_tokenizer_does_not_have_are_left_out() -> None:
    class WithImages(ByteTokenizer):
        special_token_ids = frozenset({EOS, 999})

    assert Vocabulary.of(WithImages()).special_token_ids == {EOS}


def test_a_vocabulary_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="eos_token_ids is empty"):
        Vocabulary([b"a"], frozenset(), frozenset(), 1)


def test_a_width_below_the_number_of_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least the number of tokens, 8, got 7"):
        make_vocabulary(width=7)
