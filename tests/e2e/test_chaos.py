"""Everything at once, under 64 streams: an engine that is killed and stopped, steps that raise or give no numbers,
clients that leave. CHAOS_SECONDS says for how long (`make chaos`).

What must hold: every request ends, in a result or an error of the documented form; answers that came whole are those of
an undisturbed server; and afterwards nothing is left: no running request, no process, no descriptor, no file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from anllm.text.tokenizer import load_tokenizer
from chaos_server import model
from e2e.reference import model_folder
from e2e.servers import RunningServer
from processes import num_descriptors

pytestmark = [pytest.mark.real_model, pytest.mark.mlx]

SECONDS = float(os.environ.get("CHAOS_SECONDS", "50"))
NUM_STREAMS = 64
NUM_PROMPTS = 40
LEAVES = 0.3  # share of requests whose client goes before the end
LIMIT_S = 60.0  # for any request; a stopped engine is noticed after 15 seconds
# An engine that was ready for a minute has all its restarts before it again.
KILLS = ((8.0, signal.SIGKILL), (18.0, signal.SIGSTOP), (80.0, signal.SIGKILL), (150.0, signal.SIGSTOP))
PERIOD_S = 220.0
ERRORS = {"server_error", "invalid_request_error", "requests", "timeout"}


class Traffic:
    """Clients that ask without end, in one event loop."""

    def __init__(self, url: str, expected: dict[int, str]) -> None:
        self.outcomes = Counter[str]()
        self.faults: list[str] = []
        self._expected = expected
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=NUM_STREAMS)
        self._http = httpx.AsyncClient(base_url=url, timeout=LIMIT_S, limits=limits)
        self._ends = asyncio.Event()

    async def run(self, seconds: float) -> None:
        async with self._http:
            clients = [asyncio.create_task(self._client(i)) for i in range(NUM_STREAMS)]
            await asyncio.sleep(seconds)
            self._ends.set()
            await asyncio.gather(*clients)

    async def _client(self, number: int) -> None:
        draw = random.Random(number)
        while not self._ends.is_set():
            started_s = time.monotonic()
            try:
                outcome = await asyncio.wait_for(self._ask(draw), LIMIT_S)
            except TimeoutError:
                outcome = "never ended"
                self.faults.append(f"a request took more than {time.monotonic() - started_s:.0f} s")
            except httpx.TransportError as error:
                outcome = "connection lost"
                self.faults.append(repr(error))
            self.outcomes[outcome] += 1
            if outcome in ("503", "429"):
                await asyncio.sleep(0.2 + draw.random() / 5)

    async def _ask(self, draw: random.Random) -> str:
        kind = draw.randrange(NUM_PROMPTS)
        body = {**request(kind), "stream": draw.random() < 0.6}
        leaves = draw.random() < LEAVES
        if body["stream"]:
            return await self._stream(body, kind, draw.randrange(1, 40) if leaves else None)
        if leaves:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._http.post("/v1/completions", json=body), draw.random() / 2)
            return "left"
        response = await self._http.post("/v1/completions", json=body)
        if response.status_code != 200:
            return self._error(response.status_code, response.json())
        return self._whole(kind, response.json()["choices"][0]["text"])

    async def _stream(self, body: dict[str, Any], kind: int, leaves_after: int | None) -> str:
        text, last, error = "", "", None
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                return self._error(response.status_code, json.loads(await response.aread()))
            num_events = 0
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                last = line.removeprefix("data: ")
                num_events += 1
                if num_events == leaves_after:
                    return "left"
                if last != "[DONE]":
                    event = json.loads(last)
                    error = event.get("error", error)
                    text += "".join(choice["text"] for choice in event.get("choices", ()))
        if last != "[DONE]":
            self.faults.append("a stream ended without [DONE]")
        if error is not None:
            return self._error(500, {"error": error}, where="in a stream")
        return self._whole(kind, text)

    def _whole(self, kind: int, text: str) -> str:
        if text != self._expected[kind]:
            self.faults.append(f"another answer to prompt {kind}: {text!r} for {self._expected[kind]!r}")
        return "whole"

    def _error(self, status: int, answer: dict[str, Any], where: str = "") -> str:
        error = answer.get("error", {})
        if status not in (429, 500, 503) or error.get("type") not in ERRORS or not error.get("message"):
            self.faults.append(f"{status} {answer}")
        return f"{status} {where}".strip()


def request(kind: int) -> dict[str, Any]:
    prompt = f"Number {kind}: " + "so it goes on, " * (kind * 3)
    return {"model": "m", "prompt": prompt, "max_tokens": 10 + 3 * kind, "temperature": 0, "ignore_eos": True}


def undisturbed(kind: int) -> str:
    """The text of the fake model's answer, worked out here."""
    tokenizer = load_tokenizer(model_folder())
    body = request(kind)
    token_ids = list(tokenizer.encode(body["prompt"], add_special_tokens=True))
    answer = []
    for _ in range(body["max_tokens"]):
        answer.append(model(tuple(token_ids + answer)))
    return tokenizer.decode(answer)


