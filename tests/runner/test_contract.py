"""Which way of calling a model is chosen, and that the chosen way gives what the model itself gives."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache

from anllm.config import Execution
from anllm.core.request import SamplingParams
from anllm.core.step import ScheduledSequence, SlabResize, Slot, StepPlan
from anllm.errors import ModelError
from anllm.runner.attention import FlatCache, StockKernels
from anllm.runner.contract import ChosenForward, choose_forward
from anllm.runner.forward import Head, LastHidden
from anllm.scheduler import scheduler as scheduler_module
from runner.families import FAMILIES, VOCAB, WINDOW, Family, build, tiny
from runner.greedy import MAX_MODEL_LEN, GreedyEngine, check_greedy, random_tokens, run_greedy

pytestmark = pytest.mark.mlx


def choose(model: nn.Module, wanted: Execution = Execution.AUTO) -> ChosenForward:
    return choose_forward(model, StockKernels(), wanted, VOCAB)


@pytest.fixture
def little_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken hardly longer than needed, so that sequences outgrow them."""
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 1)


@pytest.mark.usefixtures("little_headroom")
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_batched_greedy_tokens_are_the_models_own(family: Family) -> None:
    """Chunked prompts longer than the window, mixed with decode rows, and a move to a larger row on the way."""
    model = build(family)
    chosen = choose(model)
    assert chosen.forward.name == family.execution
    prompts = [random_tokens(length, seed=length) for length in (5, 2 * WINDOW + 1, 250, 77)]
    run = run_greedy(chosen, prompts, max_tokens=12)
    assert any(plan.copies for plan in run.plans)
    assert any(
        any(s.is_decode for s in plan.scheduled) and any(not s.is_decode for s in plan.scheduled) for plan in run.plans
    )
    near = 0
    for request_id, prompt in enumerate(prompts):
        assert len(run.tokens[request_id]) == 12
        near += check_greedy(model, prompt, run.tokens[request_id])
    assert near <= 2, "so many near misses are no rounding"


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_what_earlier_prompts_left_changes_no_token(family: Family) -> None:
    """A chat that goes on, prompts that begin alike at the same time, and one again; within a window and beyond it."""
    model = build(family)
    chosen = choose(model)
    engine = GreedyEngine(chosen)
    begin = random_tokens(150, seed=1)
    first = engine.run([begin], 6)
    goes_on = begin + tuple(first.tokens[0]) + random_tokens(20, seed=2)
    waves = [[goes_on], [begin + random_tokens(length, seed=length) for length in (80, 90, 70)], [begin, goes_on]]
    near = check_greedy(model, begin, first.tokens[0])
    num_cached = []
    for prompts in waves:
        run = engine.run(prompts, 6)
        num_cached += [run.num_cached[i] for i in range(len(prompts))]
        near += sum(check_greedy(model, prompt, run.tokens[i]) for i, prompt in enumerate(prompts))
    assert near <= 2, "so many near misses are no rounding"
    if chosen.reuses_prefixes:
        assert num_cached == [155, 150, 150, 150, 149, 150]
    else:
        assert family.execution != "flattened"
        assert set(num_cached) == {0}


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss", "qwen3", "starcoder2"])
@pytest.mark.parametrize("execution", [Execution.COMPATIBLE, Execution.SEQUENTIAL])
@pytest.mark.usefixtures("little_headroom")
def test_slower_ways_agree_too(name: str, execution: Execution) -> None:
    model = tiny(name)
    chosen = choose(model, execution)
    assert chosen.forward.name == execution
    prompts = [random_tokens(length, seed=length) for length in (1, 40, 250, 3)]
    run = run_greedy(chosen, prompts, max_tokens=10)
    for request_id, prompt in enumerate(prompts):
        check_greedy(model, prompt, run.tokens[request_id])


@pytest.mark.usefixtures("little_headroom")
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3", "falcon_h1", "llama4"])
def test_sequences_preempted_for_memory_go_on_as_if_nothing_had_been(name: str) -> None:
    """The budget holds two rows of 512, and four sequences come to need one each."""
    model = tiny(name)
    chosen = choose(model)
    prompts = [random_tokens(length, seed=length) for length in (250, 249, 30, 251, 252)]
    run = run_greedy(chosen, prompts, max_tokens=14, budget_tokens=2 * MAX_MODEL_LEN)
    restarts = sum(s.start == 0 for plan in run.plans for s in plan.scheduled) - len(prompts)
    assert restarts > 0
    for request_id, prompt in enumerate(prompts):
        check_greedy(model, prompt, run.tokens[request_id])


# -- models that lie ---------------------------------------------------------------------------------------------------


def test_a_model_whose_flattened_attention_is_wrong_is_called_in_the_compatible_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = FlatCache.attend
    monkeypatch.setattr(FlatCache, "attend", lambda self, q, scale, sinks: right(self, q, scale * 0.5, sinks))
    assert choose(tiny()).forward.name == "compatible"
    assert "flattened: its logits differ by" in caplog.text


