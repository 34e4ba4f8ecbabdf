"""Splits one answer, as it comes, into content, reasoning and tool calls.

Rules that hold for every format:
- Text is held back only while it may be markup, or whitespace that markup may follow.
- Content comes before the first call only. What a model writes between and after calls is dropped, be it prose, closing
  tags too many or a broken call, since clients of the API take no text there.
- Whitespace directly before a call, and around reasoning, is the template's and is dropped.
- A call whose beginning, up to its name, is broken is content, markup and all; if a limit cut it, it is dropped. Once
  begun, a call keeps what the model wrote as its arguments, broken or cut. Nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterable

from anllm.parsers.pieces import CallArguments, CallBegun, Content, Piece, Reasoning
from anllm.parsers.reader import Reader, Steps

__all__ = ["CallArguments", "CallBegun", "Content", "OutputParser", "Piece", "Reasoning"]


class OutputParser:
    """Reads one answer. Made by OutputFormat.parser().

    placed: the pieces of the last add() or finish(), neighbours apart, each with the number of characters of the answer
        that were taken when it came: it is of the text before them, but for whitespace.
    """

    def __init__(self, reader: Reader, steps: Steps[None]) -> None:
        self._reader = reader
        self._steps = steps
        self._num_calls = 0
        self._is_over = False
        self._num_begun = 0
        self.placed: list[tuple[Piece, int]] = []
        self._advance()  # over what the prompt has begun, which is no part of the answer
        self._num_begun = reader.num_taken

    @property
    def num_calls(self) -> int:
        """Calls begun so far."""
        return self._num_calls

    @property
    def is_reasoning(self) -> bool:
        """Whether the answer is inside an open block of reasoning."""
        return self._reader.is_reasoning

    @property
    def is_call_open(self) -> bool:
        """Whether the last call begun has not come to its end. After finish(): it is cut or broken."""
        return self._reader.is_call_open

    def add(self, text: str) -> list[Piece]:
        """The pieces that this text lets go out."""
        self._reader.feed(text)
        return self._advance()

    def finish(self, *, is_cut: bool = False) -> list[Piece]:
        """What is still held back. Call once, at the end.

        is_cut: the model was stopped by a limit. What then looks like the beginning of markup is dropped, else it is
        content like all markup that is broken."""
        self._reader.end(is_cut=is_cut)
        return self._advance()

    def _advance(self) -> list[Piece]:
        self.placed = []
        while not self._is_over:
            try:
                piece = next(self._steps)
            except StopIteration:
                self._is_over = True
                break
            if piece is None:
                break
            self.placed.append((piece, self._reader.num_taken - self._num_begun))
            self._num_calls += isinstance(piece, CallBegun)
        return list(joined(piece for piece, _ in self.placed))


def joined(pieces: Iterable[Piece]) -> Iterable[Piece]:
    """The same pieces, neighbours of one kind as one, without empty ones."""
    kind: type[Content] | type[Reasoning] | type[CallArguments] = Content
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, kind):
            texts.append(piece.text)
            continue
        if any(texts):
            yield kind("".join(texts))
        texts = []
        if isinstance(piece, CallBegun):
            yield piece
        else:
            kind, texts = type(piece), [piece.text]
    if any(texts):
        yield kind("".join(texts))
