"""The front's door to the engine: submit, abort, and the events that come back.

Keeps the engine running: when it ends, its open requests fail, and it is started again. Lives in one event loop (the
API process's, or a library user's). Knows nothing of text, HTTP or MLX.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from anllm.config import SchedulerConfig
from anllm.core.events import (
    Abort,
    Add,
    EngineInfo,
    Failed,
    Finished,
    LoadFailed,
    LoadProgress,
    PromptLogprobs,
    ResetPrefixCache,
    Started,
    StepEvents,
    Tokens,
)
from anllm.core.request import Request
from anllm.engine.suspects import Suspects
from anllm.engine.transport import End, Frame, Transport
from anllm.errors import EngineDeadError, InvalidRequestError, ModelError, NotReadyError, QueueFullError

logger = logging.getLogger(__name__)

Event = PromptLogprobs | Started | Tokens | Finished | Failed
OnEvent = Callable[[Event], None]
RESTART_DELAYS_S = (0.1, 1.0, 2.0, 4.0, 8.0)  # before each restart in a row; after the last the engine stays down
HEALTHY_AFTER_S = 60.0  # an engine that was ready this long has all restarts before it again


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    CLOSED = "closed"


class Watcher(Protocol):
    """Who looks on."""

    def on_frame(self, frame: Frame) -> None:
        """The engine sent this."""
        ...

    def on_engine_end(self) -> None:
        """It is gone; another one may come."""
        ...


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that was submitted, and who hears of it."""

    request: Request
    on_event: OnEvent


