"""A Row: a slot, and how much of what it holds can be relied on. Belongs to the engine's thread."""

from __future__ import annotations

from dataclasses import dataclass

from anllm.core.step import Slot


@dataclass(slots=True, eq=False)
class Row:
    """Shared by the sequence that fills it and the cache that knows what is in it.

    first_plan: the number of the first plan that this sequence can be in with this row. A plan before that, read only
        now, tells nothing about what is in it.
    num_tokens: of the first so many tokens K/V is there, computed by steps that have been read. A step that is under
        way may still fail, so what it writes does not count.
    """

    slot: Slot
    first_plan: int = 0
    num_tokens: int = 0
