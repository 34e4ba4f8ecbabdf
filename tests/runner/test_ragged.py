"""The ragged and the compiled way of a flattened step, with a slow ragged kernel in the place of a backend's own."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
import pytest

from anllm.config import Execution, SchedulerConfig
from anllm.core.events import Abort, Add, EngineInfo, StepEvents
from anllm.core.request import Request, SamplingParams
from anllm.core.step import ScheduledSequence, Slot, StepPlan
from anllm.engine.loop import EngineLoop
from anllm.runner import attention
from anllm.runner.attention import RaggedGroup, StepLayout
from anllm.runner.compiled import CompiledDecode
from anllm.runner.contract import ChosenForward, choose_forward
from anllm.runner.flattened import FlattenedForward
from anllm.runner.run import ModelRunner
from anllm.runner.sampler import DeviceSampler
from anllm.scheduler import scheduler as scheduler_module
from runner.families import VOCAB, WINDOW, tiny
from runner.greedy import MAX_MODEL_LEN, check_greedy, random_tokens, run_greedy
from runner.ragged import SlowRaggedKernels

pytestmark = pytest.mark.mlx
FAMILIES = ["llama", "gemma3_text", "gpt_oss", "qwen3", "starcoder2"]


@pytest.fixture
def compiled() -> Iterator[None]:
    """Really compile, which the other tests of this room do without."""
    mx.enable_compile()
    yield
    mx.disable_compile()


@pytest.fixture(autouse=True)
def _little_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences outgrow their rows, and long chunks occur."""
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 1)
    monkeypatch.setattr(attention, "RAGGED_PAIRS", 30 * 60)


def choose(model: nn.Module, kernels: SlowRaggedKernels) -> ChosenForward:
    chosen = choose_forward(model, kernels, Execution.AUTO, VOCAB)
    assert isinstance(chosen.forward, FlattenedForward)
    return chosen


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_greedy_tokens_are_the_models_own(family: str) -> None:
    model, kernels = tiny(family), SlowRaggedKernels()
    prompts = [random_tokens(length, seed=length) for length in (5, 2 * WINDOW + 1, 250, 77)]
    run = run_greedy(choose(model, kernels), prompts, max_tokens=12)
    assert kernels.calls
    assert any(plan.copies for plan in run.plans)
    assert sum(check_greedy(model, prompt, run.tokens[i]) for i, prompt in enumerate(prompts)) <= 2


@pytest.mark.usefixtures("compiled")
def test_compiled_decode_steps_give_the_models_own_tokens() -> None:
    model = tiny()
    prompts = [random_tokens(length, seed=length) for length in (5, 9, 30)]
    run = run_greedy(choose(model, SlowRaggedKernels()), prompts, max_tokens=10)
    assert sum(check_greedy(model, prompt, run.tokens[i]) for i, prompt in enumerate(prompts)) <= 1


def test_a_program_is_made_once_for_each_bucket_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(mx, "compile", lambda function: made.append(function) or function)
    model = tiny()
    run = run_greedy(choose(model, SlowRaggedKernels()), [random_tokens(5, seed=i) for i in range(6)], max_tokens=30)
    rows = {len(plan.scheduled) for plan in run.plans if all(s.is_decode for s in plan.scheduled)}
    assert {1, 5, 6} <= rows
    assert len(made) == 1 + 2  # two rows in the contract test; then one row, and five and six that share a bucket


def test_a_program_that_raises_leaves_the_slabs_as_they_were() -> None:
    model = tiny()
    forward = choose(model, SlowRaggedKernels()).forward
    assert isinstance(forward, FlattenedForward)
    run = run_greedy(ChosenForward(forward, 1024, 0), [random_tokens(20, seed=i) for i in range(2)], max_tokens=1)
    plan = StepPlan((ScheduledSequence(0, run.plans[0].scheduled[0].slot, 20, (7,), True, 1, SamplingParams()),))
    before = forward.logits(plan)

    def fail(self: CompiledDecode, *args: object) -> object:
        raise RuntimeError("boom")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledDecode, "_program", fail)
        with pytest.raises(RuntimeError, match="boom"):
            forward.logits(plan)
    assert mx.allclose(forward.logits(plan), before)


def test_steps_of_several_classes_or_with_prompts_are_not_compiled() -> None:
    def entry(capacity: int, count: int) -> ScheduledSequence:
        return ScheduledSequence(capacity + count, Slot(capacity, count), 5, (1,) * count, True, 1, SamplingParams())

    forward = choose(tiny(), SlowRaggedKernels()).forward
    assert isinstance(forward, FlattenedForward)
    compiled = forward._compiled
    assert compiled is not None
    assert compiled.can_run(StepPlan((entry(256, 1),)))
    assert not compiled.can_run(StepPlan((entry(256, 1), entry(512, 1))))
    assert not compiled.can_run(StepPlan((entry(256, 1), entry(256, 2))))


def test_long_chunks_keep_the_kernel_of_their_own_and_the_order_of_tokens() -> None:
    def entry(request_id: int, capacity: int, start: int, count: int) -> ScheduledSequence:
        return ScheduledSequence(request_id, Slot(capacity, request_id), start, (1,) * count, True, 1, SamplingParams())

    plan = StepPlan((entry(0, 256, 9, 1), entry(1, 512, 300, 1), entry(2, 256, 0, 90), entry(3, 256, 0, 4)))
    layout = StepLayout(plan, is_ragged=True)
    groups = [reader for reader in layout.readers if isinstance(reader, RaggedGroup)]
    assert [group.tokens.tolist() for group in groups] == [[0, 92, 93, 94, 95], [1]]
    assert len(layout.readers) == 3
    order = [int(t) for reader in layout.readers for t in reader.tokens]
    assert layout.order is not None
    assert [order[i] for i in layout.order.tolist()] == list(range(96))


# -- one step ahead, on a model ----------------------------------------------------------------------------------------


class AheadRunner(ModelRunner):
    """A ModelRunner around a tiny model, without a folder."""

    def __init__(self, model: nn.Module) -> None:
        chosen = choose(model, SlowRaggedKernels())
        self._forward, self._sampler, self._last = chosen.forward, DeviceSampler(), None
        per_token = max(chosen.bytes_per_token, 1)
        self.info = EngineInfo("test", "", 6 * 256 * per_token, per_token, MAX_MODEL_LEN, VOCAB, "flattened", "", ())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_step_ahead_gives_the_tokens_of_each_request_alone(temperature: float) -> None:
    """With aborts, preemption, mixed steps and rows that grow on the way."""
    model = tiny()
    params = [SamplingParams(temperature=temperature, top_p=0.9, seed=i, max_tokens=20 + 7 * (i % 3)) for i in range(9)]
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

        runner = AheadRunner(model)
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
