"""A tokenizer whose tokens are the bytes of UTF-8: 0 to 255, and 256 for end of text."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

EOS = 256


class ByteTokenizer:
    """Has the face of anllm.text.interface.Tokenizer."""

    vocab_size = 257
    bos_token_id: int | None = None
    eos_token_ids = frozenset({EOS})
    special_token_ids = frozenset({EOS})
    max_token_chars = 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        end = "" if skip_special_tokens else "<eos>"
        pieces, run = [], bytearray()
        for token_id in token_ids:
            if token_id == EOS:
                pieces += [run.decode(errors="replace"), end]
                run = bytearray()
            else:
                run.append(token_id)
        return "".join([*pieces, run.decode(errors="replace")])

    def token_bytes(self, token_id: int) -> bytes:
        if token_id >= EOS:
            return b"<eos>" if token_id == EOS else b""
        return bytes([token_id])

    def piece(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("latin-1")

    def token_id(self, piece: str) -> int | None:
        if piece == "<eos>":
            return EOS
        return ord(piece) if len(piece) == 1 and ord(piece) < 256 else None

    def detokenizer(self, *, skip_special_tokens: bool = True, kept: Collection[str] = ()) -> ByteDetokenizer:
        return ByteDetokenizer(end="" if skip_special_tokens else "<eos>")


class ByteDetokenizer:
    """Has the face of anllm.text.interface.Detokenizer."""

    def __init__(self, end: str = "") -> None:
        """end: what every token but bytes is written as."""
        self._end = end
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def num_held(self) -> int:
        return len(self._decoder.getstate()[0])

    def add(self, token_ids: Sequence[int]) -> str:
        if not self._end:
            return self._decoder.decode(bytes(t for t in token_ids if t < EOS))
        pieces = [self._end if t >= EOS else self._decoder.decode(bytes([t])) for t in token_ids]
        return "".join(pieces)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)
