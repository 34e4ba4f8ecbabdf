"""The engine's loop: drain the inbox, schedule, run, update, emit. Owned by one thread, which does all MLX work.

Where the runner can, it goes one step ahead: step N+1 is scheduled and submitted, from tokens of step N that nobody has
read yet, before step N is read. So the device never waits for the host. The plain order stands beside it. With
sequences that are bound to a grammar, step N is read between N+1's model and N+1's sampling.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from anllm.config import SchedulerConfig
from anllm.core.events import (
    Abort,
    Add,
    EngineFigures,
    EngineInfo,
    Failed,
    Finished,
    ResetPrefixCache,
    StepEvents,
)
from anllm.core.request import Request
from anllm.core.step import InFlight, Masks, Runner, StepPlan, StepResult
from anllm.engine.constraints import Constraints
from anllm.errors import AnllmError, InvalidRequestError
from anllm.kvcache.pool import KVPool
from anllm.logs import Fields
from anllm.scheduler.policy import MIN_STEP_LIMIT_S, step_limit_s
from anllm.scheduler.scheduler import Scheduler
from anllm.structured.state import MaskComputer

logger = logging.getLogger(__name__)

Command = Add | Abort | ResetPrefixCache
MakeMasks = Callable[[EngineInfo], MaskComputer | None]
MEMORY_EVERY_S = 1.0  # how often the figures say what memory the runner's arrays take
MAX_FAILED_STEPS = 3  # in a row; then the model is broken, not a request


def no_masks(info: EngineInfo) -> None:
    """For engines that get no requests with a grammar."""


class EngineBrokenError(Exception):
    """Several steps in a row raised: this engine can't go on."""


