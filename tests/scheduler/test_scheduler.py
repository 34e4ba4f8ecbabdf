"""Who runs, in which slot, on which tokens: driven step by step over the fake model, which notices every wrong row."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anllm.core.request import FinishReason
from anllm.core.step import StepPlan, step_sizes
from anllm.errors import ContextLengthError, InvalidRequestError, QueueFullError
from anllm.scheduler.policy import MIN_PREFILL_TOKENS
from anllm.testing.runner import letters, scripted
from stepping import EOS, Stepper, alone, letters_and_ends, make_request, nearby


def tokens_of(plan: StepPlan, request_id: int) -> int:
    return sum(len(s.token_ids) for s in plan.scheduled if s.request_id == request_id)


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_requests", [1, 2, 7, 40])
def test_everybody_gets_what_it_gets_alone(num_requests: int) -> None:
    stepper = Stepper(model=letters_and_ends, max_num_seqs=16, max_num_batched_tokens=64)
    stepper.add(*(make_request(i, 1 + 13 * i % 90, max_tokens=1 + i % 30) for i in range(num_requests)))
    stepper.run()
    stepper.check_answers()


def test_requests_that_come_later_join_those_that_run() -> None:
    stepper = Stepper(max_num_seqs=8)
    for i in range(20):
        stepper.add(make_request(i, 5 + i))
        stepper.step()
    assert stepper.scheduler.num_running >= 7
    stepper.run()
    stepper.check_answers()


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_a_prompt_is_computed_in_chunks(chunk: int) -> None:
    stepper = Stepper(max_num_batched_tokens=chunk)
    stepper.add(make_request(0, 300, max_tokens=1))
    plans = stepper.run()
    assert [plan.num_tokens for plan in plans] == [chunk] * (300 // chunk) + [300 % chunk] * (300 % chunk > 0)
    assert [s.sample for plan in plans for s in plan.scheduled] == [False] * (len(plans) - 1) + [True]
    assert [s.start for plan in plans for s in plan.scheduled] == list(range(0, 300, chunk))
    stepper.check_answers()


def test_decode_rows_come_first_and_both_parts_ascend_by_slot() -> None:
    stepper = Stepper(max_num_batched_tokens=400, decode_token_budget=100)
    sizes = [300, 20, 700, 1, 40, 350, 5, 90, 1100, 2, 600]
    for i, num_tokens in enumerate(sizes):
        stepper.add(make_request(i, num_tokens, max_tokens=12))
    plans = stepper.run()
    assert any(0 < sum(s.is_decode for s in plan.scheduled) < len(plan.scheduled) - 1 for plan in plans)
    for plan in plans:
        keys = [(not s.is_decode, s.slot) for s in plan.scheduled]
        assert keys == sorted(keys)
    stepper.check_answers()


@pytest.mark.parametrize(("num_tokens", "chunk"), [(1, 100), (65, 64), (129, 64)])
def test_the_last_token_of_a_prompt_alone_is_a_decode_row(num_tokens: int, chunk: int) -> None:
    stepper = Stepper(max_num_batched_tokens=chunk)
    stepper.add(make_request(0, num_tokens, max_tokens=1))
    last = stepper.run()[-1].scheduled
    assert [(s.is_decode, s.start, s.token_index) for s in last] == [(True, num_tokens - 1, 0)]
    stepper.check_answers()


def test_each_sampled_token_is_numbered_and_carries_its_parameters() -> None:
    stepper = Stepper()
    request = make_request(0, 5, max_tokens=4, seed=77, temperature=0.5)
    stepper.add(request)
    scheduled = [s for plan in stepper.run() for s in plan.scheduled]
    assert [s.token_index for s in scheduled] == [0, 1, 2, 3]
    assert all(s.params is request.params for s in scheduled)


def test_a_step_holds_no_more_prompt_tokens_than_allowed() -> None:
    stepper = Stepper(max_num_batched_tokens=100, decode_token_budget=30, max_num_seqs=50)
    stepper.add(*(make_request(i, 70, max_tokens=20) for i in range(40)))
    for plan in stepper.run():
        num_decodes = sum(s.is_decode and s.token_index > 0 for s in plan.scheduled)
        most = 100 if num_decodes == 0 else max(30 - num_decodes, 1)
        assert plan.num_tokens - num_decodes <= most


# -- ends --------------------------------------------------------------------------------------------------------------

PROMPT = (1, 2, 3)
ANSWER = (10, 20, EOS, 30, 40, 50)


@pytest.mark.parametrize(
    ("params", "num_tokens", "reason"),
    [
        ({"max_tokens": 6}, 3, FinishReason.STOP),
        ({"max_tokens": 2}, 2, FinishReason.LENGTH),
        ({"max_tokens": 3}, 3, FinishReason.STOP),  # both at once: stop wins
        ({"max_tokens": 1}, 1, FinishReason.LENGTH),
        ({"max_tokens": 6, "ignore_eos": True}, 6, FinishReason.LENGTH),
        ({"max_tokens": 6, "ignore_eos": True, "stop_token_ids": (40,)}, 5, FinishReason.STOP),
        ({"max_tokens": 6, "ignore_eos": True, "stop_token_ids": (EOS,)}, 3, FinishReason.STOP),
        ({"max_tokens": 6, "stop_token_ids": (20, 99)}, 2, FinishReason.STOP),
        ({"max_tokens": 2, "stop_token_ids": (20,)}, 2, FinishReason.STOP),
    ],
)
def test_a_sequence_ends(params: dict[str, object], num_tokens: int, reason: FinishReason) -> None:
    stepper = Stepper(model=scripted({PROMPT: ANSWER}))
    stepper.add(make_request(0, prompt=PROMPT, **params))
    stepper.run()
    assert (tuple(stepper.tokens[0]), stepper.ends[0]) == (ANSWER[:num_tokens], reason)


@pytest.mark.parametrize("max_tokens", [None, 6, 7, 5000])
def test_H_7_an_answer_is_clamped_to_the_context(max_tokens: int | None) -> None:
    stepper = Stepper(max_model_len=100)
    stepper.add(make_request(0, 94, max_tokens=max_tokens))
    stepper.run()
    assert (len(stepper.tokens[0]), stepper.ends[0]) == (6, FinishReason.LENGTH)
    stepper.check_answers()


def test_a_prompt_that_leaves_room_for_one_token_is_answered() -> None:
    stepper = Stepper(max_model_len=100)
    stepper.add(make_request(0, 99, max_tokens=None))
    stepper.run()
    assert len(stepper.tokens[0]) == 1


@pytest.mark.parametrize("num_tokens", [100, 101, 5000])
def test_a_prompt_that_fills_the_context_is_refused(num_tokens: int) -> None:
    stepper = Stepper(max_model_len=100)
    with pytest.raises(ContextLengthError, match=f"is 100 tokens.*resulted in {num_tokens} tokens"):
        stepper.add(make_request(0, num_tokens))
    stepper.check_idle()


def test_a_token_below_zero_fails_the_sequence_and_no_other() -> None:
    stepper = Stepper(model=scripted({PROMPT: (10, -1, 20)}))
    stepper.add(make_request(0, prompt=PROMPT), make_request(1))
    stepper.run()
    assert (stepper.tokens[0], stepper.ends[0]) == ([10], "StepError")
    stepper.check_answer(1)


# -- refused -----------------------------------------------------------------------------------------------------------


def test_the_queue_takes_max_num_open_and_one_more_when_one_has_ended() -> None:
    stepper = Stepper(max_num_seqs=2, max_num_waiting=3)
    stepper.add(*(make_request(i) for i in range(5)))
    with pytest.raises(QueueFullError, match="3 requests wait"):
        stepper.add(make_request(5))
    stepper.abort(3)
    stepper.add(make_request(6))
    stepper.run()
    assert sorted(stepper.ends) == [0, 1, 2, 4, 6]


def test_an_empty_prompt_is_refused() -> None:
    stepper = Stepper()
    with pytest.raises(InvalidRequestError, match="at least one token"):
        stepper.add(make_request(0, 0))
    stepper.check_idle()


def test_an_id_in_use_is_refused_and_free_again_after_the_end() -> None:
    stepper = Stepper()
    stepper.add(make_request(0, max_tokens=1))
    with pytest.raises(InvalidRequestError, match="id 0 is in use"):
        stepper.scheduler.add(make_request(0))
    stepper.run()
    stepper.scheduler.add(make_request(0))


# -- abort -------------------------------------------------------------------------------------------------------------


def test_abort_while_waiting() -> None:
    stepper = Stepper(max_num_seqs=1)
    stepper.add(make_request(0), make_request(1), make_request(2))
    stepper.step()
    stepper.abort(1)
    stepper.run()
    assert stepper.tokens[1] == []
    assert 1 not in stepper.ends
    stepper.check_answer(0)
    stepper.check_answer(2)


def test_abort_while_prefilling_frees_the_slot() -> None:
    stepper = Stepper(max_num_batched_tokens=10)
    stepper.add(make_request(0, 100))
    stepper.step()
    assert stepper.pool.num_owned_slots == 1
    stepper.abort(0)
    stepper.check_idle()


def test_abort_while_decoding_frees_the_slot() -> None:
    stepper = Stepper()
    stepper.add(make_request(0, max_tokens=50))
    stepper.run_until(lambda: len(stepper.tokens[0]) == 3)
    stepper.abort(0)
    stepper.check_idle()
    assert stepper.tokens[0] == alone(make_request(0, max_tokens=3))[0]


@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_abort_between_schedule_and_update_drops_the_result(num_steps: int) -> None:
    stepper = Stepper(max_num_batched_tokens=40)
    stepper.add(make_request(0, 60, max_tokens=20), make_request(1, max_tokens=20))
    for _ in range(num_steps):
        stepper.step()
    plan = stepper.schedule()
    assert plan is not None
    stepper.abort(0)
    num_tokens = len(stepper.tokens[0])
    stepper.finish(plan)
    assert len(stepper.tokens[0]) == num_tokens
    assert 0 not in stepper.ends
    stepper.run()
    stepper.check_answer(1)


def test_the_slot_of_an_aborted_sequence_goes_to_the_next_which_does_not_see_the_old_rows() -> None:
    stepper = Stepper(max_num_seqs=1, reuses_prefixes=False)
    stepper.add(make_request(0, 50, max_tokens=100), make_request(1, 8))
    first = stepper.step()
    stepper.abort(0)
    second = stepper.step()
    assert first
    assert second
    assert first.scheduled[0].slot == second.scheduled[0].slot
    stepper.run()
    stepper.check_answer(1)


def test_abort_of_an_unknown_or_ended_id_is_ignored() -> None:
    stepper = Stepper()
    stepper.abort(7)
    stepper.add(make_request(0, max_tokens=1))
    stepper.run()
    stepper.abort(0)
    stepper.check_idle()


# -- a failed step -----------------------------------------------------------------------------------------------------


def failing_at(*numbers: int):
    count = iter(range(10**6))

    def before_run(plan: StepPlan) -> None:
        if next(count) in numbers:
            raise RuntimeError("boom")

    return before_run


@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_failed_step_ends_those_in_it_and_no_others(number: int) -> None:
    stepper = Stepper(max_num_seqs=2, before_run=failing_at(number))
    stepper.add(*(make_request(i, max_tokens=20) for i in range(5)))
    stepper.run()
    assert [stepper.ends[i] for i in range(5)] == ["StepError"] * 2 + [FinishReason.LENGTH] * 3
    for i in (2, 3, 4):
        stepper.check_answer(i)


def test_a_prompt_that_waits_for_its_turn_survives_a_failed_step() -> None:
    """It has a slot, and rows in it, but no share of the step that fails."""
    stepper = Stepper(max_num_batched_tokens=8, before_run=failing_at(1))
    stepper.add(make_request(0, 100), make_request(1, 6))
    plan = stepper.step()
    assert plan
    assert {s.request_id for s in plan.scheduled} == {0, 1}
    stepper.add(make_request(2, 3), make_request(3, 4))
    plan = stepper.step()
    assert plan is not None
    failed = {s.request_id for s in plan.scheduled}
    stepper.run()
    assert {i for i, end in stepper.ends.items() if end == "StepError"} == failed != {0, 1, 2, 3}
    for i in {0, 1, 2, 3} - failed:
        stepper.check_answer(i)


def test_slabs_that_a_failed_step_did_not_resize_are_resized_by_the_next() -> None:
    stepper = Stepper(before_run=failing_at(0, 1))
    stepper.add(make_request(0))
    stepper.step()
    stepper.add(make_request(1))
    stepper.step()
    stepper.add(*(make_request(i) for i in range(2, 6)))
    stepper.run()
    for i in range(2, 6):
        stepper.check_answer(i)


def test_beside_decode_rows_steps_are_of_few_lengths() -> None:
    stepper = Stepper(model=nearby, step_s=lambda plan: 0.01 + 0.0001 * plan.num_tokens, max_num_batched_tokens=2000)
    stepper.add(*(make_request(i, 10, max_tokens=400) for i in range(5)))
    stepper.step()
    stepper.add(make_request(5, 4000, max_tokens=8))
    plans = stepper.run()
    lengths = [plan.num_tokens for plan in plans if any(s.request_id == 5 and not s.is_decode for s in plan.scheduled)]
    assert len(lengths) > 10
    assert set(lengths[:-1]) <= set(step_sizes(1024))  # the last piece is what is left
    stepper.check_answers()


def test_who_waited_too_long_fails_and_the_others_go_on() -> None:
    stepper = Stepper(max_num_seqs=1, max_queue_time_s=5.0, step_s=lambda plan: 0.01)
    stepper.add(make_request(0, max_tokens=100), make_request(1))
    stepper.step()
    stepper.clock.advance(4.0)
    stepper.add(replace(make_request(2), arrival_time_s=stepper.clock()))
    assert stepper.scheduler.expire(stepper.clock()) == []
    stepper.clock.advance(1.5)
    (failed,) = stepper.scheduler.expire(stepper.clock())  # not those that run, nor who came later
    assert (failed.request_id, failed.error) == (1, "QueueTimeoutError")
    assert "5 seconds" in failed.message
    stepper.scheduler.check_integrity()
    assert stepper.scheduler.expire(stepper.clock()) == []
    del stepper.requests[1]
    stepper.run()
    assert stepper.ends[0] == stepper.ends[2] == FinishReason.LENGTH


def test_who_was_begun_and_waits_again_for_memory_does_not_expire() -> None:
    stepper = Stepper(max_model_len=1024, kv_budget_tokens=1024 + 512, max_queue_time_s=5.0)
    stepper.add(make_request(0, 200, max_tokens=500), make_request(1, 200, max_tokens=500))
    stepper.run_until(lambda: stepper.scheduler.num_running == 2)
    stepper.run_until(lambda: stepper.scheduler.num_waiting)  # preempted
    stepper.clock.advance(60.0)
    assert stepper.scheduler.expire(stepper.clock()) == []
    stepper.run()
    stepper.check_answers()


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_slot_has_headroom_for_short_answers() -> None:
    stepper = Stepper()
    stepper.add(make_request(0, 200, max_tokens=250))
    plans = stepper.run()
    assert {s.slot.capacity for plan in plans for s in plan.scheduled} == {512}
    assert all(not plan.copies for plan in plans)


def test_a_slot_is_no_larger_than_the_answer_can_get() -> None:
    stepper = Stepper()
    stepper.add(make_request(0, 200, max_tokens=56))
    assert {s.slot.capacity for plan in stepper.run() for s in plan.scheduled} == {256}


def test_a_sequence_that_outgrows_its_row_is_copied_to_a_larger_one() -> None:
    stepper = Stepper(model=nearby)
    stepper.add(make_request(0, 100, max_tokens=1500))
    plans = stepper.run()
    copies = [copy for plan in plans for copy in plan.copies]
    assert [(c.source.capacity, c.target.capacity, c.num_tokens) for c in copies] == [
        (512, 1024, 512),
        (1024, 2048, 1024),
    ]
    assert sum(len(s.token_ids) for plan in plans for s in plan.scheduled) == 100 + 1500 - 1  # nothing twice
    stepper.check_answers()


def test_many_that_outgrow_their_rows_in_one_step_are_all_copied() -> None:
    stepper = Stepper(model=nearby, max_num_batched_tokens=10_000, decode_token_budget=10_000)
    stepper.add(*(make_request(i, 250, max_tokens=300) for i in range(6)))
    plans = stepper.run()
    assert [len(plan.copies) for plan in plans if plan.copies] == [6]
    stepper.check_answers()


def test_without_room_the_youngest_is_preempted_and_computed_again() -> None:
    stepper = Stepper(max_model_len=1024, kv_budget_tokens=1024 + 512)
    stepper.add(make_request(0, 200, max_tokens=700), make_request(1, 200, max_tokens=700))
    plans = stepper.run()
    starts = [s for plan in plans for s in plan.scheduled if s.start == 0]
    assert [s.request_id for s in starts] == [0, 1, 1]
    assert list(stepper.ends) == [0, 1]
    stepper.check_answers()


def test_a_sequence_alone_with_memory_for_one_longest_row_gets_to_its_end() -> None:
    stepper = Stepper(model=nearby, max_model_len=2048, kv_budget_tokens=2048)
    stepper.add(make_request(0, 10, max_tokens=None))
    stepper.run()
    assert len(stepper.tokens[0]) == 2038
    stepper.check_answers()


def test_who_waits_for_memory_is_not_overtaken_by_who_came_later() -> None:
    stepper = Stepper(max_model_len=2048, kv_budget_tokens=2048)
    stepper.add(
        make_request(0, 10, max_tokens=30), make_request(1, 1500, max_tokens=2), make_request(2, 5, max_tokens=2)
    )
    starts = [s.request_id for plan in stepper.run() for s in plan.scheduled if s.start == 0]
    assert starts == [0, 1, 2]
    stepper.check_answers()


def test_who_is_under_way_gets_on_while_an_older_one_waits_for_memory() -> None:
    """Request 1 was preempted and needs a long row, for which 2 must end first."""
    stepper = Stepper(max_model_len=1024, kv_budget_tokens=1024 + 512, max_num_batched_tokens=50)
    stepper.add(
        make_request(0, 200, max_tokens=60), make_request(1, 900, max_tokens=2), make_request(2, 400, max_tokens=2)
    )
    stepper.run()
    stepper.check_answers()


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), budget=st.sampled_from([1024, 1500, 2048, 4000]), does_fail=st.booleans())
def test_with_little_memory_everybody_gets_the_same_tokens(seed: int, budget: int, does_fail: bool) -> None:
    """Random prompts, lengths, settings, arrivals, aborts and failures; the books are checked after every step."""
    draw = random.Random(seed)
    numbers = [draw.randrange(60) for _ in range(3)] if does_fail else []
    stepper = Stepper(
        model=letters_and_ends,
        max_model_len=1000,
        kv_budget_tokens=budget,
        before_run=failing_at(*numbers),
        max_num_seqs=draw.choice([1, 3, 8, 128]),
        max_num_batched_tokens=draw.choice([16, 100, 1024]),
        decode_token_budget=draw.choice([1, 30, 256]),
    )
    todo = [
        make_request(
            i,
            draw.choice([1, 5, 60, 200, 255, 256, 257, 500, 600, 990]) + draw.randrange(9),
            max_tokens=draw.choice([1, 3, 40, 120, None]),
            ignore_eos=draw.random() < 0.2,
            prompt_logprobs=draw.choice([None, None, 0, 2]),
        )
        for i in range(draw.randrange(1, 12))
    ]
    aborted = set[int]()
    for _ in range(20_000):
        while todo and draw.random() < 0.3:
            stepper.add(todo.pop())
        plan = stepper.schedule()
        if stepper.requests and draw.random() < 0.02:
            victim = draw.choice(list(stepper.requests))
            if victim not in stepper.ends:
                aborted.add(victim)
            stepper.abort(victim)
        if plan is not None:
            stepper.finish(plan)
        elif not todo:
            break
    stepper.check_idle()
    for request_id in stepper.requests:
        expected, reason = alone(stepper.requests[request_id], letters_and_ends, max_model_len=1000)
        if request_id in aborted:
            assert request_id not in stepper.ends
        elif stepper.ends[request_id] != "StepError" or not does_fail:
            assert (stepper.tokens[request_id], stepper.ends[request_id]) == (expected, reason)
            stepper.check_scores(request_id)
        assert stepper.tokens[request_id] == expected[: len(stepper.tokens[request_id])]


# -- scores of prompts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [1, 2, 255, 256, 257, 258, 700])
def test_each_prompt_token_but_the_first_is_scored_once(num_tokens: int) -> None:
    stepper = Stepper(max_num_batched_tokens=1000)
    stepper.add(make_request(0, num_tokens, prompt_logprobs=3), make_request(1, 300), make_request(2, 300))
    plans = stepper.run()
    stepper.check_answers()
    for request_id in range(3):
        stepper.check_scores(request_id)
    assert all(sum(len(s.scored_token_ids) for s in plan.scheduled) <= 256 for plan in plans)


def test_prompts_to_score_share_what_a_step_may_score_and_hold_nobody_up() -> None:
    stepper = Stepper(max_num_batched_tokens=2000)
    stepper.add(*(make_request(i, 500, prompt_logprobs=1, max_tokens=1) for i in range(3)))
    stepper.add(make_request(3, 400, max_tokens=1))
    assert len(stepper.run_until(lambda: 3 in stepper.ends)) == 1
    stepper.run()
    for request_id in range(4):
        stepper.check_scores(request_id)


def test_a_preempted_prompt_is_not_scored_again() -> None:
    stepper = Stepper(max_model_len=1024, kv_budget_tokens=1024, max_num_batched_tokens=300)
    stepper.add(make_request(0, 250, max_tokens=100), make_request(1, 500, prompt_logprobs=0, max_tokens=30))
    plans = stepper.run()
    assert sum(s.start == 0 for plan in plans for s in plan.scheduled) > 2, "nobody was preempted"
    stepper.check_answers()
    stepper.check_scores(1)


# -- fairness ----------------------------------------------------------------------------------------------------------


def test_a_short_prompt_is_not_stuck_behind_a_long_one() -> None:
    stepper = Stepper(max_num_batched_tokens=100)
    stepper.add(make_request(0, 4000, max_tokens=1), make_request(1, 50, max_tokens=1))
    assert len(stepper.run_until(lambda: 1 in stepper.ends)) == 1


@pytest.mark.parametrize("shorts_per_step", [1, 3])
@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 5])
def test_a_long_prompt_gets_done_under_a_steady_flow_of_short_ones(
    shorts_per_step: int, comes_first: bool, max_tokens: int
) -> None:
    stepper = Stepper(model=nearby, max_num_batched_tokens=64, decode_token_budget=64, max_num_waiting=10_000)
    long = make_request(0, 1000, max_tokens=1)
    if comes_first:
        stepper.add(long)
    ids = iter(range(1, 10_000))
    for number in range(150):
        stepper.add(*(make_request(next(ids), 40, max_tokens=max_tokens) for _ in range(shorts_per_step)))
        if number == 5 and not comes_first:
            stepper.add(long)
        stepper.step()
    assert 0 in stepper.ends
    assert any(stepper.ends.get(i) for i in range(100, 400) if i in stepper.requests)


def test_who_came_first_is_not_kept_waiting_by_prompts_that_are_under_way() -> None:
    """The flow never leaves a step in which no short prompt is half done."""
    stepper = Stepper(model=nearby, max_num_batched_tokens=256, max_num_waiting=10_000)
    stepper.add(*(make_request(i, 251, max_tokens=1) for i in range(1, 6)))
    stepper.step()
    stepper.add(make_request(0, 1000, max_tokens=1))
    for i in range(6, 36):
        stepper.add(make_request(2 * i, 251, max_tokens=1), make_request(2 * i + 1, 251, max_tokens=1))
        stepper.step()
    assert 0 in stepper.ends


def test_a_long_prompt_gets_its_memory_under_a_steady_flow_of_short_ones() -> None:
    stepper = Stepper(model=nearby, max_model_len=1024, kv_budget_tokens=1024, max_num_waiting=10_000)
    stepper.add(*(make_request(i, 40, max_tokens=20) for i in range(1, 5)))
    stepper.step()
    stepper.add(make_request(0, 1000, max_tokens=1))
    for i in range(5, 105):
        stepper.add(make_request(i, 40, max_tokens=20))
        stepper.step()
    assert 0 in stepper.ends


DECODE_S, PREFILL_TOKEN_S = 0.010, 0.0002


def linear_s(plan: StepPlan) -> float:
    return DECODE_S + PREFILL_TOKEN_S * sum(len(s.token_ids) for s in plan.scheduled if not s.is_decode)


def test_a_step_with_prefill_stays_under_the_slowdown_bound() -> None:
    stepper = Stepper(model=nearby, step_s=linear_s)
    stepper.add(*(make_request(i, 100, max_tokens=400) for i in range(4)))
    stepper.run_until(lambda: all(len(stepper.tokens[i]) > 10 for i in range(4)))
    stepper.add(make_request(4, 4000, max_tokens=1))
    mixed = stepper.run_until(lambda: 4 in stepper.ends)
    assert all(tokens_of(plan, i) == 1 for plan in mixed for i in range(4))
    slowdowns = sorted(linear_s(plan) / DECODE_S for plan in mixed)
    assert slowdowns[int(0.99 * len(slowdowns)) - 1] < 3
    assert sum(slowdowns) / len(slowdowns) > 1.8  # and what is allowed is used


def test_a_prompt_gets_on_even_where_prefill_is_far_too_slow() -> None:
    stepper = Stepper(step_s=lambda plan: 0.001 + sum(len(s.token_ids) for s in plan.scheduled if not s.is_decode))
    stepper.add(make_request(0, 100, max_tokens=300))
    stepper.run_until(lambda: stepper.tokens[0])
    stepper.add(make_request(1, 320, max_tokens=1))
    plans = stepper.run_until(lambda: 1 in stepper.ends)
    assert [tokens_of(plan, 1) for plan in plans][2:6] == [MIN_PREFILL_TOKENS] * 4


def test_without_decodes_the_pace_does_not_hold_prefill_back() -> None:
    stepper = Stepper(step_s=lambda plan: 1.0, max_num_batched_tokens=500)
    stepper.add(make_request(0, 2000, max_tokens=1))
    assert [plan.num_tokens for plan in stepper.run()] == [500] * 4


def test_the_model_itself_answers_letters() -> None:
    assert bytes(alone(make_request(0, max_tokens=200), letters)[0]).decode().replace(" ", "a").islower()
