"""Which tokens the content of a parsed answer is made of, for log probabilities.

A parser tells how far it has read when it gives a piece, not what it dropped on the way: markup, blanks, what it
rewrites. So each piece is looked for in the text that the tokens gave, backwards from there; tokens without a share in
the content are forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from anllm.core.events import TokenLogprobs
from anllm.parsers.pieces import CallBegun, Content, Piece
from anllm.text.alignment import TextToken, TokenAlignment
from anllm.text.interface import Tokenizer


@dataclass(frozen=True, slots=True)
class _Read:
    """A token, and where its text stands among all text: [start, end)."""

    token_id: int
    logprobs: TokenLogprobs
    start: int
    end: int
    num_held: int


class ContentTokens:
    """One answer's tokens, as they come and as the parser decides over them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._alignment = TokenAlignment(tokenizer)
        self._read: deque[_Read] = deque()  # not decided over
        self._text = ""  # of those, and of what stands before them undecided
        self._offset = 0  # of _text among all text
        self._decided = 0  # up to where pieces have been placed
        self._shares: deque[tuple[int, int]] = deque()  # of the content, [start, end)

    def add(self, token_id: int, logprobs: TokenLogprobs, text: str, num_held: int) -> None:
        """A token, the text that the detokenizer gave for it, and how many tokens it holds now."""
        start = self._offset + len(self._text)
        self._text += text
        self._read.append(_Read(token_id, logprobs, start, start + len(text), num_held))

    def finish(self, text: str) -> None:
        """The last text of the detokenizer, which belongs to the last token."""
        self._text += text
        if self._read and text:
            last = self._read.pop()
            self._read.append(_Read(last.token_id, last.logprobs, last.start, last.end + len(text), 0))

    def place(self, piece: Piece, num_taken: int) -> None:
        """The next piece that the parser gave, and the characters that it had read by then."""
        if isinstance(piece, CallBegun):
            return
        start = self._text.rfind(piece.text, self._decided - self._offset, num_taken - self._offset)
        if start < 0:  # rewritten by the parser
            return
        self._decided = self._offset + start + len(piece.text)
        if isinstance(piece, Content):
            self._shares.append((self._offset + start, self._decided))
        while self._read and (self._read[0].end < self._decided or self._ends_here(self._read[0])):
            self._decide(self._read.popleft())
        kept_from = min(self._decided, self._read[0].start if self._read else self._decided)
        self._text, self._offset = self._text[kept_from - self._offset :], kept_from

    def release(self, text: str, *, is_end: bool) -> str:
        """What of this content goes out now, as TokenAlignment.release."""
        while is_end and self._read and self._read[0].start < self._decided:
            self._decide(self._read.popleft())
        return self._alignment.release(text, is_end=is_end)

    def take(self) -> list[TextToken]:
        return self._alignment.take()

    def _ends_here(self, token: _Read) -> bool:
        """A token without text belongs to what comes behind it."""
        return token.end == self._decided and token.start < token.end

    def _decide(self, token: _Read) -> None:
        while self._shares and self._shares[0][1] <= token.start:
            self._shares.popleft()
        parts = [
            self._text[max(start, token.start) - self._offset : min(end, token.end) - self._offset]
            for start, end in self._shares
            if start < token.end and token.start < end
        ]
        is_begun = any(start <= token.start < end for start, end in self._shares)
        if any(parts) or (token.start == token.end and is_begun):
            self._alignment.add(token.token_id, token.logprobs, "".join(parts), token.num_held)
