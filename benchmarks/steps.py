"""One decode step after another, without scheduler or HTTP: how its time grows with the batch, the context and the
vocabulary, how much of it the host takes, and whether memory moves.

    python benchmarks/steps.py --model FOLDER --rows 1,8,32,64,128 --contexts 128
    python benchmarks/steps.py --model FOLDER --prefill 256,1024,4096

Prints one JSON line a case. host_ms is what submitting a step takes; where it is as long as the step, the device waits
for the host. active_bytes: arrays in memory after the first step, after the last, and the most after any.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from environment import describe

from anllm.config import CacheConfig, Execution, ModelConfig, SchedulerConfig, Weights
from anllm.core.request import SamplingParams
from anllm.core.step import PENDING, InFlight, Runner, ScheduledSequence, SlabResize, Slot, StepPlan
from anllm.kvcache.pool import SMALLEST_CAPACITY
from anllm.runner.build import RunnerSettings, build_runner
from anllm.store.cache import cache_folder

WARM_UP_STEPS = 8


def capacity_for(num_tokens: int) -> int:
    capacity = SMALLEST_CAPACITY
    while capacity < num_tokens:
        capacity *= 2
    return capacity


def decode(runner: Runner, num_rows: int, context: int, num_steps: int, params: SamplingParams) -> dict[str, Any]:
    """Rows of that many tokens each decode together; their contents do not matter."""
    capacity = capacity_for(context + num_steps + WARM_UP_STEPS)
    before: InFlight | None = None
    host_s, step_s, active = [], [], []
    for step in range(num_steps + WARM_UP_STEPS):
        token = (7,) if before is None or not runner.runs_ahead else (PENDING,)
        rows = tuple(
            ScheduledSequence(i, Slot(capacity, i), context + step, token, True, 1 + step, params, context)
            for i in range(num_rows)
        )
        plan = StepPlan(rows, resizes=(SlabResize(capacity, num_rows),) if step == 0 else ())
        started = time.perf_counter()
        in_flight = runner.submit(plan)
        submitted = time.perf_counter()
        if before is not None:
            before.result()
        ended = time.perf_counter()
        before = in_flight
        if step >= WARM_UP_STEPS:
            host_s.append(submitted - started)
            step_s.append(ended - started)
            active.append(mlx().get_active_memory())
    assert before is not None
    before.result()
    runner.submit(StepPlan(rows[:1], resizes=(SlabResize(capacity, 1),))).result()
    return {
        "rows": num_rows,
        "context": context,
        "temperature": params.temperature,
        "step_ms": {"p50": milliseconds(statistics.median(step_s)), "mean": milliseconds(statistics.mean(step_s))},
        "host_ms": milliseconds(statistics.median(host_s)),
        "tok_s": round(num_rows / statistics.mean(step_s), 1),
        "active_bytes": {"first": active[0], "last": active[-1], "most": max(active)},
    }


def prefill(runner: Runner, num_tokens: int, piece: int, repeats: int) -> dict[str, Any]:
    """Prompts of `piece` tokens, as many as make up num_tokens, in one step."""
    capacity, params = capacity_for(piece), SamplingParams(temperature=0)
    count = max(num_tokens // piece, 1)
    prompts = tuple(
        ScheduledSequence(i, Slot(capacity, i), 0, tuple(range(7, 7 + piece)), True, 0, params, piece)
        for i in range(count)
    )
    plan = StepPlan(prompts, resizes=(SlabResize(capacity, count),))
    runner.submit(plan).result()
    plan = StepPlan(prompts)
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        runner.submit(plan).result()
        taken.append(time.perf_counter() - started)
    total = count * piece
    best = statistics.median(taken)
    return {"prefill": total, "piece": piece, "step_ms": milliseconds(best), "tok_s": round(total / best, 1)}


def milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def mlx() -> ModuleType:
    import mlx.core  # only now: the runner loads a BLAS before it

    return mlx.core


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder")
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--contexts", default="128")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prefill", default="", help="prompt tokens in a step")
    parser.add_argument("--piece", type=int, default=128, help="length of each prompt")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--weights", default="auto", choices=[w.value for w in Weights])
    parser.add_argument("--execution", default="auto", choices=[e.value for e in Execution])
    options = parser.parse_args()
    model = ModelConfig(weights=Weights(options.weights), execution=Execution(options.execution))
    settings = RunnerSettings(options.model, (), model, CacheConfig(), SchedulerConfig())
    runner = build_runner(settings, cache_folder(None))
    peak = mlx().get_peak_memory
    about = {"backend": runner.info.backend, "blas": runner.info.blas, "weights": runner.info.weights, **describe()}
    params = SamplingParams(temperature=options.temperature, seed=0)
    for context in map(int, filter(None, options.contexts.split(","))):
        for num_rows in map(int, filter(None, options.rows.split(","))):
            result = decode(runner, num_rows, context, options.steps, params)
            print(json.dumps({**result, "peak_bytes": peak(), "vocab": runner.info.vocab_size, **about}), flush=True)
    for num_tokens in map(int, filter(None, options.prefill.split(","))):
        result = prefill(runner, num_tokens, min(options.piece, num_tokens), 5)
        print(json.dumps({**result, "peak_bytes": peak(), **about}), flush=True)
    runner.close()


if __name__ == "__main__":
    main()
