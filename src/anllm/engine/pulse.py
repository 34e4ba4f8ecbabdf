"""Whether an engine's process is alive, and whether the step it is in still comes to an end.

A thread of the child tells once a second how long the engine's own thread has been in its step. When nothing comes, the
whole process stands still: stopped, or without memory. The front ends it then, and in a step that takes too long.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio

BEAT_EVERY_S = 1.0
SILENT_AFTER_S = 15.0  # longer than any pause of Python's or of a busy machine that was seen
SECOND_LOOK_S = 1.0


class Beat(msgspec.Struct, array_like=True, frozen=True):
    """busy_s: since the step began; 0 between steps. limit_s: how long it may take."""

    busy_s: float
    limit_s: float


def beats_address(address: str) -> str:
    """Of the socket for beats, beside that for frames."""
    return f"{address}-beats"


class Pulse:
    """The child's side. begin() and end() are called by the engine's thread around each step."""

    def __init__(self, limit_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """limit_s: of the present step; called on the thread that tells."""
        self._limit_s = limit_s
        self._clock = clock
        self._since_s: float | None = None

    def begin(self) -> None:
        self._since_s = self._clock()

    def end(self) -> None:
        self._since_s = None

    @property
    def beat(self) -> Beat:
        since_s = self._since_s
        return Beat(0.0 if since_s is None else self._clock() - since_s, self._limit_s())

    def start(self, address: str) -> None:
        """Tell from now on, until the process ends. address: that of the frames."""
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        socket.connect(beats_address(address))

        def tell() -> None:
            while True:
                socket.send(msgspec.msgpack.encode(self.beat))
                time.sleep(BEAT_EVERY_S)

        threading.Thread(target=tell, name="anllm-pulse", daemon=True).start()


async def watch(socket: zmq.asyncio.Socket, is_loaded: asyncio.Event, silent_after_s: float = SILENT_AFTER_S) -> str:
    """The front's side: waits until the engine is loaded, however long that takes, then for trouble. Says what it is.

    socket: bound to beats_address(). is_loaded: set when the engine has said so; from then on it has a pulse.
    """
    await is_loaded.wait()
    while True:
        # A second look, since this process may have been the one that stood still.
        if not await socket.poll(int(silent_after_s * 1000)) and not await socket.poll(int(SECOND_LOOK_S * 1000)):
            return f"gave no sign of life for {silent_after_s:g} seconds"
        beat = msgspec.msgpack.decode(await socket.recv(), type=Beat)
        if beat.busy_s > beat.limit_s:
            return f"did not come out of a step for {beat.busy_s:.0f} seconds (at most {beat.limit_s:g} are given)"
