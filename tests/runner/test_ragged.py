"""The ragged and the fused way of a flattened step, with slow kernels in the place of a backend's own."""

from __future__ import annotations

from pathlib import Path

import mlx.nn as nn
import numpy as np
import pytest

from anllm.config import CacheConfig, Execution, ModelConfig, SchedulerConfig, Weights
from anllm.core.events import Abort, Add, StepEvents
from anllm.core.request import Request, SamplingParams
from anllm.engine.loop import EngineLoop
from anllm.runner.build import RunnerSettings
from anllm.runner.contract import ChosenForward, choose_forward
from anllm.runner.flattened import FlattenedForward
from anllm.runner.ragged import RaggedRows
from anllm.runner.run import ModelRunner
from anllm.runner.sampler import DeviceSampler
from anllm.scheduler import scheduler as scheduler_module
from runner.bare import BareRunner
from runner.families import VOCAB, WINDOW, tiny
from runner.folders import save
from runner.greedy import check_greedy, random_tokens, run_greedy
from runner.ragged import SlowFusedKernels, SlowRaggedKernels

pytestmark = pytest.mark.mlx
FAMILIES = ["llama", "gemma3_text", "gpt_oss", "qwen3", "starcoder2"]


@pytest.fixture(autouse=True)
def _little_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences outgrow their rows."""
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 1)


def choose(model: nn.Module, kernels: SlowRaggedKernels) -> ChosenForward:
    chosen = choose_forward(model, kernels, Execution.AUTO, VOCAB)
    assert isinstance(chosen.forward, FlattenedForward)
    return chosen


@pytest.mark.parametrize("kind", [SlowRaggedKernels, SlowFusedKernels])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_the_models_own(family: str, kind: type[SlowRaggedKernels]) -> None:
    model, kernels = tiny(family), kind()
    prompts = [random_tokens(length, seed=length) for length in (5, 2 * WINDOW + 1, 250, 77)]
    run = run_greedy(choose(model, kernels), prompts, max_tokens=12)
    assert kernels.calls
    assert any(plan.copies for plan in run.plans)
    assert sum(check_greedy(model, prompt, run.tokens[i]) for i, prompt in enumerate(prompts)) <= 2


def test_tokens_of_a_sequence_are_grouped() -> None:
    slots, positions = [4, 4, 4, 4, 4, 0, 1, 1, 4], [7, 8, 9, 10, 11, 3, 0, 1, 12]
    rows = RaggedRows(np.array(slots), np.array(positions), np.array([256] * 5 + [512] * 4))
    assert rows.capacities == (256, 512)
    assert rows.longest == 13
    assert rows.table.tolist()[4:6] == [[0, 4, 11, 256], [1, 0, 3, 512]]
    assert rows.groups(2).tolist() == [
        [0, 4, 7, 256, 0, 2],
        [0, 4, 9, 256, 2, 2],
        [0, 4, 11, 256, 4, 1],
        [1, 0, 3, 512, 5, 1],
        [1, 1, 0, 512, 6, 2],
        [1, 4, 12, 512, 8, 1],
    ]
    assert [group[4:] for group in rows.groups(16).tolist()] == [[0, 5], [5, 1], [6, 2], [8, 1]]
    assert [group[4:] for group in rows.groups(1).tolist()] == [[i, 1] for i in range(9)]


# -- one step ahead, on a model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_step_ahead_gives_the_tokens_of_each_request_alone(temperature: float) -> None:
    """With aborts, preemption, mixed steps, rows that grow on the way, and penalties in some of them."""
    model = tiny()
    params = [
        SamplingParams(
            temperature=temperature,
            top_p=0.9,
            seed=i,
            max_tokens=20 + 7 * (i % 3),
            frequency_penalty=1.5 * (i % 3 == 1),
            logprobs=2 if i % 4 == 2 else None,
        )
        for i in range(9)
    ]
    requests = [
        Request(request_id=i, prompt_token_ids=random_tokens(20 + 29 * i, seed=i), params=p)
        for i, p in enumerate(params)
    ]

    def answers(some: list[Request], aborted: int | None = None) -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = {}

        def collect(events: StepEvents) -> None:
            assert not events.failed
            for event in events.tokens:
                tokens.setdefault(event.request_id, []).extend(event.token_ids)

        runner = BareRunner(choose(model, SlowFusedKernels()), DeviceSampler())
        assert runner.runs_ahead
        loop = EngineLoop(runner, SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=70), collect)
        loop.take(Add(request) for request in some)
        for step in range(10_000):
            if step == 12 and aborted is not None:
                loop.take([Abort((aborted,))])
            if not loop.step():
                break
        loop.scheduler.check_integrity()
        return tokens

    together = answers(requests, aborted=4)
    for request in requests:
        if request.request_id != 4:
            assert together[request.request_id] == answers([request])[request.request_id]


# -- a runner from a folder --------------------------------------------------------------------------------------------


class GpuLikeBackend:
    """A Backend as a GPU has it, on MLX's default device."""

    name = "test"
    blas = ""
    prefill_tokens = 1024
    grown_slab_bytes = None

    def __init__(self) -> None:
        self.kernels = SlowFusedKernels()
        self.sampler = DeviceSampler()

    def prepare(self, model: nn.Module, weights: Weights) -> None:
        pass

    def memory_bytes(self) -> int:
        return 4 << 30


def test_a_runner_with_fused_layers_starts_warm_and_answers_as_the_model_does(tmp_path: Path) -> None:
    """The warm-up runs every variant of the ragged kernels, and leaves the slabs free for the pool."""
    made = save(tmp_path)
    backend = GpuLikeBackend()
    settings = RunnerSettings(tmp_path, (), ModelConfig(), CacheConfig(kv_memory_bytes=1 << 28), SchedulerConfig())
    runner = ModelRunner(settings, backend, lambda progress: None)
    assert backend.kernels.calls
    tokens: list[int] = []
    loop = EngineLoop(runner, settings.scheduler, lambda events: [tokens.extend(t.token_ids) for t in events.tokens])
    prompt = random_tokens(300, seed=3)
    loop.take([Add(Request(request_id=0, prompt_token_ids=prompt, params=SamplingParams(temperature=0, max_tokens=6)))])
    while loop.step():
        pass
    assert check_greedy(made, prompt, tokens) == 0
