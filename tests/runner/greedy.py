"""Greedy runs of the real scheduler with a forward, and the models' own answers to hold them against."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from anllm.config import SchedulerConfig
from anllm.core.request import Request, SamplingParams
from anllm.core.step import StepPlan, StepResult
from anllm.kvcache.pool import KVPool
from anllm.runner.contract import ChosenForward
from anllm.scheduler.scheduler import Scheduler
from runner.families import VOCAB

MAX_MODEL_LEN = 512
CLOSE = 1e-3  # two tokens whose logits are nearer than this may change places


def random_tokens(length: int, seed: int) -> tuple[int, ...]:
    generator = random.Random(seed)
    return tuple(generator.randrange(VOCAB) for _ in range(length))


# -- the slow obvious way ----------------------------------------------------------------------------------------------


def own_logits(model: nn.Module, prompt: tuple[int, ...], tokens: list[int]) -> list[mx.array]:
    """Logits after the prompt and after each of the tokens but the last, one by one on the model's own cache."""
    cache = make_prompt_cache(model)
    logits = [model(mx.array([prompt]), cache=cache)[0, -1]]
    for token in tokens[:-1]:
        mx.eval(logits)
        logits.append(model(mx.array([[token]]), cache=cache)[0, -1])
    mx.eval(logits)
    return logits


def check_greedy(model: nn.Module, prompt: tuple[int, ...], tokens: list[int]) -> int:
    """That each token is the one that the model itself would give there; returns how many were only nearly so."""
    near = 0
    for index, (token, logits) in enumerate(zip(tokens, own_logits(model, prompt, tokens), strict=True)):
        best = int(logits.argmax())
        if token != best:
            gap = (logits[best] - logits[token]).item()
            assert gap < CLOSE, f"token {index} after a prompt of {len(prompt)}: {token} and not {best}, {gap} apart"
            near += 1
    return near


# -- a run of the real scheduler ---------------------------------------------------------------------------------------


@dataclass
class Run:
    """What a run of the scheduler with a forward gave."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)


def run_greedy(
    chosen: ChosenForward, prompts: list[tuple[int, ...]], max_tokens: int, budget_tokens: int = 8 * MAX_MODEL_LEN
) -> Run:
    """All prompts at once but the last, which comes after two steps; in small chunks beside decoding."""
    pool = KVPool(
        budget_bytes=budget_tokens * max(chosen.bytes_per_token, 1) + 16 * chosen.row_bytes,
        bytes_per_token=max(chosen.bytes_per_token, 1),
        max_model_len=MAX_MODEL_LEN,
        row_bytes=chosen.row_bytes,
    )
    config = SchedulerConfig(max_num_batched_tokens=96, decode_token_budget=40)
    scheduler = Scheduler(config, pool, max_model_len=MAX_MODEL_LEN, eos_token_ids=())
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    requests = [Request(request_id=i, prompt_token_ids=p, params=params) for i, p in enumerate(prompts)]
    for request in requests[:-1]:
        scheduler.add(request)
    run = Run({request.request_id: [] for request in requests})
    while (plan := scheduler.schedule(len(run.plans) * 0.01)) is not None:
        run.plans.append(plan)
        logits = chosen.forward.logits(plan)
        assert (logits is None) == (not any(s.sample for s in plan.scheduled))
        sampled = [] if logits is None else logits.argmax(axis=-1).tolist()
        events = scheduler.update(plan, StepResult(sampled), len(run.plans) * 0.01)
        scheduler.check_integrity()
        for tokens in events.tokens:
            run.tokens[tokens.request_id] += tokens.token_ids
        if len(run.plans) == 2:
            scheduler.add(requests[-1])
    return run
