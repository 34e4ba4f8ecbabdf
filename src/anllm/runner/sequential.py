"""The plain way: every sequence by itself, on the caches that mlx-lm makes for the model. Works for all models."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from anllm.core.step import ScheduledSequence, Slot, StepPlan
from anllm.runner.arrays import flat_arrays
from anllm.runner.forward import Head


class SequentialForward:
    """A slot is the name of a sequence's cache here; its arrays are the cache's own and go with it."""

    name = "sequential"

    def __init__(self, model: nn.Module, head: Head) -> None:
        self._model = model
        self._head = head
        self._caches: dict[Slot, list[Any]] = {}

    def logits(self, plan: StepPlan) -> mx.array | None:
        for resize in plan.resizes:
            for slot in [s for s in self._caches if s.capacity == resize.capacity and s.index >= resize.num_slots]:
                del self._caches[slot]
        for copy in plan.copies:
            self._caches[copy.target] = self._caches.pop(copy.source)
        found = [logits for entry in plan.scheduled if (logits := self._row(entry)) is not None]
        return mx.concatenate(found) if found else None

    def _row(self, entry: ScheduledSequence) -> mx.array | None:
        if entry.start == 0:
            self._caches[entry.slot] = make_prompt_cache(self._model)
        cache = self._caches[entry.slot]
        tokens = mx.array([entry.token_ids])
        wanted = entry.logit_positions
        if wanted:
            logits = self._head(tokens, cache, [0] * len(wanted), wanted)
            mx.eval(logits)
            return logits
        self._head.skip(tokens, cache)
        mx.eval([array for _, array in flat_arrays([c.state for c in cache])])
        return None
