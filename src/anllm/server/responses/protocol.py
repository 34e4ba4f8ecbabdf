"""The body of a Responses request. Types and ranges only; rules between fields stand in convert.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from anllm.server.protocol import (
    FIRST_FAULT_ONLY,
    INTEGRAL,
    Object,
    PositiveInteger,
    RequestModel,
    SampledRequest,
    Strings,
    has,
    if_then,
)
from anllm.server.responses.item_protocol import Input
from anllm.server.responses.tool_protocol import AnyTool, ToolChoice

MAX_METADATA, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512


class TextFormat(RequestModel):
    """`name` and `schema` belong to type json_schema."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                if_then("type", ["json_schema"], has("name")),
                if_then("type", ["json_schema"], has("schema")),
            ]
        }
    )

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: Annotated[Object | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextConfig(RequestModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(RequestModel):
    """generate_summary: the older name of summary."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


_METADATA: dict[str, Any] = {
    "type": "object",
    "maxProperties": MAX_METADATA,
    "propertyNames": {"maxLength": MAX_KEY_CHARS},
    "additionalProperties": {"type": "string", "maxLength": MAX_VALUE_CHARS},
}
Metadata = Annotated[Object, WithJsonSchema(_METADATA)]  # by hand in convert.py


class ResponsesRequest(SampledRequest):
    """`input` may be left out if there is a previous response."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [has("input"), has("previous_response_id")]})

    input: Input | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: Annotated[list[AnyTool], FIRST_FAULT_ONLY] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: PositiveInteger | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: Strings | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), INTEGRAL] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    max_tool_calls: PositiveInteger | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Object | None = None
    context_management: Annotated[list[Object], FIRST_FAULT_ONLY] | None = None
    # not OpenAI's
    chat_template_kwargs: Object | None = None
