"""The fast way: all tokens of a step in the batch axis, one call of the model for decode rows and prompts alike."""

from __future__ import annotations

import mlx.core as mx

from anllm.core.step import StepPlan
from anllm.runner.attention import FlatCache, Kernels, StepLayout
from anllm.runner.forward import Head
from anllm.runner.kv_store import KVStore


class FlattenedForward:
    """Needs a model all of whose layers keep plain K/V and attend through mlx-lm's common function."""

    name = "flattened"

    def __init__(self, head: Head, store: KVStore, kernels: Kernels, *, is_ragged: bool = False) -> None:
        """is_ragged: kernels are RaggedKernels too, and are to be used as such."""
        self._head = head
        self._store = store
        self._kernels = kernels
        self._is_ragged = is_ragged

    def logits(self, plan: StepPlan) -> mx.array | None:
        self._store.apply(plan.resizes, plan.copies)
        layout = StepLayout(plan, is_ragged=self._is_ragged)
        cache = [FlatCache(layer, layout, self._kernels) for layer in self._store.layers]
        tokens = mx.array(layout.tokens)[:, None]  # [T, 1]
        if not layout.sampled:
            self._head.skip(tokens, cache)
            mx.eval(self._store.arrays(layout.capacities))
            return None
        logits = self._head(tokens, cache, layout.sampled, [0] * len(layout.sampled))
        mx.eval(logits, self._store.arrays(layout.capacities))
        return logits
