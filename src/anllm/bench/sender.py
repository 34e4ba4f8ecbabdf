"""One process of the load: sends its share of the requests and notes what comes, and how busy it was itself."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe

from anllm.bench.answer import Reader, Record
from anllm.bench.connection import Connection, head_of
from anllm.client.address import Address
from anllm.client.plain import refusal, unreachable

TICK_S = 0.01
TELL_EVERY_S = 0.2
FIRST_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class Share:
    """bodies: JSON; streams, rate, burstiness: as in a Point, of this process. timeout_s: of each request."""

    address: Address
    path: str
    bodies: list[bytes]
    streams: int | None
    rate: float | None
    burstiness: float
    seed: int
    timeout_s: float


@dataclass(slots=True)
class Tally:
    """So far: sent and not ended, ended, failed, pieces with tokens."""

    num_running: int = 0
    num_done: int = 0
    num_failed: int = 0
    num_pieces: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """What a process has to tell. busy: share of one processor that it took; lags_s: how late its ticks came."""

    records: list[Record]
    busy: float
    lags_s: list[float]


def send_in_process(share: Share, pipe: Pipe) -> None:
    """The process's body: says that it is there, waits for the word, sends, tells how it goes and what came."""
    pipe.send(None)
    pipe.recv()
    gc.freeze()
    gc.disable()  # nothing here is cyclic, and a pause would be noted as the server's
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            pipe.send(runner.run(send(share, pipe.send)))
    except KeyboardInterrupt:
        pass
    finally:
        pipe.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def send(share: Share, tell: Callable[[Tally], None]) -> Sent:
    """Send all requests of the share. tell: how it goes, a few times a second."""
    sender = _Sender(share)
    watch = asyncio.ensure_future(sender.watch(tell))
    busy, started = time.process_time(), time.perf_counter()
    try:
        await sender.run()
    finally:
        watch.cancel()
        sender.close()
    busy = (time.process_time() - busy) / max(time.perf_counter() - started, 1e-9)
    return Sent(sender.records, busy, sender.lags_s)


class _Sender:
    def __init__(self, share: Share) -> None:
        self._share = share
        self._free: list[Connection] = []
        self._context = ssl.create_default_context() if share.address.is_tls else None
        self._tally = Tally()
        self.records: list[Record] = []
        self.lags_s: list[float] = []

    async def run(self) -> None:
        share = self._share
        bodies = iter(share.bodies)
        if share.rate is None:
            assert share.streams is not None
            await asyncio.gather(*(self._one_after_the_other(bodies) for _ in range(share.streams)))
            return
        limit = asyncio.Semaphore(share.streams) if share.streams else None
        draw = random.Random(share.seed)
        due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for body in bodies:
                # A gamma distribution with mean 1 / rate; of shape 1 it is the exponential one.
                due += draw.gammavariate(share.burstiness, 1 / (share.rate * share.burstiness))
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                group.create_task(self._when_allowed(body, limit))

    async def _one_after_the_other(self, bodies: Iterator[bytes]) -> None:
        for body in bodies:
            await self._send(body)

    async def _when_allowed(self, body: bytes, limit: asyncio.Semaphore | None) -> None:
        if limit is None:
            await self._send(body)
            return
        async with limit:
            await self._send(body)

    async def _send(self, body: bytes) -> None:
        record = Record(time.perf_counter())
        self.records.append(record)
        self._tally.num_running += 1
        try:
            record.error = await asyncio.wait_for(self._exchange(record, body), self._share.timeout_s)
        except TimeoutError:
            record.error = f"no end within {self._share.timeout_s:g} seconds"
        except (OSError, ValueError) as error:
            record.error = str(error) or type(error).__name__
        self._tally.num_running -= 1
        self._tally.num_done += 1
        self._tally.num_failed += bool(record.error)

    async def _exchange(self, record: Record, body: bytes) -> str:
        """Returns what went wrong, "" if nothing did."""
        share = self._share
        try:
            connection = self._take_free() or await Connection.open(share.address, self._context)
        except OSError as error:
            return unreachable(share.address, error)
        reader = Reader(record, time.perf_counter, self._note_piece)
        is_whole = False
        try:
            status = await connection.request(head_of(share.address, share.path, body), body, reader.feed)
            is_whole = True
        finally:
            if is_whole and connection.is_usable:
                self._free.append(connection)
            else:
                connection.close()
        if status != 200:
            return refusal(share.address, status, reader.rest())[:FIRST_ERROR_CHARS]
        if record.error or reader.is_done:
            return record.error
        return "the answer ended without [DONE]"

    def _take_free(self) -> Connection | None:
        """A connection that is open still; the server may have closed those that rested."""
        while self._free:
            if (connection := self._free.pop()).is_usable:
                return connection
        return None

    def _note_piece(self) -> None:
        self._tally.num_pieces += 1

    async def watch(self, tell: Callable[[Tally], None]) -> None:
        """Note how late a short sleep ends: as late come all times that are measured here."""
        last_told = 0.0
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            self.lags_s.append(now - before - TICK_S)
            if now - last_told > TELL_EVERY_S:
                last_told = now
                tell(replace(self._tally))

    def close(self) -> None:
        for connection in self._free:
            connection.close()
