"""The fast way: all tokens of a step in the batch axis, one call of the model for decode rows and prompts alike."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import mlx.core as mx
import numpy as np

from anllm.core.step import PENDING, ScheduledSequence, StepPlan
from anllm.runner.attention import FlatCache, Kernels, StepLayout
from anllm.runner.forward import Head
from anllm.runner.kv_store import KVStore
from anllm.runner.ragged import RaggedKernels
from anllm.runner.replay import StepReplay, can_be_recorded, recorded_size


class SampledTokens:
    """The tokens that a step sampled, still on the device and perhaps not computed yet."""

    def __init__(self, tokens: mx.array, plan: StepPlan) -> None:
        """tokens: int32, one for each entry of the plan that samples, in its order."""
        self._tokens = tokens
        sampled = [s.request_id for s in plan.scheduled if s.sample]
        self._rows = {request_id: row for row, request_id in enumerate(sampled)}

    def by_request(self) -> dict[int, int]:
        """The tokens themselves, by request; waits for them."""
        token_ids = cast("list[int]", self._tokens.tolist())
        return {request_id: token_ids[row] for request_id, row in self._rows.items()}

    def fill(self, token_ids: np.ndarray, plan: StepPlan) -> mx.array:
        """The tokens [T] of a plan, where token_ids has PENDING for some: each its sequence's token from here."""
        pending = np.flatnonzero(token_ids == PENDING)
        if not len(pending):
            return mx.array(token_ids)
        ends = np.cumsum([len(s.token_ids) for s in plan.scheduled])
        owners = np.searchsorted(ends, pending, side="right")
        rows = np.zeros(len(token_ids), np.int32)
        rows[pending] = [self._rows[plan.scheduled[owner].request_id] for owner in owners]
        if len(pending) == len(token_ids):
            return self._tokens[mx.array(rows)]
        return mx.where(mx.array(token_ids == PENDING), self._tokens[mx.array(rows)], mx.array(token_ids))


class FlattenedForward:
    """Needs a model all of whose layers keep plain K/V and attend through mlx-lm's common function."""

    name = "flattened"

    def __init__(
        self, head: Head, store: KVStore, kernels: Kernels, *, is_ragged: bool = False, is_replayed: bool = False
    ) -> None:
        """is_ragged: kernels are RaggedKernels too, and are to be used as such. is_replayed: all layers write in place,
        so that decode steps can be recorded (replay.py)."""
        self._head = head
        self._store = store
        self._kernels = kernels
        ragged = kernels if is_ragged and isinstance(kernels, RaggedKernels) else None
        self.is_ragged = ragged is not None
        self.is_compiled = ragged is not None and ragged.is_compiled
        self._writes_kv = ragged is not None and ragged.writes_kv
        self._replay = StepReplay(head.everywhere, kernels) if is_replayed else None

    def logits(self, plan: StepPlan) -> mx.array | None:
        logits, touched = self.begin(plan)
        mx.eval(touched if logits is None else [logits, *touched])
        return logits

    def begin(self, plan: StepPlan, last: SampledTokens | None = None) -> tuple[mx.array | None, list[mx.array]]:
        """As logits(), but nothing is evaluated: the logits, and the slabs that the step writes to. PENDING tokens are
        those of `last`."""
        self._store.apply(plan.resizes, plan.copies)
        num_rows = len(plan.scheduled)
        replay = self._replay if self._replay is not None and _is_of_single_tokens(plan) else None
        if replay is not None:
            plan = padded(plan)
        layout = StepLayout(plan, is_ragged=self.is_ragged, writes_kv=self._writes_kv)
        tokens = mx.array(layout.tokens) if last is None else last.fill(layout.tokens, plan)
        logits = None if replay is None else replay.logits(tokens, layout, self._store)
        if logits is None:
            logits = self._called(tokens, layout)
        elif not layout.is_decode:
            logits = logits[mx.array(layout.wanted)] if layout.wanted else None
        if layout.is_decode and num_rows < len(plan.scheduled) and logits is not None:
            logits = logits[:num_rows]
        touched = self._store.arrays(layout.capacities)
        if layout.written is not None:
            touched.append(layout.written)
        return logits, touched

    def _called(self, tokens: mx.array, layout: StepLayout) -> mx.array | None:
        cache = [FlatCache(layer, layout, self._kernels) for layer in self._store.layers]
        if layout.wanted:
            return self._head(tokens[:, None], cache, layout.wanted, [0] * len(layout.wanted))
        self._head.skip(tokens[:, None], cache)
        return None


def padded(plan: StepPlan) -> StepPlan:
    """A plan with the last token repeated, up to a size that is recorded. It then writes the same K/V to the same place
    more than once."""
    missing = recorded_size(plan.num_tokens) - plan.num_tokens
    last = plan.scheduled[-1]
    if not last.is_decode:
        last = ScheduledSequence(
            last.request_id, last.slot, last.end - 1, last.token_ids[-1:], False, last.token_index, last.params
        )
    return replace(plan, scheduled=(*plan.scheduled, *[last] * missing))


def _is_of_single_tokens(plan: StepPlan) -> bool:
    """Whether each token may be a row of its own: in decode steps, and in those with a short piece of a prompt."""
    return plan.scheduled[-1].is_decode or can_be_recorded(plan.num_tokens, max(s.end for s in plan.scheduled))
