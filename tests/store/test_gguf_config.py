from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from anllm.errors import ModelError
from anllm.store.gguf_config import generation_config, llama3_factors, model_config
from anllm.store.gguf_file import GGUFFile
from anllm.store.gguf_weights import module_names


def config_of(path) -> dict[str, object]:
    gguf_file = GGUFFile(path)
    return model_config(gguf_file, module_names(gguf_file))


def test_the_config_has_the_shape_of_the_model(make_gguf):
    path, model = make_gguf()
    config = config_of(path)
    assert config["model_type"] == "llama"
    assert (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]) == (64, 96, 2)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (len(model.tokens), 512)
    assert (config["rms_norm_eps"], config["rope_theta"], config["rope_scaling"]) == (1e-5, 100000.0, None)
    assert (config["bos_token_id"], config["eos_token_id"], config["tie_word_embeddings"]) == (1, 2, True)


def test_matrices_with_other_bits_have_entries_of_their_own(make_gguf):
    path, _ = make_gguf(matrix_type=Kind.Q4_0, embedding_type=Kind.Q8_0)
    odd = {"group_size": 32, "bits": 8}
    assert config_of(path)["quantization"] == {"group_size": 32, "bits": 4, "model.embed_tokens": odd}


def test_a_model_of_floats_has_no_quantization(make_gguf):
    path, _ = make_gguf(matrix_type=Kind.F16, embedding_type=Kind.F16)
    assert "quantization" not in config_of(path)


def test_an_own_output_matrix_means_untied_embeddings(make_gguf):
    path, _ = make_gguf(is_tied=False)
    assert config_of(path)["tie_word_embeddings"] is False


def test_end_tokens_of_the_vocabulary_end_an_answer(make_gguf):
    path, _ = make_gguf()
    assert generation_config(GGUFFile(path))["eos_token_id"] == [2, 0]


@pytest.mark.parametrize(
    ("metadata", "factor"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4.0),
        ({"llama.rope.scaling.factor": 2.0}, 2.0),
        ({"llama.rope.scale_linear": 8.0}, 8.0),
    ],
)
def test_linear_rope_scaling_is_kept(make_gguf, metadata, factor):
    path, _ = make_gguf(metadata=metadata)
    assert config_of(path)["rope_scaling"] == {"rope_type": "linear", "type": "linear", "factor": factor}


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_rope_factors_of_llama_3_become_its_settings(make_gguf, factor):
    factors = llama3_factors(factor, 16, 100000.0)
    path, _ = make_gguf(extra_tensors={"rope_freqs.weight": factors})
    scaling = config_of(path)["rope_scaling"]
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", factor)
    assert (scaling["low_freq_factor"], scaling["high_freq_factor"]) == (1.0, 4.0)


def test_llama3_factors_are_those_of_the_published_rule():
    factors = []
    for i in range(0, 64, 2):  # the rule as in Meta's apply_scaling, one frequency at a time
        wavelen = 2 * np.pi * 500000.0 ** (i / 64)
        smooth = (8192 / wavelen - 1) / (4 - 1)
        medium = 1 / ((1 - smooth) / 32 + smooth)
        factors.append(1.0 if wavelen < 8192 / 4 else 32.0 if wavelen > 8192 / 1 else medium)
    np.testing.assert_allclose(llama3_factors(32.0, 64, 500000.0), factors, rtol=1e-6)
    assert len(set(factors)) > 3


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"metadata": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}}, "yarn"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "rope.dimension_count"),
        ({"metadata": {"llama.attention.value_length": 32}}, "value_length"),
        ({"metadata": {"llama.attention.head_count_kv": [2, 1]}}, "head_count_kv"),
        ({"metadata": {"llama.context_length": None}}, "llama.context_length"),
        ({"extra_tensors": {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}}, "rope_freqs.weight"),
        ({"architecture": "qwen2", "metadata": {"qwen2.attention.key_length": 32}}, "key_length"),
    ],
)
def test_a_setting_that_cannot_be_kept_is_refused_by_name(make_gguf, fields, word):
    path, _ = make_gguf(**fields)
    with pytest.raises(ModelError, match=word):
        config_of(path)