class EngineLoop:
    """One step at a time, on the caller's thread. `emit` gets all events of a step in one call."""

    def __init__(
        self,
        runner: Runner,
        config: SchedulerConfig,
        emit: Callable[[StepEvents], None],
        clock: Callable[[], float] = time.monotonic,
        masks: MaskComputer | None = None,
    ) -> None:
        """masks: for requests with a grammar; without it they fail."""
        info = runner.info
        pool = KVPool(
            budget_bytes=info.kv_budget_bytes,
            bytes_per_token=info.kv_bytes_per_token,
            max_model_len=info.max_model_len,
            row_bytes=info.kv_row_bytes,
        )
        self.scheduler = Scheduler(
            config,
            pool,
            max_model_len=info.max_model_len,
            eos_token_ids=info.eos_token_ids,
            prefill_tokens=info.prefill_tokens,
            reuses_prefixes=info.reuses_prefixes,
            grown_slab_bytes=info.grown_slab_bytes,
        )
        self._constraints = Constraints(masks)
        self._runner = runner
        self._emit = emit
        self._clock = clock
        self._step_timeout_s = config.step_timeout_s
        self._num_failed_steps = 0
        self._has_news = False  # whether the figures may be others than those told last
        self._memory_told_s = -math.inf
        self._submitting: StepPlan | None = None
        self._in_flight: list[tuple[StepPlan, InFlight]] = []  # submitted and not read: none or one between steps

    def take(self, commands: Iterable[Command]) -> None:
        """Apply what the front sent. A request that can't be queued is answered with Failed at once."""
        failed: list[Failed] = []
        for command in commands:
            self._has_news = True
            if isinstance(command, Abort):
                for request_id in command.request_ids:
                    self.scheduler.abort(request_id)
                self._constraints.forget(command.request_ids)
                continue
            if isinstance(command, ResetPrefixCache):
                self.scheduler.reset_prefix_cache()
                continue
            request = command.request
            failure = self._constraints.begin(request) if request.params.grammar else self._queue(request)
            if failure is not None:
                failed.append(failure)
        if failed:
            self._emit(StepEvents(failed=tuple(failed)))

    @property
    def step_limit_s(self) -> float:
        """Seconds after which the present call of step() is taken to hang. May be asked for by any thread."""
        if self._step_timeout_s is not None:
            return self._step_timeout_s
        token_s = self._runner.info.token_s
        plans = [plan for plan, _ in list(self._in_flight)]
        if self._submitting is not None:
            plans.append(self._submitting)
        return sum(step_limit_s(plan, token_s) for plan in plans) or MIN_STEP_LIMIT_S

    def step(self) -> bool:
        """One forward pass. False if there was nothing to do.

        Raises EngineBrokenError after MAX_FAILED_STEPS in a row; the sequences in them have had their Failed.
        """
        self._queue_compiled()
        now_s = self._clock()
        self._tell_failed(self.scheduler.expire(now_s))
        plan = self.scheduler.schedule(now_s)
        if plan is None and not self._in_flight:
            if self._has_news:  # no step tells of it
                self._emit(StepEvents(figures=self._figures()))
            return self._constraints.wait()
        has_begun = plan is not None and self._submit(plan)
        if plan is not None and has_begun and plan.needs_masks:
            has_begun = self._draw(plan)
        goes_ahead = has_begun and self._runner.runs_ahead
        while len(self._in_flight) > goes_ahead:
            self._emit(self._read())
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            raise EngineBrokenError(f"{self._num_failed_steps} steps in a row failed")
        return True

    def rest(self) -> None:
        """Nothing to do for now: give back memory, and let the garbage collector in."""
        self.scheduler.check_integrity()
        self._runner.release()
        self._memory_told_s = -math.inf
        self._emit(StepEvents(figures=self._figures()))
        gc.collect()

    def close(self) -> None:
        """The end; on the thread that stepped."""
        self._constraints.close()
        self._runner.close()

    def _figures(self) -> EngineFigures:
        now_s = self._clock()
        is_memory_due = now_s >= self._memory_told_s + MEMORY_EVERY_S
        if is_memory_due:
            self._memory_told_s = now_s
        self._has_news = False
        return self.scheduler.figures(
            num_deferred=self._constraints.num_compiling, memory=self._runner.memory() if is_memory_due else None
        )

    def _queue(self, request: Request) -> Failed | None:
        try:
            check_token_ids(request.prompt_token_ids, self._runner.info.vocab_size)
            self.scheduler.add(request)
        except AnllmError as error:
            return Failed(request.request_id, type(error).__name__, error.message)
        return None

    def _queue_compiled(self) -> None:
        ready, failed = self._constraints.take_ready()
        failed += [failure for request in ready if (failure := self._queue(request)) is not None]
        self._tell_failed(failed)

    def _tell_failed(self, failed: list[Failed]) -> None:
        """Requests that end here, wherever they are."""
        if failed:
            for failure in failed:
                self.scheduler.abort(failure.request_id)
            self._constraints.forget(failure.request_id for failure in failed)
            self._emit(StepEvents(failed=tuple(failed)))

    def _draw(self, plan: StepPlan) -> bool:
        """Let the plan that was submitted last be sampled, now that what its masks depend on can be known. Whether
        that could be begun."""
        while len(self._in_flight) > 1:
            self._emit(self._read())
        masks, failed = self._constraints.masks(plan)
        self._tell_failed(failed)
        _, in_flight = self._in_flight[-1]
        try:
            in_flight.draw(masks)
        except Exception as error:
            self._in_flight[-1] = (plan, _Failure(error))
            return False
        return True

    def _submit(self, plan: StepPlan) -> bool:
        """Whether it could be begun; if not, the reason is told when its turn comes to be read."""
        if prompts := tuple(s.request_id for s in plan.scheduled if not s.is_decode):
            self._emit(StepEvents(computing=prompts))  # should this step end the process, it is known what was in it
        self._submitting = plan
        try:
            in_flight = self._runner.submit(plan)
        except Exception as error:
            in_flight = _Failure(error)
        self._submitting = None
        self._in_flight.append((plan, in_flight))
        return not isinstance(in_flight, _Failure)

    def _read(self) -> StepEvents:
        """The result of the oldest step in flight."""
        plan, in_flight = self._in_flight.pop(0)
        try:
            result = in_flight.result()
        except Exception:
            # The one broad except of the engine: whatever the model raised, it ends the requests of this step only.
            ids = self.scheduler.log_ids(plan)
            logger.exception(Fields("step failed", request_id=",".join(ids), num_sequences=len(plan.scheduled)))
            self._num_failed_steps += 1
            events = self.scheduler.fail(plan, "The model failed on this step. The server's log has the reason.")
        else:
            self._num_failed_steps = 0
            events = self._advanced(self.scheduler.update(plan, result, self._clock()))
        ends: tuple[Finished | Failed, ...] = (*events.finished, *events.failed)
        self._constraints.forget(end.request_id for end in ends)
        return replace(events, figures=self._figures())

    def _advanced(self, events: StepEvents) -> StepEvents:
        """With the ends of sequences whose grammar allows nothing more, or was not followed."""
        complete, failed = self._constraints.advance(events.tokens)
        finished = [end for request_id in complete if (end := self.scheduler.finish(request_id)) is not None]
        for failure in failed:
            self.scheduler.abort(failure.request_id)
        if not finished and not failed:
            return events
        ended = {failure.request_id for failure in failed}
        kept = tuple(end for end in events.finished if end.request_id not in ended)
        return replace(events, finished=(*kept, *finished), failed=(*events.failed, *failed))


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises InvalidRequestError for one that the model does not know: looking it up would read memory that is not the
    model's, and may end the process."""
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            message = f"The prompt has the token id {token_id}; the model's are 0 to {vocab_size - 1}."
            raise InvalidRequestError(message, param="prompt")


class _Failure:
    """A step that raised when it was submitted: told when its turn comes, so that steps end in order."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def draw(self, masks: Masks) -> None:
        raise self._error

    def result(self) -> StepResult:
        raise self._error
