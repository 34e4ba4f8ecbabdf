"""Tokens whose text does not depend on their neighbours, so that it can be looked up instead of decoded.

Nearly every token of every answer is one. Knows the decoders of the common vocabularies; with any other, no token
counts as one. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import Tokenizer

from anllm.text.token_bytes import decoder_steps

_BYTE_LEVEL = frozenset({"ByteLevel"})
_SENTENCE_PIECE = frozenset({"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"})
_REPLACEMENT = "\ufffd"


class WholeTexts(dict[int, str | None]):
    """Token id -> the text that it adds to a text that has begun and ends in a whole character; None if that is not
    known, not whole characters, or nothing.

    token_bytes: what a token adds, in bytes. Filled as tokens come.
    """

    def __init__(
        self, backend: Tokenizer, special_token_ids: frozenset[int], token_bytes: Callable[[int], bytes]
    ) -> None:
        self._backend = backend
        self._special_token_ids = special_token_ids
        self._token_bytes = token_bytes
        self._is_known_decoder = _is_known(backend)

    def __missing__(self, token_id: int) -> str | None:
        text = self[token_id] = self._find(token_id)
        return text

    def _find(self, token_id: int) -> str | None:
        if not self._is_known_decoder or token_id in self._special_token_ids:
            return None
        try:
            text = self._token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return None
        if not text or text.endswith(_REPLACEMENT) or self._is_byte_token(token_id):
            return None
        once, twice = self._backend.decode([token_id]), self._backend.decode([token_id, token_id])
        return text if twice == once + text else None  # whatever the decoder does, behind this token it does that

    def _is_byte_token(self, token_id: int) -> bool:
        """Whether it is one of the <0x00> to <0xFF>: if one of a run is broken, all are."""
        return str(self._backend.id_to_token(token_id)).startswith("<0x")


def _is_known(backend: Tokenizer) -> bool:
    """Whether the decoder goes token by token, but for a first space and for runs of bytes."""
    steps = list(decoder_steps(backend))
    kinds = {str(step["type"]) for step in steps}
    if kinds == _BYTE_LEVEL:
        return True
    strips_ends = any(step["type"] == "Strip" and step["stop"] for step in steps)
    return bool(kinds) and kinds <= _SENTENCE_PIECE and not strips_ends and all(map(_is_per_token, steps))


def _is_per_token(step: dict[str, object]) -> bool:
    """A replacement of several characters could find them in two tokens."""
    if step["type"] != "Replace":
        return True
    pattern = step["pattern"]
    return isinstance(pattern, dict) and len(str(pattern.get("String", ""))) == 1
