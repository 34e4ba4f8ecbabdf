"""K/V memory: what the prefix cache saves, what finding costs, and how it goes when there is too little of it.

    python benchmarks/memory.py --model FOLDER prefix    # the same 2,000 tokens again: time to the first token
    python benchmarks/memory.py --model FOLDER shared    # streams that share 2,000 tokens, with the cache and without
    python benchmarks/memory.py --model FOLDER tight     # 16 requests of 4,000 tokens in memory for four of them
    python benchmarks/memory.py lookup                   # a prompt of 20,000 tokens among 1,000 rows

Prints one JSON line a measurement. The engine alone, without HTTP; loads with and without take turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environment import describe

from anllm.config import CacheConfig, ModelConfig, SchedulerConfig
from anllm.core.request import SamplingParams
from anllm.engine.driver import EngineDriver, Status
from anllm.kvcache.cache import KVCache, Placement, Room
from anllm.kvcache.pool import KVPool
from anllm.kvcache.radix import token_key
from anllm.runner.build import RunnerSettings, build_runner
from anllm.store.cache import cache_folder


def engine(model: Path, *, prefix_cache: bool = True, kv_tokens: int | None = None) -> EngineDriver:
    """kv_tokens: as many as the K/V budget is to hold; None is what is there."""
    kv_bytes = None
    if kv_tokens is not None:
        with engine(model) as probe:
            kv_bytes = kv_tokens * probe.info.kv_bytes_per_token
    scheduler = SchedulerConfig(max_num_seqs=256)
    cache = CacheConfig(prefix_cache=prefix_cache, kv_memory_bytes=kv_bytes)
    settings = RunnerSettings(model, (), ModelConfig(), cache, scheduler)
    return EngineDriver(lambda: build_runner(settings, cache_folder(None)), scheduler)


def tokens(rng: random.Random, number: int, vocab_size: int) -> list[int]:
    return [rng.randrange(3, vocab_size) for _ in range(number)]


def limits(output: int) -> SamplingParams:
    return SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, seed=0)


def run(driver: EngineDriver, prompts: list[list[int]], output: int, at_once: int) -> dict[str, Any]:
    """All of them, so many at a time: seconds, output tokens/s, and the first tokens' times."""
    started = time.perf_counter()
    todo, sent, first, open_ids = list(prompts), {}, [], set[int]()
    while todo or open_ids:
        while todo and len(open_ids) < at_once:
            request_id = driver.submit(todo.pop(0), limits(output))
            sent[request_id] = time.perf_counter()
            open_ids.add(request_id)
        driver.step()
        for request_id in list(open_ids):
            polled = driver.poll(request_id)
            assert polled.error is None, polled.error
            if polled.new_token_ids and request_id in sent:
                first.append(time.perf_counter() - sent.pop(request_id))
            if polled.status is not Status.OPEN:
                open_ids.remove(request_id)
    wall_s = time.perf_counter() - started
    import mlx.core as mx  # only now: the runner loads a BLAS before it

    return {
        "peak_bytes": mx.get_peak_memory(),
        "wall_s": round(wall_s, 3),
        "output_tok_s": round(len(prompts) * output / wall_s, 1),
        "ttft_ms": {"p50": round(statistics.median(first) * 1e3, 1), "max": round(max(first) * 1e3, 1)},
    }


def prefix(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A prompt of `shared` tokens and 20 more, then others that begin alike."""
    with engine(options.model) as driver:
        rng = random.Random(options.seed)
        vocab = driver.info.vocab_size
        for round_number in range(options.rounds + 1):  # the first compiles
            shared = tokens(rng, options.shared, vocab)
            times = [run(driver, [shared + tokens(rng, 20, vocab)], 2, 1)["ttft_ms"]["p50"] for _ in range(3)]
            share = round(times[1] / times[0], 3)
            if round_number:
                yield {"first_ms": times[0], "second_ms": times[1], "third_ms": times[2], "second/first": share}


def shared(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Streams that all begin with the same `shared` tokens."""
    for _ in range(options.rounds):
        for uses_cache in (False, True):
            with engine(options.model, prefix_cache=uses_cache) as driver:
                rng = random.Random(options.seed)
                vocab = driver.info.vocab_size
                for is_measured in (False, False, True):  # the second one makes the slabs as high as they get
                    begin = tokens(rng, options.shared, vocab)
                    prompts = [begin + tokens(rng, 20, vocab) for _ in range(options.streams)]
                    result = run(driver, prompts, options.output, options.streams)
                    if is_measured:
                        yield {"prefix_cache": uses_cache, "streams": options.streams, **result}


def tight(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """16 requests that grow to `length` tokens each, in memory for four: all sent together, and four at a time."""
    for prompt in (options.length - 96, options.length // 8):
        output = options.length - prompt
        with engine(options.model, prefix_cache=True, kv_tokens=4 * options.length) as driver:
            rng = random.Random(options.seed)
            vocab = driver.info.vocab_size
            for _ in range(options.rounds):
                for at_once in (4, 16):
                    prompts = [tokens(rng, prompt, vocab) for _ in range(16)]
                    result = run(driver, prompts, output, at_once)
                    yield {"prompt": prompt, "output": output, "at_once": at_once, **result}


def lookup(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A prompt of 20,000 tokens that begins as a thousand rows do, or as none."""
    rng = random.Random(options.seed)
    pool = KVPool(budget_bytes=1 << 40, bytes_per_token=1, max_model_len=1 << 15)
    cache = KVCache(pool)
    begin = tokens(rng, 18_000, 100_000)
    for _ in range(1000):
        row = begin[: rng.randrange(18_000)] + tokens(rng, 500, 100_000)
        placed = cache.place(row, "", Room(len(row), len(row)), reusable=0)
        assert isinstance(placed, Placement)
        cache.end_plan()
        cache.plan_was_read()
        cache.computed(placed.row, len(row))
        cache.release(placed.row, row)
    for name, prompt in (("shared", begin + tokens(rng, 2000, 100_000)), ("new", tokens(rng, 20_000, 100_000))):
        keys, finds = [], []
        for _ in range(200):
            started = time.perf_counter()
            key = token_key(prompt)
            keyed = time.perf_counter()
            cache._find(key, "", len(prompt) - 1)
            finds.append(time.perf_counter() - keyed)
            keys.append(keyed - started)
        yield {
            "lookup": name,
            "rows": cache.num_warm_rows,
            "key_ms": round(statistics.median(keys) * 1e3, 3),
            "find_ms": round(statistics.median(finds) * 1e3, 3),
            "worst_ms": round(max(map(sum, zip(keys, finds, strict=True))) * 1e3, 3),
        }


MEASUREMENTS = {"prefix": prefix, "shared": shared, "tight": tight, "lookup": lookup}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=list(MEASUREMENTS))
    parser.add_argument("--model", type=Path, help="folder")
    parser.add_argument("--shared", type=int, default=2000, help="tokens that prompts begin with")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--length", type=int, default=4000, help="of the requests of `tight`, prompt and answer")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    about = describe()
    for result in MEASUREMENTS[options.measurement](options):
        print(json.dumps({"measurement": options.measurement, **result, **about}), flush=True)


if __name__ == "__main__":
    main()
