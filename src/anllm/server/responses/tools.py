"""Which tools a Responses request offers, under which names, and what its answer may call. All raise
InvalidRequestError."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anllm.server.protocol import Function
from anllm.server.responses.protocol import ResponsesRequest
from anllm.server.responses.tool_protocol import (
    HOSTED_TOOLS,
    CustomTool,
    FunctionTool,
    NamespaceTool,
    OtherTool,
)
from anllm.server.tools import Tool, ToolUse, check_names, check_schemas, max_calls, plain_tool
from anllm.server.validation import invalid, missing

_TEXT_INPUT: dict[str, object] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """name and namespace: the client's. model_name: what the model calls it. params: where its name and its schema
    stand in the request."""

    name: str
    namespace: str | None
    model_name: str
    is_custom: bool
    plain: Tool
    params: tuple[str, str]


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """use: for prompt, parser and grammar, in the model's names."""

    tools: tuple[OfferedTool, ...] = ()
    use: ToolUse = field(default_factory=ToolUse)

    def called(self, model_name: str) -> OfferedTool | None:
        """The tool that the model calls so; None for one that it made up."""
        return next((tool for tool in self.tools if tool.model_name == model_name), None)

    def model_name(self, namespace: str | None, name: str) -> str:
        """What the model calls the client's tool; its name where it is not offered any more."""
        known = (tool.model_name for tool in self.tools if (tool.namespace, tool.name) == (namespace, name))
        return next(known, name)


def offered_tools(request: ResponsesRequest) -> OfferedTools:
    tools = _with_names_of_their_own(_flat(request.tools or ()))
    check_names((tool.model_name, tool.params[0]) for tool in tools)
    allowed, min_calls, is_named = _chosen(request, tools)
    use = ToolUse(
        offered=tuple(tool.plain for tool in tools),
        callable=tuple(tool.plain for tool in tools if tool in allowed),
        min_calls=min_calls,
        max_calls=max_calls(is_named=is_named, is_parallel=request.parallel_tool_calls),
        params=tuple(tool.params[1] for tool in tools),
    )
    check_schemas(use)
    return OfferedTools(tools, use)


def _flat(tools: Sequence[FunctionTool | CustomTool | NamespaceTool | OtherTool]) -> list[OfferedTool]:
    """The functions, those of namespaces too."""
    flat: list[OfferedTool] = []
    for index, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            members = ((member, f"tools[{index}].tools[{j}]", tool.name) for j, member in enumerate(tool.tools))
            flat += [offered for member in members for offered in _offered(*member)]
        else:
            flat += _offered(tool, f"tools[{index}]", None)
    return flat


def _offered(tool: FunctionTool | CustomTool | OtherTool, path: str, namespace: str | None) -> list[OfferedTool]:
    if isinstance(tool, OtherTool):
        if tool.type not in HOSTED_TOOLS:
            rule = "must be 'function', 'custom' or 'namespace', or a tool of OpenAI's servers, which is left out"
            raise invalid(f"{path}.type", rule, given=tool.type)
        return []
    is_custom = isinstance(tool, CustomTool)
    function = _text_function(tool) if isinstance(tool, CustomTool) else tool
    params = (f"{path}.name", path if is_custom else f"{path}.parameters")
    return [OfferedTool(tool.name, namespace, tool.name, is_custom, plain_tool(function), params)]


def _text_function(tool: CustomTool) -> Function:
    """The form that the text has to have is told, not enforced."""
    form = (tool.format or {}).get("definition")
    told = [tool.description or "", f"The input has to be of this form:\n{form}" if isinstance(form, str) else ""]
    return Function(name=tool.name, description="\n\n".join(filter(None, told)) or None, parameters=_TEXT_INPUT)


def _with_names_of_their_own(tools: list[OfferedTool]) -> tuple[OfferedTool, ...]:
    """Functions of a namespace have its name in front where their own is taken."""
    counts = Counter(tool.name for tool in tools)
    return tuple(
        tool if tool.namespace is None or counts[tool.name] == 1 else _renamed(tool, f"{tool.namespace}__{tool.name}")
        for tool in tools
    )


def _renamed(tool: OfferedTool, name: str) -> OfferedTool:
    function = tool.plain["function"]
    assert isinstance(function, dict)
    return replace(tool, model_name=name, plain={**tool.plain, "function": {**function, "name": name}})


# -- tool_choice -------------------------------------------------------------------------------------------------------


def _chosen(
    request: ResponsesRequest, tools: tuple[OfferedTool, ...]
) -> tuple[tuple[OfferedTool, ...] | list[OfferedTool], int, bool]:
    """The tools that tool_choice lets be called, the least number of calls, and whether it names one tool."""
    choice = request.tool_choice
    if choice is None or choice == "auto":
        return tools, 0, False
    if choice == "none":
        return (), 0, False
    is_named = False
    allowed: tuple[OfferedTool, ...] | list[OfferedTool] = tools
    if isinstance(choice, str):
        if choice != "required":
            raise invalid("tool_choice", "must be 'none', 'auto', 'required' or an object", given=choice)
        mode = "required"
    else:
        is_named = choice.get("type") != "allowed_tools"
        if is_named:
            allowed, mode = _named(choice, tools, "tool_choice"), "required"
        else:
            allowed, mode = _allowed_tools(choice, tools)
    if mode == "required" and not allowed:
        raise invalid("tool_choice", "is only allowed when 'tools' have a function that can be called", None)
    return allowed, int(mode == "required"), is_named


def _named(choice: dict[str, object], tools: Sequence[OfferedTool], param: str) -> list[OfferedTool]:
    kind, name, namespace = choice.get("type"), choice.get("name"), choice.get("namespace")
    if kind is None:
        raise missing(f"{param}.type")
    if _is_hosted(kind):
        rule = f"the tool '{kind}' runs on OpenAI's servers and does not exist here; offer a function in its place"
        raise invalid("tool_choice", rule, "unsupported_value")
    if kind not in ("function", "custom"):
        raise invalid(f"{param}.type", "must be 'function', 'custom' or 'allowed_tools'", given=kind)
    if name is None:
        raise missing(f"{param}.name")
    if not isinstance(name, str):
        raise invalid(f"{param}.name", "must be a string", "invalid_type", given=name)
    found = [tool for tool in tools if tool.name == name and namespace in (None, tool.namespace)]
    if not found:
        raise invalid("tool_choice", "must name one of 'tools'", given=name)
    return found[:1]


def _allowed_tools(choice: dict[str, object], tools: Sequence[OfferedTool]) -> tuple[list[OfferedTool], str]:
    """Tools of OpenAI's servers may be among them, as among `tools`."""
    mode, wanted = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise invalid("tool_choice.mode", "must be 'auto' or 'required'", given=mode)
    if not isinstance(wanted, list) or not wanted:
        raise invalid("tool_choice.tools", "must be an array with at least one tool", "invalid_type")
    allowed: list[OfferedTool] = []
    for index, tool in enumerate(wanted):
        param = f"tool_choice.tools[{index}]"
        if not isinstance(tool, dict):
            raise invalid(param, "must name a function of 'tools'", "invalid_type")
        if not _is_hosted(tool.get("type")):
            allowed += _named(tool, tools, param)
    return allowed, str(mode)


def _is_hosted(kind: object) -> bool:
    return isinstance(kind, str) and kind in HOSTED_TOOLS
