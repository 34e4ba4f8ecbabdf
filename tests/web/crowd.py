"""Real load for a picture: people come in waves, ask one question each, and leave with the answer."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

HELLO = "You are the helper of a library for birdwatchers. Answer kindly, in whole sentences, and name your sources."
BIRDS = ("robin", "wren", "kestrel", "heron", "swift", "nuthatch", "lapwing", "curlew", "goldcrest", "dipper")
QUESTIONS = ("Where does the {} nest?", "What does the {} eat in winter?", "How do I tell a {} by its song?")
WAVE_S = 70.0
ANSWER_TOKENS = (40, 220)


def wanted(elapsed_s: float, most: int) -> int:
    """How many are to be there."""
    return round(most * (0.55 - 0.45 * math.cos(2 * math.pi * elapsed_s / WAVE_S)))


@contextmanager
def crowd(url: str, model: str, most: int) -> Iterator[None]:
    """Comes and goes until the block ends."""
    is_over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_come_and_go(url, model, most, is_over)))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


async def _come_and_go(url: str, model: str, most: int, is_over: threading.Event) -> None:
    drawn = random.Random(7)
    loop = asyncio.get_running_loop()
    since = loop.time()
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        asking: set[asyncio.Task[None]] = set()
        while not is_over.is_set():
            asking = {task for task in asking if not task.done()}
            if len(asking) < wanted(loop.time() - since, most):
                question = drawn.choice(QUESTIONS).format(drawn.choice(BIRDS))
                asking.add(asyncio.create_task(_ask(client, model, question, drawn.randint(*ANSWER_TOKENS))))
            await asyncio.sleep(drawn.uniform(0.05, 0.45))
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _ask(client: httpx.AsyncClient, model: str, question: str, num_tokens: int) -> None:
    messages = [{"role": "system", "content": HELLO}, {"role": "user", "content": question}]
    body = {"model": model, "messages": messages, "max_tokens": num_tokens}
    (await client.post("/v1/chat/completions", json=body)).raise_for_status()
