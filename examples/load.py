"""Many requests at once from asyncio, and what they got: `anllm serve`, then

python examples/load.py 200 32     200 requests, 32 at a time
"""

import argparse
import asyncio
import time
from dataclasses import dataclass

from openai import APIStatusError, AsyncOpenAI


@dataclass
class Outcome:
    """ttft_s: to the first text. error: status, of a request that was refused or failed."""

    ttft_s: float = 0.0
    num_tokens: int = 0
    error: int | None = None


async def ask(client: AsyncOpenAI, model: str, number: int) -> Outcome:
    outcome, start = Outcome(), time.perf_counter()
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"Write one sentence about the number {number}."}],
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.usage:
                outcome.num_tokens = chunk.usage.completion_tokens
            elif not outcome.ttft_s and chunk.choices and chunk.choices[0].delta.content:
                outcome.ttft_s = time.perf_counter() - start
    except APIStatusError as error:
        outcome.error = error.status_code
    return outcome


async def run(num_requests: int, num_at_once: int, base_url: str) -> None:
    # The client itself tries again when it is told 429 or 503, as often as max_retries says.
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=5) as client:
        model = (await client.models.list()).data[0].id
        turn = asyncio.Semaphore(num_at_once)

        async def one(number: int) -> Outcome:
            async with turn:
                return await ask(client, model, number)

        start = time.perf_counter()
        outcomes = await asyncio.gather(*map(one, range(num_requests)))
        duration_s = time.perf_counter() - start
    waits = sorted(outcome.ttft_s for outcome in outcomes if outcome.error is None)
    num_tokens = sum(outcome.num_tokens for outcome in outcomes)
    print(f"{len(waits)} of {num_requests} requests answered, {num_tokens} tokens in {duration_s:.1f} s")
    if waits:
        print(
            f"{num_tokens / duration_s:.0f} tokens/s, first token after {1000 * waits[len(waits) // 2]:.0f} ms (median)"
        )
    for status in sorted({outcome.error for outcome in outcomes if outcome.error is not None}):
        print(f"status {status}: {sum(outcome.error == status for outcome in outcomes)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_requests", nargs="?", type=int, default=32)
    parser.add_argument("num_at_once", nargs="?", type=int, default=8)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="of the server, with /v1")
    given = parser.parse_args()
    asyncio.run(run(given.num_requests, given.num_at_once, given.url))
