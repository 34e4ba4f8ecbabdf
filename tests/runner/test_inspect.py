"""What is told of a model without loading it is what a start finds. Tiny models with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from anllm.config import CacheConfig, Execution, ModelConfig, SchedulerConfig, Weights
from anllm.core.inspection import Inspection
from anllm.errors import ModelError
from anllm.runner.backends import Backend, select_backend
from anllm.runner.blas import Blas
from anllm.runner.build import RunnerSettings
from anllm.runner.inspect import first_layers, inspect
from anllm.runner.run import ModelRunner
from runner.families import DENSE, FAMILIES, Family, build
from runner.folders import save

pytestmark = pytest.mark.mlx


@pytest.fixture(scope="module")
def backend() -> Backend:
    return select_backend(Blas("as loaded"))


def look(folder: Path, backend: Backend, weights: Weights = Weights.AUTO) -> Inspection:
    return inspect(folder, weights, Execution.AUTO, backend)


@pytest.mark.parametrize("weights", [Weights.AUTO, Weights.AS_IS])
@pytest.mark.parametrize("bits", [None, 4])
def test_it_tells_what_a_start_finds(tmp_path: Path, backend: Backend, bits: int | None, weights: Weights) -> None:
    save(tmp_path, bits=bits, dtype=mx.bfloat16)
    found = look(tmp_path, backend, weights)
    model = ModelConfig(weights=weights)
    info = ModelRunner(
        RunnerSettings(tmp_path, (2,), model, CacheConfig(kv_memory_bytes=1 << 30), SchedulerConfig()),
        backend,
        lambda progress: None,
    ).info
    assert (found.backend, found.weights, found.execution) == (info.backend, info.weights, info.execution)
    assert (found.kv_bytes_per_token, found.kv_row_bytes) == (info.kv_bytes_per_token, info.kv_row_bytes)
    assert found.context_length == info.max_model_len


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_family_has_its_way(tmp_path: Path, backend: Backend, family: Family) -> None:
    model = build(family)
    config = {**DENSE, **family.config, "model_type": family.name}
    (tmp_path / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    found = look(tmp_path, backend)
    assert found.execution == family.execution, found.why_unknown
    assert found.kv_bytes_per_token > 0 or found.kv_row_bytes > 0


def test_most_of_the_weights_are_not_read(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path, num_hidden_layers=32, hidden_size=256, intermediate_size=4096)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    found = look(tmp_path, backend, Weights.AS_IS)
    assert found.execution == "flattened"
    assert mx.get_peak_memory() - before < found.weight_bytes / 2


def test_what_can_not_be_loaded_is_refused(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path, drop=("model.norm",))
    with pytest.raises(ModelError, match=r"can't be loaded: .*model\.norm\.weight"):
        look(tmp_path, backend)


def test_a_config_is_cut_wherever_it_speaks_of_each_layer() -> None:
    config = {"num_hidden_layers": 3, "layer_types": ["a", "b", "a"], "eos_token_id": [1, 2], "hidden_size": 3}
    assert first_layers(config, 2) == {"num_hidden_layers": 2, "layer_types": ["a", "b"]}
    assert first_layers({"text_config": config}, 1)["text_config"] == {
        **config,
        "num_hidden_layers": 1,
        "layer_types": ["a"],
    }
    assert first_layers({"hidden_size": 3}, 1) == {}
