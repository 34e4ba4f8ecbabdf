"""What a tracer is told of requests that are over. Without the packages that send it on (traces.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from anllm.core.request import SamplingParams
from anllm.metrics.records import RequestRecord


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A request that was taken, and is over.

    operation: "chat" or "text_completion". response_id: of the answer. output_tokens, cached_tokens, reasoning_tokens:
    as in its usage, of all answers; input_tokens: of all prompts. finish_reasons: of the answers, in order.
    """

    operation: str
    model: str
    response_id: str
    is_stream: bool
    sampling: SamplingParams
    record: RequestRecord
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    finish_reasons: tuple[str, ...]
    error: str | None


class Tracer(Protocol):
    """Gets told of requests that are over. Moments are those of time.monotonic(). headers: of the request; its
    traceparent is the span's parent."""

    def finished(self, call: FinishedCall, headers: Mapping[str, str]) -> None: ...

    def refused(
        self, operation: str, headers: Mapping[str, str], arrived_s: float, request_id: str, status: int, error: str
    ) -> None:
        """An HTTP request was answered with an error before the engine had it."""
        ...

    def close(self) -> None:
        """The end; waits a little for what has not been sent."""
        ...
