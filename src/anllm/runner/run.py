"""ModelRunner: a plan in, sampled tokens out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx

from anllm.core.events import EngineInfo, LoadProgress, MemoryUse
from anllm.core.request import SamplingParams
from anllm.core.step import (
    InFlight,
    Masks,
    ScheduledSequence,
    SlabResize,
    Slot,
    StepPlan,
    StepResult,
    step_sizes,
)
from anllm.errors import ModelError
from anllm.kvcache.pool import SMALLEST_CAPACITY
from anllm.runner.backends import Backend
from anllm.runner.build import RunnerSettings
from anllm.runner.contract import ChosenForward, choose_forward, vocabulary_size
from anllm.runner.flattened import FlattenedForward, SampledTokens
from anllm.runner.logprobs import ScoredPrompts, split_rows
from anllm.runner.model import LoadedModel, load
from anllm.runner.sampler import DeviceSampler, Drawn
from anllm.runner.seen import SeenTokens

logger = logging.getLogger(__name__)

MIN_WORKING_BYTES = 256 << 20
SHORTEST_CONTEXT = SMALLEST_CAPACITY
WARM_UP_TOKENS = 128
WORKING_SHARE = 0.15  # of the memory, for the largest step, where nobody says how large that is to be
SPARE = 1.5  # what is worked out from short prompts, times this, is kept for long ones


class ModelRunner:
    """A Runner (core/step.py) on MLX. Belongs to the thread that built it."""

    def __init__(self, settings: RunnerSettings, backend: Backend, on_progress: Callable[[LoadProgress], None]) -> None:
        """Loads the model. Raises ModelError with one sentence if it can't be served."""
        memory_bytes = backend.memory_bytes()
        loaded = load(settings.folder, settings.model.weights, backend, on_progress)
        on_progress(LoadProgress("Checking and warming up", 0, 0))
        vocab_size = vocabulary_size(loaded.model)
        chosen = choose_forward(loaded.model, backend.kernels, settings.model.execution, vocab_size)
        self._forward = chosen.forward
        self._sampler = backend.sampler
        self._seen = SeenTokens()
        self._last: SampledTokens | None = None  # of the step submitted last
        base_bytes, bytes_per_token, token_s = self._warm_up()
        most = max(int((WORKING_SHARE * memory_bytes - base_bytes) / max(bytes_per_token, 1)), SHORTEST_CONTEXT)
        prefill_tokens = settings.scheduler.max_num_batched_tokens or min(backend.prefill_tokens, most)
        working_bytes = max(int(base_bytes + bytes_per_token * prefill_tokens), MIN_WORKING_BYTES)
        # What was freed and is kept to be used again is working memory too. On GPUs it would grow with each slab that
        # is resized, past memory_fraction; on a CPU MLX itself keeps less.
        mx.set_cache_limit(min(mx.set_cache_limit(working_bytes), working_bytes))
        limit = int(memory_bytes * settings.cache.memory_fraction) - loaded.weight_bytes - working_bytes
        budget = settings.cache.kv_memory_bytes or limit
        self.info = EngineInfo(
            backend=backend.name,
            blas=backend.blas,
            kv_budget_bytes=budget,
            kv_bytes_per_token=max(chosen.bytes_per_token, 1),
            kv_row_bytes=chosen.row_bytes,
            max_model_len=longest_sequence(loaded, chosen, budget, settings.model.max_model_len),
            vocab_size=vocab_size,
            execution=chosen.forward.name,
            weights=loaded.weights,
            eos_token_ids=settings.eos_token_ids,
            prefill_tokens=prefill_tokens,
            reuses_prefixes=settings.cache.prefix_cache and chosen.reuses_prefixes,
            grown_slab_bytes=backend.grown_slab_bytes,
            token_s=token_s,
        )

        if isinstance(self._forward, FlattenedForward) and self._forward.is_compiled:
            self._warm_up_ragged(settings.scheduler.decode_token_budget)

    @property
    def runs_ahead(self) -> bool:
        """Where tokens are sampled on the device, and the model's call can take them from there."""
        return isinstance(self._sampler, DeviceSampler) and isinstance(self._forward, FlattenedForward)

    def submit(self, plan: StepPlan) -> InFlight:
        if self.runs_ahead:
            return self._begin(plan)
        if plan.needs_masks:
            return self._begin_forward(plan)
        return _Done(self.run(plan))

    def run(self, plan: StepPlan) -> StepResult:
        """The plain way: compute, then sample, then return."""
        self._seen.follow(plan, {})
        logits = self._forward.logits(plan)
        return StepResult([]) if logits is None else self._begin_reading(logits, plan, {}).result()

    def _begin_reading(self, logits: mx.array, plan: StepPlan, masks: Masks) -> _Computing:
        """What is made of the plan's logits, nothing of it evaluated."""
        entries = [s for s in plan.scheduled if s.scored_token_ids]
        if not entries:
            return _Computing(self._draw(logits, plan, masks), None)
        sampled, scored = split_rows(plan)
        drawn = self._draw(logits[mx.array(sampled)], plan, masks) if sampled else None
        return _Computing(drawn, ScoredPrompts(logits[mx.array(scored)], entries))

    def _draw(self, logits: mx.array, plan: StepPlan, masks: Masks) -> Drawn:
        rows = [s for s in plan.scheduled if s.sample]
        return self._sampler.draw(logits, rows, [self._seen.of(row) for row in rows], masks)

    def _begin(self, plan: StepPlan) -> InFlight:
        """Submit the whole step, sampling included unless it needs masks, and wait for nothing."""
        assert isinstance(self._forward, FlattenedForward)
        assert isinstance(self._sampler, DeviceSampler)
        if any(s.params.has_penalties for s in plan.scheduled):
            # Penalties depend on the token before, so these steps wait for it; others don't pay for them.
            self._seen.follow(plan, {} if self._last is None else self._last.by_request())
        logits, touched = self._forward.begin(plan, self._last)
        if logits is None:
            mx.async_eval(touched)
            return _Computing(None, None)
        if plan.needs_masks:
            mx.async_eval(logits, *touched)
            return _Undrawn(lambda masks: self._begin_drawing(logits, plan, masks))
        return self._begin_drawing(logits, plan, {}, touched)

    def _begin_forward(self, plan: StepPlan) -> InFlight:
        """The plain way for a plan that needs masks: the model computes on MLX's thread while they are made on ours."""
        self._seen.follow(plan, {})
        if isinstance(self._forward, FlattenedForward):
            logits, touched = self._forward.begin(plan)
            mx.async_eval(logits, *touched)
        else:
            logits = self._forward.logits(plan)
        assert logits is not None  # who needs a mask samples
        return _Undrawn(lambda masks: self._begin_reading(logits, plan, masks))

    def _begin_drawing(
        self, logits: mx.array, plan: StepPlan, masks: Masks, touched: Sequence[mx.array] = ()
    ) -> _Computing:
        """Submit what is made of the logits. touched: what is to be submitted with it."""
        computing = self._begin_reading(logits, plan, masks)
        mx.async_eval(*computing.arrays, *touched)
        if computing.drawn is not None:
            self._last = SampledTokens(computing.drawn.tokens, plan)
        return computing

    def memory(self) -> MemoryUse:
        return MemoryUse(mx.get_active_memory(), mx.get_peak_memory(), mx.get_cache_memory())

    def release(self) -> None:
        mx.clear_cache()

    def close(self) -> None:
        del self._forward
        mx.clear_cache()
        mx.clear_streams()  # else a thread that used MLX may abort the process at its end

    def _warm_up(self) -> tuple[int, float, float]:
        """Run a prompt and a decode step, so that the first request does not pay for compiling. Returns the working
        memory in bytes that a step is expected to take, and for each token of a prompt besides, with something to
        spare: by what a second prompt and one half as long took; and the seconds that such a token took.

        The one slot that this needs stays as it is until the pool's first resize.
        """
        slot, params = Slot(SMALLEST_CAPACITY, 0), SamplingParams(temperature=0)
        num_tokens = WARM_UP_TOKENS
        prompt = ScheduledSequence(0, slot, 0, (0,) * num_tokens, True, 0, params)
        self.run(StepPlan((prompt,), resizes=(SlabResize(SMALLEST_CAPACITY, 1),)))
        self.run(StepPlan((ScheduledSequence(0, slot, num_tokens, (0,), True, 1, params),)))
        half = replace(prompt, token_ids=prompt.token_ids[: num_tokens // 2])
        some = self._working_bytes(half)
        started_s = time.monotonic()
        more = self._working_bytes(prompt)
        token_s = (time.monotonic() - started_s) / num_tokens
        per_token = max(more - some, 0) / (num_tokens - num_tokens // 2)
        return more, SPARE * per_token, token_s

    def _working_bytes(self, prompt: ScheduledSequence) -> int:
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        self.run(StepPlan((prompt,)))
        return mx.get_peak_memory() - before

    def _warm_up_ragged(self, most_tokens: int) -> None:
        """The ragged kernels are compiled for one size class or several, and for near tokens or far ones. most_tokens:
        of a step that decodes and has prompts; the libraries behind it make themselves ready for each number of them.
        """
        near, far = Slot(SMALLEST_CAPACITY, 0), Slot(4 * SMALLEST_CAPACITY, 0)
        params = SamplingParams(temperature=0)

        def row(slot: Slot, position: int) -> ScheduledSequence:
            return ScheduledSequence(slot.capacity, slot, position, (0,), True, 1, params)

        last = far.capacity - 1
        self.run(StepPlan((row(near, 1), row(far, 1)), resizes=(SlabResize(far.capacity, 1),)))
        self.run(StepPlan((row(far, last),)))
        self.run(StepPlan((row(near, 1), row(far, last))))
        for size in step_sizes(min(most_tokens, far.capacity)):
            piece = ScheduledSequence(far.capacity, far, 0, (0,) * (size - 1), False, 0, params)
            self.run(StepPlan((row(near, 1), piece)))
        self.run(StepPlan((row(near, 1),), resizes=(SlabResize(far.capacity, 0),)))


class _Done:
    """A step that was computed when it was submitted."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def draw(self, masks: Masks) -> None:
        raise AssertionError("this step needs no masks")

    def result(self) -> StepResult:
        return self._result


class _Undrawn:
    """A step whose model has been submitted, and whose tokens wait for masks."""

    def __init__(self, begin_drawing: Callable[[Masks], _Computing]) -> None:
        self._begin_drawing = begin_drawing
        self._computing: _Computing | None = None

    def draw(self, masks: Masks) -> None:
        self._computing = self._begin_drawing(masks)

    def result(self) -> StepResult:
        assert self._computing is not None, "read before it was drawn"
        return self._computing.result()


class _Computing:
    """A step on the device."""

    def __init__(self, drawn: Drawn | None, scored: ScoredPrompts | None) -> None:
        self.drawn = drawn
        self._scored = scored

    def draw(self, masks: Masks) -> None:
        raise AssertionError("this step needs no masks")

    @property
    def arrays(self) -> list[mx.array]:
        """What is to be computed."""
        return [*(self.drawn.arrays if self.drawn else ()), *(self._scored.arrays if self._scored else ())]

    def result(self) -> StepResult:
        result = StepResult([]) if self.drawn is None else self.drawn.read()
        return result if self._scored is None else replace(result, prompt_logprobs=self._scored.read())


def longest_sequence(loaded: LoadedModel, chosen: ChosenForward, budget_bytes: int, wanted: int | None) -> int:
    """max_model_len: what is wanted or the model allows, cut to what the K/V budget holds.

    Raises ModelError if more is wanted than the model was made for, or the budget holds next to nothing.
    """
    if wanted is not None and wanted > loaded.context_length:
        raise ModelError(
            f"max_model_len is {wanted}, but the model was made for at most {loaded.context_length} tokens."
        )
    length = wanted or loaded.context_length
    room = max(budget_bytes - chosen.row_bytes, 0) // max(chosen.bytes_per_token, 1) // 64 * 64
    if room >= length:
        return length
    if wanted is not None or room < min(length, SHORTEST_CONTEXT):
        needed = length * chosen.bytes_per_token + chosen.row_bytes
        raise ModelError(
            f"Not enough memory: one sequence of {length} tokens needs {needed / 1e9:.2f} GB of K/V, and "
            f"{max(budget_bytes, 0) / 1e9:.2f} GB are left for it. Free memory, raise memory_fraction, or set a "
            "smaller max_model_len."
        )
    logger.warning("the K/V budget holds %d tokens; the context is cut from %d to that", room, length)
    return room
