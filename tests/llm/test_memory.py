"""Too little memory on the real model: everybody gets to the end, and gets what plenty of memory would have given."""

from __future__ import annotations

import random

import pytest

from anllm.config import CacheConfig, ModelConfig, SchedulerConfig
from anllm.core.request import SamplingParams
from anllm.engine.driver import EngineDriver, Status
from anllm.runner.build import RunnerSettings, build_runner
from anllm.store.cache import cache_folder
from e2e.reference import model_folder

pytestmark = [pytest.mark.real_model, pytest.mark.mlx, pytest.mark.timeout(600)]

NUM_REQUESTS = 200
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4  # layers, K and V, heads, their width, float32
MAX_MODEL_LEN = 512


def requests() -> list[tuple[list[int], int]]:
    """Prompts, many of which begin like an earlier one, and how many tokens each gets."""
    draw = random.Random(7)
    made: list[tuple[list[int], int]] = []
    for _ in range(NUM_REQUESTS):
        begin = draw.choice(made)[0][: draw.randrange(150)] if made and draw.random() < 0.5 else []
        own = [draw.randrange(20, 40_000) for _ in range(draw.randrange(1, 100))]
        made.append((begin + own, draw.choice([1, 5, 12, 30, 120 if len(made) % 20 == 0 else 8])))
    return made


def answers(kv_tokens: int | None) -> list[list[int]]:
    """Of all requests, sent at once; kv_tokens: the budget, None is what there is."""
    cache = CacheConfig(kv_memory_bytes=None if kv_tokens is None else kv_tokens * BYTES_PER_TOKEN)
    settings = RunnerSettings(model_folder(), (), ModelConfig(max_model_len=MAX_MODEL_LEN), cache, SchedulerConfig())
    with EngineDriver(lambda: build_runner(settings, cache_folder(None))) as driver:
        assert driver.info.kv_bytes_per_token == BYTES_PER_TOKEN
        ids = [
            driver.submit(prompt, SamplingParams(temperature=0, max_tokens=number, ignore_eos=True))
            for prompt, number in requests()
        ]
        ends = driver.run_until_complete(ids)
        assert [ends[i].status for i in ids] == [Status.FINISHED] * NUM_REQUESTS
        return [ends[i].new_token_ids for i in ids]


def test_200_requests_in_memory_for_two_get_the_same_tokens_as_with_plenty() -> None:
    plenty, little = answers(None), answers(2 * MAX_MODEL_LEN)
    assert [len(tokens) for tokens in little] == [number for _, number in requests()]
    # Steps that hold other tokens round differently: where two candidates are as good, the other one may come.
    assert sum(one != other for one, other in zip(plenty, little, strict=True)) <= 2
