"""The body of a legacy completion request. Types and ranges only; rules between fields stand in convert.py."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, WithJsonSchema

from anllm.server.protocol import INTEGRAL, Count, GenerationRequest

_PROMPT_SCHEMA = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1}, "minItems": 1},
    ]
}


class CompletionRequest(GenerationRequest):
    # by hand in convert.py: a prompt may hold a hundred thousand token ids
    prompt: Annotated[object, WithJsonSchema(_PROMPT_SCHEMA)]
    max_tokens: Count | None = None
    best_of: Annotated[int, Field(ge=1, le=20), INTEGRAL] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5), INTEGRAL] | None = None
    suffix: str | None = None
