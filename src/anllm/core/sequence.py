"""A Sequence: one run of tokens being generated, as the scheduler keeps it. Belongs to the engine's thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import repeat

from anllm.core.request import Request
from anllm.core.row import Row
from anllm.core.step import PENDING, Slot

Order = tuple[float, int]  # who runs before whom: see scheduler/waiting.py


class SequenceStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()  # was running, waits for memory; of its K/V it gets back what the cache still has
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens [0, num_computed_tokens) have K/V in `row`, or will have it once the steps that were submitted are done;
    what stands behind is still to be computed."""

    request: Request
    order: Order
    max_tokens: int  # of output, already cut to the context length
    status: SequenceStatus = SequenceStatus.WAITING
    row: Row | None = None
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, those that were not computed for it
    num_reused_tokens: int = 0  # what its row held already when it got it
    output_token_ids: list[int] = field(default_factory=list)
    num_scored_tokens: int = 0  # of the prompt, what the model thinks of them has been asked for
    num_pending: int = 0  # output tokens that a submitted step samples, and that nobody has read yet

    @property
    def slot(self) -> Slot | None:
        return None if self.row is None else self.row.slot

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far, pending ones included."""
        return len(self.request.prompt_token_ids) + self.num_output_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output so far, pending ones included."""
        return len(self.output_token_ids) + self.num_pending

    @property
    def is_full(self) -> bool:
        """Whether its last token is sampled, or will be by a submitted step: nothing is left to compute."""
        return self.num_output_tokens >= self.max_tokens

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest token is still to be computed."""
        num_output_tokens = len(self.output_token_ids) + self.num_pending  # for each row of each step, so no detours
        is_newest = len(self.request.prompt_token_ids) + num_output_tokens - self.num_computed_tokens == 1
        return is_newest and 0 < num_output_tokens < self.max_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def max_num_tokens(self) -> int:
        """The longest this sequence can get, in tokens with K/V."""
        return self.num_prompt_tokens + self.max_tokens

    def longest_chunk(self, scorable: int) -> int:
        """Tokens that the next chunk may hold, if so many may be scored in it. After a preemption those that were
        scored already come in chunks of their own."""
        if self.request.params.prompt_logprobs is None or self.num_computed_tokens >= self.num_prompt_tokens - 1:
            return self.num_uncomputed_tokens
        if self.num_computed_tokens < self.num_scored_tokens:
            return self.num_scored_tokens - self.num_computed_tokens
        return min(scorable, self.num_uncomputed_tokens)

    def tokens_to_score(self, start: int, end: int) -> tuple[int, ...]:
        """Of a chunk [start, end): the prompt's tokens in [start + 1, end], where they are asked for and new."""
        if self.request.params.prompt_logprobs is None or start < self.num_scored_tokens:
            return ()
        return self.request.prompt_token_ids[start + 1 : end + 1]

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens [start, end) of prompt + output; PENDING for those that nobody has read yet."""
        prompt = self.request.prompt_token_ids
        if end <= len(prompt):
            return prompt[start:end]
        first, last = max(0, start - len(prompt)), end - len(prompt)
        known = self.output_token_ids[first:last]
        return (*prompt[start:], *known, *repeat(PENDING, last - first - len(known)))
