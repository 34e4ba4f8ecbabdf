"""The text of one sequence: its tokens through the detokenizer and the stop strings.

Knows nothing of requests, choices or how text is sent. One sequence, one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from anllm.text.interface import Tokenizer
from anllm.text.stop import StopMatcher


class TextOutput:
    """Turns tokens into the text that may go out, and counts them.

    stop: strings that end the text; none of a match goes out.
    end_token_ids: tokens that never reach the text. They are counted.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...], end_token_ids: frozenset[int]) -> None:
        self._detokenizer = tokenizer.detokenizer()
        self._matcher = StopMatcher(stop)
        self._end_token_ids = end_token_ids
        self._num_tokens = 0
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string matched; all further tokens are ignored."""
        return self._stopped

    @property
    def num_tokens(self) -> int:
        """Tokens added, up to and with the one that completed a stop string, however the calls group them."""
        return self._num_tokens

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens let go out."""
        pieces = []
        for token_id in token_ids:
            if self._stopped:
                break
            self._num_tokens += 1
            if token_id not in self._end_token_ids:
                pieces.append(self._match(self._detokenizer.add((token_id,))))
        return "".join(pieces)

    def finish(self) -> str:
        """What is still held back; "" after a stop string. Call once, at the end."""
        if self._stopped:
            return ""
        return self._match(self._detokenizer.finish()) + self._matcher.finish()

    def _match(self, text: str) -> str:
        released, self._stopped = self._matcher.add(text)
        return released
