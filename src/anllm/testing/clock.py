"""A clock that moves only when told to."""

from __future__ import annotations


class FakeClock:
    """Call it for the time in seconds, as time.monotonic."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
