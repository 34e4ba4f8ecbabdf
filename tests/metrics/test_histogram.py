"""Counts by bucket, as Prometheus has them."""

import math

from anllm.metrics.histogram import Histogram, one_two_five


def test_a_value_at_a_bound_is_in_its_bucket() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 5.1, 100):
        histogram.observe(value)
    assert histogram.buckets() == [(1, 2), (2, 4), (5, 5), (math.inf, 7)]
    assert (histogram.count, histogram.sum) == (7, 114.6)


def test_equal_values_are_taken_together() -> None:
    once, many = Histogram((1, 2)), Histogram((1, 2))
    for _ in range(3):
        many.observe(1.5)
    once.observe(1.5, 3)
    once.observe(9.0, 0)
    assert (once.buckets(), once.sum) == (many.buckets(), many.sum)


def test_bounds_for_tokens_go_as_far_as_told() -> None:
    assert one_two_five(100) == [1, 2, 5, 10, 20, 50, 100]
    assert one_two_five(4096)[-3:] == [500, 1000, 2000]
    assert one_two_five(0) == []
