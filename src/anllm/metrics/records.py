"""The life of an HTTP request and of each sequence in it, in moments of the front's clock."""

from __future__ import annotations

from dataclasses import dataclass, field

FINISHED = ("stop", "length")  # ends that an answer has by itself
ABORT, ERROR = "abort", "error"


@dataclass(slots=True, eq=False)
class SequenceRecord:
    """One sequence. submitted_s: when it went to the engine; admitted_s: when the engine began with it; first_token_s,
    last_token_s: when the front heard of it. None for what has not happened.

    max_tokens: 0 where the prompt is only scored; then no token counts.
    finish_reason: "stop", "length", "abort" or "error".
    """

    request: RequestRecord
    num_prompt_tokens: int
    max_tokens: int
    submitted_s: float
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_cached_tokens: int = 0
    num_tokens: int = 0
    finish_reason: str | None = None

    @property
    def stage(self) -> str:
        """How far it came: "waiting", "prefill" or "decode"."""
        if self.first_token_s is not None:
            return "decode"
        return "waiting" if self.admitted_s is None else "prefill"


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One HTTP request that was taken. id: its x-request-id. arrived_s: when its head had been read.

    sequences: for each prompt num_answers of them, in order.
    """

    id: str
    arrived_s: float
    num_answers: int = 1
    sequences: list[SequenceRecord] = field(default_factory=list)

    @property
    def first_token_s(self) -> float | None:
        return min((s.first_token_s for s in self.sequences if s.first_token_s is not None), default=None)

    @property
    def ttft_s(self) -> float | None:
        """From its arrival to the first token of any answer; None before that."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def queue_s(self) -> float | None:
        """Until the engine began with the first of its sequences."""
        return min((s.admitted_s - s.submitted_s for s in self.sequences if s.admitted_s is not None), default=None)

    @property
    def mean_itl_s(self) -> float | None:
        """Over all answers; None where none has two tokens."""
        gaps = seconds = 0.0
        for sequence in self.sequences:
            if sequence.first_token_s is not None and sequence.last_token_s is not None and sequence.num_tokens > 1:
                gaps += sequence.num_tokens - 1
                seconds += sequence.last_token_s - sequence.first_token_s
        return seconds / gaps if gaps else None

    def siblings(self, sequence: SequenceRecord) -> list[SequenceRecord]:
        """The answers to the same prompt, itself included."""
        first = self.sequences.index(sequence) // self.num_answers * self.num_answers
        return self.sequences[first : first + self.num_answers]
