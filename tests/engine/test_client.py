"""The front's door, with the engine on a thread: everybody's own events, limits, and a new engine for one that died."""

import asyncio
import itertools
import threading
from collections.abc import Callable

import pytest

from anllm.config import SchedulerConfig
from anllm.core.events import Finished, LoadProgress, Started
from anllm.core.request import FinishReason
from anllm.core.step import StepPlan
from anllm.engine.client import EngineClient, EngineState, Event
from anllm.engine.transport import End, OnFrame, ThreadTransport
from anllm.errors import ModelError, NotReadyError, QueueFullError
from anllm.testing import FakeClock, FakeRunner
from serving import PATIENCE_S, Gate, Reader, eventually, running_client, submit
from stepping import alone, letters_and_ends, make_request

pytestmark = pytest.mark.anyio
SMALL = SchedulerConfig(max_num_seqs=2, max_num_waiting=2)


def mortal(dies: Callable[[int, StepPlan], bool]) -> Callable[[], FakeRunner]:
    """A factory of runners. `dies` gets the number of the engine, from 0, and the plan; three times in a row true, the
    engine ends."""
    numbers = itertools.count()

    def factory() -> FakeRunner:
        number = next(numbers)

        def before_run(plan: StepPlan) -> None:
            if dies(number, plan):
                raise RuntimeError("boom")

        return FakeRunner(before_run=before_run)

    return factory


# -- events ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_num_seqs", [1, 5, 128])
async def test_64_requests_at_once_each_get_their_own_tokens_and_only_those(max_num_seqs: int) -> None:
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64)
    async with running_client(FakeRunner(letters_and_ends), config) as client:
        requests = [make_request(i, 1 + 3 * i % 50, max_tokens=1 + i) for i in range(64)]
        readers = [submit(client, request) for request in requests]
        await asyncio.gather(*(reader.end([i]) for i, reader in enumerate(readers)))
        for i, reader in enumerate(readers):
            assert (reader.tokens, reader.ends) == ({i: (a := alone(requests[i], letters_and_ends))[0]}, {i: a[1]})
        assert client.num_open == 0


async def test_start_gives_what_the_engine_found_out() -> None:
    runner = FakeRunner(max_model_len=777)
    client = EngineClient(ThreadTransport(lambda: runner, SMALL), SMALL)
    assert (client.state, client.info) == (EngineState.LOADING, None)
    assert await client.start() == runner.info == client.info
    assert client.state is EngineState.READY
    await client.close()
    assert client.state is EngineState.CLOSED


async def test_request_ids_are_never_given_twice() -> None:
    client = EngineClient(ThreadTransport(FakeRunner, SMALL), SMALL)
    assert len({client.next_request_id() for _ in range(100)}) == 100


async def test_several_requests_in_one_call_share_a_reader() -> None:
    async with running_client() as client:
        requests = [make_request(i) for i in range(3)]
        reader = submit(client, *requests)
        assert client.num_open == 3
        await reader.end(range(3))
        assert reader.tokens == {i: alone(requests[i])[0] for i in range(3)}


async def test_a_request_that_the_engine_refuses_fails() -> None:
    async with running_client() as client:
        reader = submit(client, make_request(0, 5000), make_request(1))
        await reader.end([0, 1])
        assert reader.error(0) == "ContextLengthError"
        assert reader.ends[1] is FinishReason.LENGTH


async def test_a_failed_step_fails_its_requests_and_those_that_wait_go_on() -> None:
    gate = Gate(lambda plan: any(s.request_id == 1 for s in plan.scheduled))
    async with running_client(FakeRunner(before_run=gate), SMALL) as client:
        gate.shut()
        reader = submit(client, *(make_request(i) for i in range(4)))
        gate.open()
        await reader.end(range(4))
        assert (reader.error(0), reader.error(1)) == ("StepError", "StepError")
        assert [reader.tokens[i] for i in (2, 3)] == [alone(make_request(i))[0] for i in (2, 3)]
        assert (client.num_restarts, client.state) == (0, EngineState.READY)


async def test_a_reader_that_raises_is_aborted_and_does_not_disturb_others() -> None:
    async with running_client() as client:
        seen = []

        def broken(event: Event) -> None:
            seen.append(event)
            raise ZeroDivisionError

        client.submit([make_request(0, max_tokens=1000)], broken)
        reader = submit(client, make_request(1, max_tokens=30))
        await reader.end([1])
        assert reader.tokens[1] == alone(make_request(1, max_tokens=30))[0]
        assert len(seen) == 1
        assert isinstance(seen[0], Started)
        assert client.num_open == 0


