"""The timer of a stream's keep-alive comments, under a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from anllm.server.stream import SilenceTimer
from anllm.testing import FakeClock

SILENCE_S = 8.0


class Loop:
    """As much of an event loop as a timer needs."""

    def __init__(self) -> None:
        self.time = FakeClock(100.0)
        self._due: list[tuple[float, Callable[[], None], asyncio.Handle]] = []

    def call_at(self, when_s: float, callback: Callable[[], None]) -> asyncio.Handle:
        handle = asyncio.Handle(callback, (), self)  # type: ignore[arg-type]
        self._due.append((when_s, callback, handle))
        return handle

    def get_debug(self) -> bool:
        return False

    def pass_time(self, seconds: float) -> None:
        until_s = self.time() + seconds
        while due := [entry for entry in self._due if entry[0] <= until_s]:
            first = min(due, key=lambda entry: entry[0])
            self._due.remove(first)
            self.time.now_s = max(first[0], self.time())
            if not first[2].cancelled():
                first[1]()
        self.time.now_s = until_s


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_restarting_in_time_keeps_it_quiet(loop: Loop) -> None:
    calls: list[float] = []
    timer = SilenceTimer(SILENCE_S, lambda: calls.append(loop.time()))
    for _ in range(20):
        loop.pass_time(SILENCE_S - 1)
        timer.restart()
    timer.cancel()
    assert not calls


def test_each_silence_is_told_once_and_none_after_the_end(loop: Loop) -> None:
    calls: list[float] = []
    timer = SilenceTimer(SILENCE_S, lambda: calls.append(loop.time()))
    loop.pass_time(SILENCE_S * 2.5)
    assert calls == [108.0, 116.0]
    timer.restart()
    loop.pass_time(SILENCE_S * 1.5)
    assert calls == [108.0, 116.0, 128.0]
    timer.cancel()
    loop.pass_time(SILENCE_S * 1.5)
    assert len(calls) == 3
