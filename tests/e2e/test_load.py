"""Many clients at once. A few seconds of it by default; `make load` takes the whole: 1,000 connections to a fake model,
and 64 to the real one for LOAD_MINUTES."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.crowd import Outcome, crowd, health
from e2e.servers import RunningServer
from fake_process import FakeProcess
from processes import num_descriptors
from server_harness import chat_body

MINUTES = os.environ.get("LOAD_MINUTES")
NUM_CONNECTIONS, FAKE_SECONDS = (1000, 60.0) if MINUTES else (200, 5.0)
NUM_REAL, MAX_TOKENS = (64, 64) if MINUTES else (16, 16)
REAL_SECONDS = 60 * float(MINUTES or 0.1)
HEALTH_P99_S = 0.25
STEP_S = 0.02  # of an 8B model on a GPU, or so
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="processes are looked at in /proc")


@contextmanager
def processes(number: int) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.3] * number))  # all of them are there
        yield pool


def told(outcome: Outcome, seconds: float, times_s: list[float]) -> str:
    ordered = sorted(times_s)
    p50, p99, most = (1000 * ordered[int(len(ordered) * share)] for share in (0.5, 0.99, 0.9999))
    return (
        f"{outcome.num_open_at_once} connections, {outcome.num_answers} answers in {seconds:.0f} s, of which "
        f"{outcome.num_streamed} streamed; {outcome.num_refused} times 429, {len(outcome.errors)} errors; "
        f"/health: p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {most:.0f} ms"
    )


def p99_s(times_s: list[float]) -> float:
    return sorted(times_s)[int(len(times_s) * 0.99)]


def until_back(pid: int, num_before: int) -> None:
    """Descriptors are those of before."""
    deadline = time.monotonic() + 60
    while num_descriptors(pid) > num_before:
        assert time.monotonic() < deadline, f"{num_descriptors(pid)} descriptors, before {num_before}"
        time.sleep(0.1)


def bodies(**fields: Any) -> list[dict[str, Any]]:
    return [
        chat_body(
            messages=[{"role": "user", "content": f"{i} " + "word " * (i * 7 % 60)}],
            max_tokens=4 + i % (MAX_TOKENS - 4),
            **fields,
        )
        for i in range(60)
    ]


@pytest.mark.timeout(int(FAKE_SECONDS + 400))
def test_many_connections_to_a_fake_model(tmp_path: Path) -> None:
    with FakeProcess(tmp_path, step_s=STEP_S) as server, processes(2) as pool:
        assert not pool.submit(crowd, server.port, 50, bodies(), 1).result().errors
        num_before = num_descriptors(server.process.pid)
        asked = pool.submit(crowd, server.port, NUM_CONNECTIONS, bodies(), FAKE_SECONDS)
        times_s = pool.submit(health, server.port, FAKE_SECONDS).result()
        outcome = asked.result()
        print("\n" + told(outcome, FAKE_SECONDS, times_s))  # noqa: T201 - shown with -s
        assert not outcome.errors, outcome.errors[:3]
        assert outcome.num_open_at_once == NUM_CONNECTIONS
        assert outcome.num_answers > NUM_CONNECTIONS / 2
        assert p99_s(times_s) < HEALTH_P99_S or not MINUTES  # a question of speed, which other tests beside disturb
        until_back(server.process.pid, num_before)


@pytest.mark.real_model
@pytest.mark.mlx
@pytest.mark.timeout(int(REAL_SECONDS + 700))
def test_connections_to_a_real_model(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core", reason="MLX has no backend here")
    limits = ("--kv-memory", "128M", "--max-model-len", "1024", "--log-level", "warning")
    with RunningServer(tmp_path, *limits) as server, processes(2) as pool:
        server.wait_for(200)
        asked = bodies(model="SmolLM2-135M-Instruct")
        warm_up_s = min(60.0, REAL_SECONDS / 2)  # until the prefix cache has filled its memory
        assert not pool.submit(crowd, server.port, NUM_REAL, asked, warm_up_s).result().errors
        pids = (server.process.pid, server.engine_pid())
        before = [(num_descriptors(pid), used) for pid, used in zip(pids, server.used_bytes(), strict=True)]
        answers = pool.submit(crowd, server.port, NUM_REAL, asked, REAL_SECONDS)
        times_s = pool.submit(health, server.port, REAL_SECONDS).result()
        outcome = answers.result()
        after = server.used_bytes()
        grown = [
            f"{bytes_before / 1e6:.1f} -> {now / 1e6:.1f} MB"
            for now, (_, bytes_before) in zip(after, before, strict=True)
        ]
        print(f"\n{told(outcome, REAL_SECONDS, times_s)}; API process, engine: {grown}")  # noqa: T201 - shown with -s
        assert not outcome.errors, outcome.errors[:3]
        assert outcome.num_refused == 0 and outcome.num_answers >= NUM_REAL
        for pid, now, (num_before, bytes_before) in zip(pids, after, before, strict=True):
            until_back(pid, num_before)
            if MINUTES:
                assert now <= 1.02 * bytes_before, grown
        assert server.get("/health").status_code == 200
