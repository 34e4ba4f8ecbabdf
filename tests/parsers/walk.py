"""Random texts of a grammar, with llguidance and a tokenizer of single bytes and a few special tokens."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

MAX_TOKENS = 4000
# What tends to end what is open, so that walks end.
ENDERS = {byte: 30.0 for byte in b'"}]<>/\n'} | {byte: 12.0 for byte in b"|,:"}


class ByteVocabulary:
    """Token i < 256 is the byte i; then the end, then the special tokens."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, specials: Iterable[str]) -> None:
        self.specials = {text: 257 + index for index, text in enumerate(sorted(specials))}
        texts = [b"<end>", *(text.encode() for text in self.specials)]
        self.tokens = [bytes([byte]) for byte in range(256)] + texts
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.tokenizer = LLTokenizer(TokenizerWrapper(self))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def special_id(self, text: str) -> int | None:
        return self.specials.get(text)


def matcher(grammar: str, vocabulary: ByteVocabulary) -> LLMatcher:
    made = LLMatcher(vocabulary.tokenizer, grammar)
    assert not made.is_error(), f"{made.get_error()}\n{grammar}"
    return made


def walk(grammar: str, vocabulary: ByteVocabulary, seed: int, hints: Sequence[str] = ()) -> str:
    """A text that the grammar matches, with the special tokens spelled out.

    hints: texts that single random bytes would hardly ever make, tried whole now and then.
    """
    chance = random.Random(seed)
    state = matcher(grammar, vocabulary)
    out = b""
    for number in range(MAX_TOKENS):
        mask = state.compute_logit_bias()
        allowed = [token for token in range(len(vocabulary.tokens)) if mask[token]]
        assert allowed, f"stuck after {out!r}: {state.get_error()}"
        hint = list(chance.choice(hints).encode()) if hints and chance.random() < 0.15 else []
        if hint and state.validate_tokens(hint) == len(hint):
            assert state.consume_tokens(hint), state.get_error()
            out += bytes(hint)
            continue
        token = _choose(allowed, chance, number)
        if token == ByteVocabulary.eos_token_id:
            return out.decode()
        assert state.consume_token(token), state.get_error()
        out += vocabulary.tokens[token]
        if state.is_stopped():
            return out.decode()
    raise AssertionError(f"no end after {out[:500]!r}")


def _choose(allowed: list[int], chance: random.Random, number: int) -> int:
    if ByteVocabulary.eos_token_id in allowed and chance.random() < 0.4:
        return ByteVocabulary.eos_token_id
    allowed = [token for token in allowed if token != ByteVocabulary.eos_token_id] or allowed
    hurry = 1 + number / 100
    weights = [
        hurry * ENDERS.get(token, 0.2 if token >= 128 or token < 32 else 1.0) if token < 256 else 40.0 * hurry
        for token in allowed
    ]
    return chance.choices(allowed, weights)[0]


def accepts(grammar: str, vocabulary: ByteVocabulary, text: str) -> bool:
    """Whether the grammar matches the text, special tokens in it taken as such."""
    state = matcher(grammar, vocabulary)
    position = 0
    while position < len(text):
        special = next((s for s in vocabulary.specials if text.startswith(s, position)), None)
        tokens = [vocabulary.specials[special]] if special else list(text[position].encode())
        if state.try_consume_tokens(tokens) < len(tokens):
            return False
        position += len(special) if special else 1
    return state.is_accepting()
