"""The tools of a Responses request, and its choice of them; what they mean stands in tools.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, WithJsonSchema

from anllm.server.protocol import (
    FIRST_FAULT_ONLY,
    Function,
    Object,
    RequestModel,
    StringOrObject,
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
