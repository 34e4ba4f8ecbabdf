"""The engine as a library."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from anllm.config import SchedulerConfig
from anllm.core.request import FinishReason, SamplingParams
from anllm.core.step import StepPlan
from anllm.engine.driver import EngineDriver, Polled, Status
from anllm.engine.loop import EngineBrokenError
from anllm.testing import FakeRunner
from anllm.testing.runner import scripted
from stepping import EOS, alone, letters_and_ends, make_request

GREEDY = SamplingParams(max_tokens=8)


def prompt(i: int, num_tokens: int = 10) -> tuple[int, ...]:
    return make_request(i, num_tokens).prompt_token_ids


def expected(i: int, num_tokens: int = 10, **params: object) -> list[int]:
    return alone(make_request(i, num_tokens, **params))[0]  # type: ignore[arg-type]


def test_submit_step_and_poll_give_token_after_token() -> None:
    with EngineDriver(FakeRunner) as driver:
        request_id = driver.submit(prompt(0), GREEDY)
        assert driver.poll(request_id) == Polled([], Status.OPEN, None)
        seen = []
        for _ in range(7):
            assert driver.step()
            seen.append(driver.poll(request_id))
        assert [token for polled in seen for token in polled.new_token_ids] == expected(0)[:7]
        assert all(polled[1:] == (Status.OPEN, None, None) for polled in seen)
        assert driver.step()
        assert driver.poll(request_id) == Polled(expected(0)[7:], Status.FINISHED, FinishReason.LENGTH)
        assert driver.step() is False


def test_a_request_is_forgotten_with_the_poll_that_tells_its_end() -> None:
    with EngineDriver(FakeRunner) as driver:
        request_id = driver.submit(prompt(0), GREEDY)
        driver.run_until_complete([])
        while driver.step():
            pass
        assert driver.num_open == 1
        assert driver.poll(request_id).new_token_ids == expected(0)
        assert driver.num_open == 0
        with pytest.raises(KeyError):
            driver.poll(request_id)


def test_run_until_complete_gives_all_that_are_open() -> None:
    with EngineDriver(lambda: FakeRunner(letters_and_ends), SchedulerConfig(max_num_seqs=4)) as driver:
        ids = [driver.submit(prompt(i, 5 + i), SamplingParams(max_tokens=30)) for i in range(12)]
        polled = driver.run_until_complete()
        assert list(polled) == ids
        for i in range(12):
            tokens, reason = alone(make_request(i, 5 + i, max_tokens=30), letters_and_ends)
            assert polled[ids[i]] == Polled(tokens, Status.FINISHED, reason)
        assert driver.num_open == 0


def test_run_until_complete_stops_when_those_asked_for_have_ended() -> None:
    with EngineDriver(FakeRunner) as driver:
        long = driver.submit(prompt(0), SamplingParams(max_tokens=50))
        short = driver.submit(prompt(1), SamplingParams(max_tokens=3))
        assert list(driver.run_until_complete([short])) == [short]
        assert driver.poll(long) == Polled(expected(0, max_tokens=3), Status.OPEN, None)
        assert driver.run_until_complete()[long].new_token_ids == expected(0, max_tokens=50)[3:]


def test_an_end_token_is_among_the_tokens() -> None:
    with EngineDriver(lambda: FakeRunner(scripted({(1, 2): (5, EOS, 6)}))) as driver:
        request_id = driver.submit((1, 2), GREEDY)
        assert driver.run_until_complete()[request_id][:3] == ([5, EOS], Status.FINISHED, FinishReason.STOP)


@pytest.mark.parametrize(("num_tokens", "message"), [(0, "at least one token"), (4096, "maximum context length")])
def test_a_prompt_that_cant_be_taken_fails_in_poll(num_tokens: int, message: str) -> None:
    with EngineDriver(FakeRunner) as driver:
        bad = driver.submit([7] * num_tokens, GREEDY)
        good = driver.submit(prompt(1), GREEDY)
        polled = driver.run_until_complete()
        assert polled[bad].status is Status.FAILED
        assert message in str(polled[bad].error)
        assert polled[good].new_token_ids == expected(1)


def test_a_full_queue_fails_in_poll() -> None:
    with EngineDriver(FakeRunner, SchedulerConfig(max_num_seqs=1, max_num_waiting=1)) as driver:
        ids = [driver.submit(prompt(i), GREEDY) for i in range(3)]
        statuses = [polled.status for polled in driver.run_until_complete(ids).values()]
        assert statuses == [Status.FINISHED, Status.FINISHED, Status.FAILED]


@pytest.mark.parametrize("params", [SamplingParams(n=2), SamplingParams(stop=("x",))])
def test_what_the_engine_does_not_know_is_refused(params: SamplingParams) -> None:
    with EngineDriver(FakeRunner) as driver, pytest.raises(ValueError, match="use LLM"):
        driver.submit(prompt(0), params)


def test_a_seed_is_drawn_where_none_is_given_and_kept_where_one_is() -> None:
    runner = FakeRunner()
    with EngineDriver(lambda: runner) as driver:
        for seed in (None, None, 5):
            driver.submit(prompt(0), SamplingParams(max_tokens=1, seed=seed))
        driver.run_until_complete()
    first, second, third = (s.params.seed for plan in runner.plans for s in plan.scheduled)
    assert None not in (first, second)
    assert first != second
    assert third == 5


def test_an_aborted_request_is_forgotten_and_its_slot_free() -> None:
    with EngineDriver(FakeRunner, SchedulerConfig(max_num_seqs=1)) as driver:
        first, second = (driver.submit(prompt(i), SamplingParams(max_tokens=1000)) for i in range(2))
        driver.step()
        driver.abort(first)
        driver.abort(first)
        driver.abort(999)
        driver.step()
        with pytest.raises(KeyError):
            driver.poll(first)
        assert driver.poll(second).new_token_ids == expected(1, max_tokens=1)


def test_a_failed_step_fails_in_poll_and_the_next_request_is_answered() -> None:
    def before_run(plan: StepPlan) -> None:
        if any(s.request_id == 0 for s in plan.scheduled):
            raise RuntimeError("boom")

    with EngineDriver(lambda: FakeRunner(before_run=before_run)) as driver:
        bad = driver.submit(prompt(0), GREEDY)
        assert driver.run_until_complete()[bad].status is Status.FAILED
        good = driver.submit(prompt(1), GREEDY)
        assert driver.run_until_complete()[good].new_token_ids == expected(1)


def test_a_broken_engine_raises_from_step() -> None:
    def before_run(plan: StepPlan) -> None:
        raise RuntimeError("boom")

    with EngineDriver(lambda: FakeRunner(before_run=before_run), SchedulerConfig(max_num_seqs=1)) as driver:
        ids = [driver.submit(prompt(i), GREEDY) for i in range(3)]
        with pytest.raises(EngineBrokenError):
            driver.run_until_complete(ids)


def test_the_factorys_error_is_raised_and_no_thread_is_left() -> None:
    def factory() -> FakeRunner:
        raise OSError("no such model")

    before = set(threading.enumerate())
    with pytest.raises(OSError, match="no such model"):
        EngineDriver(factory)
    assert set(threading.enumerate()) <= before


def test_building_and_every_step_happen_on_one_thread_of_its_own() -> None:
    seen = []

    def factory() -> FakeRunner:
        seen.append(threading.get_ident())
        return FakeRunner(before_run=lambda plan: seen.append(threading.get_ident()))

    with EngineDriver(factory) as driver:
        driver.submit(prompt(0), GREEDY)
        driver.step()
        other = threading.Thread(target=driver.step)
        other.start()
        other.join()
        driver.run_until_complete()

        async def read() -> None:
            async for _ in driver.stream(driver.submit(prompt(1), GREEDY)):
                pass

        asyncio.run(read())
    assert len(seen) == 1 + 8 + 8
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


async def collect(driver: EngineDriver, request_id: int) -> list[int]:
    tokens: list[int] = []
    statuses = []
    async for polled in driver.stream(request_id):
        tokens += polled.new_token_ids
        statuses.append(polled.status)
    assert statuses[-1] is not Status.OPEN
    assert set(statuses[:-1]) <= {Status.OPEN}
    return tokens


@pytest.mark.anyio
@pytest.mark.parametrize("num_streams", [1, 2, 16])
async def test_several_streams_each_get_their_own_tokens(num_streams: int) -> None:
    runner = FakeRunner()
    with EngineDriver(lambda: runner) as driver:
        ids = [driver.submit(prompt(i), SamplingParams(max_tokens=5 + i)) for i in range(num_streams)]
        texts = await asyncio.gather(*(collect(driver, i) for i in ids))
        assert texts == [expected(i, max_tokens=5 + i) for i in range(num_streams)]
        assert driver.num_open == 0
    assert len(runner.plans) == 4 + num_streams  # each step served all


@pytest.mark.anyio
async def test_leaving_a_stream_early_aborts_its_request_and_no_other() -> None:
    runner = FakeRunner()
    with EngineDriver(lambda: runner) as driver:
        left, kept = (driver.submit(prompt(i), SamplingParams(max_tokens=40)) for i in range(2))
        other = asyncio.create_task(collect(driver, kept))
        async with aclosing(driver.stream(left)) as stream:
            async for _ in stream:
                break
        assert await other == expected(1, max_tokens=40)
        assert driver.num_open == 0
    assert sum(s.request_id == left for plan in runner.plans for s in plan.scheduled) < 20


@pytest.mark.anyio
async def test_a_cancelled_stream_aborts_its_request() -> None:
    with EngineDriver(FakeRunner) as driver:
        task = asyncio.create_task(collect(driver, driver.submit(prompt(0), SamplingParams(max_tokens=4000))))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert driver.num_open == 0
        driver.step()
        assert driver.step() is False


def test_closing_ends_the_thread_and_forgets_what_is_open() -> None:
    before = set(threading.enumerate())
    driver = EngineDriver(FakeRunner)
    driver.submit(prompt(0), GREEDY)
    driver.step()
    driver.close()
    assert driver.num_open == 0
    assert set(threading.enumerate()) <= before
