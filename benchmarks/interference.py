"""What a long prompt does to streams that are running: their inter-token latency before it comes, and until it answers.

    python benchmarks/interference.py --url http://127.0.0.1:8000 --model NAME --streams 8 --prompt 4000

Prints one JSON line: p50 and p99 of the streams' gaps undisturbed and disturbed, their ratio, and the prompt's TTFT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from itertools import pairwise
from typing import Any

import aiohttp
from environment import describe
from load import WORDS, quantile_ms


async def stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any], moments: list[float]) -> None:
    """The moments at which text came."""
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                moments.append(time.perf_counter())


def body(model: str, num_words: int, max_tokens: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    text = " ".join(rng.choice(WORDS) for _ in range(num_words))
    message = {"role": "user", "content": text}
    limits = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    return {"model": model, "messages": [message], **limits}


def gaps(streams: list[list[float]], begin: float, end: float) -> list[float]:
    """Between tokens, where the later one came in [begin, end)."""
    return [b - a for moments in streams for a, b in pairwise(moments) if begin <= b < end]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    running: list[list[float]] = [[] for _ in range(options.streams)]
    long: list[float] = []
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        await stream(session, options.url, body(options.model, options.prompt, 2, 99), [])  # everything is warm
        tasks = [
            asyncio.create_task(stream(session, options.url, body(options.model, 50, 4000, i), moments))
            for i, moments in enumerate(running)
        ]
        while not all(running):
            await asyncio.sleep(0.01)
        await asyncio.sleep(options.settle)
        begin = time.perf_counter()
        await asyncio.sleep(options.undisturbed)
        sent = time.perf_counter()
        await stream(session, options.url, body(options.model, options.prompt, 1, 7), long)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    before, during = gaps(running, begin, sent), gaps(running, sent, long[0])
    p99_before, p99_during = quantile_ms(before, 0.99), quantile_ms(during, 0.99)
    assert p99_before and p99_during
    return {
        "streams": options.streams,
        "prompt_words": options.prompt,
        "undisturbed_ms": {"p50": quantile_ms(before, 0.5), "p99": p99_before},
        "disturbed_ms": {"p50": quantile_ms(during, 0.5), "p99": p99_during, "max": quantile_ms(during, 1.0)},
        "p99_ratio": round(p99_during / p99_before, 2),
        "ttft_ms": round((long[0] - sent) * 1e3),
        **describe(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=4000, help="words")
    parser.add_argument("--settle", type=float, default=1.0, help="seconds before measuring begins")
    parser.add_argument("--undisturbed", type=float, default=5.0, help="seconds measured without the prompt")
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
