"""An EngineClient with a fake model behind it, a gate that stops the model, and readers that collect what comes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from anllm.config import SchedulerConfig
from anllm.core.events import EngineInfo, Failed, Finished, Started, Tokens
from anllm.core.request import FinishReason, Request
from anllm.core.step import StepPlan
from anllm.engine.client import EngineClient, Event
from anllm.engine.transport import ThreadTransport
from anllm.structured.state import MaskComputer
from anllm.structured.vocabulary import Vocabulary
from anllm.testing import ByteTokenizer, FakeRunner

PATIENCE_S = 60.0  # for what takes milliseconds, on a machine that has much else to do


class Gate:
    """A `before_run` that lets steps pass while open. Raises for a plan that `fails` says so of. With shuts_after it
    shuts by itself when so many steps have passed."""

    def __init__(
        self, fails: Callable[[StepPlan], bool] = lambda plan: False, *, shuts_after: int | None = None
    ) -> None:
        self.fails = fails
        self._shuts_after = shuts_after
        self._shuts_before: Callable[[StepPlan], bool] | None = None
        self.arrived = 0  # steps that came to the gate
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def shut_before(self, comes: Callable[[StepPlan], bool]) -> None:
        """The first step of which this is true stands before a gate that is shut."""
        self._shuts_before = comes

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self) -> None:
        self._open.set()

    def __call__(self, plan: StepPlan) -> None:
        if self.arrived == self._shuts_after:
            self.shut()
        if self._shuts_before is not None and self._shuts_before(plan):
            self._shuts_before = None
            self.shut()
        self.arrived += 1
        if not self._open.wait(PATIENCE_S):
            raise RuntimeError("nobody opened the gate")
        if self.fails(plan):
            raise RuntimeError("this step fails")


class Reader:
    """What came for one request, or several."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, FinishReason | Failed] = {}
        self.num_open = 0
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        assert event.request_id not in self.ends, "something came after the end"
        if isinstance(event, Tokens):
            self.tokens.setdefault(event.request_id, []).extend(event.token_ids)
        elif isinstance(event, Started):
            assert event.request_id not in self.tokens, "the start comes first"
        else:
            self.ends[event.request_id] = event.finish_reason if isinstance(event, Finished) else event
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def end(self, request_ids: Iterable[int] = (0,)) -> None:
        wanted = set(request_ids)
        await self.until(lambda: wanted <= self.ends.keys())

    def error(self, request_id: int = 0) -> str:
        end = self.ends[request_id]
        assert isinstance(end, Failed), end
        return end.error


def submit(client: EngineClient, *requests: Request) -> Reader:
    reader = Reader()
    client.submit(requests, reader)
    return reader


def vocabulary(width: int) -> Vocabulary:
    """Of a FakeRunner with ByteTokenizer, for grammars. width: the runner's vocab_size."""
    return Vocabulary.of(ByteTokenizer()).fitted(width)


def make_masks(info: EngineInfo) -> MaskComputer:
    return MaskComputer(vocabulary(info.vocab_size), num_threads=1)


@asynccontextmanager
async def running_client(
    runner: FakeRunner | Callable[[], FakeRunner] | None = None,
    config: SchedulerConfig | None = None,
    **settings: Any,
) -> AsyncIterator[EngineClient]:
    """A client that is ready, over a thread. At the end it is closed and nothing is left open."""
    config = config or SchedulerConfig()
    runner = runner or FakeRunner()
    factory = runner if not isinstance(runner, FakeRunner) else lambda: runner
    client = EngineClient(ThreadTransport(factory, config, make_masks), config, **settings)
    try:
        await client.start()
        yield client
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await client.close()
        assert client.num_open == 0


async def eventually(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until it holds; for what other threads and processes do."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(0.005)
