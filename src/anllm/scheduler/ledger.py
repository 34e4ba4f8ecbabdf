"""What happened in the scheduler since it was told last. Kept beside the decisions; nothing is decided by it."""

from __future__ import annotations

from dataclasses import replace

from anllm.core.events import Admitted, EngineFigures, StepFigures
from anllm.core.sequence import Sequence
from anllm.core.step import StepPlan
from anllm.kvcache.cache import CacheStats


class Ledger:
    """Written as things happen, emptied by take()."""

    def __init__(self, stats: CacheStats) -> None:
        """stats: the cache's own, which go on counting."""
        self._stats = stats
        self._told_stats = replace(stats)
        self._got_rows: list[Sequence] = []  # in the plan that is being made
        self._admitted: list[Admitted] = []
        self._num_preemptions = 0
        self._step: StepFigures | None = None

    def got_row(self, sequence: Sequence) -> None:
        """For the first time."""
        self._got_rows.append(sequence)

    def planned(self, now_s: float) -> None:
        """The plan is made: who got a row in it waited until now."""
        for sequence in self._got_rows:
            queue_s = max(now_s - sequence.request.arrival_time_s, 0.0)
            self._admitted.append(Admitted(sequence.request_id, queue_s))
        self._got_rows.clear()

    def preempted(self) -> None:
        self._num_preemptions += 1

    def computed(self, plan: StepPlan, num_decodes: int, duration_s: float) -> None:
        self._step = StepFigures(
            duration_s=duration_s,
            num_decodes=num_decodes,
            num_prefills=len(plan.scheduled) - num_decodes,
            num_prefill_tokens=plan.num_tokens - num_decodes,
        )

    def take(self, now: EngineFigures) -> EngineFigures:
        """With what happened since the last call. now: how it stands."""
        stats, told = self._stats, self._told_stats
        figures = replace(
            now,
            num_preemptions=self._num_preemptions,
            num_evicted_rows=stats.num_evicted_rows - told.num_evicted_rows,
            num_queried_tokens=stats.num_queried_tokens - told.num_queried_tokens,
            num_hit_tokens=stats.num_hit_tokens - told.num_hit_tokens,
            admitted=tuple(self._admitted),
            step=self._step,
        )
        self._told_stats = replace(stats)
        self._admitted.clear()
        self._num_preemptions = 0
        self._step = None
        return figures
