"""The engine in a process of its own: spawned here, watched here, ended here.

A fault of Metal or CUDA ends the process in which it happens; so it is not the API's. Frames go over a local socket,
and beside it signs of life (pulse.py): a child that hangs is ended.
The child reads its standard input for nothing but its end: when the parent is gone, whatever the reason, so is the
child.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from anllm.config import SchedulerConfig
from anllm.core.events import EngineInfo, LoadFailed, LoadProgress, StepEvents
from anllm.core.step import Runner
from anllm.engine.loop import Command, EngineLoop, MakeMasks, no_masks
from anllm.engine.pulse import Pulse, beats_address, watch
from anllm.engine.transport import REST_AFTER_S, End, Frame, OnFrame, decode, drive, encode
from anllm.errors import AnllmError

logger = logging.getLogger(__name__)

END_GRACE_S = 5.0  # between asking the child to end and ending it
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class ProcessTransport:
    """The front's side: one child at a time."""

    def __init__(self, command: Callable[[], Sequence[str]]) -> None:
        """command() starts a child; the address of the socket is added as its last argument."""
        self._command = command
        self._socket: zmq.asyncio.Socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Of the running child."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def run(self, on_frame: OnFrame) -> End:
        self._is_closed = False
        context = zmq.asyncio.Context()  # new for each child, as the address: nothing stale comes in
        try:
            with tempfile.TemporaryDirectory(prefix="anllm-") as folder:
                address = f"ipc://{folder}/engine"
                socket = self._socket = context.socket(zmq.PAIR)
                socket.set_hwm(0)
                socket.bind(address)
                beats = context.socket(zmq.PULL)
                beats.bind(beats_address(address))
                return await self._run_child(address, socket, beats, on_frame)
        finally:
            self._socket = None
            context.destroy(linger=0)

    async def _run_child(
        self, address: str, socket: zmq.asyncio.Socket, beats: zmq.asyncio.Socket, on_frame: OnFrame
    ) -> End:
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command(),
                address,
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is not for it, not even before it can say so itself
            )
        except OSError as error:
            return End(f"could not be started: {error}")
        if self._is_closed:  # close() came too early to find it
            process.kill()
        is_loaded = asyncio.Event()

        def take(frame: Frame) -> None:
            if isinstance(frame, EngineInfo):
                is_loaded.set()
            on_frame(frame)

        receiving = asyncio.create_task(_receive(socket, take))
        watching = asyncio.create_task(watch(beats, is_loaded))
        ended = asyncio.create_task(process.wait())
        trouble: str | None = None
        try:
            await asyncio.wait((receiving, watching, ended), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():  # nothing understandable comes from it any more
                receiving.result()
            if watching.done() and not ended.done():
                trouble = watching.result()
                process.kill()  # nothing else ends a process that is stopped
            code = await ended
            await _drain(socket, on_frame, receiving)
            for frame in Note.read(address):
                on_frame(frame)
        finally:
            if process.returncode is None:
                process.kill()
            receiving.cancel()
            watching.cancel()
            await ended
        return _end(code) if trouble is None else End(f"{trouble} and was ended")

    def send(self, commands: Iterable[Command]) -> None:
        if self._socket is None:
            return  # it ended just now; run() tells
        for command in commands:
            self._socket.send(encode(command))  # a PAIR socket without a limit takes it at once

    async def close(self) -> None:
        self._is_closed = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_GRACE_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _receive(socket: zmq.asyncio.Socket, on_frame: OnFrame) -> None:
    while True:
        on_frame(decode(await socket.recv()))  # type: ignore[arg-type] # a child sends frames only


async def _drain(socket: zmq.asyncio.Socket, on_frame: OnFrame, receiving: asyncio.Task[None]) -> None:
    """What the child sent before it ended still counts."""
    receiving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await receiving
    while await socket.poll(100):
        on_frame(decode(await socket.recv()))  # type: ignore[arg-type] # a child sends frames only


class Note:
    """What the child was about to compute, in a file: a frame that says so may not have left it when it ends at once.

    Beside the socket, in its folder. Kept as the last frame of its kind that was sent.
    """

    def __init__(self, address: str) -> None:
        self._file = os.open(self._path(address), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def write(self, frame: StepEvents) -> None:
        with contextlib.suppress(OSError):  # such as a full disk
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, encode(frame), 0)

    @classmethod
    def read(cls, address: str) -> list[StepEvents]:
        """Of a child that has ended; empty if it noted nothing."""
        try:
            frame = decode(cls._path(address).read_bytes())
        except (OSError, LookupError, msgspec.MsgspecError):  # absent, empty, or cut off
            return []
        return [frame] if isinstance(frame, StepEvents) else []

    @staticmethod
    def _path(address: str) -> Path:
        return Path(address.removeprefix("ipc://") + "-computing")


def _end(code: int) -> End:
    if code >= 0:
        return End(f"ended with code {code}")
    number = signal.Signals(-code)
    hint = ", which the system sends where memory runs out" if number is signal.SIGKILL else ""
    return End(f"ended by signal {number.name}{hint}", is_from_outside=number in FROM_OUTSIDE)


# -- the child's side --------------------------------------------------------------------------------------------------


def serve_socket(
    address: str,
    config: SchedulerConfig,
    runner_factory: Callable[[Callable[[LoadProgress], None]], Runner],
    make_masks: MakeMasks = no_masks,
) -> int:
    """The child's main: make the runner, then step until the parent is gone. Returns the exit code.

    runner_factory gets a function that takes LoadProgress, and raises AnllmError for a model that can't be served.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever starts it: the parent decides when it ends
    _end_with_parent()
    socket = zmq.Context().socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.connect(address)

    note = Note(address)

    def emit(frame: Frame) -> None:
        if isinstance(frame, StepEvents) and frame.computing:
            note.write(frame)
        socket.send(encode(frame))

    try:
        runner = runner_factory(emit)
    except AnllmError as error:
        emit(LoadFailed(error.message))
        socket.close(linger=1000)
        return 1
    loop = EngineLoop(runner, config, emit, masks=make_masks(runner.info))
    emit(runner.info)
    gc.collect()
    gc.freeze()  # what stays for good; looking through all of it would hold up a step
    pulse = Pulse(lambda: loop.step_limit_s)
    pulse.start(address)
    for is_idle in drive(loop):
        pulse.end()
        if is_idle and not socket.poll(int(REST_AFTER_S * 1000)):
            loop.rest()
            socket.poll()
        loop.take(_receive_all(socket))
        pulse.begin()
    return 0


def _receive_all(socket: zmq.Socket[bytes]) -> list[Command]:
    commands: list[Command] = []
    with contextlib.suppress(zmq.Again):
        while True:
            commands.append(decode(socket.recv(zmq.NOBLOCK)))  # type: ignore[arg-type] # a parent sends commands only
    return commands


def _end_with_parent() -> None:
    """Standard input is a pipe whose other end only the parent holds: at its end, so is this process."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os._exit(0)

    threading.Thread(target=watch, name="anllm-parent-watch", daemon=True).start()
