"""Loading: what is whole loads, in the form that is wanted; what is not is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from anllm.config import CacheConfig, ModelConfig, SchedulerConfig, Weights
from anllm.core.events import LoadProgress
from anllm.core.request import SamplingParams
from anllm.core.step import ScheduledSequence, SlabResize, Slot, StepPlan
from anllm.errors import ModelError
from anllm.runner.backends import Backend, select_backend
from anllm.runner.blas import Blas
from anllm.runner.build import RunnerSettings
from anllm.runner.contract import ChosenForward
from anllm.runner.model import UNKNOWN_LENGTH, LoadedModel, context_length, load
from anllm.runner.run import ModelRunner, longest_sequence
from runner.folders import edit_config, save

pytestmark = pytest.mark.mlx

TOKENS = [[3, 14, 15, 92, 65, 35]]


@pytest.fixture(scope="module")
def backend() -> Backend:
    return select_backend(Blas("as loaded"))


on_cpu = pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="how the CPU backend keeps weights")


def load_folder(folder: Path, backend: Backend, weights: Weights = Weights.AS_IS) -> LoadedModel:
    return load(folder, weights, backend, lambda progress: None)


def logits_of(model: Any) -> np.ndarray:
    return np.array(model(mx.array(TOKENS)).astype(mx.float32))


def refusal(folder: Path, backend: Backend) -> str:
    """The sentence with which a folder is refused."""
    with pytest.raises(ModelError) as refused:
        load_folder(folder, backend)
    message = refused.value.message
    assert message.startswith(f"The model '{folder.name}' can't be loaded: ")
    assert "\n" not in message
    assert len(message) < 400
    return message


# -- what loads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("bits", [None, 4], ids=["bf16", "4-bit"])
@pytest.mark.parametrize("kind", ["tied, head in the file", "tied, none", "untied, head in the file"])
def test_I_8_tied_and_untied_heads_load(
    tmp_path: Path, backend: Backend, kind: str, bits: int | None, shards: int
) -> None:
    """A head that ships beside tied embeddings is not used, whatever it holds."""
    extra = {"lm_head.weight": mx.ones((128, 64), mx.bfloat16)} if kind.startswith("tied, head") else {}
    made = save(
        tmp_path, bits=bits, dtype=mx.bfloat16, shards=shards, add=extra, tie_word_embeddings=kind.startswith("tied")
    )
    loaded = load_folder(tmp_path, backend)
    assert loaded.weights == ("bfloat16" if bits is None else "4-bit")
    np.testing.assert_array_equal(logits_of(loaded.model), logits_of(made))


@pytest.mark.parametrize("bits", [None, 4])
def test_I_8_an_untied_model_without_its_head_is_refused(tmp_path: Path, backend: Backend, bits: int | None) -> None:
    save(tmp_path, bits=bits, drop=("lm_head",))
    assert "lm_head.weight" in refusal(tmp_path, backend)


@pytest.mark.parametrize("bits", [4, 8])
@on_cpu
def test_dequantised_weights_give_the_logits_of_the_quantised_ones(tmp_path: Path, backend: Backend, bits: int) -> None:
    save(tmp_path, bits=bits)
    stored = load_folder(tmp_path, backend)
    dequantised = load_folder(tmp_path, backend, Weights.DEQUANTIZE)
    assert (stored.weights, dequantised.weights) == (f"{bits}-bit", "float32")
    assert stored.weight_bytes < dequantised.weight_bytes / 2
    expected = logits_of(stored.model)
    assert np.abs(logits_of(dequantised.model) - expected).max() < 2e-4 * np.abs(expected).max()


@on_cpu
@pytest.mark.parametrize(
    ("dtype", "bits"), [(mx.bfloat16, None), (mx.float16, None), (mx.bfloat16, 4), (mx.float32, 8)]
)
def test_on_a_cpu_weights_become_float32(tmp_path: Path, backend: Backend, dtype: mx.Dtype, bits: int | None) -> None:
    save(tmp_path, dtype=dtype, bits=bits)
    loaded = load_folder(tmp_path, backend, Weights.AUTO)
    assert loaded.weights == "float32"
    assert loaded.model(mx.array(TOKENS)).dtype == mx.float32


def test_progress_goes_up_to_the_whole(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path)
    seen: list[LoadProgress] = []
    loaded = load(tmp_path, Weights.AS_IS, backend, seen.append)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert seen[-1].done == seen[-1].total == loaded.weight_bytes


# -- what does not -----------------------------------------------------------------------------------------------------


def test_missing_weights_are_named(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path, drop=("model.layers.2.mlp.down_proj",))
    assert "model.layers.2.mlp.down_proj.weight" in refusal(tmp_path, backend)


def test_weights_that_the_model_has_no_place_for_are_named(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path, add={"model.layers.9.mlp.down_proj.weight": mx.zeros((64, 128))})
    assert "model.layers.9" in refusal(tmp_path, backend)


def test_an_unknown_model_type_is_named(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path)
    edit_config(tmp_path, model_type="no_such_family")
    assert "no_such_family" in refusal(tmp_path, backend)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.02, 0.5, 0.999])
def test_half_downloaded_weights_are_refused(tmp_path: Path, backend: Backend, share: float) -> None:
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    refusal(tmp_path, backend)


def test_a_missing_shard_is_refused(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "parameters" in refusal(tmp_path, backend)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": None},
        {"hidden_size": "64"},
        {"hidden_size": 96},
        {"num_attention_heads": 0},
        {"num_hidden_layers": 5},
        {"num_hidden_layers": -1},
        {"vocab_size": 100},
        {"rope_scaling": {"type": "unheard of"}},
        {"rope_scaling": [1]},
        {"quantization": {"bits": 4}},
        {"quantization_config": {"quant_method": "unheard of"}},
        {"model_file": "evil.py"},
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(tmp_path: Path, backend: Backend, changes: dict[str, Any]) -> None:
    save(tmp_path)
    edit_config(tmp_path, **changes)
    (tmp_path / "evil.py").write_text("raise SystemExit('the code of a model folder was run')")
    if "unheard of" in str(changes.get("quantization_config")):
        load_folder(tmp_path, backend)  # mlx-lm takes such weights as they are, and they fit
    else:
        refusal(tmp_path, backend)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"hidden_size": 64}'])
def test_a_config_that_is_none_is_refused(tmp_path: Path, backend: Backend, content: str) -> None:
    save(tmp_path)
    (tmp_path / "config.json").write_text(content)
    refusal(tmp_path, backend)


# -- lengths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 2048}, 2048),
        ({"seq_length": 2048}, 2048),
        ({"n_ctx": 512}, 512),
        ({"text_config": {"max_position_embeddings": 100}}, 100),
        ({"max_position_embeddings": None, "n_ctx": 77}, 77),
        ({"max_position_embeddings": 0}, UNKNOWN_LENGTH),
        ({"text_config": None}, UNKNOWN_LENGTH),
        ({}, UNKNOWN_LENGTH),
    ],
)
def test_context_length(config: dict[str, Any], length: int) -> None:
    assert context_length(config) == length


def limits(context: int = 4096, bytes_per_token: int = 1000, row_bytes: int = 0) -> tuple[LoadedModel, ChosenForward]:
    return LoadedModel(None, context, "float32", 0), ChosenForward(None, bytes_per_token, row_bytes)  # type: ignore[arg-type]


def test_the_longest_sequence_is_the_models_limit_where_memory_allows() -> None:
    assert longest_sequence(*limits(), 4_096_000, None) == 4096
    assert longest_sequence(*limits(), 4_096_000, 100) == 100


def test_the_longest_sequence_is_cut_to_what_memory_holds(caplog: pytest.LogCaptureFixture) -> None:
    length = longest_sequence(*limits(), 1_000_000, None)
    assert length % 64 == 0
    assert 1_000_000 - 64_000 < length * 1000 <= 1_000_000
    assert "the context is cut from 4096" in caplog.text
    assert longest_sequence(*limits(row_bytes=500_000), 1_000_000, None) < length


def test_a_length_that_was_asked_for_is_never_cut() -> None:
    with pytest.raises(ModelError, match=r"^Not enough memory: one sequence of 2000 tokens needs 0\.00 GB"):
        longest_sequence(*limits(), 1_000_000, 2000)
    with pytest.raises(ModelError, match="max_model_len is 5000, but the model was made for at most 4096"):
        longest_sequence(*limits(), 10**9, 5000)


@pytest.mark.parametrize("budget", [-(10**9), 0, 100_000])
def test_next_to_no_memory_is_refused(budget: int) -> None:
    with pytest.raises(ModelError, match="Not enough memory") as refused:
        longest_sequence(*limits(), budget, None)
    assert "-" not in refused.value.message


def test_state_of_a_fixed_size_needs_memory_too() -> None:
    with pytest.raises(ModelError, match="Not enough memory"):
        longest_sequence(*limits(bytes_per_token=0, row_bytes=1000), 500, None)
    assert longest_sequence(*limits(bytes_per_token=0, row_bytes=1000), 10**6, None) == 4096


# -- the whole runner --------------------------------------------------------------------------------------------------


def make_runner(folder: Path, backend: Backend, model: ModelConfig | None = None, kv: int | None = None) -> ModelRunner:
    settings = RunnerSettings(folder, (1,), model or ModelConfig(), CacheConfig(kv_memory_bytes=kv), SchedulerConfig())
    return ModelRunner(settings, backend, lambda progress: None)


def test_a_runner_knows_what_it_loaded(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path, max_position_embeddings=600)
    info = make_runner(tmp_path, backend, kv=10**8).info
    assert info.backend == backend.name
    assert (info.max_model_len, info.vocab_size, info.execution) == (600, 128, "flattened")
    assert info.kv_budget_bytes == 10**8
    assert info.kv_bytes_per_token == 4 * 2 * 2 * 16 * 4  # layers, K and V, heads, dim, float32
    assert info.eos_token_ids == (1,)


def test_a_runner_runs_a_plan(tmp_path: Path, backend: Backend) -> None:
    made = save(tmp_path)
    runner = make_runner(tmp_path, backend)
    params = SamplingParams(temperature=0)
    slots = [Slot(256, 0), Slot(256, 1)]
    plan = StepPlan(
        (
            ScheduledSequence(1, slots[0], 0, tuple(TOKENS[0]), True, 0, params),
            ScheduledSequence(2, slots[1], 0, (5, 6), False, 0, params),
        ),
        resizes=(SlabResize(256, 2),),
    )
    assert list(runner.run(plan).token_ids) == [int(logits_of(made)[0, -1].argmax())]
    only_prefill = StepPlan((ScheduledSequence(2, slots[1], 2, (7, 8), False, 0, params),))
    assert list(runner.run(only_prefill).token_ids) == []
    runner.release()


def test_a_runner_without_memory_for_a_sequence_is_refused(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path)
    with pytest.raises(ModelError, match="Not enough memory"):
        make_runner(tmp_path, backend, kv=1000)


def test_a_context_shorter_than_the_warm_up_loads(tmp_path: Path, backend: Backend) -> None:
    save(tmp_path, max_position_embeddings=16)
    assert make_runner(tmp_path, backend).info.max_model_len == 16
