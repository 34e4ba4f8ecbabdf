"""200 readers that take nothing, or a few bytes now and then, of long streams: the others don't notice, each costs
little, and who takes nothing for the write timeout is given up."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from anllm.config import SchedulerConfig, ServerConfig
from fake_process import FakeProcess
from fake_server import text_alone
from processes import num_descriptors, resident_bytes
from server_harness import chat_body, chunks, joined
from stepping import nearby

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="processes are looked at in /proc")

CHAT = "/v1/chat/completions"
NUM_READERS = 200
SLOW = chat_body(stream=True, max_tokens=2000)
FAST = chat_body(stream=True, max_tokens=100)
MAX_BYTES_EACH = 200_000  # 16 kB in the kernel are not in here; connection, task, text that waits, and one write are
LIMITS = ServerConfig(write_timeout_s=8.0)


@contextmanager
def readers_of_long_streams(server: FakeProcess, *, are_slow: bool) -> Iterator[list[socket.socket]]:
    """Slow: each second one reads four bytes at a time, four times a second; the others nothing."""
    content = json.dumps(SLOW).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    )
    ends = threading.Event()
    with ExitStack() as stack:
        readers = [stack.enter_context(server.connect(receive_buffer_bytes=4096)) for _ in range(NUM_READERS)]
        for reader in readers:
            reader.sendall(f"{head}\r\n\r\n".encode() + content)

        def read() -> None:
            while not ends.wait(0.25 if are_slow else 0.01):
                for reader in readers[::2] if are_slow else readers:
                    with suppress(OSError):  # nothing there, or given up
                        reader.recv(4 if are_slow else 1 << 16, socket.MSG_DONTWAIT)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield readers
        finally:
            ends.set()
            thread.join()


def ask(server: FakeProcess) -> float:
    """Seconds that one quick answer took, all of it and right."""
    started_s = time.monotonic()
    response = httpx.post(server.url + CHAT, json=FAST, timeout=60)
    assert joined(chunks(response.text)) == text_alone(FAST, nearby)[0]
    return time.monotonic() - started_s


def until(condition: Callable[[], object], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.1)


def until_gone(server: FakeProcess, num_descriptors_before: int) -> None:
    until(lambda: not server.num_connections(), 60)
    until(lambda: num_descriptors(server.process.pid) <= num_descriptors_before, 60)


@pytest.mark.timeout(400)
def test_slow_readers_cost_little_hold_up_nobody_and_are_given_up(tmp_path: Path) -> None:
    config = SchedulerConfig(max_num_seqs=NUM_READERS + 8)
    with FakeProcess(tmp_path, LIMITS, config, step_s=0.002) as server:
        with readers_of_long_streams(server, are_slow=False):  # what is made once, and stays, is made then too
            until(lambda: server.num_connections() >= NUM_READERS, 60)
            usual_s = sorted(ask(server) for _ in range(6))[3]
        until(lambda: not server.num_connections(), 60)
        num_before, before_bytes = num_descriptors(server.process.pid), resident_bytes(server.process.pid)
        most_bytes, times_s = 0, []
        with readers_of_long_streams(server, are_slow=True) as readers:
            until(lambda: server.num_connections() >= NUM_READERS, 60)
            while server.num_connections() >= NUM_READERS:
                times_s.append(ask(server))
                most_bytes = max(most_bytes, resident_bytes(server.process.pid) - before_bytes)
            until_gone(server, num_before)
            left_bytes = resident_bytes(server.process.pid) - before_bytes
            assert readers[1].recv(1000).startswith(b"HTTP/1.1 200 ")  # what came before that is good
        beside_s = sorted(times_s)[len(times_s) // 2]
        each = f"{most_bytes / NUM_READERS / 1e3:.0f} kB each at most, {left_bytes / 1e6:.0f} MB after"
        told = f"{each}; an answer beside them took {beside_s:.2f} s, beside quick ones {usual_s:.2f} s"
        print(f"\n{NUM_READERS} slow readers: {told}")  # noqa: T201 - shown with -s
        assert most_bytes < NUM_READERS * MAX_BYTES_EACH
        assert left_bytes < 16e6
        assert "Traceback" not in server.log, server.log[-3000:]
