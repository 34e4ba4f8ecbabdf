"""Commands in, one StepEvents a step out, and what a step that raises does."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from anllm.config import SchedulerConfig
from anllm.core.events import (
    Abort,
    Add,
    Admitted,
    EngineFigures,
    Failed,
    Finished,
    Started,
    StepEvents,
    StepFigures,
    Tokens,
)
from anllm.core.request import FinishReason, Request, SamplingParams
from anllm.core.step import StepPlan
from anllm.engine.loop import MAX_FAILED_STEPS, EngineBrokenError, EngineLoop
from anllm.scheduler.policy import MIN_STEP_LIMIT_S, token_cost
from anllm.testing import FakeClock, FakeRunner
from stepping import alone, make_request


class Engine:
    """A loop with its events collected."""

    def __init__(self, before_run: Callable[[StepPlan], None] = lambda plan: None, **config: int) -> None:
        self.runner = FakeRunner(before_run=before_run)
        self.steps: list[StepEvents] = []  # without figures
        self.figures: list[EngineFigures] = []
        self.clock = FakeClock()
        self.loop = EngineLoop(self.runner, SchedulerConfig(**config), self._collect, self.clock)

    def _collect(self, events: StepEvents) -> None:
        if events.figures is not None:
            self.figures.append(events.figures)
        if (events or events.figures is None) and not events.computing:
            self.steps.append(replace(events, figures=None))

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


# -- figures -----------------------------------------------------------------------------------------------------------


def test_each_step_tells_what_it_was_and_how_the_engine_stands() -> None:
    engine = Engine(lambda plan: engine.clock.advance(0.25), max_num_seqs=1)
    engine.clock.advance(5.0)
    engine.add(0, num_tokens=20, max_tokens=2)
    engine.add(1, num_tokens=30, max_tokens=1)
    engine.loop.step()
    first = engine.figures[-1]
    assert (first.num_running, first.num_waiting, first.kv_used_bytes, first.kv_kept_bytes) == (1, 1, 256, 0)
    assert first.step == StepFigures(duration_s=0.25, num_decodes=0, num_prefills=1, num_prefill_tokens=20)
    assert [(a.request_id, a.queue_s) for a in first.admitted] == [(0, 5.0)]
    assert (first.num_queried_tokens, first.num_hit_tokens) == (19, 0)
    engine.loop.step()
    second = engine.figures[-1]
    assert (second.num_running, second.num_waiting, second.kv_used_bytes, second.kv_kept_bytes) == (0, 1, 0, 256)
    assert second.step == StepFigures(duration_s=0.25, num_decodes=1, num_prefills=0, num_prefill_tokens=0)
    assert (second.admitted, second.num_queried_tokens) == ((), 0)
    engine.run()
    assert [a for f in engine.figures[2:] for a in f.admitted] == [Admitted(1, 5.5)]
    last = engine.figures[-1]
    assert (last.num_running, last.num_waiting, last.kv_used_bytes, last.step) == (0, 0, 0, None)


def test_what_the_prefix_cache_finds_is_told_once() -> None:
    engine = Engine()
    prompt = tuple(range(50))
    for request_id in range(3):
        engine.loop.take([Add(make_request(request_id, prompt=prompt, max_tokens=1))])
        engine.run()
    assert sum(f.num_queried_tokens for f in engine.figures) == 3 * 49
    assert sum(f.num_hit_tokens for f in engine.figures) == 2 * 49


def test_preemptions_are_told_once() -> None:
    runner = FakeRunner(kv_budget_tokens=768, max_model_len=512)
    told: list[EngineFigures] = []
    loop = EngineLoop(runner, SchedulerConfig(), lambda events: told.append(events.figures) if events.figures else None)
    loop.take([Add(make_request(i, 200, max_tokens=200)) for i in range(2)])
    while loop.step():
        pass
    assert sum(f.num_preemptions for f in told) == 1
    assert max(f.kv_used_bytes for f in told) == 768
    assert sum(len(f.admitted) for f in told) == 2, "coming back is no admission"


def test_an_engine_that_an_abort_leaves_idle_says_so() -> None:
    engine = Engine()
    engine.add(0, 1, max_tokens=100)
    engine.loop.step()
    assert engine.figures[-1].num_running == 2
    engine.loop.take([Abort((0, 1))])
    assert engine.loop.step() is False
    assert (engine.figures[-1].num_running, engine.figures[-1].kv_used_bytes) == (0, 0)
    num_figures = len(engine.figures)
    engine.loop.step()
    assert len(engine.figures) == num_figures, "nothing new, nothing told"


def test_a_failed_step_tells_no_times_but_how_the_engine_stands() -> None:
    engine = Engine(fails_on(0))
    engine.add(0)
    engine.loop.step()
    assert (engine.figures[-1].step, engine.figures[-1].num_running) == (None, 0)


def test_memory_is_looked_at_once_a_second() -> None:
    engine = Engine(lambda plan: engine.clock.advance(0.25))
    engine.add(0, max_tokens=10)
    while engine.loop.step():
        pass
    assert [f.memory is not None for f in engine.figures] == [True, False, False, False] * 2 + [True, False]


def test_the_log_names_the_requests_of_a_failed_step(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(fails_on(0))
    engine.loop.take([Add(replace(make_request(i), log_id="req_abc")) for i in (0, 1)])
    engine.run()
    assert "step failed request_id=req_abc num_sequences=2" in caplog.text


def test_what_is_in_a_step_is_told_before_it_is_computed() -> None:
    told: list[tuple[int, ...]] = []
    plans: list[tuple[int, ...]] = []

    def before_run(plan: StepPlan) -> None:
        prompts = tuple(s.request_id for s in plan.scheduled if not s.is_decode)
        assert not prompts or told[-1] == prompts
        plans.append(prompts)

    loop = EngineLoop(
        FakeRunner(before_run=before_run), SchedulerConfig(), lambda e: told.append(e.computing), FakeClock()
    )
    loop.take([Add(make_request(i, 10 + i)) for i in range(3)])
    loop.step()
    loop.take([Add(make_request(9))])
    while loop.step():
        pass
    assert [prompts for prompts in plans if prompts] == [(0, 1, 2), (9,)]
    assert [computing for computing in told if computing] == [(0, 1, 2), (9,)]


def test_how_long_a_step_may_take_follows_its_tokens_and_how_far_they_are() -> None:
    limits: list[float] = []
    loop: EngineLoop

    def before_run(plan: StepPlan) -> None:
        limits.append(loop.step_limit_s)

    runner = FakeRunner(before_run=before_run, max_model_len=32_000)
    runner.info = replace(runner.info, token_s=0.01, prefill_tokens=1000)
    loop = EngineLoop(runner, SchedulerConfig(), lambda events: None, FakeClock())
    loop.take([Add(make_request(0, 10_000, max_tokens=3))])
    assert loop.step_limit_s == MIN_STEP_LIMIT_S
    while loop.step():
        pass
    first, last, decode = limits[0], limits[9], limits[-1]
    assert first == pytest.approx(20 * 1000 * 0.01 * token_cost(1000))
    assert last == pytest.approx(20 * 1000 * 0.01 * token_cost(10_000))
    assert decode == MIN_STEP_LIMIT_S
    assert loop.step_limit_s == MIN_STEP_LIMIT_S


def test_the_limit_of_a_step_may_be_set() -> None:
    loop = EngineLoop(FakeRunner(), SchedulerConfig(step_timeout_s=7.0), lambda events: None, FakeClock())
    assert loop.step_limit_s == 7.0
