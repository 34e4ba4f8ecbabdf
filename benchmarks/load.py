"""Streaming load on an OpenAI-compatible server: what is sent, and what comes of it. Used by online.py and compare.py.

Closed loop: so many streams, each sends its next request when its last has ended. Open loop: requests at random moments
of a given rate, whatever the server does. Prompts are random words, so that no server can find them in a cache; tokens
are counted by the server's own usage, which every server here sends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
]
SAMPLING = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.3, "seed": 1},
)


@dataclass(frozen=True)
class Load:
    """streams: of a closed loop, or None; rate: requests a second of an open loop, or None.

    prompt, output: mean lengths in words and tokens, exact where spread is 0, else lognormal with that sigma.
    mixed: sampling parameters differ from request to request; else all are greedy.
    """

    name: str
    prompt: int
    output: int
    num_requests: int
    streams: int | None = None
    rate: float | None = None
    spread: float = 0.0
    mixed: bool = False
    seed: int = 0


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that closed_loops() reads."""
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=100, help="words")
    parser.add_argument("--output", type=int, default=48, help="tokens")
    parser.add_argument("--spread", type=float, default=0.0, help="sigma of lognormal lengths; 0 is exact")
    parser.add_argument("--mixed", action="store_true", help="sampling parameters differ from request to request")
    parser.add_argument("--rounds", type=int, default=2, help="requests a stream")
    parser.add_argument("--seed", type=int, default=0)


def closed_loops(options: argparse.Namespace) -> list[Load]:
    """One load for each number of streams."""
    return [
        Load(
            f"{streams} streams",
            options.prompt,
            options.output,
            max(streams * options.rounds, 2),
            streams=streams,
            spread=options.spread,
            mixed=options.mixed,
            seed=options.seed,
        )
        for streams in map(int, options.streams.split(","))
    ]


@dataclass
class Outcome:
    """Of all requests of a load. Times in seconds."""

    output_tokens: int = 0
    prompt_tokens: int = 0
    num_done: int = 0
    errors: list[str] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    request_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        """For JSON: rates per second, times in milliseconds."""
        return {
            "requests": self.num_done,
            "errors": len(self.errors),
            "first_error": self.errors[0] if self.errors else None,
            "wall_s": round(self.wall_s, 2),
            "output_tok_s": round(self.output_tokens / self.wall_s, 1),
            "prompt_tok_s": round(self.prompt_tokens / self.wall_s, 1),
            "ttft_ms": {"p50": quantile_ms(self.first_token_s, 0.5), "p95": quantile_ms(self.first_token_s, 0.95)},
            "itl_ms": {"p50": quantile_ms(self.gap_s, 0.5), "p99": quantile_ms(self.gap_s, 0.99)},
            "request_ms": {"p50": quantile_ms(self.request_s, 0.5), "p95": quantile_ms(self.request_s, 0.95)},
        }


def quantile_ms(values: list[float], share: float) -> float | None:
    if not values:
        return None
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1e3, 1)


def bodies(load: Load, model: str) -> list[dict[str, Any]]:
    """The requests, the same for every server."""
    rng = random.Random(load.seed)
    made = []
    for i in range(load.num_requests):
        text = " ".join(rng.choice(WORDS) for _ in range(_length(rng, load.prompt, load.spread)))
        made.append(
            {
                "model": model,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": _length(rng, load.output, load.spread),
                "stream": True,
                "stream_options": {"include_usage": True},
                "ignore_eos": True,
                **(SAMPLING[i % len(SAMPLING)] if load.mixed else SAMPLING[0]),
            }
        )
    return made


def _length(rng: random.Random, mean: int, spread: float) -> int:
    if not spread:
        return mean
    return max(1, min(8 * mean, round(rng.lognormvariate(math.log(mean) - spread**2 / 2, spread))))


async def run(load: Load, url: str, model: str, timeout_s: float = 600) -> Outcome:
    """Send the load to the server at `url` and wait for all of it."""
    outcome = Outcome()
    todo = iter(bodies(load, model))
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    started = time.perf_counter()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        if load.streams is not None:
            await asyncio.gather(*[_stream_after_stream(session, url, todo, outcome) for _ in range(load.streams)])
        else:
            assert load.rate is not None
            await _at_random_moments(session, url, todo, outcome, load.rate, random.Random(load.seed))
    outcome.wall_s = time.perf_counter() - started
    return outcome


async def _stream_after_stream(session: aiohttp.ClientSession, url: str, todo: Any, outcome: Outcome) -> None:
    for body in todo:
        await _request(session, url, body, outcome)


async def _at_random_moments(
    session: aiohttp.ClientSession, url: str, todo: Any, outcome: Outcome, rate: float, rng: random.Random
) -> None:
    async with asyncio.TaskGroup() as group:
        for body in todo:
            group.create_task(_request(session, url, body, outcome))
            await asyncio.sleep(rng.expovariate(rate))


async def _request(session: aiohttp.ClientSession, url: str, body: dict[str, Any], outcome: Outcome) -> None:
    sent = time.perf_counter()
    last: float | None = None
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                outcome.errors.append(f"{response.status} {(await response.text())[:200]}")
                return
            async for line in response.content:
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                chunk = json.loads(line[5:])
                if chunk.get("usage"):
                    outcome.output_tokens += chunk["usage"]["completion_tokens"]
                    outcome.prompt_tokens += chunk["usage"]["prompt_tokens"]
                if not any(choice.get("delta", {}).get("content") for choice in chunk.get("choices", [])):
                    continue
                now = time.perf_counter()
                (outcome.first_token_s if last is None else outcome.gap_s).append(
                    now - (sent if last is None else last)
                )
                last = now
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
        outcome.errors.append(f"{type(error).__name__}: {error}")
        return
    outcome.num_done += 1
    outcome.request_s.append(time.perf_counter() - sent)