def test_a_flattened_step_that_forgets_earlier_tokens_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model does that attends by itself to what update_and_fetch returns: every token sees only itself."""

    def only_itself(self: FlatCache, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        layer, layout = self._layer, self._layout
        (capacity, _, rows), heads = layout.targets(layer.shape.num_heads)[0], layer.shape.num_heads
        values = layer.values(capacity).reshape(-1, layer.shape.value_dim)[rows].reshape(-1, heads, 1, 16)
        return mx.repeat(values, queries.shape[1] // heads, axis=1)

    monkeypatch.setattr(FlatCache, "attend", only_itself)
    assert choose(tiny()).forward.name == "compatible"


def test_a_model_that_raises_on_vectors_of_offsets_goes_sequentially() -> None:
    model = tiny()

    class PickyRope(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
            return self.inner(x, offset=int(offset))  # raises for more than one

    for layer in model.model.layers:
        layer.self_attn.rope = PickyRope(layer.self_attn.rope)
    assert choose(model).forward.name == "sequential"


class Forgetful(nn.Module):
    """Its logits depend on what was asked before, and no cache tells."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.num_calls = 0

    @property
    def layers(self) -> list[nn.Module]:
        return self.inner.layers

    def __call__(self, tokens: mx.array, cache: list[KVCache] | None = None) -> mx.array:
        self.num_calls += 1
        return self.inner(tokens, cache=cache) * (1 + 0.5 * self.num_calls)


def test_a_model_that_agrees_with_itself_in_no_way_is_refused_in_one_sentence() -> None:
    with pytest.raises(ModelError) as refusal:
        choose(Forgetful(tiny()))
    message = refusal.value.message
    assert "\n" not in message
    for name in ("flattened", "compatible", "sequential"):
        assert f"{name}: its logits differ by" in message


def test_logits_that_are_not_numbers_do_not_pass() -> None:
    model = tiny()
    model.model.layers[0].mlp.down_proj.weight = model.model.layers[0].mlp.down_proj.weight * math.nan
    with pytest.raises(ModelError, match="can't be run"):
        choose(model)


def test_a_wanted_way_that_does_not_go_is_refused() -> None:
    with pytest.raises(ModelError, match="flattened"):
        choose(tiny("mamba"), Execution.FLATTENED)
    with pytest.raises(ModelError, match="ChunkedKVCache"):
        choose(tiny("llama4"), Execution.COMPATIBLE)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_types_pass_in_their_own_tolerance(dtype: mx.Dtype) -> None:
    model = tiny()
    model.set_dtype(dtype)
    assert choose(model).forward.name == "flattened"


# -- the head ----------------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Counts the rows that reach the head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.rows: list[int] = []

    def __call__(self, hidden: mx.array) -> mx.array:
        self.rows.append(hidden.size // hidden.shape[-1])
        return self.inner(hidden)


def test_only_positions_that_are_sampled_reach_the_head() -> None:
    model = tiny()
    chosen = choose(model, Execution.FLATTENED)
    counting = model.lm_head = Counting(model.lm_head)
    run = run_greedy(chosen, [random_tokens(length, seed=length) for length in (50, 60, 70)], max_tokens=4)
    expected = [sum(s.sample for s in plan.scheduled) or plan.num_tokens for plan in run.plans]
    assert counting.rows == expected  # where nothing is sampled, the head is called, but see the next test


@pytest.mark.parametrize("execution", list(Execution)[1:])
def test_a_step_from_which_nothing_is_sampled_does_not_compute_the_head(execution: Execution) -> None:
    model = tiny()
    chosen = choose(model, execution)
    model.lm_head = nn.Linear(64, 50_000, bias=False)
    mx.eval(model.parameters())
    slots = [Slot(256, 0), Slot(256, 1)]
    chunks = [ScheduledSequence(i, slot, 0, (7,) * 100, False, 0, SamplingParams()) for i, slot in enumerate(slots)]
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    assert chosen.forward.logits(StepPlan(tuple(chunks), resizes=(SlabResize(256, 2),))) is None
    logits_bytes = 100 * 50_000 * 4
    assert mx.get_peak_memory() - before < logits_bytes / 2


def test_the_gate_goes_into_a_model_once_and_is_invisible_outside() -> None:
    model = tiny("llama-with-window")
    tokens = mx.array([random_tokens(20, seed=1)])
    before = model(tokens)
    Head(model), Head(model)
    assert isinstance(model.model, LastHidden)
    assert not isinstance(model.model.inner, LastHidden)
    assert mx.array_equal(model(tokens), before)
    assert len(model.layers) == 4
    assert len(make_prompt_cache(model)) == 4


def test_chosen_logits_are_those_of_their_positions() -> None:
    model = tiny()
    tokens = mx.array([random_tokens(9, seed=1), random_tokens(9, seed=2)])
    whole = model(tokens)
    picked = Head(model)(tokens, make_prompt_cache(model), [0, 1, 1], [8, 0, 4])
    assert mx.allclose(picked, mx.stack([whole[0, 8], whole[1, 0], whole[1, 4]]), atol=1e-5)
