"""The body of a legacy completion request. Types and ranges only; rules between fields stand in convert.py."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, WithJsonSchema

from anllm.server.protocol import INTEGRAL, Count, GenerationRequest

MAX_PROMPTS = 2048
_MANY = {"minItems": 1, "maxItems": MAX_PROMPTS}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, **_MANY},
        _TOKEN_IDS,
        {"type": "array", "items": _TOKEN_IDS, **_MANY},
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
