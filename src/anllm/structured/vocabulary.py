"""A model's tokens as bytes, and the trie that masks are computed over. Any thread.

Works for every tokenizer, since it asks for bytes alone: neither a tokenizer's file nor its library is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from llguidance import LLTokenizer, TokenizerWrapper


class TokenSource(Protocol):
    """The part of a tokenizer that a vocabulary is made from."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...


@dataclass(frozen=True)
class Vocabulary:
    """What a mask has to know of a model.

    tokens: bytes of each id in the middle of a text; a special token's name; b"" for an id that is no token.
    special_token_ids: tokens that stand for no text. A mask never allows them, but those that end.
    eos_token_ids: tokens that end the text; at least one.
    width: number of the model's logits, often more than there are tokens; ids without a token are never allowed.
    """

    tokens: Sequence[bytes]
    special_token_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    width: int

    def __post_init__(self) -> None:
        if not self.eos_token_ids:
            raise ValueError("eos_token_ids is empty: a structured text could never end")
        if self.width < len(self.tokens):
            raise ValueError(f"width must be at least the number of tokens, {len(self.tokens)}, got {self.width}")
        if not all(0 <= id < self.width for id in self.eos_token_ids | self.special_token_ids):
            raise ValueError(f"special and end tokens must be in [0, {self.width})")

    @property
    def num_mask_words(self) -> int:
        """Words of 32 bits in a mask row."""
        return (self.width + 31) // 32

    @classmethod
    def of(cls, tokenizer: TokenSource) -> Vocabulary:
        """As wide as the tokenizer. Takes time: 0.07 s for 49k tokens."""
        num_tokens = tokenizer.vocab_size
        return cls(
            tokens=[tokenizer.token_bytes(id) for id in range(num_tokens)],
            special_token_ids=_below(num_tokens, tokenizer.special_token_ids),
            eos_token_ids=_below(num_tokens, tokenizer.eos_token_ids),
            width=num_tokens,
        )

    def fitted(self, width: int) -> Vocabulary:
        """For a model with so many logits. Tokens beyond them, which it can't give, are left out."""
        return Vocabulary(
            self.tokens[:width], _below(width, self.special_token_ids), _below(width, self.eos_token_ids), width
        )

    def build(self) -> LLTokenizer:
        """Takes time: 0.1 s for 49k tokens, 0.4 s for 152k. Share the result; it never changes."""
        end_tokens = sorted(self.eos_token_ids)
        wrapper = cast(TokenizerWrapper, _Tokens(self, end_tokens[0]))
        return LLTokenizer(wrapper, n_vocab=self.width, eos_token=end_tokens)


def _below(limit: int, token_ids: Collection[int]) -> frozenset[int]:
    return frozenset(id for id in token_ids if id < limit)


class _Tokens:
    """The face that LLTokenizer asks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.tokens = [*vocabulary.tokens, *[b""] * (vocabulary.width - len(vocabulary.tokens))]
        self.special_token_ids = sorted(vocabulary.special_token_ids | vocabulary.eos_token_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        """No way to make tokens of a text. With one, llguidance would allow a single token wherever only one text can
        follow, and it must be the very token that the model's tokenizer gives; without, all that lead there."""
        return []
