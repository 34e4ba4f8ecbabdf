"""Which tokens a sequence has already, for penalties: followed from plan to plan, by slot.

Plans hold every token of a sequence once, as it is computed or, at its beginning, as one that need not be; the newest
one as the input of the step that draws the next. So nothing has to be told besides. Only sequences whose parameters
have penalties are followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anllm.core.step import PENDING, ScheduledSequence, Slot, StepPlan

FIRST_ROOM = 256


@dataclass(frozen=True, slots=True)
class Seen:
    """The different tokens of prompt and output, int32 [n], and how often each is in the output, int32 [n]."""

    ids: np.ndarray
    counts: np.ndarray


class _Row:
    """Grows by one token at a time, without copying what is there."""

    def __init__(self) -> None:
        self._ids = np.zeros(FIRST_ROOM, np.int32)
        self._counts = np.zeros(FIRST_ROOM, np.int32)
        self._places: dict[int, int] = {}

    def add(self, token_id: int, *, is_output: bool) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        self._counts[place] += is_output

    def seen(self) -> Seen:
        number = len(self._places)
        return Seen(self._ids[:number], self._counts[:number])


class SeenTokens:
    """Modified by follow() only."""

    def __init__(self) -> None:
        self._rows: dict[Slot, _Row] = {}

    def follow(self, plan: StepPlan, pending: Mapping[int, int]) -> None:
        """Take in the tokens of a plan. pending: by request, what stands behind PENDING."""
        for copy in plan.copies:
            if copy.source in self._rows:  # one that moves; others that copy begin anew
                self._rows[copy.target] = self._rows[copy.source]
        for scheduled in plan.scheduled:
            if scheduled.params.has_penalties:
                self._follow_row(scheduled, pending)

    def of(self, scheduled: ScheduledSequence) -> Seen | None:
        """After follow() of its plan; None for sequences without penalties."""
        return self._rows[scheduled.slot].seen() if scheduled.params.has_penalties else None

    def _follow_row(self, scheduled: ScheduledSequence, pending: Mapping[int, int]) -> None:
        reused = scheduled.reused_token_ids
        if scheduled.start == len(reused):
            self._rows[scheduled.slot] = _Row()
        row = self._rows[scheduled.slot]
        for position, token_id in enumerate((*reused, *scheduled.token_ids), scheduled.start - len(reused)):
            actual = pending[scheduled.request_id] if token_id == PENDING else token_id
            row.add(actual, is_output=position >= scheduled.num_prompt_tokens)