async def trouble(server: RunningServer, seconds: float) -> list[str]:
    """Kill and stop the engine at set times, as far as there is one."""
    done = []
    started_s = time.monotonic()
    for round_number in range(int(seconds // PERIOD_S) + 1):
        for at_s, number in KILLS:
            at_s += round_number * PERIOD_S
            if at_s > seconds - 20:
                return done
            await asyncio.sleep(max(started_s + at_s - time.monotonic(), 0))
            os.kill(server.engine_pid(), number)
            done.append(number.name)
    return done


@pytest.mark.skipif(sys.platform != "linux", reason="counts what a process holds in /proc")
@pytest.mark.timeout(SECONDS + 240)
# A client that leaves while it connects loses its socket in asyncio itself.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_request_ends_and_nothing_is_left(tmp_path: Path) -> None:
    expected = {kind: undisturbed(kind) for kind in range(NUM_PROMPTS)}
    temporary = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # short, for the name of a socket
    script = Path(__file__).parents[1] / "chaos_server.py"
    server = RunningServer(tmp_path, program=[sys.executable, str(script), str(model_folder())], TMPDIR=str(temporary))
    with server:
        server.wait_for(200)
        warm_up(server)
        before = num_descriptors(server.process.pid)
        num_children = len(server.children())
        traffic = Traffic(server.url, expected)

        async def run() -> list[str]:
            _, done = await asyncio.gather(traffic.run(SECONDS), trouble(server, SECONDS))
            return done

        done = asyncio.run(run())
        report = f"{sum(traffic.outcomes.values())} requests: {dict(traffic.outcomes)}; the engine got {done}"
        sys.stderr.write(f"\n{report}\n")
        assert traffic.faults == []
        assert traffic.outcomes["whole"] > 100
        assert traffic.outcomes["500"] + traffic.outcomes["500 in a stream"] > 0
        assert len(done) >= 2
        server.wait_for(200)
        settle(server, before)
        assert len(server.children()) == num_children
        assert len(list(temporary.iterdir())) == 1, "the folder of the engine's socket, and no other"
    assert server.process.returncode == 0
    assert list(temporary.iterdir()) == []
    temporary.rmdir()
    assert server.log.count("Traceback") == server.log.count("RuntimeError: chaos") + server.log.count(
        "EngineBrokenError:"
    )


def warm_up(server: RunningServer) -> None:
    for kind in range(3):
        while (answer := httpx.post(f"{server.url}/v1/completions", json=request(kind), timeout=30)).status_code != 200:
            assert answer.status_code == 500, answer.text


def settle(server: RunningServer, num_before: int) -> None:
    """Nothing runs, and descriptors are as many as before."""
    deadline = time.monotonic() + 60
    while True:
        queue = server.get("/v1/status").json()["queue"]
        now = num_descriptors(server.process.pid)
        if queue == {"requests": 0, "running": 0, "waiting": 0} and now <= num_before:
            return
        assert time.monotonic() < deadline, f"left over: {queue}, {now} descriptors for {num_before}"
        time.sleep(0.2)
