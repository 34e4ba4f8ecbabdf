"""The body of a chat request. Types and ranges only; rules between fields stand in convert.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from anllm.server.protocol import (
    AS_ARRAY,
    FIRST_FAULT_ONLY,
    INTEGRAL,
    STRING_OR_ARRAY,
    GenerationRequest,
    Object,
    PositiveInteger,
    RequestModel,
    String,
    StringOrObject,
    Strings,
)


class ContentPart(RequestModel):
    """`text` belongs to type text, `refusal` to type refusal; the keys of other types are not looked at."""

    type: str
    text: str | None = None
    refusal: str | None = None


Content = Annotated[
    String | Annotated[Annotated[list[ContentPart], FIRST_FAULT_ONLY], AS_ARRAY],
    STRING_OR_ARRAY,
]


class CalledFunction(RequestModel):
    """`arguments` is JSON text; an object in its place is taken as it is."""

    name: str
    arguments: StringOrObject | None = None


class ToolCall(RequestModel):
    id: str | None = None
    type: str | None = None
    function: CalledFunction


class Message(RequestModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], FIRST_FAULT_ONLY] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Function(RequestModel):
    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(RequestModel):
    type: Literal["function"]
    function: Function


class JsonSchema(RequestModel):
    name: str
    description: str | None = None
    json_schema: Annotated[Object | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], FIRST_FAULT_ONLY] | None = None
    tool_choice: StringOrObject | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Object], FIRST_FAULT_ONLY] | None = None
    function_call: StringOrObject | None = None
    max_completion_tokens: PositiveInteger | None = None
    max_tokens: PositiveInteger | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), INTEGRAL] | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: Strings | None = None
    audio: Object | None = None
    prediction: Object | None = None
    metadata: Object | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Object | None = None
    # not OpenAI's
    chat_template_kwargs: Object | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
