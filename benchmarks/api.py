"""What does the API process cost a token? The real server over an engine that costs nothing (free_engine.py).

    python benchmarks/api.py --model FOLDER --streams 1,64,128 --step-ms 20

FOLDER needs a tokenizer and a config only. Prints one JSON line a number of streams: tokens/s, CPU microseconds of the
API process a token (the figure that counts where client and server share processors), tokens a chunk (above 1 where the
reader lags), and how long it took until every stream had its first text. With --step-ms 0 the engine is as fast as it
can be. --profile FILE writes a cProfile of the API process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from environment import describe
from free_engine import STEP_MS, TOKENS
from load import Load, bodies
from servers import Running, Server, started

SERVE = """
import cProfile, logging, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from anllm.cli.console import TerminalConsole
from anllm.config import Config, LogConfig, ModelConfig, ServerConfig
from anllm.launch import serve
logging.basicConfig(level="WARNING")
config = Config(model=ModelConfig(model={model!r}), server=ServerConfig(port={{port}}), log=LogConfig(level="warning"))
def run():
    with TerminalConsole() as console:
        serve(config, console, worker="free_engine")
if {profile!r}:
    profile = cProfile.Profile()
    profile.runcall(run)
    profile.dump_stats({profile!r})
else:
    run()
"""
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":(\d+)')


class Stream(asyncio.Protocol):
    """One connection that sends requests one after the other, and reads as little of the answers as it can."""

    def __init__(self, requests: list[bytes], fields: dict[str, Any]) -> None:
        self.num_chunks = 0
        self.num_tokens = 0
        self.first_s: float | None = None
        self.error: str | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        if self.first_s is None and b'"content":' in data.replace(b'"content":""', b""):
            self.first_s = time.perf_counter()
        self.num_chunks += data.count(b"\n\ndata: ") + data.count(b"\ndata: {", 0, 12)
        self._tail = (self._tail + data)[-4096:]
        if self._tail.endswith(b"0\r\n\r\n"):
            found = _COMPLETION_TOKENS.search(self._tail)
            self.num_tokens += int(found[1]) if found else 0
            if found is None or b"[DONE]" not in self._tail:
                self.error = repr(self._tail[-500:])
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.error = f"connection lost: {error!r}"
            self.done.set_result(None)

    def _next(self) -> None:
        self._tail = b""
        if self._requests:
            self._transport.write(self._requests.pop())
        else:
            self.done.set_result(None)
            self._transport.close()


def request_bytes(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def load(running: Running, streams: int, options: argparse.Namespace) -> dict[str, Any]:
    """All streams at once; each sends its share of the requests."""
    loop = asyncio.get_running_loop()
    plain = bodies(Load("", options.prompt, options.output, streams * options.rounds), running.server.model)
    extra = json.loads(options.fields)
    raw = [request_bytes({**body, **extra}) for body in plain]
    port = int(running.url.rpartition(":")[2])
    cpu_before_s, own_before_s = cpu_s(running.pid), time.process_time()
    started_s = time.perf_counter()
    made = [
        await loop.create_connection(lambda i=i: Stream(raw[i::streams], extra), "127.0.0.1", port)  # type: ignore[misc]
        for i in range(streams)
    ]
    readers = [protocol for _, protocol in made]
    await asyncio.gather(*(reader.done for reader in readers))
    wall_s = time.perf_counter() - started_s
    num_tokens = sum(reader.num_tokens for reader in readers)
    errors = [reader.error for reader in readers if reader.error]
    first_s = max((reader.first_s or 0.0) for reader in readers) - started_s
    return {
        "streams": streams,
        "tok_s": round(num_tokens / wall_s, 1),
        "api_cpu_us_per_token": round((cpu_s(running.pid) - cpu_before_s) / num_tokens * 1e6, 1),
        "api_cpu_share": round((cpu_s(running.pid) - cpu_before_s) / wall_s, 2),
        "client_cpu_share": round((time.process_time() - own_before_s) / wall_s, 2),
        "tokens_per_chunk": round(num_tokens / max(1, sum(reader.num_chunks for reader in readers)), 2),
        "all_have_text_after_ms": round(first_s * 1000),
        "wall_s": round(wall_s, 2),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
    }


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, all its threads: utime and stime of /proc, but exact. Linux only."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) gives


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", default="1,64,128")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of the engine; 0 is as fast as it can")
    parser.add_argument("--tokens", choices=("text", "random"), default="text")
    parser.add_argument("--prompt", type=int, default=50, help="words")
    parser.add_argument("--output", type=int, default=200, help="tokens")
    parser.add_argument("--rounds", type=int, default=1, help="requests a stream")
    parser.add_argument("--fields", default="{}", help="JSON object laid over every request")
    parser.add_argument("--profile", default="", metavar="FILE")
    options = parser.parse_args()
    code = SERVE.format(here=str(Path(__file__).parent), model=str(options.model), profile=options.profile)
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {STEP_MS: str(options.step_ms), TOKENS: options.tokens, "PYTHONPATH": paths}
    server = Server("anllm", (sys.executable, "-c", code), options.model.name, environment)
    with started(server) as running:
        warm_up = argparse.Namespace(**{**vars(options), "output": 20, "rounds": 1})
        asyncio.run(load(running, 8, warm_up))
        for streams in map(int, options.streams.split(",")):
            print(json.dumps(asyncio.run(load(running, streams, options))), flush=True)
    print(json.dumps(describe()))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
