from __future__ import annotations

from collections.abc import Iterator

import pytest

from anllm.config import SchedulerConfig
from fake_server import RealServer, make_runner
from serving import Gate


@pytest.fixture
def server() -> Iterator[RealServer]:
    """The real server with a fake model, on a port, in a thread of this process."""
    gate = Gate()
    with RealServer(
        make_runner(before_run=gate), gate, SchedulerConfig(max_num_seqs=64, max_num_waiting=64)
    ).running() as it:
        yield it
