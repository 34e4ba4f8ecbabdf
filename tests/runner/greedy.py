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
    """What a run of the scheduler with a forward gave, by request."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    num_cached: dict[int, int] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)


class GreedyEngine:
    """The real scheduler with a forward, in small chunks beside decoding."""

    def __init__(self, chosen: ChosenForward, budget_tokens: int = 8 * MAX_MODEL_LEN) -> None:
        self._forward = chosen.forward
        pool = KVPool(
            budget_bytes=budget_tokens * max(chosen.bytes_per_token, 1) + 16 * chosen.row_bytes,
            bytes_per_token=max(chosen.bytes_per_token, 1),
            max_model_len=MAX_MODEL_LEN,
            row_bytes=chosen.row_bytes,
        )
        self._scheduler = Scheduler(
            SchedulerConfig(max_num_batched_tokens=96, decode_token_budget=40),
            pool,
            max_model_len=MAX_MODEL_LEN,
            eos_token_ids=(),
            reuses_prefixes=chosen.reuses_prefixes,
        )

    def run(self, prompts: list[tuple[int, ...]], max_tokens: int) -> Run:
        """All prompts at once but the last of several, which comes after two steps."""
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        requests = [Request(request_id=i, prompt_token_ids=p, params=params) for i, p in enumerate(prompts)]
        late = requests[-1:] if len(requests) > 1 else []
        for request in requests[: len(requests) - len(late)]:
            self._scheduler.add(request)
        run = Run({request.request_id: [] for request in requests})
        while (plan := self._scheduler.schedule(len(run.plans) * 0.01)) is not None:
            run.plans.append(plan)
            logits = self._forward.logits(plan)
            assert (logits is None) == (not any(s.sample for s in plan.scheduled))
            sampled = [] if logits is None else logits.argmax(axis=-1).tolist()
            events = self._scheduler.update(plan, StepResult(sampled), len(run.plans) * 0.01)
            self._scheduler.check_integrity()
            for tokens in events.tokens:
                run.tokens[tokens.request_id] += tokens.token_ids
            for started in events.started:
                run.num_cached[started.request_id] = started.num_cached_tokens
            if len(run.plans) == 2 and late:
                self._scheduler.add(late[0])
        return run


def run_greedy(
    chosen: ChosenForward, prompts: list[tuple[int, ...]], max_tokens: int, budget_tokens: int = 8 * MAX_MODEL_LEN
) -> Run:
    """With an engine of its own."""
    return GreedyEngine(chosen, budget_tokens).run(prompts, max_tokens)
