"""The content blocks of a Messages request, by their types; what they mean stands in conversation.py."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, WithJsonSchema

from anllm.server.protocol import (
    AS_ARRAY,
    AS_OBJECT,
    FIRST_FAULT_ONLY,
    STRING_OR_ARRAY,
    STRING_OR_OBJECT,
    Object,
    RequestModel,
    String,
    has,
    if_then,
)

# Of tools that run on Anthropic's servers, or of no use in a prompt.
DROPPED_BLOCKS = frozenset(
    {
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "container_upload",
        "fallback",
        "mcp_tool_listing",
        "mcp_tool_result",
        "mcp_tool_use",
        "redacted_thinking",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_reference",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
KNOWN_BLOCKS = [
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "search_result",
    "document",
    "compaction",
]

_TEXT_LIST: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}

_TEXT_SOURCE: dict[str, Any] = {
    "type": "object",
    "oneOf": [
        {"properties": {"type": {"const": "text"}, "data": {"type": "string"}}, "required": ["type", "data"]},
        {
            "properties": {"type": {"const": "content"}, "content": {"anyOf": [{"type": "string"}, _TEXT_LIST]}},
            "required": ["type", "content"],
        },
    ],
}


class TextBlock(RequestModel):
    type: Annotated[str, WithJsonSchema({"const": "text"})]
    text: str


TextBlocks = Annotated[list[TextBlock], FIRST_FAULT_ONLY]


class Source(RequestModel):
    """Of a document. Those of images and files have other keys, and are refused by their type."""

    type: str | None = None
    data: str | None = None
    content: TextOrBlocks | None = None


class Block(RequestModel):
    """Which keys belong to which type, conversation.py looks at, and refuses types that it can't take by their name."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                if_then("type", ["text"], has("text")),
                if_then("type", ["tool_use"], has("id")),
                if_then("type", ["tool_use"], has("name")),
                if_then("type", ["tool_result"], has("tool_use_id")),
                if_then("type", ["document"], {**has("source"), "properties": {"source": _TEXT_SOURCE}}),
            ]
        }
    )

    type: Annotated[str, WithJsonSchema({"enum": KNOWN_BLOCKS})]
    text: str | None = None
    thinking: str | None = None
    # of tool_use
    id: str | None = None
    name: str | None = None
    input: Object | None = None
    # of tool_result, search_result, compaction
    tool_use_id: str | None = None
    content: TextOrBlocks | None = None
    is_error: bool | None = None
    # of document
    title: str | None = None
    context: str | None = None
    source: Annotated[String | Annotated[Source, AS_OBJECT], STRING_OR_OBJECT] | None = None


Blocks = Annotated[list[Block], FIRST_FAULT_ONLY]
TextOrBlocks = Annotated[
    String | Annotated[Blocks, AS_ARRAY],
    STRING_OR_ARRAY,
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXT_LIST]}),
]
Block.model_rebuild()