async def test_a_reader_that_raises_at_the_end_does_not_disturb_others() -> None:
    async with running_client() as client:

        def broken(event: Event) -> None:
            if isinstance(event, Finished):
                raise ZeroDivisionError

        client.submit([make_request(0, max_tokens=2)], broken)
        reader = submit(client, make_request(1, max_tokens=2), make_request(2))
        await reader.end([1, 2])
        assert client.num_open == 0


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_after_an_abort_nothing_comes_and_the_slot_is_free() -> None:
    gate = Gate(shuts_after=20)
    runner = FakeRunner(before_run=gate)
    async with running_client(runner, SchedulerConfig(max_num_seqs=1)) as client:
        reader = submit(client, make_request(0, max_tokens=4000))
        await reader.until(lambda: reader.tokens)
        await eventually(lambda: not gate.is_open)
        client.abort([0])
        num_tokens = len(reader.tokens[0])
        other = submit(client, make_request(1))
        gate.open()
        await other.end([1])
        assert (len(reader.tokens[0]), reader.ends) == (num_tokens, {})
        assert other.tokens[1] == alone(make_request(1))[0]


async def test_abort_of_unknown_and_ended_ids_is_ignored() -> None:
    async with running_client() as client:
        reader = submit(client, make_request(0))
        await reader.end()
        client.abort([0, 5, 99])
        again = submit(client, make_request(1))
        client.abort([0])
        await again.end([1])


async def test_a_full_queue_takes_all_of_a_call_or_none() -> None:
    gate = Gate()
    async with running_client(FakeRunner(before_run=gate), SMALL) as client:
        gate.shut()
        first = submit(client, *(make_request(i) for i in range(3)))
        with pytest.raises(QueueFullError, match="3 open requests of at most 4, and this one needs 2"):
            submit(client, make_request(3), make_request(4))
        assert client.num_open == 3
        last = submit(client, make_request(5))
        with pytest.raises(QueueFullError):
            submit(client, make_request(6))
        client.abort([0])
        later = submit(client, make_request(7))
        gate.open()
        await asyncio.gather(first.end([1, 2]), last.end([5]), later.end([7]))
        assert later.tokens == {7: alone(make_request(7))[0]}


# -- the engine's life -------------------------------------------------------------------------------------------------


async def test_while_the_engine_loads_nothing_is_taken() -> None:
    loads = threading.Event()

    def factory() -> FakeRunner:
        loads.wait(PATIENCE_S)
        return FakeRunner()

    client = EngineClient(ThreadTransport(factory, SMALL), SMALL)
    with pytest.raises(NotReadyError, match="loading"):
        submit(client, make_request(0))
    starting = asyncio.create_task(client.start())
    await asyncio.sleep(0)
    with pytest.raises(NotReadyError, match="loading"):
        submit(client, make_request(0))
    loads.set()
    await starting
    await submit(client, make_request(0)).end()
    await client.close()
    with pytest.raises(NotReadyError, match="closed"):
        submit(client, make_request(0))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModelError("The folder has no weights."), "The folder has no weights."),
        (
            OSError("what is this"),
            "While it loaded the model the engine ended with OSError('what is this'); the lines above tell more.",
        ),
    ],
)
async def test_a_model_that_cant_be_loaded_is_told_by_start(error: Exception, message: str) -> None:
    def factory() -> FakeRunner:
        raise error

    client = EngineClient(ThreadTransport(factory, SMALL), SMALL, restart_delays_s=(0.0, 0.0))
    with pytest.raises(ModelError) as caught:
        await client.start()
    assert caught.value.message == message
    assert (client.state, client.num_restarts) == (EngineState.CLOSED, 0)
    await client.wait_closed()
    await client.close()


async def test_open_requests_fail_with_the_engine_and_the_next_engine_answers() -> None:
    factory = mortal(lambda number, plan: number == 0)
    async with running_client(factory, SchedulerConfig(max_num_seqs=1), restart_delays_s=(0.0,)) as client:
        reader = submit(client, *(make_request(i) for i in range(5)))
        await reader.end(range(5))
        assert [reader.error(i) for i in range(5)] == ["StepError"] * 3 + ["EngineDeadError"] * 2
        assert client.num_open == 0
        await eventually(lambda: client.state is EngineState.READY and client.num_restarts == 1)
        again = submit(client, make_request(9))
        await again.end([9])
        assert again.tokens[9] == alone(make_request(9))[0]


async def test_while_the_engine_restarts_nothing_is_taken() -> None:
    factory = mortal(lambda number, plan: number == 0)
    async with running_client(factory, SchedulerConfig(max_num_seqs=1), restart_delays_s=(0.3,)) as client:
        await submit(client, *(make_request(i) for i in range(3))).end(range(3))
        await eventually(lambda: client.state is EngineState.RESTARTING)
        with pytest.raises(NotReadyError, match="restarting"):
            submit(client, make_request(9))
        await eventually(lambda: client.state is EngineState.READY)
        await submit(client, make_request(9)).end([9])


