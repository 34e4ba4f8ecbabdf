"""Frames as bytes, and the engine on a thread."""

import asyncio
import queue
import threading

import msgspec
import pytest

from anllm.config import SchedulerConfig
from anllm.core.events import (
    Abort,
    Add,
    Admitted,
    EngineFigures,
    EngineInfo,
    Failed,
    Finished,
    LoadFailed,
    LoadProgress,
    MemoryUse,
    ResetPrefixCache,
    Started,
    StepEvents,
    StepFigures,
    Tokens,
)
from anllm.core.request import FinishReason, Request, SamplingParams
from anllm.engine.transport import End, Frame, ThreadTransport, decode, encode, take_all
from anllm.errors import ModelError
from anllm.testing import FakeRunner
from serving import PATIENCE_S
from stepping import alone, make_request

REQUEST = Request(
    request_id=2**53,
    prompt_token_ids=(0, 1, 151_935),
    params=SamplingParams(
        temperature=0.7, top_p=0.9, max_tokens=None, seed=2**64 - 1, stop_token_ids=(5, 6), ignore_eos=True
    ),
    arrival_time_s=1234.5678,
)
INFO = EngineInfo("cpu", "openblas", 2**40, 23_040, 8192, 151_936, "flattened", "float32", (2, 7), 512)
FRAMES = [
    LoadProgress("weights", 3, 0),
    LoadFailed("No room: 5 GB \u2028 \u00e9 \U0001f600."),
    INFO,
    StepEvents(),
    StepEvents(
        tokens=(Tokens(1, (5,)), Tokens(2, (6, 7))),
        finished=(Finished(1, FinishReason.STOP), Finished(3, FinishReason.LENGTH)),
        failed=(Failed(4, "StepError", "It failed."),),
        started=(Started(1, 9), Started(2)),
    ),
    StepEvents(
        figures=EngineFigures(
            1, 2, 3, 2**40, 5, 6, 7, 8, 9, (Admitted(1, 0.5),), StepFigures(0.01, 1, 2, 3), MemoryUse(1, 2, 3)
        )
    ),
    StepEvents(computing=(1, 2)),
    ResetPrefixCache(),
    Add(REQUEST),
    Add(make_request(0, 10_000)),
    Abort(()),
    Abort((1, 2, 3)),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_survives_the_way_over_the_wire(frame: Frame) -> None:
    back = decode(encode(frame))
    assert back == frame
    assert type(back) is type(frame)


def test_finish_reasons_and_tuples_keep_their_types() -> None:
    events = decode(encode(FRAMES[4]))
    assert isinstance(events, StepEvents)
    assert events.finished[0].finish_reason is FinishReason.STOP
    assert isinstance(events.tokens, tuple)
    assert isinstance(events.tokens[1].token_ids, tuple)


@pytest.mark.parametrize("data", [encode(LoadFailed("x"))[:-1], b"\x04\xc1", encode(Abort((1,))) + b"x"])
def test_broken_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)


def test_take_all_takes_what_is_there_and_waits_only_if_told() -> None:
    inbox: queue.SimpleQueue[Abort | None] = queue.SimpleQueue()
    assert take_all(inbox, wait=False) == []  # type: ignore[arg-type]
    for command in (Abort((1,)), None, Abort((2,))):
        inbox.put(command)
    assert take_all(inbox, wait=True) == [Abort((1,)), None, Abort((2,))]  # type: ignore[arg-type]


class Run:
    """A ThreadTransport in use."""

    def __init__(self, transport: ThreadTransport) -> None:
        self.frames: list[Frame] = []
        self.threads: set[int] = set()
        self.task = asyncio.ensure_future(transport.run(self._on_frame))

    def _on_frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.threads.add(threading.get_ident())

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.frames) < count:
                await asyncio.sleep(0.001)


@pytest.mark.anyio
async def test_the_engine_tells_what_it_is_first_and_then_what_it_does() -> None:
    runner = FakeRunner()
    transport = ThreadTransport(lambda: runner, SchedulerConfig())
    run = Run(transport)
    await run.until(1)
    transport.send([Add(make_request(0, max_tokens=3))])
    await run.until(5)  # one of them tells that the prompt is begun
    await transport.close()
    assert await run.task == End("was closed")
    assert run.frames[0] == runner.info
    tokens = [t for frame in run.frames[1:] for event in frame.tokens for t in event.token_ids]  # type: ignore[union-attr]
    assert tokens == alone(make_request(0, max_tokens=3))[0]
    assert run.threads == {threading.get_ident()}  # frames arrive in the event loop


@pytest.mark.anyio
async def test_a_second_run_starts_a_new_engine_without_the_old_commands() -> None:
    runners: list[FakeRunner] = []

    def factory() -> FakeRunner:
        runners.append(FakeRunner())
        return runners[-1]

    transport = ThreadTransport(factory, SchedulerConfig())
    for _ in range(2):
        run = Run(transport)
        await run.until(1)
        await transport.close()
        transport.send([Add(make_request(0))])
        assert await run.task == End("was closed")
    assert [len(runner.plans) for runner in runners] == [0, 0]


@pytest.mark.anyio
async def test_what_ends_the_engine_is_told() -> None:
    def factory() -> FakeRunner:
        raise OSError("the disk is gone")

    run = Run(ThreadTransport(factory, SchedulerConfig()))
    assert await run.task == End("ended with OSError('the disk is gone')")
    assert run.frames == []


@pytest.mark.anyio
async def test_a_model_that_cant_be_served_is_told_with_its_reason() -> None:
    def factory() -> FakeRunner:
        raise ModelError("The folder has no weights.")

    run = Run(ThreadTransport(factory, SchedulerConfig()))
    await run.task
    assert run.frames == [LoadFailed("The folder has no weights.")]
