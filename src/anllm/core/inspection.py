"""What is known of a model before it is served, and the memory that follows from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Inspection:
    """backend: "cpu", "cuda" or "metal". weights: their form in memory there.

    kv_bytes_per_token, kv_row_bytes: as in EngineInfo. execution: the way of calling it that would be taken, or None,
    and then why_unknown says why that shows at a start only. memory_bytes: what weights, K/V and working memory could
    take together if they took all.
    """

    backend: str
    num_parameters: int
    weights: str
    weight_bytes: int
    context_length: int
    kv_bytes_per_token: int
    kv_row_bytes: int
    execution: str | None
    why_unknown: str
    memory_bytes: int
