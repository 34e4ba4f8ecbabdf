"""The engine alone, without HTTP: output tokens/s, step times and peak memory under closed-loop loads.

    python benchmarks/offline.py --model FOLDER --streams 1,8,32 --prompt 128 --output 128
    python benchmarks/offline.py --model FOLDER --streams 32 --bound 0,0.25,0,0.25
    python benchmarks/offline.py --model FOLDER --streams 64 --rounds 8 --spread 0,0.6,0

Prints one JSON line a load. Each load runs `rounds` requests a stream; a stream sends its next request when its last
one has ended. The lengths are exact; with --spread they are drawn from a lognormal distribution with that mean.
With --bound, that share of the requests is held to a JSON schema whose documents never end, so that lengths stay exact.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environment import describe

from anllm.config import CacheConfig, Execution, ModelConfig, SchedulerConfig, Weights
from anllm.core.request import SamplingParams
from anllm.engine.driver import EngineDriver, Status
from anllm.runner.build import RunnerSettings, build_runner
from anllm.store.cache import cache_folder
from anllm.structured.grammar import json_schema
from anllm.text.tokenizer import load_tokenizer
from anllm.worker import mask_maker

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"enum": ["red", "green", "blue", "none of these"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 5},
        "address": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
    },
    "required": ["name", "age", "colour", "tags", "address"],
    "additionalProperties": False,
}
ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    "required": ["street", "zip"],
    "additionalProperties": False,
}
PERSONS = {"type": "array", "items": PERSON, "minItems": 10_000, "$defs": {"address": ADDRESS}}


@dataclass
class Load:
    """What was sent, and what came of it."""

    num_streams: int
    waiting: list[tuple[int, int]]  # (prompt, output) lengths
    output_tokens: int = 0
    while_full: tuple[int, float] = (0, 0.0)  # output tokens, and the seconds that they took
    prompt_tokens: int = 0
    step_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)


def lengths(rng: random.Random, mean: int, spread: float) -> int:
    """Around `mean`; exact where spread is 0."""
    if not spread:
        return mean
    return max(1, min(8 * mean, round(rng.lognormvariate(math.log(mean) - spread**2 / 2, spread))))


def run(driver: EngineDriver, load: Load, rng: random.Random, params: dict[str, Any], bound: float = 0.0) -> float:
    """Seconds until every request has ended. bound: the share of requests with a grammar."""
    grammar = json_schema(PERSONS, strict=True).text
    num_sent = 0
    vocab = driver.info.vocab_size
    open_requests: dict[int, tuple[float, bool]] = {}

    def submit() -> None:
        nonlocal num_sent
        prompt, output = load.waiting.pop()
        is_bound = int((num_sent + 1) * bound) > int(num_sent * bound)
        num_sent += 1
        token_ids = [rng.randrange(3, vocab) for _ in range(prompt)]
        chosen = {"grammar": grammar} if is_bound else {}
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, **chosen, **params)
        open_requests[driver.submit(token_ids, sampling)] = (time.perf_counter(), False)
        load.prompt_tokens += prompt

    started = time.perf_counter()
    for _ in range(min(load.num_streams, len(load.waiting))):
        submit()
    while open_requests:
        before = time.perf_counter()
        driver.step()
        load.step_s.append(time.perf_counter() - before)
        for request_id, (sent_s, has_token) in list(open_requests.items()):
            polled = driver.poll(request_id)
            assert polled.error is None, polled.error
            load.output_tokens += len(polled.new_token_ids)
            if polled.new_token_ids and not has_token:
                load.first_token_s.append(time.perf_counter() - sent_s)
                open_requests[request_id] = (sent_s, True)
            if polled.status is not Status.OPEN:
                del open_requests[request_id]
                if load.waiting:
                    submit()
                    load.while_full = (load.output_tokens, time.perf_counter() - started)
    return time.perf_counter() - started


def rate(number: int, seconds: float) -> float | None:
    return round(number / seconds, 1) if seconds else None


def percentile_ms(values: list[float], share: float) -> float:
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1e3, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--spread", default="0", help="sigma of the lognormal lengths, 0 is exact; several, in turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--bound", default="0", help="share of the requests held to a JSON schema; several, in turn")
    parser.add_argument("--weights", default="auto", choices=[w.value for w in Weights])
    parser.add_argument("--execution", default="auto", choices=[e.value for e in Execution])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    scheduler = SchedulerConfig(max_num_seqs=256)
    model = ModelConfig(weights=Weights(options.weights), execution=Execution(options.execution))
    settings = RunnerSettings(options.model, (), model, CacheConfig(), scheduler)
    about = describe()
    masks = mask_maker(lambda: load_tokenizer(options.model))
    with EngineDriver(lambda: build_runner(settings, cache_folder(None)), scheduler, masks) as driver:
        info = driver.info
        kinds = itertools.product(options.streams.split(","), options.spread.split(","), options.bound.split(","))
        for num_streams, spread, bound in ((int(n), float(spread), float(bound)) for n, spread, bound in kinds):
            rng = random.Random(options.seed)
            mix = [
                (lengths(rng, options.prompt, spread), lengths(rng, options.output, spread))
                for _ in range(num_streams * options.rounds)
            ]
            params = {"temperature": options.temperature, "top_p": options.top_p, "seed": options.seed}
            run(driver, Load(num_streams, [(options.prompt, 8)] * num_streams), rng, params, bound)  # warm-up
            load = Load(num_streams, mix)
            wall_s = run(driver, load, rng, params, bound)
            result = {
                "streams": num_streams,
                "prompt": options.prompt,
                "output": options.output,
                "spread": spread,
                "bound": bound,
                "output_tok_s": round(load.output_tokens / wall_s, 1),
                "tok_s_while_full": rate(*load.while_full),
                "total_tok_s": round((load.output_tokens + load.prompt_tokens) / wall_s, 1),
                "wall_s": round(wall_s, 2),
                "step_ms": {
                    "p50": percentile_ms(load.step_s, 0.5),
                    "p99": percentile_ms(load.step_s, 0.99),
                    "mean": round(statistics.mean(load.step_s) * 1e3, 2),
                },
                "ttft_ms": {
                    "p50": percentile_ms(load.first_token_s, 0.5),
                    "p95": percentile_ms(load.first_token_s, 0.95),
                },
                "backend": info.backend,
                "blas": info.blas,
                "weights": info.weights,
                "execution": info.execution,
                **about,
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
