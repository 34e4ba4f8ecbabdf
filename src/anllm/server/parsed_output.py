"""The pieces of one answer that has parts: its tokens through the detokenizer, a parser, and the stop strings.

Beside anllm.text.output, which is for answers that are one text. One sequence, one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from anllm.core.events import TokenLogprobs
from anllm.parsers.pieces import CallBegun, Content, Piece
from anllm.parsers.stream import OutputParser
from anllm.server.content_tokens import ContentTokens
from anllm.text.alignment import TextToken
from anllm.text.interface import Tokenizer
from anllm.text.stop import StopMatcher


class ParsedOutput:
    """As TextOutput, in pieces. Stop strings are looked for in the content alone; what a model thinks, and what it
    calls, does not end it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        parser: OutputParser,
        stop: tuple[str, ...],
        end_token_ids: frozenset[int],
        *,
        kept: frozenset[str],
        max_calls: int | None = None,
        includes_stop: bool = False,
        skips_special: bool = True,
        has_logprobs: bool = False,
    ) -> None:
        """kept: special tokens that the parser has to see. max_calls: before the next call, the answer is stopped."""
        self.has_logprobs = has_logprobs
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=skips_special, kept=kept)
        self._parser = parser
        self._calls_left = max_calls
        self._stop = stop
        self._includes_stop = includes_stop
        self._matcher = self._new_matcher()
        self._end_token_ids = end_token_ids
        self._tokens = ContentTokens(tokenizer) if has_logprobs else None
        self._num_tokens = 0
        self._num_reasoning_tokens = 0
        self._stopped = False
        self._has_calls = False

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def stop_string(self) -> str:
        return "" if self._matcher is None else self._matcher.matched

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def num_reasoning_tokens(self) -> int:
        """Of num_tokens, those of the model's thoughts, the mark that ends them included."""
        return self._num_reasoning_tokens

    @property
    def has_calls(self) -> bool:
        """Whether a call is among the pieces that went out."""
        return self._has_calls

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> list[Piece]:
        """The pieces that these tokens let go out. logprobs: one a token, if there are any."""
        pieces: list[Piece] = []
        for index, token_id in enumerate(token_ids):
            if self._stopped:
                break
            self._num_tokens += 1
            was_reasoning = self._parser.is_reasoning
            if token_id not in self._end_token_ids:
                text = self._detokenizer.add((token_id,))
                if self._tokens is not None:
                    self._tokens.add(token_id, logprobs[index], text, self._detokenizer.num_held)
                pieces += self._parsed(self._parser.add(text) if text else [])
            self._num_reasoning_tokens += was_reasoning or self._parser.is_reasoning
        return pieces

    def finish(self, *, is_cut: bool = False) -> list[Piece]:
        """What is still held back; nothing after a stop string. Call once, at the end. is_cut: by a limit."""
        if self._stopped:
            return []
        text = self._detokenizer.finish()
        if self._tokens is not None:
            self._tokens.finish(text)
        pieces = self._parsed(self._parser.add(text)) if text else []
        if not self._stopped:
            pieces += self._parsed(self._parser.finish(is_cut=is_cut))
        if not self._stopped:
            pieces += self._released("")
        return pieces

    def take_tokens(self) -> list[TextToken]:
        """The tokens of the content that went out since the last call; none without logprobs."""
        return [] if self._tokens is None else self._tokens.take()

    def _parsed(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The same pieces, the content without stop strings; none behind one."""
        passed: list[Piece] = []
        placed = deque(self._parser.placed)
        for piece in pieces:
            if isinstance(piece, CallBegun) and self._calls_left is not None:
                self._calls_left -= 1
                self._stopped = self._calls_left < 0
                if self._stopped:
                    break
            if not isinstance(piece, Content):
                self._has_calls = self._has_calls or isinstance(piece, CallBegun)
                passed += [*self._released(""), piece]
                self._place(piece, placed)
                continue
            self._place(piece, placed)
            if self._matcher is None:
                passed += self._out(piece.text)
            else:
                text, self._stopped = self._matcher.add(piece.text)
                passed += self._out(text)
                if self._stopped:
                    break
        return passed

    def _place(self, piece: Piece, placed: deque[tuple[Piece, int]]) -> None:
        """Tell the tokens where the piece's own pieces stand. placed: all that are left; these are taken."""
        if self._tokens is None:
            return
        missing = 1 if isinstance(piece, CallBegun) else len(piece.text)
        while missing > 0:
            part, num_taken = placed.popleft()
            self._tokens.place(part, num_taken)
            missing -= 1 if isinstance(part, CallBegun) else len(part.text)

    def _released(self, text: str) -> list[Piece]:
        """What the stop strings hold back, since content ends here."""
        if self._matcher is not None:
            text += self._matcher.finish()
            self._matcher = self._new_matcher()
        return self._out(text, is_end=True)

    def _out(self, text: str, *, is_end: bool = False) -> list[Piece]:
        if self._tokens is not None:
            text = self._tokens.release(text, is_end=is_end or self._stopped)
        return [Content(text)] if text else []

    def _new_matcher(self) -> StopMatcher | None:
        return StopMatcher(self._stop, includes_match=self._includes_stop) if self._stop else None
