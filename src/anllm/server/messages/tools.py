"""Which tools a Messages request offers, and what its answer may call. All raise InvalidRequestError."""

from __future__ import annotations

from anllm.parsers.schema import name_of
from anllm.server.messages.protocol import Conversation, Tool
from anllm.server.tools import ToolUse, check_names, check_schemas, max_calls, plain_tool
from anllm.server.validation import invalid, missing


def tool_use(request: Conversation) -> ToolUse:
    tools = [(tool, f"tools[{index}]") for index, tool in enumerate(request.tools or ()) if _is_offered(tool)]
    check_names((tool.name, f"{param}.name") for tool, param in tools)
    offered = tuple(plain_tool(tool) for tool, _ in tools)
    names, min_calls = _chosen(request, {tool.name for tool, _ in tools})
    choice = request.tool_choice
    is_parallel = (
        None if choice is None or choice.disable_parallel_tool_use is None else (not choice.disable_parallel_tool_use)
    )
    use = ToolUse(
        offered=offered,
        callable=tuple(tool for tool in offered if name_of(tool) in names),
        min_calls=min_calls,
        max_calls=max_calls(is_named=choice is not None and choice.type == "tool", is_parallel=is_parallel),
        params=tuple(f"{param}.input_schema" for _, param in tools),
    )
    check_schemas(use)
    return use


def _is_offered(tool: Tool) -> bool:
    """Tools of other types have no schema that a model here could be told."""
    return tool.type in (None, "custom")


def _chosen(request: Conversation, names: set[str]) -> tuple[set[str], int]:
    """The tools that tool_choice lets be called, and the least number of calls."""
    choice = request.tool_choice
    if choice is None or choice.type == "auto":
        return names, 0
    if choice.type == "none":
        return set(), 0
    if choice.type == "tool":
        if choice.name is None:
            raise missing("tool_choice.name")
        if choice.name not in names:
            rule = "must name one of 'tools' with an 'input_schema', since others are not offered to the model"
            raise invalid("tool_choice.name", rule, given=choice.name)
        return {choice.name}, 1
    if not names:
        raise invalid("tool_choice", "is only allowed when 'tools' have one with an 'input_schema'", None)
    return names, 1
