"""Whose turn it is: priority, ageing, and clients with equal shares."""

from collections import Counter
from dataclasses import replace

import pytest

from anllm.core.sequence import Sequence
from anllm.scheduler.waiting import PRIORITY_S, WaitingQueue, order_of
from stepping import Stepper, make_request, nearby


def sequence(number: int, client: str = "", arrival_s: float = 0.0, priority: int = 0) -> Sequence:
    request = replace(make_request(number, priority=priority), client=client, arrival_time_s=arrival_s)
    return Sequence(request, order_of(request, number), 8)


def queue(*sequences: Sequence) -> WaitingQueue:
    waiting = WaitingQueue()
    for one in sequences:
        waiting.add(one)
        waiting.check_integrity()
    return waiting


def ids(sequences: list[Sequence]) -> list[int]:
    return [one.request_id for one in sequences]


def test_by_arrival_and_a_lower_priority_value_first() -> None:
    waiting = queue(*(sequence(i, priority=p) for i, p in enumerate([0, 1, -1, 0, 5, -1])))
    assert ids(waiting.first(10, Counter())) == [2, 5, 0, 3, 1, 4]
    assert ids(waiting.first(2, Counter())) == [2, 5]
    assert len(waiting) == 6


def test_waiting_makes_up_for_priority() -> None:
    old = sequence(0, arrival_s=0.0, priority=3)
    just = [sequence(i, arrival_s=seconds) for i, seconds in ((1, 3 * PRIORITY_S - 1), (2, 3 * PRIORITY_S + 1))]
    assert ids(queue(old, *just).first(3, Counter())) == [1, 0, 2]


def test_clients_take_turns_however_much_one_of_them_sends() -> None:
    waiting = queue(*(sequence(i, "many") for i in range(100)), sequence(100, "few"), sequence(101, "few"))
    assert ids(waiting.first(6, Counter())) == [0, 100, 1, 101, 2, 3]
    assert ids(waiting.first(4, Counter(many=3))) == [100, 101, 0, 1]
    assert ids(waiting.first(4, Counter(few=2))) == [0, 1, 2, 100]


def test_within_a_client_priority_counts_and_not_between_them() -> None:
    waiting = queue(sequence(0, "a", priority=-9), sequence(1, "a", priority=-10), sequence(2, "b", priority=9))
    assert ids(waiting.first(3, Counter())) == [1, 2, 0]


def test_a_sequence_that_does_not_wait_cant_be_removed() -> None:
    waiting = queue(sequence(0), sequence(1))
    one = next(iter(waiting))
    waiting.remove(one)
    with pytest.raises(ValueError, match="does not wait"):
        waiting.remove(one)
    assert len(waiting) == 1


def test_the_scheduler_admits_by_priority() -> None:
    stepper = Stepper(max_num_seqs=1)
    stepper.add(*(make_request(i, priority=p, max_tokens=2) for i, p in enumerate([0, 2, 1, -1])))
    stepper.run()
    assert list(stepper.ends) == [3, 0, 2, 1]
    stepper.check_answers()


def test_when_memory_is_used_up_the_lowest_priority_gives_way() -> None:
    stepper = Stepper(model=nearby, max_model_len=1024, kv_budget_tokens=1024 + 512)
    stepper.add(make_request(0, 200, max_tokens=700, priority=1), make_request(1, 200, max_tokens=700))
    stepper.run()
    assert list(stepper.ends) == [1, 0]
    stepper.check_answers()


def test_nobody_starves_behind_a_steady_flow_of_higher_priority() -> None:
    stepper = Stepper(model=nearby, max_num_seqs=1, step_s=lambda plan: 1.0)
    stepper.add(make_request(0, priority=2, max_tokens=1))
    for i in range(1, 60):
        stepper.add(replace(make_request(i, max_tokens=1), arrival_time_s=stepper.clock()))
        stepper.step()
        if 0 in stepper.ends:
            break
    assert stepper.clock() == pytest.approx(2 * PRIORITY_S, abs=3)


def test_a_client_that_sends_little_is_not_stuck_behind_one_that_sends_much() -> None:
    stepper = Stepper(model=nearby, max_num_seqs=4)
    stepper.add(*(replace(make_request(i, max_tokens=5), client="much") for i in range(50)))
    stepper.step()
    stepper.add(replace(make_request(50, max_tokens=5), client="little"))
    stepper.run_until(lambda: 50 in stepper.ends)
    assert len(stepper.ends) <= 9
    stepper.run()
    stepper.check_answers()
