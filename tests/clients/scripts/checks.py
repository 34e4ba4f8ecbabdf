"""What the checks of all clients share. They run in the client's environment, so: the standard library alone.

A script has functions named `scripted_*`, which hold for the scripted server (clients/scripted.py), `thinking_*`, which
hold for the same with a model that thinks aloud, and `model_*`, which hold for `anllm serve` with the default model.
`main` runs one of the kinds.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

URL = os.environ["ANLLM_URL"]
API = f"{URL}/v1"
MODEL = os.environ["ANLLM_MODEL"]
MAX_NUM_OPEN = 48  # answers that the scripted server takes at once
PATIENCE_S = 10.0
CAPITAL = "What is the capital of France?"

# What the scripted server answers; see clients/scripted.py.
GREETING = "Hello there, Ann. How are you?"
UNICODE = "日本語 😀 👩‍👩‍👧 naïve\u2028é 한국어 \U0001f1e9\U0001f1ea."
NUM_PROMPT = len('<user>greet""<assistant>')  # tokens: this server's are bytes
LOOK = "Let me look."
THOUGHT = "What might Ann want?"  # of the server whose model thinks
CALL_OSLO = 'call get_weather {"city": "Oslo"}'
CALL_TWICE = 'call get_weather {"city": "Oslo"} get_weather {"city": "Bergen"}'
WRITE_ANN = 'write {"name": "Ann", "age": 31}'

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
OSLO = {**CITY, "properties": {"city": {"enum": ["Oslo"]}}}  # what any model has to say


NAMED = {"type": "function", "function": {"name": "get_weather"}}


def user(text: str) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


GREET = user("greet")
SLOW = user("slow")


def repeated(*messages: tuple[str, str]) -> str:
    """The answer to a conversation that ends with "repeat"."""
    return "".join(f'[{role}]{text}""' for role, text in messages)


def told(*results: str) -> str:
    """The answer once the tools have given these results."""
    return f"The tools said: {', '.join(results)}."


def num_open() -> int:
    """Answers that the scripted server is working on."""
    with urllib.request.urlopen(f"{URL}/num-open", timeout=PATIENCE_S) as response:
        return int(response.read())


def until_idle() -> None:
    """A slow answer takes longer than this waits, so it has been given up."""
    deadline = time.monotonic() + PATIENCE_S
    while num_open():
        assert time.monotonic() < deadline, "the server goes on with an answer that nobody reads"
        time.sleep(0.01)


@contextmanager
def full() -> Iterator[Callable[[], None]]:
    """The scripted server takes nothing more, until what this gives is called, or at the end."""
    body = {"model": MODEL, "messages": SLOW, "n": MAX_NUM_OPEN, "stream": True}
    asked = urllib.request.Request(
        f"{API}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as response:
        assert response.readline() and num_open() == MAX_NUM_OPEN
        yield response.close
    until_idle()


def at_once(call: Callable[[int], Any], count: int = 16) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def raises(kind: type[BaseException], call: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    """The error; one of another kind goes on as it is."""
    try:
        call(*args, **fields)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


async def araises(kind: type[BaseException], awaitable: Awaitable[Any]) -> Any:
    try:
        await awaitable
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


async def cancels(call: Awaitable[Any], after_s: float = 0.0) -> None:
    """Cancels a slow call that the server has worked on for so long, and sees that its place is given back."""
    task = asyncio.ensure_future(call)
    while not await asyncio.to_thread(num_open):
        await asyncio.sleep(0.01)
    await asyncio.sleep(after_s)
    assert not task.done()
    task.cancel()
    await araises(asyncio.CancelledError, task)
    await asyncio.to_thread(until_idle)


def main(script: dict[str, Any]) -> None:
    kind = sys.argv[1]
    checks = {name: check for name, check in script.items() if name.startswith(f"{kind}_")}
    with asyncio.Runner() as loop:  # one for all, as in a program that keeps its client
        failed = [name for name, check in checks.items() if not passes(name, check, loop)]
    print(f"{kind}: {len(checks)} checks, {len(failed)} failed", flush=True)
    sys.exit(0 if checks and not failed else 1)


def passes(name: str, check: Callable[[], Any], loop: asyncio.Runner) -> bool:
    begun = time.monotonic()
    try:
        loop.run(check()) if inspect.iscoroutinefunction(check) else check()
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        return False
    print(f"passed {name} {time.monotonic() - begun:.2f} s", flush=True)
    return True
