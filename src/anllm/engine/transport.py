"""How frames travel between front and engine: over a queue to a thread, or as msgpack over a socket to a process.

A Transport starts one engine at a time, carries commands to it and frames back, and says when it has ended. What the
frames mean is client.py's business. The front's side lives in an event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from anllm.config import SchedulerConfig
from anllm.core.events import Abort, Add, EngineInfo, LoadFailed, LoadProgress, ResetPrefixCache, StepEvents
from anllm.core.step import Runner
from anllm.engine.loop import Command, EngineLoop, MakeMasks, no_masks
from anllm.errors import AnllmError

logger = logging.getLogger(__name__)

Frame = LoadProgress | LoadFailed | EngineInfo | StepEvents
OnFrame = Callable[[Frame], None]
REST_AFTER_S = 1.0  # idle this long, the engine gives back memory

_TAGS: dict[type, bytes] = {
    kind: bytes([tag])
    for tag, kind in enumerate((LoadProgress, LoadFailed, EngineInfo, StepEvents, Add, Abort, ResetPrefixCache))
}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Frame | Command]] = {
    tag[0]: msgspec.msgpack.Decoder(kind) for kind, tag in _TAGS.items()
}
_ENCODER = msgspec.msgpack.Encoder()


def encode(value: Frame | Command) -> bytes:
    """One tag byte, then msgpack."""
    return _TAGS[type(value)] + _ENCODER.encode(value)


def decode(data: bytes) -> Frame | Command:
    """The inverse of encode; msgspec.DecodeError for anything else."""
    return _DECODERS[data[0]].decode(memoryview(data)[1:])


@dataclass(frozen=True, slots=True)
class End:
    """Of an engine. reason: for the log, after "the engine". is_from_outside: somebody ended it, so that no request is
    to be blamed."""

    reason: str
    is_from_outside: bool = False


class Transport(Protocol):
    """One engine, somewhere else."""

    async def run(self, on_frame: OnFrame) -> End:
        """Start an engine and carry its frames until it has ended. May be called again."""
        ...

    def send(self, commands: Iterable[Command]) -> None:
        """Queue commands for the running engine, in order."""
        ...

    async def close(self) -> None:
        """End the engine; run() then returns."""
        ...


class ThreadTransport:
    """The engine on a thread of this process: for tests, and where a second process is not wanted."""

    def __init__(
        self, runner_factory: Callable[[], Runner], config: SchedulerConfig, make_masks: MakeMasks = no_masks
    ) -> None:
        self._runner_factory = runner_factory
        self._config = config
        self._make_masks = make_masks
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    async def run(self, on_frame: OnFrame) -> End:
        event_loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = event_loop.create_future()
        self._inbox = queue.SimpleQueue()

        def emit(frame: Frame) -> None:
            event_loop.call_soon_threadsafe(on_frame, frame)

        def work() -> None:
            try:
                serve_queue(self._runner_factory, self._config, self._inbox, emit, self._make_masks)
                reason = "was closed"
            except Exception as error:  # the top of the engine's thread: nothing may end it unseen
                logger.exception("the engine ended")
                reason = f"ended with {error!r}"
            event_loop.call_soon_threadsafe(ended.set_result, reason)

        threading.Thread(target=work, name="anllm-engine", daemon=True).start()
        return End(await ended)

    def send(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self._inbox.put(command)

    async def close(self) -> None:
        self._inbox.put(None)


def serve_queue(
    runner_factory: Callable[[], Runner],
    config: SchedulerConfig,
    inbox: queue.SimpleQueue[Command | None],
    emit: Callable[[Frame], None],
    make_masks: MakeMasks,
) -> None:
    """The engine's thread: make the runner, then step until None comes out of the inbox.

    runner_factory raises AnllmError for a model that can't be served.
    """
    try:
        runner = runner_factory()
    except AnllmError as error:
        emit(LoadFailed(error.message))
        return
    loop = EngineLoop(runner, config, emit, masks=make_masks(runner.info))
    emit(runner.info)
    for is_idle in drive(loop):
        commands = take_all(inbox, is_idle)
        if None in commands:
            loop.close()
            return
        loop.take(command for command in commands if command is not None)


def drive(loop: EngineLoop) -> Iterable[bool]:
    """Step for ever. Before each step yields whether the last one found nothing to do, so that the caller may wait."""
    is_idle = True
    for _ in itertools.count():
        yield is_idle
        is_idle = not loop.step()


def take_all(inbox: queue.SimpleQueue[Command | None], wait: bool) -> list[Command | None]:
    """All commands there are; with `wait`, at least one."""
    commands = [inbox.get()] if wait else []
    while not inbox.empty():
        commands.append(inbox.get())
    return commands
