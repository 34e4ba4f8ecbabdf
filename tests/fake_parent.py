"""A parent of fake_worker.py that prints the child's pid and then works until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from anllm.config import SchedulerConfig
from anllm.engine.client import EngineClient
from anllm.engine.process import ProcessTransport
from stepping import make_request


async def main(is_busy: bool) -> None:
    transport = ProcessTransport(lambda: [sys.executable, str(Path(__file__).with_name("fake_worker.py")), "plain"])
    client = EngineClient(transport, SchedulerConfig())
    await client.start()
    if is_busy:
        client.submit([make_request(0, max_tokens=None)], lambda event: None)
    sys.stdout.write(f"{transport.pid}\n")
    sys.stdout.flush()
    await client.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] == "busy"))
