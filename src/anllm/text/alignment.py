"""Which tokens a text is made of: what the model thought of each goes out with the token's text, not before.

Sits beside the detokenizer and the stop strings, which both hold text back. One sequence, one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anllm.core.events import TokenLogprobs
from anllm.text.interface import Tokenizer


@dataclass(frozen=True, slots=True)
class TextToken:
    """A token of a text.

    raw: its bytes. Joined, those of all tokens are the text's UTF-8, but for a token that a stop string cut, and for
        broken bytes, which are U+FFFD in the text.
    start: index in the text of the character in which it begins.
    logprob: None for the first token of a prompt.
    top: bytes and log probability of the most likely tokens in its place, the likeliest first.
    """

    raw: bytes
    start: int
    logprob: float | None
    top: tuple[tuple[bytes, float], ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """A token without text so far. is_silent: it won't have any."""

    token_id: int
    logprobs: TokenLogprobs | None
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A token whose text [token.start, end) is known and not out."""

    token: TextToken
    end: int


class TokenAlignment:
    """Text goes out at the ends of tokens only, so that each piece is the text of whole tokens, which come with it.

    keeps_silent: tokens that give no text (special ones, ends) come too, with none, where they stand.
    """

    def __init__(self, tokenizer: Tokenizer, *, keeps_silent: bool = False) -> None:
        self.keeps_silent = keeps_silent
        self._tokenizer = tokenizer
        self._held: list[_Held] = []  # the detokenizer waits for the rest of a character
        self._waiting: list[_Waiting] = []
        self._num_decoded = 0  # characters that the detokenizer gave
        self._text = ""  # may go out, but for the rest of a token
        self._num_out = 0  # characters that are out
        self._out: list[TextToken] = []

    def add(self, token_id: int, logprobs: TokenLogprobs | None, text: str, num_held: int) -> None:
        """A token, the text that the detokenizer gave for it, and how many tokens it holds now."""
        is_shown = bool(text) or num_held > self._num_held
        if is_shown or self.keeps_silent:
            self._held.append(_Held(token_id, logprobs, is_silent=not is_shown))
        if text or num_held == 0:
            num_decoded = len(self._held)
            while self._held and sum(not held.is_silent for held in self._held[num_decoded:]) < num_held:
                num_decoded -= 1
            self._place(self._held[:num_decoded], text)
            del self._held[:num_decoded]

    def finish(self, text: str) -> None:
        """The last text of the detokenizer. Tokens that gave none are forgotten, or come without."""
        if text or self.keeps_silent:
            self._place(self._held, text)
        self._held = []

    def release(self, text: str, *, is_end: bool) -> str:
        """What of `text`, which may go out now, and of what was kept before does go out. At the end that is all; tokens
        that begin behind it, inside a stop string, are forgotten."""
        self._text += text
        num_known = self._num_out + len(self._text)
        num_tokens = self._num_whole(num_known)
        end = self._waiting[num_tokens - 1].end if num_tokens else self._num_out
        if is_end:
            num_tokens = sum(w.token.start < num_known or w.end <= num_known for w in self._waiting)
            end = num_known
        self._out += [waiting.token for waiting in self._waiting[:num_tokens]]
        del self._waiting[: len(self._waiting) if is_end else num_tokens]
        released, self._text = self._text[: end - self._num_out], self._text[end - self._num_out :]
        self._num_out = end
        return released

    def take(self) -> list[TextToken]:
        """The tokens of what was released since the last call."""
        taken, self._out = self._out, []
        return taken

    @property
    def _num_held(self) -> int:
        return sum(not held.is_silent for held in self._held)

    def _num_whole(self, num_known: int) -> int:
        """How many tokens end within the first `num_known` characters, and share none with the token behind them."""
        num_tokens = 0
        while num_tokens < len(self._waiting) and self._waiting[num_tokens].end <= num_known:
            num_tokens += 1
        while 0 < num_tokens < len(self._waiting):
            if self._waiting[num_tokens].token.start >= self._waiting[num_tokens - 1].end:
                break
            num_tokens -= 1
        return num_tokens

    def _place(self, tokens: Sequence[_Held], text: str) -> None:
        """Find what each of `tokens` is of `text`, which they give together."""
        encoded = text.encode()
        own = [b"" if held.is_silent else self._tokenizer.token_bytes(held.token_id) for held in tokens]
        joined = b"".join(own)
        raws, is_exact = own, False
        if joined.endswith(encoded) and not joined.removesuffix(encoded).strip(b" "):
            raws, is_exact = _without_first(own, len(joined) - len(encoded)), True
        elif len(own) == 1 and _is_text(joined):  # a decoder that writes tokens by rules of its own
            raws, is_exact = [encoded], True
        position = 0
        for held, raw, own_raw in zip(tokens, raws, own, strict=True):
            start, end = 0, len(text)
            if is_exact and raw:
                start = _num_begun(encoded[: position + 1]) - 1
                position += len(raw)
                end = _num_begun(encoded[:position])
            elif is_exact:
                is_inside = position < len(encoded) and _num_begun(encoded[position : position + 1]) == 0
                start = end = _num_begun(encoded[:position]) - is_inside
            if raw or not is_exact or self.keeps_silent:
                stripped = own_raw[: len(own_raw) - len(raw)] if own_raw.endswith(raw) else b""
                logprob = None if held.logprobs is None else held.logprobs.logprob
                token = TextToken(raw, self._num_decoded + start, logprob, self._top(held, raw, stripped))
                self._waiting.append(_Waiting(token, self._num_decoded + end))
        self._num_decoded += len(text)

    def _top(self, held: _Held, raw: bytes, stripped: bytes) -> tuple[tuple[bytes, float], ...]:
        """The most likely tokens as they would stand in the text, without the space that it was stripped of."""
        return tuple(
            (raw if other == held.token_id else self._tokenizer.token_bytes(other).removeprefix(stripped), logprob)
            for other, logprob in (held.logprobs.top if held.logprobs else ())
        )


def align_prompt(tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[TextToken]:
    """All tokens of a prompt, also those without text. logprobs: from the second token on."""
    detokenizer, alignment = tokenizer.detokenizer(), TokenAlignment(tokenizer, keeps_silent=True)
    pieces = []
    for token_id, told in zip(token_ids, [None, *logprobs], strict=True):
        pieces.append(detokenizer.add((token_id,)))
        alignment.add(token_id, told, pieces[-1], detokenizer.num_held)
    pieces.append(detokenizer.finish())
    alignment.finish(pieces[-1])
    alignment.release("".join(pieces), is_end=True)
    return alignment.take()


def _without_first(raws: list[bytes], number: int) -> list[bytes]:
    """Without the first `number` bytes: a decoder strips the first space of a text."""
    kept = []
    for raw in raws:
        kept.append(raw[number:])
        number = max(0, number - len(raw))
    return kept


def _num_begun(encoded: bytes) -> int:
    """Characters that begin in this UTF-8, the last one whole or not."""
    return sum(byte & 0xC0 != 0x80 for byte in encoded)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
