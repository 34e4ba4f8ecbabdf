"""What a model would be like if it were served here, without its weights in memory.

MLX computes nothing until it is asked to. So the model is put together in full, its weights named but not read, and
shapes and types tell sizes. Which way of calling it would be taken is found out as at a start (contract.py), with a
copy that has the first few layers only: as many as it takes to have one of each kind.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import get_total_parameters, load_model

from anllm.config import Execution, Weights
from anllm.core.inspection import Inspection
from anllm.errors import ModelError
from anllm.runner.arrays import flat_arrays
from anllm.runner.attention import hook_attention
from anllm.runner.backends import Backend
from anllm.runner.contract import UnsuitableError, analyse, choose_forward, vocabulary_size
from anllm.runner.model import LOAD_ERRORS, as_model_error, context_length, weights_form

logger = logging.getLogger(__name__)

LAYER_KEYS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
FEWEST_LAYERS = 2


def inspect(folder: Path, weights: Weights, execution: Execution, backend: Backend) -> Inspection:
    """Raises ModelError if the model can't be loaded."""
    with as_model_error(folder):
        model, config = load_model(folder, lazy=True, trust_remote_code=False)
        num_parameters = get_total_parameters(model)
        backend.prepare(model, weights)
        form = weights_form(model)
        weight_bytes = sum(array.nbytes for _, array in flat_arrays(model.parameters()))
    bytes_per_token, row_bytes, kinds = _kv(model)
    way, why = _way(folder, config, weights, execution, backend, kinds)
    return Inspection(
        backend=backend.name,
        num_parameters=num_parameters,
        weights=form,
        weight_bytes=weight_bytes,
        context_length=context_length(config),
        kv_bytes_per_token=bytes_per_token,
        kv_row_bytes=row_bytes,
        execution=way,
        why_unknown=why,
        memory_bytes=backend.memory_bytes(),
    )


def _kv(model: nn.Module) -> tuple[int, int, list[str]]:
    """Bytes of K/V for a token, bytes of a row whatever its length, and the kind of each layer's cache. Nothing is
    computed: caches have their shapes as soon as the model was called."""
    hook_attention()
    caches = make_prompt_cache(model)
    kinds = [_kind(cache) for cache in caches]
    try:
        model(mx.array([[0, 0]]), cache=caches)
        found = analyse(caches)
        return found.bytes_per_token, found.state_bytes, kinds
    except UnsuitableError:
        size = sum(array.nbytes for _, array in flat_arrays([cache.state for cache in caches]))
        return size // 2, 0, kinds


def _kind(cache: Any) -> str:
    return f"{type(cache).__name__} {getattr(cache, 'max_size', '')}"


def _way(
    folder: Path, config: dict[str, Any], weights: Weights, execution: Execution, backend: Backend, kinds: list[str]
) -> tuple[str | None, str]:
    """The way that would be taken, or None and the reason why that can't be told."""
    num_layers = max(FEWEST_LAYERS, *(kinds.index(kind) + 1 for kind in kinds))
    if num_layers >= len(kinds):
        changes: dict[str, Any] = {}
    else:
        changes = first_layers(config, num_layers)
        if not changes:
            return None, "its config does not say how many layers it has"
    try:
        model, _ = load_model(folder, lazy=True, strict=False, model_config=changes, trust_remote_code=False)
        backend.prepare(model, weights)
        chosen = choose_forward(model, backend.kernels, execution, vocabulary_size(model))
    except (*LOAD_ERRORS, ModelError) as error:
        logger.debug("a copy of few layers can't be run", exc_info=True)
        return None, f"a copy with {num_layers} layers can't be run: {error}"
    return chosen.forward.name, ""


def first_layers(config: dict[str, Any], number: int) -> dict[str, Any]:
    """What makes a config one of a model that ends after so many layers: lists with an entry for each layer are cut
    too. Empty where the config names no number of layers."""
    key = next((key for key in LAYER_KEYS if isinstance(config.get(key), int)), None)
    if key is not None:
        all_layers = config[key]
        cut = {k: v[:number] for k, v in config.items() if isinstance(v, list) and len(v) == all_layers}
        return {**cut, key: number}
    inner = config.get("text_config")
    if not isinstance(inner, dict) or not (changes := first_layers(inner, number)):
        return {}
    return {"text_config": {**inner, **changes}}
