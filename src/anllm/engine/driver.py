"""EngineDriver: the engine as a library. submit, poll, step and abort, with no server and no second process.

All MLX work happens on one thread of its own, whoever calls: MLX streams belong to the thread that made them.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import NamedTuple, Self

from anllm.config import SchedulerConfig
from anllm.core.events import Abort, Add, EngineInfo, StepEvents
from anllm.core.request import FinishReason, Request, SamplingParams
from anllm.core.step import Runner
from anllm.engine.loop import Command, EngineLoop, MakeMasks, no_masks
from anllm.errors import AnllmError, StepError, from_engine

RunnerFactory = Callable[[], Runner]


class Status(StrEnum):
    """Of a submitted request, as poll() tells it."""

    OPEN = "open"  # waiting or running
    FINISHED = "finished"
    FAILED = "failed"


class Polled(NamedTuple):
    """What poll() gives. finish_reason is set with status FINISHED, error with FAILED."""

    new_token_ids: list[int]
    status: Status
    finish_reason: FinishReason | None
    error: AnllmError | None = None


@dataclass(slots=True)
class _Open:
    """What a request has produced and nobody has polled yet."""

    token_ids: list[int] = field(default_factory=list)
    status: Status = Status.OPEN
    finish_reason: FinishReason | None = None
    error: AnllmError | None = None


class _AtThreadEnd:
    """Calls back on the thread in whose threading.local() it lies, when that thread ends; also where nobody closed it.

    MLX aborts the process if a thread that used it ends without giving its streams back.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __del__(self) -> None:
        self._callback()


class EngineDriver:
    """Tokens in, tokens out, many requests at once. Use it from one thread (or one event loop), or drive it yourself.

    A request that ended is forgotten with the poll() that told so.
    """

    def __init__(
        self,
        runner_factory: RunnerFactory,
        config: SchedulerConfig | None = None,
        make_masks: MakeMasks = no_masks,
    ) -> None:
        """Builds the runner on the engine's own thread; raises what the factory raises. make_masks: for requests with a
        grammar."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="anllm-engine")
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[StepEvents] = queue.SimpleQueue()
        self._open: dict[int, _Open] = {}
        self._ids = itertools.count()
        self._thread_state = threading.local()
        try:
            self._loop = self._thread.submit(
                self._build, runner_factory, config or SchedulerConfig(), make_masks
            ).result()
        except BaseException:
            self._thread.shutdown()
            raise

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def num_open(self) -> int:
        """Requests that have not ended, or whose end nobody has polled."""
        return len(self._open)

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None) -> int:
        """Queue a prompt; returns the request's id. n must be 1 and stop empty: the engine knows tokens only.

        Errors (an empty or too long prompt, a full queue) come through poll() as status FAILED.
        """
        params = params or SamplingParams()
        if params.n != 1 or params.stop:
            raise ValueError(f"the engine takes n=1 and no stop strings, got n={params.n}, stop={params.stop}; use LLM")
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(63))
        request = Request(request_id=next(self._ids), prompt_token_ids=tuple(prompt_token_ids), params=params)
        self._open[request.request_id] = _Open()
        self._inbox.put(Add(request))
        return request.request_id

    def poll(self, request_id: int) -> Polled:
        """What is new for this request. Never blocks and never computes. KeyError for an id that is not open."""
        self._collect()
        state = self._open[request_id]
        token_ids, state.token_ids = state.token_ids, []
        if state.status is not Status.OPEN:
            del self._open[request_id]
        return Polled(token_ids, state.status, state.finish_reason, state.error)

    def abort(self, request_id: int) -> None:
        """End and forget a request; its slot is free by the next step. Ids that are not open are ignored."""
        if self._open.pop(request_id, None) is not None:
            self._inbox.put(Abort((request_id,)))

    def step(self) -> bool:
        """One forward pass over all requests that can take part. False if there was nothing to do."""
        return self._thread.submit(self._step).result()

    def run_until_complete(self, request_ids: Iterable[int] | None = None) -> dict[int, Polled]:
        """Step until these requests (default: all open ones) have ended; all their tokens and ends, by id."""
        wanted = list(self._open if request_ids is None else request_ids)
        while True:
            self._collect()
            if all(self._open[i].status is not Status.OPEN for i in wanted):
                return {i: self.poll(i) for i in wanted}
            if not self.step():
                self._check_progress(wanted)

    async def stream(self, request_id: int) -> AsyncIterator[Polled]:
        """New tokens as they come, the last one with the end. Several streams may be read at once: a step serves all.

        Leaving the iterator early aborts the request.
        """
        try:
            while True:
                polled = self.poll(request_id)
                if polled.new_token_ids or polled.status is not Status.OPEN:
                    yield polled
                if polled.status is not Status.OPEN:
                    return
                if not await asyncio.wrap_future(self._thread.submit(self._step)):
                    self._check_progress([request_id])
        finally:
            self.abort(request_id)

    def close(self) -> None:
        """End the engine's thread and give back its memory. Open requests are forgotten."""
        self._open.clear()
        self._thread.submit(self._drop).result()
        self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- on the engine's thread ----------------------------------------------------------------------------------------

    def _build(
        self, runner_factory: RunnerFactory, config: SchedulerConfig, make_masks: MakeMasks
    ) -> EngineLoop | None:
        runner = runner_factory()
        self._info = runner.info
        self._thread_state.end = _AtThreadEnd(self._drop)
        return EngineLoop(runner, config, self._outbox.put, masks=make_masks(runner.info))

    def _step(self) -> bool:
        assert self._loop is not None, "the engine is closed"
        commands = []
        while not self._inbox.empty():
            commands.append(self._inbox.get())
        self._loop.take(commands)
        return self._loop.step() or bool(commands)

    def _drop(self) -> None:
        if self._loop is not None:
            self._loop.close()
        self._loop = None

    # -- on the caller's thread ----------------------------------------------------------------------------------------

    def _check_progress(self, request_ids: Iterable[int]) -> None:
        """Guard the waiting loops: an engine that has nothing to do while a request is open would wait for ever."""
        self._collect()
        stuck = [i for i in request_ids if self._open[i].status is Status.OPEN]
        if stuck:
            raise StepError(f"The engine has nothing to do although the requests {stuck} are open.")

    def _collect(self) -> None:
        """Sort what the engine sent into the open requests."""
        while not self._outbox.empty():
            events = self._outbox.get()
            for tokens in events.tokens:
                if state := self._open.get(tokens.request_id):
                    state.token_ids.extend(tokens.token_ids)
            for finished in events.finished:
                if state := self._open.get(finished.request_id):
                    state.status, state.finish_reason = Status.FINISHED, finished.finish_reason
            for failed in events.failed:
                if state := self._open.get(failed.request_id):
                    state.status, state.error = Status.FAILED, from_engine(failed.error, failed.message)