@pytest.mark.parametrize("num_delays", [0, 1, 3])
async def test_the_client_gives_up_when_the_delays_have_run_out(num_delays: int) -> None:
    engines = itertools.count()

    def factory() -> FakeRunner:
        if next(engines) > 0:
            raise OSError("the GPU is gone")
        return mortal(lambda number, plan: True)()

    config = SchedulerConfig(max_num_seqs=1)
    client = EngineClient(ThreadTransport(factory, config), config, restart_delays_s=(0.0,) * num_delays)
    await client.start()
    reader = submit(client, *(make_request(i) for i in range(4)))
    await asyncio.wait_for(client.wait_closed(), PATIENCE_S)
    assert reader.error(3) == "EngineDeadError"
    assert (client.state, client.num_restarts, next(engines)) == (EngineState.CLOSED, num_delays, num_delays + 1)
    with pytest.raises(NotReadyError, match="closed"):
        submit(client, make_request(9))
    await client.close()


async def test_an_engine_that_worked_long_enough_has_all_restarts_before_it_again() -> None:
    factory = mortal(lambda number, plan: True)
    options = {"restart_delays_s": (0.0,), "healthy_after_s": 0.0}
    async with running_client(factory, SchedulerConfig(max_num_seqs=1), **options) as client:
        for life in range(4):
            await eventually(lambda life=life: client.state is EngineState.READY and client.num_restarts == life)
            await submit(client, *(make_request(10 * life + i) for i in range(3))).end(10 * life + i for i in range(3))
        await eventually(lambda: client.num_restarts == 4)


async def test_an_engine_that_dies_soon_after_each_start_stays_down_in_the_end() -> None:
    clock = FakeClock()
    factory = mortal(lambda number, plan: True)
    options = {"restart_delays_s": (0.0, 0.0), "healthy_after_s": 60.0, "clock": clock}
    async with running_client(factory, SchedulerConfig(max_num_seqs=1), **options) as client:
        for life in range(3):
            await eventually(lambda life=life: client.state is EngineState.READY and client.num_restarts == life)
            clock.advance(59.0)
            await submit(client, *(make_request(10 * life + i) for i in range(3))).end(10 * life + i for i in range(3))
        await eventually(lambda: client.state is EngineState.CLOSED)
        assert client.num_restarts == 2


async def test_a_progress_display_that_fails_does_not_keep_the_model_from_loading() -> None:
    def factory() -> FakeRunner:
        return FakeRunner()

    class Reporting(ThreadTransport):
        async def run(self, on_frame: OnFrame) -> End:
            on_frame(LoadProgress("Loading weights", 1, 2))
            return await super().run(on_frame)

    def fail(progress: LoadProgress) -> None:
        raise BrokenPipeError

    client = EngineClient(Reporting(factory, SMALL), SMALL, on_progress=fail)
    await asyncio.wait_for(client.start(), PATIENCE_S)
    await client.close()


async def test_a_transport_that_raises_is_an_engine_that_ended() -> None:
    class Broken(ThreadTransport):
        async def run(self, on_frame: OnFrame) -> End:
            raise OSError("no more sockets")

    client = EngineClient(Broken(FakeRunner, SMALL), SMALL)
    with pytest.raises(ModelError):
        await asyncio.wait_for(client.start(), PATIENCE_S)


async def test_close_does_not_wait_for_the_next_restart() -> None:
    factory = mortal(lambda number, plan: True)
    async with running_client(factory, SchedulerConfig(max_num_seqs=1), restart_delays_s=(600.0,)) as client:
        await submit(client, *(make_request(i) for i in range(3))).end(range(3))
        await eventually(lambda: client.state is EngineState.RESTARTING)
        await asyncio.wait_for(client.close(), PATIENCE_S)


async def test_close_fails_what_is_open() -> None:
    gate = Gate()
    config = SchedulerConfig()
    client = EngineClient(ThreadTransport(lambda: FakeRunner(before_run=gate), config), config)
    await client.start()
    gate.shut()
    reader = submit(client, make_request(0, max_tokens=4000))
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    gate.open()
    await closing
    assert reader.error() == "EngineDeadError"
    assert client.num_open == 0


async def test_close_before_start_and_twice_does_no_harm() -> None:
    client = EngineClient(ThreadTransport(FakeRunner, SMALL), SMALL)
    await client.close()
    client = EngineClient(ThreadTransport(FakeRunner, SMALL), SMALL)
    await client.start()
    await client.close()
    await client.close()


async def test_events_of_one_step_come_in_their_order() -> None:
    order: list[Event] = []
    async with running_client() as client:
        reader = Reader()

        def both(event: Event) -> None:
            order.append(event)
            reader(event)

        client.submit([make_request(0, max_tokens=1), make_request(1, max_tokens=1)], both)
        await reader.end([0, 1])
    assert [type(event).__name__ for event in order] == ["Started"] * 2 + ["Tokens"] * 2 + ["Finished"] * 2
