"""Fused layers: which models get them, and that nothing else about a model changes."""

from __future__ import annotations

import os
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import llama

from anllm.config import Execution
from anllm.runner.build import MLX_ENVIRONMENT, set_environment
from anllm.runner.contract import choose_forward
from anllm.runner.fusion import FusedAttention, FusedMLP, fuse
from runner.families import VOCAB, tiny
from runner.ragged import SlowFusedKernels

pytestmark = pytest.mark.mlx
TOKENS = mx.array([[5, 9, 2, 77, 31]])


def kinds(model: nn.Module) -> tuple[int, int]:
    """How many fused attentions and MLPs it has."""
    modules = model.modules()
    return sum(type(m) is FusedAttention for m in modules), sum(type(m) is FusedMLP for m in modules)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", (4, 4)),
        ("llama-with-window", (4, 4)),
        ("qwen2", (4, 4)),
        ("qwen3", (4, 4)),
        ("granite", (4, 4)),
        ("qwen3_moe", (4, 0)),  # experts are no gated MLP
        ("smollm3", (3, 4)),  # one layer without rotary positions
        ("olmo2", (0, 4)),  # norms of q and k over all heads
        ("gemma3_text", (0, 0)),
        ("gpt_oss", (0, 0)),
    ],
)
def test_what_is_fused(family: str, expected: tuple[int, int]) -> None:
    model = tiny(family)
    before = model(TOKENS)
    fusion = fuse(model, SlowFusedKernels())
    assert kinds(model) == expected
    assert fuse(model, SlowFusedKernels()).replaced == []
    assert mx.allclose(model(TOKENS), before, atol=1e-5)
    fusion.undo()
    assert kinds(model) == (0, 0)
    assert mx.array_equal(model(TOKENS), before)


def test_merged_weights_are_not_stored_twice() -> None:
    model = llama.MLP(llama.ModelArgs("llama", 512, 1, 2048, 8, 1e-5, 8))
    block = nn.Module()
    block.mlp = model
    mx.eval(block.parameters())
    before = mx.get_active_memory()
    fusion = fuse(block, SlowFusedKernels())
    assert len(fusion.replaced) == 1
    assert mx.get_active_memory() <= before + 4096
    assert mx.array_equal(block.mlp.gate_up_proj.weight[:2048], model.gate_proj.weight)


def test_quantised_layers_are_merged_too() -> None:
    model = tiny("llama")
    nn.quantize(model, group_size=32, bits=4)
    before = model(TOKENS)
    fuse(model, SlowFusedKernels())
    assert kinds(model) == (4, 4)
    assert mx.allclose(model(TOKENS), before, atol=1e-5)


def test_layers_of_different_form_are_left_alone() -> None:
    model: Any = tiny("llama")
    first, second, *_ = model.model.layers
    first.self_attn.q_proj = nn.Linear(64, 64, bias=True)
    second.mlp.up_proj = nn.QuantizedLinear.from_linear(second.mlp.up_proj, 32, 4)
    fuse(model, SlowFusedKernels())
    assert kinds(model) == (3, 3)


class ScaledMLP(llama.MLP):
    def __call__(self, x: mx.array) -> mx.array:
        return 2 * super().__call__(x)


def test_a_module_that_computes_something_else_is_left_alone() -> None:
    model: Any = tiny("llama")
    for layer in model.model.layers:
        layer.mlp.__class__ = ScaledMLP
    fuse(model, SlowFusedKernels())
    assert kinds(model) == (4, 0)


class WrongKernels(SlowFusedKernels):
    def swiglu(self, projected: mx.array) -> mx.array:
        return super().swiglu(projected) * 1.1


def test_where_fused_layers_disagree_the_model_stays_as_it_was() -> None:
    model = tiny("llama")
    chosen = choose_forward(model, WrongKernels(), Execution.AUTO, VOCAB)
    assert chosen.forward.name == "flattened"
    assert kinds(model) == (0, 0)
    choose_forward(model, SlowFusedKernels(), Execution.AUTO, VOCAB)
    assert kinds(model) == (4, 4)


def test_a_slower_way_that_is_asked_for_gets_no_fused_layers() -> None:
    model = tiny("llama")
    choose_forward(model, SlowFusedKernels(), Execution.COMPATIBLE, VOCAB)
    assert kinds(model) == (0, 0)


def test_mlx_does_not_end_the_process_for_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MLX_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLX_CUDA_GRAPH_CACHE_SIZE", "50")
    set_environment()
    assert os.environ["MLX_ENABLE_CACHE_THRASHING_CHECK"] == "0"
    assert os.environ["MLX_CUDA_GRAPH_CACHE_SIZE"] == "50"
