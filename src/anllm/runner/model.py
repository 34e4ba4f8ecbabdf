"""Loading: a folder becomes an mlx-lm model with its weights in memory, and the facts that its config tells."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import load_model

from anllm.config import Weights
from anllm.core.events import LoadProgress
from anllm.errors import ModelError
from anllm.runner.arrays import flat_arrays
from anllm.runner.backends import Backend

logger = logging.getLogger(__name__)

# The names that model families give to their context length.
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")
UNKNOWN_LENGTH = 4096
# What mlx-lm was seen to raise for configs and weights that don't fit.
LOAD_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """model: the mlx-lm module; context_length: the longest sequence it was made for; weights: their form in memory."""

    model: nn.Module
    context_length: int
    weights: str
    weight_bytes: int


def load(folder: Path, weights: Weights, backend: Backend, on_progress: Callable[[LoadProgress], None]) -> LoadedModel:
    """Load the model in `folder`. Raises ModelError with one sentence for whatever is wrong with it."""
    with as_model_error(folder):
        model, config = load_model(folder, lazy=True, trust_remote_code=False)
        backend.prepare(model, weights)
        size = _evaluate(model, on_progress)
        return LoadedModel(model, context_length(config), weights_form(model), size)


def weights_form(model: nn.Module) -> str:
    """Like "4-bit" or "bfloat16": the form of most of the weights."""
    sizes: dict[str, int] = {}
    for module in model.modules():
        for array in (value for value in module.values() if isinstance(value, mx.array)):
            form = _form(module, array)
            sizes[form] = sizes.get(form, 0) + array.nbytes
    return max(sizes, key=lambda name: sizes[name])


def _form(module: Any, array: mx.array) -> str:
    """weight_form: what a backend calls the form of a module whose weights it has brought into one of its own."""
    if array.dtype == mx.uint32 and (form := getattr(module, "weight_form", None)):
        return str(form)
    if array.dtype == mx.uint32 and hasattr(module, "bits"):
        return f"{module.bits}-bit"
    return str(array.dtype).removeprefix("mlx.core.")


@contextmanager
def as_model_error(folder: Path) -> Iterator[None]:
    """mlx-lm raises many kinds of exceptions for a folder that it can't load; each becomes a sentence with a reason."""
    try:
        yield
    except LOAD_ERRORS as error:
        logger.debug("loading failed", exc_info=True)
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(f"The model {folder.name!r} can't be loaded: {reason}") from error


def _evaluate(model: nn.Module, on_progress: Callable[[LoadProgress], None]) -> int:
    """Read (and convert) the weights, layer by layer; returns their bytes."""
    arrays = [array for _, array in flat_arrays(model.parameters())]
    total, done = sum(array.nbytes for array in arrays), 0
    step = max(1, len(arrays) // 50)
    for first in range(0, len(arrays), step):
        part = arrays[first : first + step]
        mx.eval(part)
        done += sum(array.nbytes for array in part)
        on_progress(LoadProgress("Loading weights", done, total))
    return total


def context_length(config: dict[str, Any]) -> int:
    """The longest sequence that the model's config names."""
    for part in (config, config.get("text_config") or {}):
        for key in LENGTH_KEYS:
            value = part.get(key)
            if isinstance(value, int) and value > 0:
                return value
    logger.warning("the model's config names no context length; taking %d", UNKNOWN_LENGTH)
    return UNKNOWN_LENGTH
