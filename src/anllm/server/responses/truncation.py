"""Shorter forms of a conversation that does not fit: for `truncation: "auto"`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

M = TypeVar("M", bound=Mapping[str, object])
_ALWAYS_KEPT = ("system", "developer")


@dataclass(frozen=True, slots=True)
class _Cut:
    """Everything before `start` is left out, but for instructions and, if there is one, the message `kept`."""

    start: int
    kept: int | None = None


def longest_that_fits(messages: Sequence[M], fits: Callable[[Sequence[M]], bool]) -> Sequence[M] | None:
    """The conversation without its oldest turns, as few as are enough; None if not even the last one fits.

    A turn goes as a whole, and a call never without its result. If the last message of the user alone is too long with
    all that came after it, the oldest answers and calls after it go. What is asked about at last, and instructions,
    always stay. fits is asked a number of times that grows with the logarithm of their number.
    """
    if fits(messages):
        return messages
    cuts = _cuts(messages)
    low, high = 0, len(cuts)  # cuts before low are too long; the first that fits is at most high
    while low < high:
        middle = (low + high) // 2
        if fits(_shortened(messages, cuts[middle])):
            high = middle
        else:
            low = middle + 1
    return _shortened(messages, cuts[low]) if low < len(cuts) else None


def _cuts(messages: Sequence[Mapping[str, object]]) -> list[_Cut]:
    """From the longest conversation to the shortest."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    cuts = [_Cut(index) for index in users[1:]]
    if not users:
        return cuts
    last = users[-1]
    answers = [index for index in range(last + 1, len(messages)) if messages[index]["role"] == "assistant"]
    return [*cuts, *(_Cut(index, kept=last) for index in answers[1:])]


def _shortened(messages: Sequence[M], cut: _Cut) -> list[M]:
    return [
        message
        for index, message in enumerate(messages)
        if index >= cut.start or index == cut.kept or message["role"] in _ALWAYS_KEPT
    ]