class EngineClient:
    """Modified by submit, abort and what the engine sends; all in one event loop."""

    def __init__(
        self,
        transport: Transport,
        config: SchedulerConfig,
        *,
        on_progress: Callable[[LoadProgress], None] = lambda progress: None,
        watcher: Watcher | None = None,
        restart_delays_s: Sequence[float] = RESTART_DELAYS_S,
        healthy_after_s: float = HEALTHY_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """watcher: gets to see all that the engine sends, before it is acted on."""
        self.state = EngineState.LOADING
        self.info: EngineInfo | None = None
        self.num_restarts = 0
        self.load_s: float | None = None  # how long the engine that runs, or ran last, took to be ready
        self._transport = transport
        self._max_num_open = config.max_num_open
        self._on_progress = on_progress
        self._watcher = watcher
        self._restart_delays_s = restart_delays_s
        self._healthy_after_s = healthy_after_s
        self._clock = clock
        self._started_s = 0.0
        self._ready_since_s = 0.0
        self._open: dict[int, _Open] = {}
        self._suspects = Suspects(clock)
        self.end_reason = ""  # why the last engine ended
        self._ids = itertools.count()
        self._load_error: str | None = None
        self._settled = asyncio.Event()  # ready for the first time, or closed
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def num_open(self) -> int:
        """Requests submitted that have neither ended nor been aborted."""
        return len(self._open)

    def next_request_id(self) -> int:
        """A number not used before."""
        return next(self._ids)

    async def start(self) -> EngineInfo:
        """Start the engine and wait until it is ready. Raises ModelError with its reason if it can't be."""
        self._running = asyncio.create_task(self._keep_running())
        await self._settled.wait()
        if self.info is None:
            ended = f"While it loaded the model the engine {self.end_reason}; the lines above tell more."
            raise ModelError(self._load_error or ended)
        return self.info

    async def wait_closed(self) -> None:
        """Return when the engine is down for good."""
        if self._running is not None:
            await asyncio.wait([self._running])  # waiting like this, a cancelled caller does not take it along

    async def close(self) -> None:
        """End the engine. Open requests get a Failed."""
        self.state = EngineState.CLOSED
        self._closing.set()
        await self._transport.close()
        await self.wait_closed()

    def submit(self, requests: Sequence[Request], on_event: OnEvent) -> None:
        """Queue all of these requests, or none of them.

        on_event is called in this event loop with every event of any of them; it must not block. After a Finished or
        Failed nothing follows for that id.
        Raises QueueFullError if they don't all fit in the queue now, InvalidRequestError if they never can,
        DeadlyRequestError for one that ended engines, NotReadyError while the engine is not ready.
        """
        self._require_ready()
        if len(requests) > self._max_num_open:
            raise InvalidRequestError(
                f"This request needs {len(requests)} sequences (prompts times n), and the server takes at most "
                f"{self._max_num_open} at a time. Send fewer prompts or a smaller n.",
                param="n",
            )
        if len(self._open) + len(requests) > self._max_num_open:
            raise QueueFullError(
                f"The server has {len(self._open)} open requests of at most {self._max_num_open}, and this one needs "
                f"{len(requests)}. Try again later."
            )
        self._suspects.check(requests)
        for request in requests:
            self._open[request.request_id] = _Open(request, on_event)
        self._transport.send(Add(request) for request in requests)

    def abort(self, request_ids: Iterable[int]) -> None:
        """Forget these requests: no event follows, and their slots are free by the engine's next step. Ids that have
        ended, or were never submitted, are ignored."""
        known = tuple(i for i in request_ids if self._open.pop(i, None) is not None)
        for request_id in known:
            self._suspects.ended(request_id, None)
        if known:
            self._transport.send([Abort(known)])

    def reset_prefix_cache(self) -> None:
        """Have the engine forget what earlier prompts left. Raises NotReadyError while the engine is not ready."""
        self._require_ready()
        self._transport.send([ResetPrefixCache()])

    def _require_ready(self) -> None:
        if self.state is not EngineState.READY:
            raise NotReadyError(f"The engine is {self.state}. Try again in a moment.")

    # -- the engine's life ---------------------------------------------------------------------------------------------

    async def _keep_running(self) -> None:
        """Start the engine, again and again, until it is closed or fails too often in a row."""
        delays_s = iter(self._restart_delays_s)
        while not self._closing.is_set():
            end = await self._run_engine()
            self.end_reason = end.reason
            self._let_watch(None)
            if self.state is EngineState.READY and self._clock() - self._ready_since_s >= self._healthy_after_s:
                delays_s = iter(self._restart_delays_s)
            delay_s = next(delays_s, None)
            if self._closing.is_set():
                break
            if self.info is None or delay_s is None:
                level = logging.ERROR if self._load_error is None else logging.DEBUG  # start() tells that reason
                logger.log(level, "the engine %s and stays down", end.reason)
                break
            logger.error("the engine %s; %d open requests fail; it is started again", end.reason, self.num_open)
            self._suspects.died([one.request for one in self._open.values()], is_blamed=not end.is_from_outside)
            self.num_restarts += 1
            self.state = EngineState.RESTARTING
            self._fail_open()
            await self._pause(delay_s)
        self.state = EngineState.CLOSED
        self._settled.set()
        self._fail_open()

    async def _run_engine(self) -> End:
        """One engine from start to end."""
        self._started_s = self._clock()
        try:
            return await self._transport.run(self._on_frame)
        except Exception as error:  # whatever it was, the engine is gone, and whoever waits for it must be told
            logger.exception("the engine's transport failed")
            return End(f"was lost: {error!r}")

    async def _pause(self, seconds: float) -> None:
        """Wait, unless the end comes first."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    def _fail_open(self) -> None:
        """The engine is gone: every open request gets its end."""
        gone, self._open = self._open, {}
        message = "The engine ended while it worked on this request."
        for request_id, one in gone.items():
            one.on_event(Failed(request_id, EngineDeadError.__name__, message))

    # -- frames --------------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: Frame) -> None:
        self._let_watch(frame)
        if isinstance(frame, StepEvents):
            self._on_events(frame)
        elif isinstance(frame, LoadProgress):
            self._tell_progress(frame)
        elif isinstance(frame, LoadFailed):
            self._load_error = frame.message
        elif self.state is not EngineState.CLOSED:
            self.info = frame
            self.state = EngineState.READY
            self._ready_since_s = self._clock()
            self.load_s = self._ready_since_s - self._started_s
            self._settled.set()

    def _let_watch(self, frame: Frame | None) -> None:
        """None: the engine has ended."""
        if self._watcher is None:
            return
        try:
            self._watcher.on_engine_end() if frame is None else self._watcher.on_frame(frame)
        except Exception:  # who only looks on must not keep anybody from an answer
            logger.exception("what the engine sent could not be looked at")

    def _tell_progress(self, progress: LoadProgress) -> None:
        try:
            self._on_progress(progress)
        except Exception:  # a terminal that is gone must not keep the model from loading
            logger.debug("progress could not be shown", exc_info=True)

    def _on_events(self, events: StepEvents) -> None:
        self._suspects.computing(i for i in events.computing if i in self._open)
        for scored in events.prompts:
            self._deliver(self._open.get(scored.request_id), scored)
        for start in events.started:
            if start.request_id in self._open:
                self._suspects.got_token(start.request_id)
            self._deliver(self._open.get(start.request_id), start)
        for tokens in events.tokens:
            self._deliver(self._open.get(tokens.request_id), tokens)
        ends: tuple[Finished | Failed, ...] = (*events.finished, *events.failed)
        for end in ends:
            ended = self._open.pop(end.request_id, None)
            is_whole = ended is not None and isinstance(end, Finished)
            self._suspects.ended(end.request_id, ended.request if ended is not None and is_whole else None)
            self._deliver(ended, end)

    def _deliver(self, to: _Open | None, event: Event) -> None:
        if to is None:  # aborted
            return
        try:
            to.on_event(event)
        except Exception:  # one request's reader must not take the others' events away
            logger.exception("request %d: its reader failed; it is aborted", event.request_id)
            self.abort([event.request_id])
