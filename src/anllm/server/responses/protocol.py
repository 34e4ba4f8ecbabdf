"""The body of a Responses request. Types and ranges only; rules between fields stand in convert.py and items.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, GetJsonSchemaHandler, Tag, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from anllm.server.protocol import (
    AS_ARRAY,
    FIRST_FAULT_ONLY,
    INTEGRAL,
    STRING_OR_ARRAY,
    Function,
    Object,
    PositiveInteger,
    RequestModel,
    SampledRequest,
    String,
    StringOrObject,
    Strings,
    has,
    if_then,
)

Id = Annotated[str, Field(max_length=256)]
MAX_METADATA, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512

# Of tools that run on OpenAI's servers or that OpenAI alone can read; nothing of them can stand in a prompt.
DROPPED_ITEMS = frozenset(
    {
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "context_compaction",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
# They run on OpenAI's servers, or in clients that OpenAI's models were trained for. Agents list them always.
HOSTED_TOOLS = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)


class AnyBranch:
    """For the documentation: a value may fit several branches of a union; which one reads it, a tag decides."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        described["anyOf"] = described.pop("oneOf")
        return described


# -- items of the input ------------------------------------------------------------------------------------------------


class Part(RequestModel):
    """`text` belongs to types input_text and output_text, `refusal` to type refusal, which an assistant's message may
    have."""

    # messages.py looks at it, and refuses other types by their name
    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                if_then("type", ["input_text", "output_text"], has("text")),
                if_then("type", ["refusal"], has("refusal")),
            ]
        }
    )

    type: Annotated[str, WithJsonSchema({"enum": ["input_text", "output_text", "refusal"]})]
    text: str | None = None
    refusal: str | None = None


class TextPart(RequestModel):
    text: str


_TEXT_PART_LIST: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"enum": ["input_text", "output_text"]}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}

Parts = Annotated[list[Part], FIRST_FAULT_ONLY]
Content = Annotated[String | Annotated[Parts, AS_ARRAY], STRING_OR_ARRAY]
TextContent = Annotated[Content, WithJsonSchema({"anyOf": [{"type": "string"}, _TEXT_PART_LIST]})]
Texts = Annotated[list[TextPart], FIRST_FAULT_ONLY]


_TEXT_PARTS: dict[str, Any] = {"items": {"properties": {"type": {"enum": ["input_text", "output_text"]}}}}


class MessageItem(RequestModel):
    """`type` may be left out."""

    model_config = ConfigDict(
        json_schema_extra=if_then("role", ["system", "developer", "user"], {"properties": {"content": _TEXT_PARTS}})
    )

    type: Literal["message"] | None = None
    id: Id | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class FunctionCallItem(RequestModel):
    """A call that the model made. `arguments` is JSON text; an object in its place is taken as it is."""

    type: Literal["function_call"]
    id: Id | None = None
    call_id: Id
    name: str
    namespace: str | None = None
    arguments: StringOrObject | None = None


class FunctionCallOutputItem(RequestModel):
    """What the function gave back."""

    type: Literal["function_call_output"]
    id: Id | None = None
    call_id: Id
    output: TextContent


class CustomToolCallItem(RequestModel):
    """A call of a tool that takes a text."""

    type: Literal["custom_tool_call"]
    id: Id | None = None
    call_id: Id
    name: str
    namespace: str | None = None
    input: str


class CustomToolCallOutputItem(RequestModel):
    type: Literal["custom_tool_call_output"]
    id: Id | None = None
    call_id: Id
    output: TextContent


class ReasoningItem(RequestModel):
    """What the model thought, given back: the first of `content`, `summary` and `encrypted_content` that has text."""

    type: Literal["reasoning"]
    id: Id | None = None
    summary: Texts | None = None
    content: Texts | None = None
    encrypted_content: str | None = None


class ItemReference(RequestModel):
    """An item of a response that is kept. `type` may be left out."""

    type: Literal["item_reference"] | None = None
    id: Id


class OtherItem(RequestModel):
    """Of tools that this server does not have: dropped. items.py refuses types that nobody knows."""

    type: Annotated[str, WithJsonSchema({"enum": sorted(DROPPED_ITEMS)})]


_ITEMS: dict[str, type[RequestModel]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "custom_tool_call": CustomToolCallItem,
    "custom_tool_call_output": CustomToolCallOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}


def _item_kind(value: object) -> str:
    """The tag of an item; what is no object is for the last one to refuse."""
    kind = value.get("type") if isinstance(value, dict) else "other"
    if kind is None and isinstance(value, dict):
        kind = "item_reference" if "id" in value and "role" not in value and "content" not in value else "message"
    return f"<{kind}>" if isinstance(kind, str) and kind in _ITEMS else "<other>"


InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionCallOutputItem, Tag("<function_call_output>")]
    | Annotated[CustomToolCallItem, Tag("<custom_tool_call>")]
    | Annotated[CustomToolCallOutputItem, Tag("<custom_tool_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[ItemReference, Tag("<item_reference>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_item_kind),
    AnyBranch(),
]
Input = Annotated[
    String | Annotated[Annotated[list[InputItem], FIRST_FAULT_ONLY], AS_ARRAY],
    STRING_OR_ARRAY,
]


# -- tools -------------------------------------------------------------------------------------------------------------


class FunctionTool(Function):
    type: Literal["function"]


class CustomTool(RequestModel):
    """A tool that takes a text: offered as a function with one string, `input`."""

    type: Literal["custom"]
    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    format: Object | None = None


class OtherTool(RequestModel):
    """Tools that run on OpenAI's servers are not offered. tools.py refuses types that nobody knows."""

    type: Annotated[str, WithJsonSchema({"enum": sorted(HOSTED_TOOLS)})]


def _tool_kind(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"<{kind}>" if kind in ("function", "custom", "namespace") else "<other>"


_FUNCTION, _CUSTOM, _OTHER = Tag("<function>"), Tag("<custom>"), Tag("<other>")
MemberTool = Annotated[
    Annotated[FunctionTool, _FUNCTION] | Annotated[CustomTool, _CUSTOM] | Annotated[OtherTool, _OTHER],
    Discriminator(lambda value: "<other>" if _tool_kind(value) == "<namespace>" else _tool_kind(value)),
]


class NamespaceTool(RequestModel):
    """Functions that belong together; calls of them say so."""

    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    tools: Annotated[list[MemberTool], FIRST_FAULT_ONLY]


AnyTool = Annotated[
    Annotated[FunctionTool, _FUNCTION]
    | Annotated[CustomTool, _CUSTOM]
    | Annotated[NamespaceTool, Tag("<namespace>")]
    | Annotated[OtherTool, _OTHER],
    Discriminator(_tool_kind),
]
_NAMED = {
    "type": "object",
    "properties": {"type": {"enum": ["function", "custom"]}, "name": {"type": "string"}},
    "required": ["type", "name"],
}
# Looked at by hand in tools.py, for its words; the schema says what it finds right.
ToolChoice = Annotated[
    StringOrObject,
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                _NAMED,
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "allowed_tools"},
                        "mode": {"enum": ["auto", "required"]},
                        "tools": {"type": "array", "minItems": 1, "items": _NAMED},
                    },
                    "required": ["type", "mode", "tools"],
                },
            ]
        }
    ),
]


# -- the request -------------------------------------------------------------------------------------------------------


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
