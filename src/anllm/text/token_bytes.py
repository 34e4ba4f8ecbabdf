"""What a token adds to a text, in bytes: half a character has no text, but it has bytes.

Reads the steps of a tokenizer's decoder. What depends on a token's neighbours is not known here: the first space of a
text, say, which some decoders strip. Any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte, of GPT-2's byte-level vocabularies: printable Latin-1 for itself, others from 256 on.

    https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class TokenBytes:
    """Token id -> bytes, as the decoder of `backend` would write them in the middle of a text.

    special_token_ids: tokens that the text never shows; theirs are those of their name.
    """

    def __init__(self, backend: Tokenizer, special_token_ids: frozenset[int]) -> None:
        self._backend = backend
        self._special_token_ids = special_token_ids
        steps = list(decoder_steps(backend))
        kinds = {step["type"] for step in steps}
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_tokens = "ByteFallback" in kinds
        self._replacements = [pair for step in steps if (pair := _replacement(step)) is not None]

    def __call__(self, token_id: int) -> bytes:
        """b"" for an id that is no token."""
        token: str | None = self._backend.id_to_token(token_id)
        if token is None or token_id in self._special_token_ids:
            return (token or "").encode()
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self._replacements:
            token = token.replace(old, new)
        if self._is_byte_level and all(character in _BYTE_OF for character in token):
            return bytes([_BYTE_OF[character] for character in token])
        return token.encode()


def decoder_steps(backend: Tokenizer) -> Iterator[dict[str, object]]:
    """The decoder's steps as tokenizer.json has them."""
    if backend.decoder is None:
        return
    decoder = json.loads(backend.decoder.__getstate__())
    yield from decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _replacement(step: dict[str, object]) -> tuple[str, str] | None:
    """The character that stands for a space in the vocabulary, and the space; or the like."""
    if step["type"] == "Metaspace":
        return str(step["replacement"]), " "
    pattern = step.get("pattern")
    if step["type"] == "Replace" and isinstance(pattern, dict) and "String" in pattern:
        return str(pattern["String"]), str(step["content"])
    return None
