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
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
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
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.3, "seed": 1},
)


# Name, words of prompt, tokens of output, spread, mixed sampling parameters.
STANDARD = (
    ("128+128, ", 128, 128, 0.0, False),
    ("1024+128, ", 1024, 128, 0.0, False),
    ("128+1024, ", 128, 1024, 0.0, False),
    ("churn, ", 256, 128, 0.8, False),
    ("mixed sampling, ", 128, 128, 0.0, True),
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

    @property
    def kind(self) -> tuple[int, int, float, bool]:
        """Loads of one kind differ in the number of streams alone."""
        return self.prompt, self.output, self.spread, self.mixed


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that closed_loops() and run() read."""
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=100, help="words")
    parser.add_argument("--output", type=int, default=48, help="tokens")
    parser.add_argument("--spread", type=float, default=0.0, help="sigma of lognormal lengths; 0 is exact")
    parser.add_argument("--mixed", action="store_true", help="sampling parameters differ from request to request")
    parser.add_argument("--rounds", type=int, default=2, help="requests a stream")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--standard", action="store_true", help="the standard loads, in place of all of the above")
    parser.add_argument("--clients", type=int, default=1, help="processes that the streams are spread over")


def closed_loops(options: argparse.Namespace) -> list[Load]:
    """One load for each number of streams; with --standard, those of each standard kind."""
    streams = [int(number) for number in options.streams.split(",")]
    if not options.standard:
        kinds = [("", options.prompt, options.output, options.spread, options.mixed)]
    else:
        kinds = list(STANDARD)
    return [
        Load(
            f"{name}{number} streams",
            prompt,
            output,
            max(number * options.rounds, 2),
            streams=number,
            spread=spread,
            mixed=mixed,
            seed=options.seed,
        )
        for name, prompt, output, spread, mixed in kinds
        for number in streams
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

    def add(self, other: Outcome) -> None:
        """What another client saw of the same load, at the same time."""
        self.output_tokens += other.output_tokens
        self.prompt_tokens += other.prompt_tokens
        self.num_done += other.num_done
        self.errors += other.errors
        self.first_token_s += other.first_token_s
        self.gap_s += other.gap_s
        self.request_s += other.request_s

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


def run(load: Load, url: str, model: str, clients: int = 1) -> Outcome:
    """Send the load to the server at `url` and wait for all of it.

    A client in Python takes about 0.1 ms a token, so that many streams of a quick server need several of them.
    """
    requests = bodies(load, model)
    clients = min(clients, load.streams or clients)
    if clients == 1:
        return asyncio.run(_send(load, url, requests))
    shares = [
        replace(
            load, streams=_share(load.streams, i, clients), rate=load.rate and load.rate / clients, seed=load.seed + i
        )
        for i in range(clients)
    ]
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(clients, mp_context=context) as pool:
        list(pool.map(time.sleep, [0.2] * clients))  # all of them are there
        started = time.perf_counter()
        outcomes = list(
            pool.map(_send_in_process, shares, [url] * clients, [requests[i::clients] for i in range(clients)])
        )
    merged = Outcome(wall_s=time.perf_counter() - started)
    for outcome in outcomes:
        merged.add(outcome)
    return merged


def _share(streams: int | None, i: int, clients: int) -> int | None:
    return None if streams is None else streams // clients + (i < streams % clients)


def _send_in_process(load: Load, url: str, requests: list[dict[str, Any]]) -> Outcome:
    return asyncio.run(_send(load, url, requests))


async def _send(load: Load, url: str, requests: list[dict[str, Any]], timeout_s: float = 600) -> Outcome:
    outcome = Outcome()
    todo = iter(requests)
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
