"""The body of a chat request. Types and ranges only; rules between fields stand in convert.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from anllm.server.protocol import (
    AS_ARRAY,
    FIRST_FAULT_ONLY,
    INTEGRAL,
    STRING_OR_ARRAY,
    Function,
    GenerationRequest,
    Object,
    PositiveInteger,
    RequestModel,
    String,
    StringOrObject,
    has,
    if_then,
)


class ContentPart(RequestModel):
    """`text` belongs to type text, `refusal` to type refusal, which an assistant's message may have."""

    # convert.py looks at it, and refuses other types by their name
    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [if_then("type", ["text"], has("text")), if_then("type", ["refusal"], has("refusal"))]
        }
    )

    type: Annotated[str, WithJsonSchema({"enum": ["text", "refusal"]})]
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


_TEXT_PARTS_ONLY = {"properties": {"content": {"items": {"properties": {"type": {"const": "text"}}}}}}


class Message(RequestModel):
    # convert.py looks at what a role needs
    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                if_then("role", ["system", "developer", "user", "tool"], has("content")),
                if_then("role", ["system", "developer", "user", "tool", "function"], _TEXT_PARTS_ONLY),
                if_then("role", ["tool"], has("tool_call_id")),
                if_then("role", ["function"], has("name")),
            ]
        }
    )

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], FIRST_FAULT_ONLY] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Tool(RequestModel):
    type: Literal["function"]
    function: Function


_NAMED: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_NAMED_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _NAMED},
    "required": ["type", "function"],
}
_ALLOWED_TOOLS = {
    "type": "object",
    "properties": {
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "minItems": 1, "items": _NAMED_TOOL},
    },
    "required": ["mode", "tools"],
}

# Looked at by hand in tools.py, for its words; the schemas say what it finds right.
ToolChoice = Annotated[
    StringOrObject,
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                _NAMED_TOOL,
                {
                    "type": "object",
                    "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": _ALLOWED_TOOLS},
                    "required": ["type", "allowed_tools"],
                },
            ]
        }
    ),
]
FunctionCall = Annotated[StringOrObject, WithJsonSchema({"anyOf": [{"enum": ["none", "auto"]}, _NAMED]})]
Modality = Annotated[str, WithJsonSchema({"const": "text"})]


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tools: Annotated[list[Tool], FIRST_FAULT_ONLY] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Function], FIRST_FAULT_ONLY] | None = None
    function_call: FunctionCall | None = None
    max_completion_tokens: PositiveInteger | None = None
    max_tokens: PositiveInteger | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), INTEGRAL] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: Annotated[list[Modality], FIRST_FAULT_ONLY] | None = None
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
