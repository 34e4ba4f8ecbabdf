"""Each counter has just the value that it should, under a clock of the test's."""

from __future__ import annotations

import pytest

from anllm.core.events import (
    Admitted,
    EngineFigures,
    EngineInfo,
    Failed,
    Finished,
    MemoryUse,
    Started,
    StepEvents,
    StepFigures,
    Tokens,
)
from anllm.core.request import FinishReason, Request, SamplingParams
from anllm.metrics.recorder import Recorder
from anllm.metrics.records import RequestRecord
from anllm.testing import FakeClock

INFO = EngineInfo("fake", "", 1000, 1, 4096, 257, "fake", "none", (256,))


class Story:
    """A recorder, and what happens told in short words."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.clock.advance(100.0)
        self.recorder = Recorder(self.clock)
        self.recorder.on_frame(INFO)

    def open(self, *request_ids: int, num_tokens: int = 10, n: int = 1, is_empty: bool = False) -> RequestRecord:
        record = RequestRecord(f"req_{request_ids[0]}", self.clock(), n)
        params = SamplingParams(max_tokens=50)
        requests = [
            Request(request_id=i, prompt_token_ids=(1,) * num_tokens, params=params, arrival_time_s=self.clock())
            for i in request_ids
        ]
        self.recorder.opened(record, requests, is_empty=is_empty)
        return record

    def figures(self, num_running: int = 0, num_waiting: int = 0, **more: object) -> None:
        figures = EngineFigures(num_running, num_waiting, 0, **{"kv_used_bytes": 0, "kv_kept_bytes": 0, **more})  # type: ignore[arg-type]
        self.recorder.on_frame(StepEvents(figures=figures))

    def start(self, *request_ids: int, num_cached: int = 0) -> None:
        started = tuple(Started(i, num_cached) for i in request_ids)
        self.recorder.on_frame(StepEvents(started=started, tokens=tuple(Tokens(i, (7,)) for i in request_ids)))

    def tokens(self, *request_ids: int) -> None:
        self.recorder.on_frame(StepEvents(tokens=tuple(Tokens(i, (7,)) for i in request_ids)))


@pytest.fixture
def story() -> Story:
    return Story()


def seen(histogram: object) -> tuple[int, float]:
    return histogram.count, pytest.approx(histogram.sum)  # type: ignore[attr-defined]


def test_a_request_from_its_arrival_to_its_end(story: Story) -> None:
    recorder = story.recorder
    record = story.open(0, num_tokens=10)
    story.clock.advance(2.0)
    story.figures(1, admitted=(Admitted(0, 2.0),))
    story.clock.advance(0.5)
    story.start(0, num_cached=4)
    for _ in range(4):
        story.clock.advance(0.25)
        story.tokens(0)
    story.clock.advance(0.125)
    recorder.ended(0, FinishReason.STOP)
    assert recorder.ends == {"stop": 1, "length": 0, "abort": 0, "error": 0}
    assert (recorder.num_prompt_tokens, recorder.num_cached_tokens, recorder.num_generated_tokens) == (10, 4, 5)
    assert seen(recorder.ttft_s) == (1, 2.5)
    assert seen(recorder.itl_s) == (4, 1.0)
    assert seen(recorder.tpot_s) == (1, 0.25)
    assert seen(recorder.queue_s) == (1, 2.0)
    assert seen(recorder.prefill_s) == (1, 0.5)
    assert seen(recorder.decode_s) == (1, 1.0)
    assert seen(recorder.inference_s) == (1, 1.5)
    assert seen(recorder.e2e_s) == (1, 3.625)
    assert seen(recorder.request_prompt_tokens) == (1, 10)
    assert seen(recorder.request_computed_tokens) == (1, 6)
    assert seen(recorder.request_generation_tokens) == (1, 5)
    assert seen(recorder.max_generation_tokens) == (1, 5)
    assert seen(recorder.params_n) == (1, 1)
    assert seen(recorder.params_max_tokens) == (1, 50)
    assert (record.queue_s, record.ttft_s, record.mean_itl_s) == (2.0, 2.5, 0.25)


def test_rows_that_run_together_are_each_counted(story: Story) -> None:
    story.open(0)
    story.open(1)
    story.start(0)
    story.clock.advance(0.5)
    story.start(1)
    story.clock.advance(0.25)
    story.tokens(0, 1)
    story.clock.advance(0.25)
    story.tokens(0, 1)
    # 0: 0.75, 0.25; 1: 0.25, 0.25
    assert seen(story.recorder.itl_s) == (4, 1.5)
    assert dict(story.recorder.itl_s.buckets())[0.3] == 3


def test_several_tokens_at_once_share_the_gap(story: Story) -> None:
    story.open(0)
    story.start(0)
    story.clock.advance(0.9)
    story.recorder.on_frame(StepEvents(tokens=(Tokens(0, (7, 8, 9)),)))
    assert seen(story.recorder.itl_s) == (3, 0.9)
    assert story.recorder.num_generated_tokens == 4


def test_what_comes_after_the_end_does_not_count(story: Story) -> None:
    story.open(0)
    story.start(0)
    story.recorder.ended(0, FinishReason.STOP)
    story.tokens(0, 99)
    story.start(99)
    story.figures(admitted=(Admitted(99, 1.0),))
    story.recorder.ended(0, "abort")
    story.recorder.ended(99, "error", "step")
    assert story.recorder.num_generated_tokens == 1
    assert story.recorder.ends.total() == 1
    assert story.recorder.failures == {}


@pytest.mark.parametrize("stage", ["waiting", "prefill", "decode"])
def test_an_abort_is_counted_once_by_how_far_it_came_and_in_no_time(story: Story, stage: str) -> None:
    story.open(0)
    if stage != "waiting":
        story.figures(1, admitted=(Admitted(0, 0.0),))
    if stage == "decode":
        story.start(0)
    story.recorder.ended(0, "abort")
    assert {key: number for key, number in story.recorder.aborts.items() if number} == {stage: 1}
    assert story.recorder.ends["abort"] == story.recorder.ends.total() == 1
    assert story.recorder.e2e_s.count == story.recorder.params_n.count == 0


def test_a_failure_is_counted_by_its_reason(story: Story) -> None:
    story.open(0)
    story.recorder.ended(0, "error", "engine_dead")
    assert (story.recorder.failures, story.recorder.ends["error"]) == ({"engine_dead": 1}, 1)


def test_answers_to_one_prompt_count_once_when_all_have_finished(story: Story) -> None:
    story.open(0, 1, 2, 3, n=2)
    story.start(0, 1, 2, 3)
    story.tokens(1)
    for request_id in (0, 1, 2):
        story.recorder.ended(request_id, FinishReason.STOP)
    assert seen(story.recorder.params_n) == (1, 2)
    assert seen(story.recorder.max_generation_tokens) == (1, 2)
    story.recorder.ended(3, "abort")
    assert story.recorder.params_n.count == 1, "one answer of the second prompt was never finished"
    assert story.recorder.ends["stop"] == 3


def test_a_prompt_that_is_only_scored_has_no_tokens(story: Story) -> None:
    story.open(0, is_empty=True)
    story.figures(1, admitted=(Admitted(0, 0.0),))
    story.clock.advance(1.0)
    story.start(0)
    story.recorder.ended(0, FinishReason.LENGTH)
    recorder = story.recorder
    assert (recorder.num_prompt_tokens, recorder.num_generated_tokens) == (10, 0)
    assert recorder.ttft_s.count == recorder.decode_s.count == recorder.params_max_tokens.count == 0
    assert seen(recorder.prefill_s) == (1, 1.0)
    assert seen(recorder.request_generation_tokens) == (1, 0)


def test_open_requests_are_running_or_waiting_and_never_more(story: Story) -> None:
    recorder = story.recorder
    first, _ = story.open(0), story.open(1)
    assert (recorder.num_running, recorder.num_waiting, recorder.num_open_requests) == (0, 2, 2)
    story.figures(1, 1)
    assert (recorder.num_running, recorder.num_waiting) == (1, 1)
    story.open(2)  # while a long step runs
    assert (recorder.num_running, recorder.num_waiting) == (1, 2)
    for request_id in range(3):  # nor does the engine know yet that nobody wants them
        recorder.ended(request_id, "abort")
    assert (recorder.num_running, recorder.num_waiting) == (0, 0)
    recorder.closed(first)
    recorder.closed(first)
    assert recorder.num_open_requests == 2


def test_when_the_engine_is_gone_nothing_stands_and_counters_go_on(story: Story) -> None:
    story.open(0)
    step = StepFigures(0.02, 3, 1, 100)
    counts = {"num_preemptions": 1, "num_evicted_rows": 2, "num_queried_tokens": 30, "num_hit_tokens": 20}
    memory = MemoryUse(1, 2, 3)
    story.figures(1, 0, **{**counts, "kv_used_bytes": 500, "kv_kept_bytes": 50, "step": step, "memory": memory})
    recorder = story.recorder
    assert (recorder.kv_used_bytes, recorder.kv_kept_bytes, recorder.memory) == (500, 50, memory)
    story.figures(1, 0, kv_used_bytes=600, kv_kept_bytes=40)
    assert (recorder.kv_used_bytes, recorder.memory) == (600, memory), "memory is told now and then"
    recorder.on_engine_end()
    assert (recorder.num_running, recorder.kv_used_bytes, recorder.kv_kept_bytes, recorder.memory) == (0, 0, 0, None)
    recorder.on_frame(INFO)
    story.figures(1, 0, **counts, step=step)
    assert [getattr(recorder, name) for name in counts] == [2, 4, 60, 40]
    assert seen(recorder.step_s) == (2, 0.04)
    assert seen(recorder.batch_size) == (2, 8)
    assert seen(recorder.iteration_tokens) == (2, 206)


def test_buckets_for_tokens_end_at_the_longest_sequence_and_stay_as_they_are() -> None:
    recorder = Recorder(FakeClock())
    recorder.on_frame(INFO)
    assert recorder.request_prompt_tokens.bounds[-1] == 2000
    story = Story()
    story.open(0)
    story.start(0)
    story.recorder.ended(0, FinishReason.STOP)
    story.recorder.on_frame(INFO)
    assert story.recorder.request_prompt_tokens.count == 1


def test_ends_in_a_frame_are_for_those_who_answer(story: Story) -> None:
    story.open(0, 1)
    story.recorder.on_frame(
        StepEvents(finished=(Finished(0, FinishReason.STOP),), failed=(Failed(1, "StepError", "It failed."),))
    )
    assert story.recorder.ends.total() == 0
