"""The text of one sequence: its tokens through the detokenizer and the stop strings.

Knows nothing of requests, choices or how text is sent. One sequence, one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from anllm.core.events import TokenLogprobs
from anllm.text.alignment import TextToken, TokenAlignment
from anllm.text.interface import Tokenizer
from anllm.text.stop import StopMatcher


class TextOutput:
    """Turns tokens into the text that may go out, and counts them.

    stop: strings that end the text; none of a match goes out.
    end_token_ids: tokens that never reach the text. They are counted.
    includes_stop: the stop string that ended the text goes out too.
    skips_special: special tokens give no text; else they are written out.
    has_logprobs: each token comes with what the model thought of it, which take_tokens() gives with the token's text.
        Text then goes out by whole tokens.
    keeps_silent: take_tokens() gives tokens without text, too, ends among them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        end_token_ids: frozenset[int],
        *,
        includes_stop: bool = False,
        skips_special: bool = True,
        has_logprobs: bool = False,
        keeps_silent: bool = False,
    ) -> None:
        self.has_logprobs = has_logprobs
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=skips_special)
        self._matcher = StopMatcher(stop, includes_match=includes_stop) if stop else None
        self._end_token_ids = end_token_ids
        self._alignment = TokenAlignment(tokenizer, keeps_silent=keeps_silent) if has_logprobs else None
        self._num_tokens = 0
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string matched; all further tokens are ignored."""
        return self._stopped

    @property
    def stop_string(self) -> str:
        """The one that matched, or ""."""
        return "" if self._matcher is None else self._matcher.matched

    @property
    def num_tokens(self) -> int:
        """Tokens added, up to and with the one that completed a stop string, however the calls group them."""
        return self._num_tokens

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> str:
        """The text that these tokens let go out. logprobs: one a token, if there are any."""
        if self._matcher is None and self._alignment is None:
            self._num_tokens += len(token_ids)
            return self._detokenizer.add([token_id for token_id in token_ids if token_id not in self._end_token_ids])
        pieces = []
        for index, token_id in enumerate(token_ids):
            if self._stopped:
                break
            self._num_tokens += 1
            if token_id not in self._end_token_ids:
                text = self._detokenizer.add((token_id,))
                if self._alignment is not None:
                    self._alignment.add(token_id, logprobs[index], text, self._detokenizer.num_held)
                pieces.append(self._match(text))
            elif self._alignment is not None and self._alignment.keeps_silent:
                self._alignment.add(token_id, logprobs[index], "", self._detokenizer.num_held)
        return self._release("".join(pieces), is_end=self._stopped)

    def finish(self, *, is_cut: bool = False) -> str:
        """What is still held back; "" after a stop string. Call once, at the end. is_cut: by a limit, which makes no
        difference to text."""
        if self._stopped:
            return ""
        text = self._detokenizer.finish()
        if self._alignment is not None:
            self._alignment.finish(text)
        released = self._match(text)
        held = "" if self._matcher is None else self._matcher.finish()
        return self._release(released + held, is_end=True)

    def take_tokens(self) -> list[TextToken]:
        """The tokens of the text that went out since the last call; none without logprobs."""
        return [] if self._alignment is None else self._alignment.take()

    def _match(self, text: str) -> str:
        if self._matcher is None:
            return text
        released, self._stopped = self._matcher.add(text)
        return released

    def _release(self, text: str, *, is_end: bool) -> str:
        return text if self._alignment is None else self._alignment.release(text, is_end=is_end)
