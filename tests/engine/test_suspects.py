"""Which requests are blamed for the end of engines, and when they are taken again."""

import pytest

from anllm.core.request import Request
from anllm.engine.suspects import FORGOTTEN_AFTER_S, Suspects
from anllm.errors import DeadlyRequestError
from anllm.testing import FakeClock
from stepping import make_request


class Case:
    """Engines that end, with requests told by their kind: the same kind is the same prompt."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.suspects = Suspects(self.clock)
        self._id = 0

    def request(self, kind: int) -> Request:
        self._id += 1
        return make_request(self._id, prompt=(kind, 1, 2), seed=self._id)

    def end_engine(self, first: list[int], going_on: list[int], waiting: list[int], is_blamed: bool = True) -> None:
        begun = [self.request(kind) for kind in first]
        others = [self.request(kind) for kind in going_on]
        self.suspects.computing(request.request_id for request in (*begun, *others))
        for request in others:
            self.suspects.got_token(request.request_id)
        idle = [self.request(kind) for kind in waiting]
        self.suspects.died([*begun, *others, *idle], is_blamed=is_blamed)

    def refused(self, *kinds: int) -> list[int]:
        return [kind for kind in kinds if self._is_refused(kind)]

    def _is_refused(self, kind: int) -> bool:
        try:
            self.suspects.check([self.request(kind)])
        except DeadlyRequestError:
            return True
        return False


def test_the_third_time_it_is_refused_and_those_beside_it_are_not() -> None:
    case = Case()
    case.end_engine(first=[7], going_on=[1, 2], waiting=[3])
    assert case.refused(1, 2, 3, 7) == []
    case.end_engine(first=[7], going_on=[1, 2], waiting=[3])
    assert case.refused(1, 2, 3, 7) == [7]


def test_where_no_prompt_was_being_computed_those_that_went_on_are_blamed() -> None:
    case = Case()
    for _ in range(2):
        case.end_engine(first=[], going_on=[1, 2], waiting=[3])
    assert case.refused(1, 2, 3) == [1, 2]


def test_an_answer_that_came_to_its_end_clears_its_request() -> None:
    case = Case()
    case.end_engine(first=[7, 8], going_on=[], waiting=[])
    innocent = case.request(8)
    case.suspects.computing([innocent.request_id])
    case.suspects.ended(innocent.request_id, innocent)
    case.end_engine(first=[7, 8], going_on=[], waiting=[])
    assert case.refused(7, 8) == [7]


def test_an_answer_that_was_given_up_clears_nothing() -> None:
    case = Case()
    case.end_engine(first=[7], going_on=[], waiting=[])
    case.suspects.ended(case.request(7).request_id, None)
    case.end_engine(first=[7], going_on=[], waiting=[])
    assert case.refused(7) == [7]


def test_an_engine_that_was_ended_from_outside_blames_nobody() -> None:
    case = Case()
    for _ in range(5):
        case.end_engine(first=[7], going_on=[1], waiting=[], is_blamed=False)
    assert case.refused(1, 7) == []


def test_it_is_forgotten_after_a_while() -> None:
    case = Case()
    for _ in range(2):
        case.end_engine(first=[7], going_on=[], waiting=[])
    case.clock.advance(FORGOTTEN_AFTER_S - 1)
    assert case.refused(7) == [7]
    case.clock.advance(2)
    assert case.refused(7) == []
    case.end_engine(first=[7], going_on=[], waiting=[])  # the first of a new count
    assert case.refused(7) == []


def test_a_request_with_several_sequences_counts_once_for_each_end() -> None:
    case = Case()
    case.end_engine(first=[7, 7, 7], going_on=[], waiting=[])
    assert case.refused(7) == []


def test_the_message_says_what_to_do() -> None:
    case = Case()
    for _ in range(2):
        case.end_engine(first=[7], going_on=[], waiting=[])
    with pytest.raises(DeadlyRequestError) as refusal:
        case.suspects.check([case.request(1), case.request(7)])
    assert "2 times" in refusal.value.message
    assert "10 minutes" in refusal.value.message
    assert (refusal.value.status, refusal.value.code) == (400, "request_ends_engine")
