"""Prompts that begin alike are computed once: what is used again, when, and that nobody gets another answer for it."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anllm.config import SchedulerConfig
from anllm.core.events import Abort, Add, StepEvents
from anllm.core.request import Request, SamplingParams
from anllm.core.step import InFlight, Masks, StepPlan, StepResult
from anllm.engine.loop import EngineLoop
from anllm.kvcache.cache import AWAITED_TOKENS, LEAST_REUSED_TOKENS, MOST_LOST_TOKENS
from anllm.testing import FakeClock, FakeRunner
from anllm.testing.runner import scripted
from stepping import EOS, Stepper, alone, letters_and_ends, make_request

SYSTEM = tuple(i * 31 % 251 for i in range(2000))


def words(seed: int, number: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(256) for _ in range(number))


def computed(plans: Iterable[StepPlan], request_id: int) -> int:
    """Tokens that steps computed for a request."""
    return sum(len(s.token_ids) for plan in plans for s in plan.scheduled if s.request_id == request_id)


def ask(stepper: Stepper, request_id: int, prompt: tuple[int, ...], **params: object) -> list[StepPlan]:
    stepper.add(make_request(request_id, prompt=prompt, **params))
    return stepper.run()


def test_a_chat_of_six_turns_computes_only_what_is_new() -> None:
    stepper, prompt = Stepper(), SYSTEM[:300]
    for turn in range(6):
        new = words(turn, 40)
        prompt += new
        plans = ask(stepper, turn, prompt, max_tokens=30)
        # The last token of an answer was drawn, but nobody needed to compute what follows it: so it is new.
        expected = len(prompt) if turn == 0 else 1 + len(new)
        assert computed(plans, turn) == expected + 30 - 1
        assert stepper.num_cached[turn] == len(prompt) - expected
        prompt += tuple(stepper.tokens[turn])
    stepper.check_answers()


def test_the_same_prompt_again_computes_one_token() -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM, max_tokens=1)
    plans = ask(stepper, 1, SYSTEM, max_tokens=1)
    assert computed(plans, 1) == 1
    assert stepper.num_cached == {0: 0, 1: len(SYSTEM) - 1}
    assert stepper.scheduler.num_warm_rows == 1, "one row has all of it"
    stepper.check_answers()


def test_who_shares_a_part_gets_a_copy_and_the_row_stays() -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM + words(0, MOST_LOST_TOKENS + 1), max_tokens=1)
    plans = ask(stepper, 1, SYSTEM + words(1, 50), max_tokens=1)
    ((copy,),) = [plan.copies for plan in plans]
    assert copy.num_tokens == len(SYSTEM)
    assert computed(plans, 1) == 50
    assert stepper.scheduler.num_warm_rows == 2
    plans = ask(stepper, 2, SYSTEM + words(0, MOST_LOST_TOKENS + 1), max_tokens=1)
    assert computed(plans, 2) == 1, "the first one's row is whole"
    stepper.check_answers()


def test_a_row_that_loses_little_is_taken_over_without_a_copy() -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM + words(0, 20), max_tokens=20)
    plans = ask(stepper, 1, SYSTEM + words(1, 20), max_tokens=20)
    assert [plan.copies for plan in plans if plan.copies] == []
    assert computed(plans, 1) == 20 + 20 - 1
    assert stepper.scheduler.num_warm_rows == 1
    stepper.check_answers()


def test_a_row_that_is_too_small_is_moved() -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM[:200], max_tokens=10)
    prompt = SYSTEM[:200] + tuple(stepper.tokens[0]) + words(1, 800)
    plans = ask(stepper, 1, prompt, max_tokens=1)
    assert computed(plans, 1) == 801
    assert stepper.scheduler.num_warm_rows == 1
    stepper.check_answers()


def test_who_still_runs_gives_from_its_prompt() -> None:
    stepper = Stepper()
    stepper.add(make_request(0, prompt=SYSTEM, max_tokens=500))
    stepper.run_until(lambda: len(stepper.tokens[0]) > 3)
    stepper.add(make_request(1, prompt=SYSTEM + words(1, 10), max_tokens=2))
    plans = stepper.run_until(lambda: 1 in stepper.ends)
    assert computed(plans, 1) == 10 + 1
    assert 0 not in stepper.ends
    stepper.run()
    stepper.check_answers()


@pytest.mark.parametrize("num_shared", [LEAST_REUSED_TOKENS - 1, LEAST_REUSED_TOKENS])
def test_a_few_tokens_are_not_worth_it(num_shared: int) -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM[:num_shared] + words(0, 100), max_tokens=1)
    ask(stepper, 1, SYSTEM[:num_shared] + words(1, 100), max_tokens=1)
    assert stepper.num_cached[1] == (num_shared if num_shared >= LEAST_REUSED_TOKENS else 0)
    stepper.check_answers()


def test_prompts_with_another_salt_share_nothing() -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM, max_tokens=1, cache_salt="mine")
    ask(stepper, 1, SYSTEM, max_tokens=1)
    ask(stepper, 2, SYSTEM, max_tokens=1, cache_salt="yours")
    ask(stepper, 3, SYSTEM, max_tokens=1, cache_salt="mine")
    assert stepper.num_cached == {0: 0, 1: 0, 2: 0, 3: len(SYSTEM) - 1}
    stepper.check_answers()


def test_a_prompt_that_is_scored_is_computed_whole_but_others_use_it() -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM[:600], max_tokens=1)
    ask(stepper, 1, SYSTEM[:600], max_tokens=1, prompt_logprobs=0)
    ask(stepper, 2, SYSTEM[:600], max_tokens=1)
    assert stepper.num_cached == {0: 0, 1: 0, 2: 599}
    stepper.check_scores(1)


def test_switched_off_nothing_is_kept() -> None:
    stepper = Stepper(reuses_prefixes=False)
    for i in range(3):
        ask(stepper, i, SYSTEM, max_tokens=2)
    assert set(stepper.num_cached.values()) == {0}
    assert stepper.pool.num_owned_slots == 0
    assert stepper.scheduler.cache_stats.num_hit_tokens == 0


def test_after_a_reset_nothing_is_found_and_who_runs_goes_on() -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM, max_tokens=1)
    stepper.add(make_request(1, prompt=SYSTEM, max_tokens=20))
    stepper.run_until(lambda: stepper.tokens[1])
    stepper.scheduler.reset_prefix_cache()
    stepper.scheduler.check_integrity()
    assert stepper.pool.num_owned_slots == 1
    stepper.add(make_request(2, prompt=SYSTEM, max_tokens=20))
    stepper.run()
    assert stepper.num_cached == {0: 0, 1: len(SYSTEM) - 1, 2: 0}
    stepper.check_answers()


def test_hits_are_counted() -> None:
    stepper = Stepper()
    ask(stepper, 0, SYSTEM, max_tokens=1)
    ask(stepper, 1, SYSTEM, max_tokens=1)
    stats = stepper.scheduler.cache_stats
    # The last token of a prompt is always computed, so it is not looked for.
    assert (stats.num_queried_tokens, stats.num_hit_tokens) == (2 * (len(SYSTEM) - 1), len(SYSTEM) - 1)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_penalties_are_told_of_the_tokens_that_are_not_computed(penalty: float) -> None:
    stepper = Stepper(max_num_batched_tokens=40)
    ask(stepper, 0, SYSTEM[:300], max_tokens=1)
    plans = ask(stepper, 1, SYSTEM[:300] + words(1, 100), max_tokens=4, presence_penalty=penalty)
    told = [s.reused_token_ids for plan in plans for s in plan.scheduled]
    assert told == [SYSTEM[:300] if penalty else (), *[()] * (len(plans) - 1)]


# -- at the same time --------------------------------------------------------------------------------------------------


def test_requests_that_come_together_compute_what_they_share_once() -> None:
    stepper = Stepper(max_num_batched_tokens=700)
    stepper.add(*(make_request(i, prompt=SYSTEM + words(i, 30), max_tokens=3) for i in range(20)))
    plans = stepper.run()
    assert computed(plans, 0) == len(SYSTEM) + 30 + 3 - 1
    assert [computed(plans, i) for i in range(1, 20)] == [30 + 3 - 1] * 19
    assert len(plans) < 12, "they run together"
    stepper.check_answers()


def test_who_shares_less_does_not_wait() -> None:
    stepper = Stepper(max_num_batched_tokens=400)
    shared = SYSTEM[: AWAITED_TOKENS - 1]
    stepper.add(*(make_request(i, prompt=shared + words(i, 30), max_tokens=3) for i in range(2)))
    first = stepper.step()
    assert first is not None
    assert {s.request_id for s in first.scheduled} == {0, 1}
    stepper.run()
    stepper.check_answers()


def test_others_do_not_wait_with_those_that_wait_for_a_prompt() -> None:
    stepper = Stepper(max_num_batched_tokens=100)
    stepper.add(make_request(0, prompt=SYSTEM, max_tokens=1), make_request(1, prompt=SYSTEM, max_tokens=1))
    stepper.add(make_request(2, 20, max_tokens=1))
    stepper.run_until(lambda: 2 in stepper.ends, max_steps=2)
    assert computed(stepper.run(), 1) < AWAITED_TOKENS
    stepper.check_answers()


def test_who_waits_for_a_prompt_that_is_given_up_goes_on_from_there() -> None:
    stepper = Stepper(max_num_batched_tokens=500)
    stepper.add(*(make_request(i, prompt=SYSTEM + words(i, 9), max_tokens=2) for i in range(2)))
    stepper.step()
    stepper.step()
    stepper.abort(0)
    plans = stepper.run()
    assert computed(plans, 1) == 1000 + 9 + 2 - 1
    stepper.check_answer(1)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_kept_rows_make_way_the_least_recently_used_first() -> None:
    stepper = Stepper(max_model_len=512, kv_budget_tokens=4 * 512)
    prompts = [words(i, 400) for i in range(6)]
    for i in range(4):
        ask(stepper, i, prompts[i], max_tokens=2)
    ask(stepper, 4, prompts[0], max_tokens=2)  # used again
    ask(stepper, 5, prompts[4], max_tokens=2)
    ask(stepper, 6, prompts[0], max_tokens=2)
    ask(stepper, 7, prompts[1], max_tokens=2)
    assert (stepper.num_cached[6], stepper.num_cached[7]) == (399, 0)
    assert stepper.scheduler.cache_stats.num_evicted_rows == 2
    stepper.check_answers()


def test_rows_of_other_sizes_make_way_too() -> None:
    stepper = Stepper(max_model_len=4096, kv_budget_tokens=4096)
    for i in range(8):
        ask(stepper, i, words(i, 200), max_tokens=2)
    assert stepper.scheduler.num_warm_rows == 8
    ask(stepper, 8, words(8, 3000), max_tokens=2)
    ask(stepper, 9, words(9, 200), max_tokens=2)
    stepper.check_answers()


def test_nothing_is_given_up_for_what_cant_be_had_anyway() -> None:
    stepper = Stepper(max_model_len=2048, kv_budget_tokens=2048 + 256)
    ask(stepper, 0, words(0, 200), max_tokens=2)
    stepper.add(make_request(1, 1500, max_tokens=40))
    stepper.run_until(lambda: stepper.tokens[1])
    stepper.add(make_request(2, 1500, max_tokens=2))
    for _ in range(3):
        stepper.step()
    assert stepper.scheduler.num_warm_rows == 1
    stepper.run()
    stepper.check_answers()


def test_a_preempted_sequence_comes_back_to_what_is_left_of_its_row() -> None:
    stepper = Stepper(max_model_len=1024, kv_budget_tokens=1024 + 512 + 256)
    stepper.add(make_request(0, 200, max_tokens=500), make_request(1, 100, max_tokens=150))
    plans = stepper.run()
    again = [s for plan in plans for s in plan.scheduled if s.request_id == 1 and len(s.token_ids) > 1]
    if len(again) > 1:
        assert again[1].start > 0
    stepper.check_answers()


# -- everything at once ------------------------------------------------------------------------------------------------


@dataclass
class BrokenStep:
    """A step that fails when it is read, and leaves K/V that is undefined in the meantime."""

    def draw(self, masks: Masks) -> None:
        raise AssertionError

    def result(self) -> StepResult:
        raise RuntimeError("the device failed")


class BreakingRunner(FakeRunner):
    """Some of its steps fail, when submitted or when read; never two in a row, which would end the engine."""

    def __init__(self, draw: random.Random, share: float, **options: object) -> None:
        super().__init__(letters_and_ends, runs_ahead=True, **options)  # type: ignore[arg-type]
        self._draw, self._share, self._was_good = draw, share, True

    def submit(self, plan: StepPlan) -> InFlight:  # type: ignore[override]
        self._was_good = not self._was_good or self._draw.random() >= self._share
        if self._was_good:
            return super().submit(plan)
        if self._draw.random() < 0.5:
            raise RuntimeError("can't be submitted")
        self.run(plan)
        for scheduled in plan.scheduled:
            self._rows[scheduled.slot] = (-7,) * scheduled.end
        return BrokenStep()


@settings(max_examples=400, deadline=None)
@example(seed=129, budget=1536, failures=0.0)  # a row that was still to be copied lost its slot
@example(seed=9, budget=1536, failures=0.03)  # a copy from a row in a step that fails
@given(
    seed=st.integers(0, 2**32),
    budget=st.sampled_from([1024, 1536, 3000, 1 << 16]),
    failures=st.sampled_from([0.0, 0.0, 0.03]),
)
def test_whatever_is_shared_branched_aborted_and_evicted_nobody_gets_another_answer(
    seed: int, budget: int, failures: float
) -> None:
    """A tree of chats: each new prompt begins like an earlier one, cut anywhere, with its answer or without, and goes
    on in its own way. One step ahead; the books are checked after every step."""
    draw = random.Random(seed)
    runner = BreakingRunner(draw, failures, max_model_len=900, kv_budget_tokens=budget)
    events: list[StepEvents] = []
    config = SchedulerConfig(
        max_num_seqs=draw.choice([1, 3, 16]),
        max_num_batched_tokens=draw.choice([16, 100, 1024]),
        decode_token_budget=draw.choice([5, 256]),
    )
    loop = EngineLoop(runner, config, events.append, FakeClock())
    requests: dict[int, Request] = {}
    tokens: dict[int, list[int]] = {}
    ends: dict[int, str] = {}
    aborted = set[int]()
    known = [words(seed, 400)]
    idle = 0
    while idle < 3:
        if len(requests) < 40 and draw.random() < 0.3:
            base = draw.choice(known)
            prompt = base[: draw.choice([0, 1, 16, 64, 255, 256, 257, 300, 400, 600])] + words(
                draw.randrange(5), draw.choice([1, 5, 64, 300])
            )
            request = make_request(
                len(requests),
                prompt=prompt[:880],
                max_tokens=draw.choice([1, 2, 17, 60, None]),
                prompt_logprobs=draw.choice([None, None, None, 0]),
                cache_salt=draw.choice(["", "", "a"]),
                priority=draw.choice([0, 0, 0, -1, 5]),
            )
            requests[request.request_id] = replace(request, client=draw.choice(["", "", "other"]))
            tokens[request.request_id] = []
            loop.take([Add(requests[request.request_id])])
        if requests and draw.random() < 0.03:
            victim = draw.choice(list(requests))
            if victim not in ends:
                aborted.add(victim)
            loop.take([Abort((victim,))])
        if draw.random() < 0.01:
            loop.scheduler.reset_prefix_cache()
        idle = 0 if loop.step() or len(requests) < 40 else idle + 1
        loop.scheduler.check_integrity()
        for step in events:
            for start in step.started:
                assert start.num_cached_tokens < len(requests[start.request_id].prompt_token_ids)
            for event in step.tokens:
                tokens[event.request_id].extend(event.token_ids)
            for end in step.finished:
                ends[end.request_id] = end.finish_reason
                known.append(requests[end.request_id].prompt_token_ids + tuple(tokens[end.request_id]))
            for failed in step.failed:
                ends[failed.request_id] = failed.error
        events.clear()
    assert not loop.scheduler.has_work
    for request_id, request in requests.items():
        expected, reason = alone(request, letters_and_ends, max_model_len=900)
        assert tokens[request_id] == expected[: len(tokens[request_id])]
        if request_id in aborted:
            assert request_id not in ends
        elif not failures:
            assert (tokens[request_id], ends[request_id]) == (expected, reason)
        else:
            assert ends[request_id] in (reason, "StepError")
    loop.scheduler.reset_prefix_cache()
    assert loop.scheduler.num_warm_rows == 0
    loop.scheduler.check_integrity()


def test_what_broke_is_not_used_again() -> None:
    prompt = words(0, 100)
    stepper = Stepper(model=scripted({prompt: (10, -1)}))
    ask(stepper, 0, prompt, max_tokens=5)
    assert stepper.ends[0] == "StepError"
    assert stepper.scheduler.num_warm_rows == 0
    ask(stepper, 1, prompt, max_tokens=1)
    assert stepper.num_cached[1] == 0
    assert EOS not in prompt and SamplingParams().cache_salt == ""


def test_where_nothing_is_kept_nothing_is_looked_up_or_counted() -> None:
    stepper = Stepper(reuses_prefixes=False)
    for request_id in range(2):
        stepper.add(make_request(request_id, prompt=tuple(range(100))))
        stepper.run()
    stats = stepper.scheduler.cache_stats
    assert (stats.num_queried_tokens, stats.num_hit_tokens) == (0, 0)
