"""The face of a tokenizer, as the server and LLM see it. anllm.testing.ByteTokenizer has the same face."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Turns the tokens of one sequence into text as they come."""

    @property
    def num_held(self) -> int:
        """Tokens whose text is not out: the last ones of those that give text at all."""
        ...

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; never half a character. "" while a character is incomplete."""
        ...

    def finish(self) -> str:
        """What is still held back; an incomplete character becomes one U+FFFD. Call once, at the end."""
        ...


class Tokenizer(Protocol):
    """Thread-safe: several threads may encode at once."""

    @property
    def vocab_size(self) -> int:
        """Ids are in [0, vocab_size), added tokens included."""
        ...

    @property
    def bos_token_id(self) -> int | None: ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """All end tokens that tokenizer_config, config and generation_config of the model name."""
        ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that stand for no text."""
        ...

    @property
    def max_token_chars(self) -> int:
        """Characters of the longest token, so that a text of more than n * max_token_chars has more than n tokens."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids. With add_special_tokens, what the tokenizer puts around a text (BOS, say) is added, but never a
        second BOS where the text already begins with one."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds in the middle of a text, or a special token's name; b"" for an id that is no token.

        Joined and decoded, those of a text's tokens are what decode() gives, but for a first space that it strips."""
        ...

    def piece(self, token_id: int) -> str:
        """The token as the vocabulary writes it; "" for an id that is no token."""
        ...

    def token_id(self, piece: str) -> int | None:
        """The token that the vocabulary writes so, added tokens included."""
        ...

    def detokenizer(self, *, skip_special_tokens: bool = True, kept: Collection[str] = ()) -> Detokenizer:
        """kept: names of special tokens that are written out although others are skipped."""
        ...
