"""Tokens of one sequence to text, as they come.

Each step decodes a small window: the tokens that gave the last text, and those behind them. The difference to the text
of the former is new (the way of TGI and vLLM), so a decoder that looks at its neighbours, or strips the first space of
a text, sees them. `tokenizers.decoders.DecodeStream` does the same and saves 0.4 us of 1.0 us a token, but it raises on
broken bytes, and its window grows for as long as they last. Where nothing is held back, a token whose text is known not
to depend on others is looked up instead (whole_texts.py).

Knows nothing of stop strings. One sequence, one thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

from anllm.text.whole_texts import WholeTexts

REPLACEMENT = "\ufffd"
MAX_CHARACTER_TOKENS = 4  # a UTF-8 character has at most four bytes, a token at least one
MAX_HELD_TOKENS = 16


class IncrementalDetokenizer:
    """Joined, what add() and finish() return is what decoding all tokens at once returns, these special tokens skipped.

    Two exceptions. U+FFFD at the very end becomes a single one. And where the bytes of a byte-fallback tokenizer turn
    out to be broken, decoding at once gives U+FFFD for a whole run of them: characters of the run that are out stay,
    and behind a space among those the run may get one U+FFFD more.
    """

    def __init__(
        self,
        backend: Tokenizer,
        special_token_ids: frozenset[int] = frozenset(),
        whole_texts: WholeTexts | None = None,
        *,
        keeps_some: bool = False,
    ) -> None:
        """Without whole_texts, every token is decoded; without special_token_ids, special ones are written out.
        keeps_some: special_token_ids are not all there are, and the others are written out."""
        self._backend = backend
        self._skips_special = bool(special_token_ids) and not keeps_some
        self._special_token_ids = special_token_ids
        self._whole_texts: Mapping[int, str | None] = defaultdict(lambda: None) if whole_texts is None else whole_texts
        self._context: list[int] = []  # tokens whose text is out; decoding starts here
        self._held: list[int] = []  # tokens behind them, whose text is not out

    @property
    def num_held(self) -> int:
        return len(self._held)

    def add(self, token_ids: Sequence[int]) -> str:
        if len(token_ids) == 1:
            return self._add_one(token_ids[0])
        return "".join([self._add_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        if not self._held:
            return ""
        tail = self._new_text(self._decode(self._context + self._held))
        self._held = []
        return tail.rstrip(REPLACEMENT) + REPLACEMENT if tail.endswith(REPLACEMENT) else tail

    def _add_one(self, token_id: int) -> str:
        if self._context and not self._held and (known := self._whole_texts[token_id]) is not None:
            self._context = [token_id]
            return known
        if token_id in self._special_token_ids or self._backend.id_to_token(token_id) is None:
            return ""
        self._held.append(token_id)
        text = self._decode(self._context + self._held)
        if not text.endswith(REPLACEMENT):
            return self._release(len(self._held), text)
        return self._release_broken(text) if len(self._held) >= MAX_HELD_TOKENS else ""

    def _release(self, num_tokens: int, text: str) -> str:
        """The new part of `text`, which the context and the first `num_tokens` held tokens give."""
        released = self._new_text(text)
        if released:
            self._context, self._held = self._held[:num_tokens], self._held[num_tokens:]
        return released

    def _release_broken(self, text: str) -> str:
        """Lets go of all but the last tokens of a long run that keeps ending in U+FFFD, so that the window stays small.

        A character that begins before those last tokens is whole or broken by now; the cut must not fall into it.
        """
        last = len(self._held) - MAX_CHARACTER_TOKENS
        for num_tokens in range(last, last - MAX_CHARACTER_TOKENS, -1):
            head = self._decode(self._context + self._held[:num_tokens])
            if text.startswith(head):
                return self._release(num_tokens, head)
        return ""

    def _new_text(self, text: str) -> str:
        """What of `text`, which begins with the context's, is not out."""
        return _text_behind(self._decode(self._context), text)

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=self._skips_special)


def _text_behind(known: str, text: str) -> str:
    """What `text` has behind `known`.

    `known` begins `text`, but for bytes that were characters and now belong to a broken run: one U+FFFD each.
    """
    if text.startswith(known):
        return text[len(known) :]
    pairs = enumerate(zip(known, text, strict=False))
    num_common = next((i for i, (old, new) in pairs if old != new), min(len(known), len(text)))
    num_broken = len(known[num_common:].encode())
    rest = text[num_common:]
    return rest[min(num_broken, len(rest) - len(rest.lstrip(REPLACEMENT))) :]
