"""A histogram as Prometheus has it, that takes many equal values at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """bounds: ascending, each the highest value that its bucket takes. What is above the last one is counted too."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """(bound, how many values were not above it), the last bound being infinite."""
        total, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return buckets


def one_two_five(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 and so on, as far as `most`."""
    bounds: list[int] = []
    power = 1
    while power <= most:
        bounds += [factor * power for factor in (1, 2, 5) if factor * power <= most]
        power *= 10
    return bounds
