"""Commands in, one StepEvents a step out, and what a step that raises does."""

from collections.abc import Callable

import pytest

from anllm.config import SchedulerConfig
from anllm.core.events import Abort, Add, Failed, Finished, Started, StepEvents, Tokens
from anllm.core.request import FinishReason, Request, SamplingParams
from anllm.core.step import StepPlan
from anllm.engine.loop import MAX_FAILED_STEPS, EngineBrokenError, EngineLoop
from anllm.testing import FakeClock, FakeRunner
from stepping import alone, make_request


class Engine:
    """A loop with its events collected."""

    def __init__(self, before_run: Callable[[StepPlan], None] = lambda plan: None, **config: int) -> None:
        self.runner = FakeRunner(before_run=before_run)
        self.steps: list[StepEvents] = []
        self.loop = EngineLoop(self.runner, SchedulerConfig(**config), self.steps.append, FakeClock())

    def add(self, *request_ids: int, **params: object) -> None:
        self.loop.take([Add(make_request(i, **params)) for i in request_ids])  # type: ignore[arg-type]

    def run(self) -> None:
        while self.loop.step():
            self.loop.scheduler.check_integrity()
        self.loop.rest()

    def tokens(self, request_id: int) -> list[int]:
        return [t for step in self.steps for e in step.tokens if e.request_id == request_id for t in e.token_ids]

    @property
    def failed(self) -> list[int]:
        return [event.request_id for step in self.steps for event in step.failed]

    @property
    def finished(self) -> list[int]:
        return [event.request_id for step in self.steps for event in step.finished]


def fails_on(*request_ids: int) -> Callable[[StepPlan], None]:
    def before_run(plan: StepPlan) -> None:
        if any(s.request_id in request_ids for s in plan.scheduled):
            raise RuntimeError("the model does not like this")

    return before_run


def test_an_idle_engine_steps_not() -> None:
    engine = Engine()
    assert engine.loop.step() is False
    assert engine.steps == []


def test_each_step_emits_its_tokens_and_ends_at_once() -> None:
    engine = Engine()
    engine.add(0, max_tokens=2)
    engine.add(1, max_tokens=1)
    engine.run()
    first, second = (alone(make_request(i, max_tokens=2))[0] for i in (0, 1))
    assert engine.steps == [
        StepEvents(
            started=(Started(0), Started(1)),
            tokens=(Tokens(0, (first[0],)), Tokens(1, (second[0],))),
            finished=(Finished(1, FinishReason.LENGTH),),
        ),
        StepEvents(tokens=(Tokens(0, (first[1],)),), finished=(Finished(0, FinishReason.LENGTH),)),
    ]


@pytest.mark.parametrize(
    ("num_tokens", "error"), [(0, "InvalidRequestError"), (4096, "ContextLengthError"), (9999, "ContextLengthError")]
)
def test_a_request_that_cant_be_queued_fails_at_once(num_tokens: int, error: str) -> None:
    engine = Engine()
    engine.add(0, num_tokens=num_tokens)
    ((event,),) = [step.failed for step in engine.steps]
    assert (event.request_id, event.error) == (0, error)
    assert event.message.endswith(".")
    assert engine.loop.step() is False


@pytest.mark.parametrize("token_id", [-1, 257, 2**40])
def test_a_token_that_the_model_does_not_know_is_refused_before_it_can_end_the_process(token_id: int) -> None:
    engine = Engine()
    request = Request(request_id=0, prompt_token_ids=(3, token_id, 4), params=SamplingParams(max_tokens=2, seed=0))
    engine.loop.take([Add(request)])
    engine.run()
    assert engine.steps == [
        StepEvents(
            failed=(
                Failed(0, "InvalidRequestError", f"The prompt has the token id {token_id}; the model's are 0 to 256."),
            )
        )
    ]


def test_all_refusals_of_one_take_come_in_one_frame_and_the_others_run() -> None:
    engine = Engine(max_num_seqs=1, max_num_waiting=1)
    engine.add(0, 1, 2, 3)
    assert [[(f.request_id, f.error) for f in step.failed] for step in engine.steps] == [
        [(2, "QueueFullError"), (3, "QueueFullError")]
    ]
    engine.run()
    assert engine.finished == [0, 1]


def test_an_abort_takes_effect_before_the_next_step() -> None:
    engine = Engine()
    engine.add(0, 1)
    engine.loop.step()
    engine.loop.take([Abort((0, 99)), Add(make_request(2)), Abort((2,))])
    engine.run()
    assert engine.finished == [1]
    assert len(engine.tokens(0)) == 1
    assert engine.tokens(2) == []


def test_a_failed_step_fails_its_requests_and_those_that_wait_go_on() -> None:
    engine = Engine(fails_on(1), max_num_seqs=2)
    engine.add(0, 1, 2, 3)
    engine.run()
    assert engine.failed == [0, 1]
    assert engine.finished == [2, 3]
    assert [engine.tokens(i) for i in (2, 3)] == [alone(make_request(i))[0] for i in (2, 3)]


def test_the_failure_names_no_detail_of_the_model(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(fails_on(0))
    engine.add(0)
    engine.run()
    ((event,),) = [step.failed for step in engine.steps]
    assert event == Failed(0, "StepError", "The model failed on this step. The server's log has the reason.")
    assert "the model does not like this" in caplog.text


def test_three_failed_steps_in_a_row_break_the_engine_and_all_of_them_have_had_their_end() -> None:
    engine = Engine(fails_on(0, 1, 2), max_num_seqs=1)
    engine.add(0, 1, 2, 3)
    assert MAX_FAILED_STEPS == 3
    assert engine.loop.step()
    assert engine.loop.step()
    with pytest.raises(EngineBrokenError, match="3 steps in a row"):
        engine.loop.step()
    assert engine.failed == [0, 1, 2]


def test_a_good_step_between_failed_ones_keeps_the_engine() -> None:
    engine = Engine(fails_on(0, 1, 3, 4, 6, 7), max_num_seqs=1)
    engine.add(*range(9))
    engine.run()
    assert engine.failed == [0, 1, 3, 4, 6, 7]
    assert engine.finished == [2, 5, 8]


def test_resting_checks_the_books_and_releases_memory() -> None:
    engine, calls = Engine(), []
    engine.runner.release = lambda: calls.append("release")  # type: ignore[method-assign]
    engine.add(0)
    engine.run()
    assert calls == ["release"]
