"""The last minute: sums, and percentiles of times, for a person who looks now."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SLICE_S = 5.0
NUM_SLICES = 12
WIDTH = math.log(1.05)  # of a bucket of times, so that a percentile is known to 2.5 %
LEAST_S = 1e-6


@dataclass(slots=True)
class _Slice:
    number: int
    sums: Counter[str] = field(default_factory=Counter)
    times: dict[str, Counter[int]] = field(default_factory=dict)


class Recent:
    """Of the last 55 to 60 seconds; names are the caller's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun_s = clock()
        self._slices: list[_Slice] = []

    def add(self, name: str, amount: int, now_s: float) -> None:
        self._slice(now_s).sums[name] += amount

    def observe(self, name: str, seconds: float, count: int, now_s: float) -> None:
        bucket = math.ceil(math.log(max(seconds, LEAST_S)) / WIDTH)
        self._slice(now_s).times.setdefault(name, Counter())[bucket] += count

    def total(self, name: str) -> int:
        return sum(s.sums[name] for s in self._current())

    def per_second(self, name: str) -> float:
        now_s = self._clock()
        begun_s = max(self._begun_s, (now_s // SLICE_S - NUM_SLICES + 1) * SLICE_S)
        return self.total(name) / max(now_s - begun_s, 1.0)

    def percentile(self, name: str, percent: float) -> float | None:
        """In seconds; None where there is nothing."""
        counts = sum((s.times.get(name, Counter()) for s in self._current()), Counter[int]())
        left = math.ceil(counts.total() * percent / 100)
        for bucket in sorted(counts):
            left -= counts[bucket]
            if left <= 0:
                return math.exp((bucket - 0.5) * WIDTH)
        return None

    def _slice(self, now_s: float) -> _Slice:
        number = int(now_s // SLICE_S)
        if not self._slices or self._slices[-1].number != number:
            self._slices = [*self._slices[1 - NUM_SLICES :], _Slice(number)]
        return self._slices[-1]

    def _current(self) -> Iterator[_Slice]:
        oldest = self._clock() // SLICE_S - NUM_SLICES + 1
        return (s for s in self._slices if s.number >= oldest)
