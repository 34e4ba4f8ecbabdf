"""Which turns of a conversation go when it does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from anllm.server.responses.truncation import longest_that_fits

Conversation = list[dict[str, Any]]
CHAT = [("system", "s"), ("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4"), ("user", "5")]
AGENT = [
    ("system", "s"),
    ("user", "old"),
    ("assistant", "said"),
    ("user", "do"),
    ("assistant", "call1"),
    ("tool", "out1"),
    ("assistant", "call2"),
    ("tool", "out2"),
    ("tool", "out2b"),
    ("assistant", "call3"),
    ("tool", "out3"),
]


def conversation(turns: list[tuple[str, str]]) -> Conversation:
    return [{"role": role, "content": text} for role, text in turns]


def kept(turns: list[tuple[str, str]], most: int) -> list[str] | None:
    """The texts of what is left if so many messages fit."""
    found = longest_that_fits(conversation(turns), lambda messages: len(messages) <= most)
    return None if found is None else [str(message["content"]) for message in found]


@pytest.mark.parametrize(
    ("most", "left"),
    [
        (9, ["s", "1", "2", "3", "4", "5"]),
        (6, ["s", "1", "2", "3", "4", "5"]),
        (5, ["s", "3", "4", "5"]),
        (4, ["s", "3", "4", "5"]),
        (3, ["s", "5"]),
        (2, ["s", "5"]),
        (1, None),
    ],
)
def test_the_oldest_turns_go_and_instructions_stay(most: int, left: list[str] | None):
    assert kept(CHAT, most) == left


@pytest.mark.parametrize(
    ("most", "left"),
    [
        (10, ["s", "do", "call1", "out1", "call2", "out2", "out2b", "call3", "out3"]),
        (8, ["s", "do", "call2", "out2", "out2b", "call3", "out3"]),
        (6, ["s", "do", "call3", "out3"]),
        (3, None),
    ],
)
def test_in_the_work_on_one_task_the_oldest_calls_go_with_their_results(most: int, left: list[str] | None):
    assert kept(AGENT, most) == left


def test_instructions_in_the_middle_stay():
    turns = [("user", "1"), ("developer", "d"), ("assistant", "2"), ("user", "3")]
    assert kept(turns, 2) == ["d", "3"]


def test_a_single_message_can_only_fit_or_not():
    assert kept([("user", "1")], 1) == ["1"] and kept([("user", "1")], 0) is None
    assert kept([("system", "s")], 0) is None


def test_few_lengths_are_tried():
    turns = [("user", str(number)) for number in range(1000)]
    asked = []

    def fits(messages: Any) -> bool:
        asked.append(len(messages))
        return len(messages) <= 7

    found = longest_that_fits(conversation(turns), fits)
    assert found is not None and len(found) == 7 and len(asked) <= 12
