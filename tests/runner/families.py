"""Tiny models with random weights, of many of mlx-lm's families."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

VOCAB = 128
WINDOW = 16  # of the families with sliding windows; far shorter than the tests' sequences

DENSE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "head_dim": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
MLA = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
MULTIPLIERS = {
    "logits_scaling": 1.0,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_bias": False,
    "mlp_bias": False,
}
GPT2 = {"n_ctx": 512, "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 512, "layer_norm_epsilon": 1e-5}


@dataclass(frozen=True)
class Family:
    """name: of mlx-lm's module; config: over DENSE; execution: the way of calling that such a model must get."""

    name: str
    execution: str
    config: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    def __str__(self) -> str:
        return self.label or self.name


def _windowed(**config: Any) -> dict[str, Any]:
    return {"sliding_window": WINDOW, **config}


FAMILIES = [
    Family("llama", "flattened", {"tie_word_embeddings": False}),
    Family(
        "llama",
        "flattened",
        _windowed(layer_types=["sliding_attention", "full_attention"] * 2),
        label="llama-with-window",
    ),
    Family("qwen2", "flattened", {"tie_word_embeddings": True}),
    Family("qwen3", "flattened", {"tie_word_embeddings": True}),
    Family(
        "qwen3_moe",
        "flattened",
        {"decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False, **EXPERTS},
    ),
    Family("gemma", "flattened"),
    Family("gemma3_text", "flattened", _windowed(sliding_window_pattern=2, query_pre_attn_scalar=16)),
    Family("mixtral", "flattened", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("phi3", "flattened"),
    Family("olmo2", "flattened"),
    Family("olmo3", "flattened", _windowed(layer_types=["sliding_attention", "full_attention"] * 2)),
    Family("granite", "flattened", MULTIPLIERS),
    Family("cohere2", "flattened", _windowed(sliding_window_pattern=2, logit_scale=1.0)),
    Family(
        "gpt_oss",
        "flattened",
        _windowed(
            num_local_experts=4,
            num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    ),
    Family("smollm3", "flattened"),
    Family("glm4", "flattened", {"attention_bias": False, "partial_rotary_factor": 0.5}),
    Family("starcoder2", "flattened"),
    Family(
        "exaone4",
        "flattened",
        _windowed(sliding_window_pattern="LG", tie_word_embeddings=False, rope_scaling=None),
    ),
    Family(
        "ministral3",
        "flattened",
        _windowed(
            layer_types=["sliding_attention", "full_attention"] * 2,
            rope_parameters={
                "rope_theta": 1e4,
                "rope_type": "default",
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 32,
            },
        ),
    ),
    Family("gpt2", "flattened", GPT2),
    # Its own attention has five dimensions, which no mask of a batch of rows fits.
    Family("gemma2", "sequential", {"query_pre_attn_scalar": 16.0}),
    Family(
        "minicpm3",
        "flattened",
        {
            **MLA,
            "dim_model_base": 64,
            "scale_depth": 1.4,
            "scale_emb": 1.0,
            "num_key_value_heads": 4,
            "rope_scaling": {
                "type": "longrope",
                "original_max_position_embeddings": 4096,
                "short_factor": 1.0,
                "long_factor": 1.0,
            },
        },
    ),
    Family(
        "deepseek_v3",
        "compatible",
        {
            **MLA,
            **EXPERTS,
            "num_key_value_heads": 4,
            "n_shared_experts": 1,
            "n_routed_experts": 4,
            "first_k_dense_replace": 1,
        },
    ),
    Family(
        "mamba",
        "compatible",
        {"state_size": 8, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 4},
    ),
    Family(
        "mamba2",
        "compatible",
        {
            "num_heads": 8,
            "state_size": 8,
            "layer_norm_epsilon": 1e-5,
            "conv_kernel": 4,
            "n_groups": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "tie_word_embeddings": True,
            "time_step_limit": (0.01, 10.0),
            "time_step_rank": "auto",
        },
    ),
    Family(
        "falcon_h1",
        "compatible",
        {
            "mamba_d_head": 16,
            "mamba_d_ssm": 64,
            "mamba_d_state": 8,
            "mamba_n_heads": 4,
            "mamba_chunk_size": 16,
            "lm_head_multiplier": 1.0,
        },
    ),
    Family(
        "jamba",
        "compatible",
        {
            "attn_layer_offset": 1,
            "attn_layer_period": 2,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
            "mamba_d_conv": 4,
            "mamba_d_state": 8,
            "mamba_expand": 2,
            "num_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    Family(
        "lfm2",
        "compatible",
        {
            "norm_eps": 1e-5,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_dim": 64,
            "block_multiple_of": 32,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": True,
            "layer_types": ["conv", "full_attention"] * 2,
        },
    ),
    Family(
        "qwen3_next",
        "compatible",
        {
            **EXPERTS,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [],
            "partial_rotary_factor": 0.5,
            "full_attention_interval": 2,
        },
    ),
    Family(
        "recurrent_gemma",
        "compatible",
        {
            "attention_bias": False,
            "conv1d_width": 4,
            "logits_soft_cap": 30.0,
            "attention_window_size": WINDOW,
            "block_types": ["recurrent", "attention"],
        },
    ),
    Family(
        "llama4_text",
        "flattened",
        {
            "intermediate_size_mlp": 128,
            "tie_word_embeddings": True,
            "no_rope_layers": [1, 1, 1, 0],
            "use_qk_norm": True,
        },
    ),
    Family(
        "llama4",
        "sequential",
        {
            "text_config": {
                **DENSE,
                "model_type": "llama4_text",
                "attention_bias": False,
                "attention_chunk_size": WINDOW,
                "interleave_moe_layer_step": 2,
                "intermediate_size_mlp": 128,
                "num_experts_per_tok": 1,
                "num_local_experts": 4,
                "rope_scaling": None,
                "use_qk_norm": True,
            }
        },
    ),
]


def build(family: Family, seed: int = 0) -> nn.Module:
    """The model, in float32."""
    mx.random.seed(seed)
    module = importlib.import_module(f"mlx_lm.models.{family.name}")
    config = {"model_type": family.name, **DENSE, **family.config}
    model = module.Model(module.ModelArgs.from_dict(config))
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def tiny(name: str = "llama", seed: int = 0) -> nn.Module:
    """A model of the first family of that name or label."""
    return build(next(f for f in FAMILIES if str(f) == name), seed)
