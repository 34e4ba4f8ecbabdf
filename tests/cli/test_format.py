from __future__ import annotations

import pytest

from anllm.cli.format import ago, size


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (46_080, "46 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (101_881_493, "102 MB"),
        (3_565_651_117, "3.6 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (59, "just now"),
        (60, "1 minute ago"),
        (7_300, "2 hours ago"),
        (86_400, "1 day ago"),
        (8_640_000, "100 days ago"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert ago(seconds) == text
