"""The items of the input of a Responses request, by their types; what they mean stands in items.py and messages.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, GetJsonSchemaHandler, Tag, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from anllm.server.protocol import (
    AS_ARRAY,
    FIRST_FAULT_ONLY,
    STRING_OR_ARRAY,
    RequestModel,
    String,
    StringOrObject,
    has,
    if_then,
)

Id = Annotated[str, Field(max_length=256)]

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


class AnyBranch:
    """For the documentation: a value may fit several branches of a union; which one reads it, a tag decides."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        described["anyOf"] = described.pop("oneOf")
        return described


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


ITEMS: dict[str, type[RequestModel]] = {
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
    return f"<{kind}>" if isinstance(kind, str) and kind in ITEMS else "<other>"


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
