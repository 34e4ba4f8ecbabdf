"""Which tools a chat request offers, and what its answer may call. All raise InvalidRequestError."""

from __future__ import annotations

from anllm.parsers.schema import name_of
from anllm.server.chat.protocol import ChatCompletionRequest
from anllm.server.protocol import Function
from anllm.server.tools import ToolUse, check_names, check_schemas, max_calls, plain_tool
from anllm.server.validation import invalid, missing


def tool_use(request: ChatCompletionRequest) -> ToolUse:
    if request.functions and request.tools:
        raise invalid("functions", "is not allowed together with 'tools'", None)
    if request.functions or request.function_call is not None:
        return _legacy_use(request)
    functions = [tool.function for tool in request.tools or ()]
    params = _paths(functions, "tools", "function.")
    offered = tuple(map(plain_tool, functions))
    allowed, min_calls = _chosen(request, {function.name for function in functions})
    callable_ = tuple(tool for tool in offered if name_of(tool) in allowed)
    is_named = isinstance(request.tool_choice, dict) and request.tool_choice.get("type") == "function"
    most = max_calls(is_named=is_named, is_parallel=request.parallel_tool_calls)
    use = ToolUse(offered, callable_, min_calls, most, params=params)
    check_schemas(use)
    return use


def _legacy_use(request: ChatCompletionRequest) -> ToolUse:
    functions = list(request.functions or ())
    params = _paths(functions, "functions", "")
    offered = tuple(map(plain_tool, functions))
    names = {function.name for function in functions}
    choice = request.function_call
    if choice is None or choice == "auto":
        return ToolUse(offered, offered, 0, 1, is_legacy=bool(offered), params=params)
    if choice == "none":
        return ToolUse(offered, is_legacy=bool(offered), params=params)
    if not isinstance(choice, dict):
        raise invalid("function_call", "must be 'none', 'auto' or an object", given=choice)
    _check_function_name(choice.get("name"), names, "function_call")
    named = tuple(tool for tool in offered if name_of(tool) == choice["name"])
    use = ToolUse(offered, named, 1, 1, is_legacy=True, params=params)
    check_schemas(use)
    return use


def _paths(functions: list[Function], param: str, path: str) -> tuple[str, ...]:
    """Of their schemas, once it is known that their names differ."""
    check_names((function.name, f"{param}[{index}].{path}name") for index, function in enumerate(functions))
    return tuple(f"{param}[{index}].{path}parameters" for index in range(len(functions)))


def _chosen(request: ChatCompletionRequest, names: set[str]) -> tuple[set[str], int]:
    """The tools that tool_choice lets be called, and the least number of calls."""
    choice = request.tool_choice
    if choice is None or choice == "auto":
        return names, 0
    if choice == "none":
        return set(), 0
    if isinstance(choice, str):
        if choice != "required":
            raise invalid("tool_choice", "must be 'none', 'auto', 'required' or an object", given=choice)
        allowed, mode = names, "required"
    else:
        allowed, mode = _chosen_by_object(choice, names)
    if not names:
        raise invalid("tool_choice", "is only allowed when 'tools' are given", None)
    return allowed, 1 if mode == "required" else 0


def _chosen_by_object(choice: dict[str, object], names: set[str]) -> tuple[set[str], str]:
    kind = choice.get("type")
    if kind is None:
        raise missing("tool_choice.type")
    if kind not in ("function", "allowed_tools"):
        raise invalid("tool_choice.type", "must be 'function' or 'allowed_tools'", given=kind)
    member = choice.get(str(kind))
    if member is None:
        raise missing(f"tool_choice.{kind}")
    if not isinstance(member, dict):
        raise invalid(f"tool_choice.{kind}", "must be an object", "invalid_type", given=member)
    if kind == "function":
        _check_function_name(member.get("name"), names, "tool_choice.function")
        return {str(member["name"])}, "required"
    return _allowed_tools(member, names)


def _allowed_tools(member: dict[str, object], names: set[str]) -> tuple[set[str], str]:
    param = "tool_choice.allowed_tools"
    mode, tools = member.get("mode"), member.get("tools")
    if mode not in ("auto", "required"):
        raise invalid(f"{param}.mode", "must be 'auto' or 'required'", given=mode)
    if not isinstance(tools, list) or not tools:
        raise invalid(f"{param}.tools", "must be an array with at least one tool", "invalid_type")
    allowed = set()
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            raise invalid(f"{param}.tools[{index}]", "must name a function of 'tools'", "invalid_type")
        _check_function_name(function.get("name"), names, f"{param}.tools[{index}].function")
        allowed.add(str(function["name"]))
    return allowed, str(mode)


def _check_function_name(name: object, names: set[str], param: str) -> None:
    if name is None:
        raise missing(f"{param}.name")
    if not isinstance(name, str):
        raise invalid(f"{param}.name", "must be a string", "invalid_type", given=name)
    if name not in names:
        offered = "functions" if param == "function_call" else "tools"
        raise invalid(param.partition(".")[0], f"must name one of '{offered}'", given=name)
