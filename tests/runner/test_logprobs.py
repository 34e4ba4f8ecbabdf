"""What a model thinks of a prompt's tokens, through each way of calling it: held against the model's own logits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from anllm.config import Execution, SchedulerConfig
from anllm.core.events import Add, StepEvents, TokenLogprobs
from anllm.core.request import Request, SamplingParams
from anllm.core.step import ScheduledSequence, Slot, StepPlan
from anllm.engine.loop import EngineLoop
from anllm.runner.attention import StockKernels
from anllm.runner.contract import choose_forward
from anllm.runner.logprobs import LOWEST_LOGPROB, ScoredPrompts, split_rows
from anllm.runner.sampler import DeviceSampler, HostSampler
from runner.bare import BareRunner
from runner.families import VOCAB, tiny
from runner.greedy import random_tokens

pytestmark = pytest.mark.mlx


def expected(model: nn.Module, prompt: tuple[int, ...]) -> np.ndarray:
    """Log probabilities [len(prompt) - 1, vocab] before each token but the first."""
    logits = np.array(model(mx.array([prompt]))[0, :-1].astype(mx.float32)).astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def check(scores: list[TokenLogprobs], prompt: tuple[int, ...], number: int, logprobs: np.ndarray) -> None:
    assert len(scores) == len(prompt) - 1
    for score, token, row in zip(scores, prompt[1:], logprobs, strict=True):
        assert score.logprob == pytest.approx(row[token], abs=2e-3)
        assert abs(score.rank - 1 - (row > row[token]).sum()) <= 1  # neighbours may change places
        assert [value for _, value in score.top] == pytest.approx(np.sort(row)[::-1][:number], abs=2e-3)
        for other, value in score.top:
            assert value == pytest.approx(row[other], abs=2e-3)


@pytest.mark.parametrize("sampler", [HostSampler(), DeviceSampler()], ids=["plain", "one step ahead"])
@pytest.mark.parametrize("execution", [Execution.FLATTENED, Execution.COMPATIBLE, Execution.SEQUENTIAL])
def test_prompts_are_scored_as_the_model_itself_does_it(execution: Execution, sampler: Any) -> None:
    """In chunks, beside decoding rows and prompts that nobody scores."""
    model = tiny()
    prompts = [random_tokens(length, seed=length) for length in (1, 2, 70, 33, 50)]
    numbers = [3, 0, 5, None, 1]
    runner = BareRunner(choose_forward(model, StockKernels(), execution, VOCAB), sampler)
    scores: dict[int, list[TokenLogprobs]] = {i: [] for i in range(len(prompts))}
    tokens: dict[int, int] = dict.fromkeys(scores, 0)

    def collect(events: StepEvents) -> None:
        assert not events.failed
        for event in events.prompts:
            scores[event.request_id] += event.logprobs
        for event in events.tokens:
            tokens[event.request_id] += len(event.token_ids)

    loop = EngineLoop(runner, SchedulerConfig(max_num_batched_tokens=40), collect)
    loop.take(
        Add(Request(request_id=i, prompt_token_ids=prompt, params=SamplingParams(max_tokens=6, prompt_logprobs=number)))
        for i, (prompt, number) in enumerate(zip(prompts, numbers, strict=True))
    )
    while loop.step():
        pass
    assert set(tokens.values()) == {6}
    for i, (prompt, number) in enumerate(zip(prompts, numbers, strict=True)):
        if number is None:
            assert scores[i] == []
        else:
            check(scores[i], prompt, number, expected(model, prompt) if len(prompt) > 1 else np.zeros((0, VOCAB)))


def entry(request_id: int, num_tokens: int, *, sample: bool, scored: tuple[int, ...], number: int = 0) -> Any:
    params = SamplingParams(prompt_logprobs=number)
    return ScheduledSequence(
        request_id, Slot(256, request_id), 0, (0,) * num_tokens, sample, 0, params, scored_token_ids=scored
    )


def test_which_rows_are_whose() -> None:
    plan = StepPlan(
        (
            entry(0, 1, sample=True, scored=()),
            entry(1, 3, sample=True, scored=(5, 6)),
            entry(2, 2, sample=False, scored=(7, 8)),
            entry(3, 4, sample=False, scored=()),
        )
    )
    assert [s.logit_positions for s in plan.scheduled] == [[0], [0, 1, 2], [0, 1], []]
    assert split_rows(plan) == ([0, 3], [1, 2, 4, 5])


def test_ranks_ties_and_the_impossible() -> None:
    logits = mx.array([[2.0, 5.0, 5.0, -mx.inf], [0.0, 1.0, 2.0, 3.0]])
    (scores,) = ScoredPrompts(logits, [entry(0, 3, sample=True, scored=(3, 3), number=2)]).read()
    assert (scores[0].logprob, scores[0].rank) == (LOWEST_LOGPROB, 4)
    assert {token for token, _ in scores[0].top} == {1, 2}
    assert (scores[1].rank, scores[1].top[0][0]) == (1, 3)
