"""The body of a Messages request. Types and ranges only; rules between fields stand in convert.py.

As https://docs.claude.com/en/api/messages has it, and what local servers have beyond that.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from anllm.server.messages.block_protocol import KNOWN_BLOCKS, Blocks, TextBlocks
from anllm.server.protocol import (
    AS_ARRAY,
    FIRST_FAULT_ONLY,
    STRING_OR_ARRAY,
    Function,
    Integer,
    Object,
    PositiveInteger,
    RequestModel,
    SampledRequest,
    String,
    Strings,
    has,
    if_then,
)

Content = Annotated[String | Annotated[Blocks, AS_ARRAY], STRING_OR_ARRAY]
System = Annotated[String | Annotated[TextBlocks, AS_ARRAY], STRING_OR_ARRAY]


def _types_without(*refused: str) -> dict[str, Any]:
    allowed = [kind for kind in KNOWN_BLOCKS if kind not in refused]
    return {"properties": {"content": {"items": {"properties": {"type": {"enum": allowed}}}}}}


class Message(RequestModel):
    # conversation.py looks at what may stand where
    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                if_then("role", ["user"], _types_without("thinking", "tool_use")),
                if_then("role", ["assistant"], _types_without("tool_result")),
                if_then("role", ["system"], _types_without("thinking", "tool_use", "tool_result")),
            ]
        }
    )

    role: Literal["user", "assistant", "system"]
    content: Content
    clear_at: str | None = None  # of system


class Tool(Function):
    """A function of the client's has no type, or `custom`. Tools of other types are known to Anthropic's models or run
    on its servers: they are not offered."""

    model_config = ConfigDict(json_schema_extra=if_then("type", ["custom"], has("input_schema")))

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    type: str | None = None
    parameters: Annotated[Object | None, Field(alias="input_schema")] = None


class ToolChoice(RequestModel):
    model_config = ConfigDict(json_schema_extra=if_then("type", ["tool"], has("name")))

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestModel):
    """`budget_tokens` is a hint, here as there. What is shown of thoughts is all of them, unless `omitted`. Types and
    displays come and go with Anthropic's models, and clients send what theirs takes: whatever does not switch thinking
    off lets the model think. https://github.com/anthropics/claude-code/issues/68551"""

    type: str
    budget_tokens: Integer | None = None
    display: str | None = None

    @property
    def is_on(self) -> bool:
        return self.type != "disabled"


class Format(RequestModel):
    type: Literal["json_schema"]
    json_schema: Annotated[Object, Field(alias="schema")]


class OutputConfig(RequestModel):
    """effort: for templates that know it."""

    effort: str | None = None
    format: Format | None = None


class Conversation(RequestModel):
    """What a prompt is made of."""

    model: str
    messages: Annotated[list[Message], FIRST_FAULT_ONLY, Field(min_length=1)]
    system: System | None = None
    tools: Annotated[list[Tool], FIRST_FAULT_ONLY] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    # not Anthropic's
    chat_template_kwargs: Object | None = None


class CountTokensRequest(Conversation):
    """Fields that matter to the answer alone are ignored."""


_STOP_SEQUENCES: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}}


class MessagesRequest(Conversation, SampledRequest):
    max_tokens: PositiveInteger
    stop: Annotated[Annotated[Strings, WithJsonSchema(_STOP_SEQUENCES)] | None, Field(alias="stop_sequences")] = None
    service_tier: str | None = None
    metadata: Object | None = None
    context_management: Object | None = None
