"""Sums and percentiles of the last minute."""

import random

import pytest

from anllm.metrics.recent import Recent
from anllm.testing import FakeClock


def test_rates_are_over_the_time_there_was() -> None:
    clock = FakeClock()
    recent = Recent(clock)
    recent.add("x", 10, clock())
    assert recent.per_second("x") == 10.0, "less than a second counts as one"
    clock.advance(4.0)
    recent.add("x", 10, clock())
    assert recent.per_second("x") == 5.0
    clock.advance(36.0)
    assert recent.per_second("x") == 0.5


def test_what_is_older_than_a_minute_is_gone() -> None:
    clock = FakeClock()
    recent = Recent(clock)
    for _ in range(200):
        recent.add("x", 1, clock())
        recent.observe("t", 0.5, 1, clock())
        clock.advance(1.0)
    assert 55 <= recent.total("x") <= 60
    assert recent.per_second("x") == pytest.approx(1.0, abs=0.02)
    clock.advance(61.0)
    assert (recent.total("x"), recent.per_second("x"), recent.percentile("t", 50)) == (0, 0.0, None)


def test_it_stays_small() -> None:
    clock = FakeClock()
    recent = Recent(clock)
    for _ in range(10_000):
        recent.add("x", 1, clock())
        clock.advance(5.0)
    assert len(recent._slices) == 12


@pytest.mark.parametrize("percent", [1, 50, 95, 99, 100])
def test_percentiles_are_right_to_three_percent(percent: int) -> None:
    clock, rng = FakeClock(), random.Random(0)
    recent = Recent(clock)
    values = sorted(rng.lognormvariate(-4, 1) for _ in range(1000))
    for value in values:
        recent.observe("t", value, 1, clock())
        clock.advance(0.02)
    exact = values[-(-len(values) * percent // 100) - 1]
    assert recent.percentile("t", percent) == pytest.approx(exact, rel=0.03)


def test_nothing_and_no_time_at_all() -> None:
    recent = Recent(FakeClock())
    assert (recent.percentile("t", 50), recent.total("x"), recent.per_second("x")) == (None, 0, 0.0)
    recent.observe("t", 0.0, 1, 0.0)
    assert recent.percentile("t", 50) == pytest.approx(1e-6, rel=0.05)
