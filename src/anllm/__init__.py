"""anllm serves language models on Apple's MLX behind the OpenAI HTTP API.

The public face, loaded on first use so that `import anllm` stays instant:
Engine (tokens in, tokens out), LLM (text in, text out), SamplingParams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["LLM", "Engine", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from anllm.core.request import SamplingParams
    from anllm.llm import LLM, Engine

_HOMES = {"SamplingParams": "anllm.core.request", "Engine": "anllm.llm", "LLM": "anllm.llm"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'anllm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
