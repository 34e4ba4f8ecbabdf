"""Memory under a steady load: what the processes take does not grow. SOAK_SECONDS says for how long (`make soak`)."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from pathlib import Path

import httpx
import pytest

from e2e.servers import RunningServer
from exposition import Page

pytestmark = [pytest.mark.real_model, pytest.mark.mlx]

SECONDS = float(os.environ.get("SOAK_SECONDS", "45"))
WARM_UP_SECONDS = 20.0  # at least
FULL_S = 300.0  # until the prefix cache has filled its memory, at most
NUM_CLIENTS = 8
WORDS = [f"word{i}" for i in range(25)]


class Load:
    """Clients that ask without end: whole and streamed, some of them gone before the end, with prompts that share
    beginnings and such that are new."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ends = threading.Event()
        self.num_done = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(i,), daemon=True) for i in range(NUM_CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(60)

    def _ask(self, number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(timeout=120) as http:
            for turn in itertools.count():
                if self._ends.is_set():
                    return
                words = [*WORDS[: draw.randrange(len(WORDS))], f"{number} {turn}", *draw.choices(WORDS, k=20)]
                body = {
                    "model": "SmolLM2-135M-Instruct",
                    "messages": [{"role": "user", "content": " ".join(words)}],
                    "max_tokens": draw.choice([1, 4, 12, 24]),
                    "stream": turn % 2 == 0,
                }
                leaves_early = turn % 5 == 0
                with http.stream("POST", f"{self._url}/v1/chat/completions", json=body) as response:
                    if response.status_code != 200:
                        self.failures.append(response.read().decode())
                    for _ in response.iter_lines():
                        if leaves_early:
                            break
                self.num_done += 1


def until_the_cache_is_full(server: RunningServer) -> None:
    """The prefix cache has filled its memory: it gives up rows."""
    deadline = time.monotonic() + FULL_S
    while not Page(server.get("/metrics").text)("anllm:prefix_cache_evicted_rows_total"):
        assert time.monotonic() < deadline, f"no row was given up within {FULL_S:.0f} s"
        time.sleep(0.5)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of processes is read from /proc")
@pytest.mark.timeout(int(SECONDS + WARM_UP_SECONDS + FULL_S + 180))
def test_resident_memory_is_flat(tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--kv-memory", "64M", "--max-model-len", "1024", "--log-level", "warning") as server:
        server.wait_for(200)
        with Load(server.url) as load:
            time.sleep(WARM_UP_SECONDS)
            until_the_cache_is_full(server)
            before = server.used_bytes()
            num_before = load.num_done
            time.sleep(SECONDS)
            after = server.used_bytes()
        assert not load.failures
        grown = [f"{b / 1e6:.1f} -> {a / 1e6:.1f} MB" for b, a in zip(before, after, strict=True)]
        print(f"{load.num_done - num_before} requests in {SECONDS:.0f} s; API process, engine: {grown}")  # noqa: T201 - shown with -s
        assert load.num_done - num_before >= SECONDS / 5
        assert all(a <= 1.02 * b for b, a in zip(before, after, strict=True)), grown
        assert server.get("/health").status_code == 200
