"""Which tools a request offers, under which names, and what its answer may call."""

from __future__ import annotations

from typing import Any

import pytest

from anllm.errors import InvalidRequestError
from anllm.parsers.schema import name_of
from anllm.server.responses.protocol import ResponsesRequest
from anllm.server.responses.tool_protocol import HOSTED_TOOLS
from anllm.server.responses.tools import OfferedTools, offered_tools

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": None}
TIME = {"type": "function", "name": "get_time", "description": "The time."}
PATCH = {"type": "custom", "name": "patch", "description": "Changes files."}
NAMED = {"type": "function", "name": "get_weather"}


def tools_of(**fields: Any) -> OfferedTools:
    return offered_tools(ResponsesRequest.model_validate({"model": "m", "input": "hi", **fields}))


def space(name: str, *members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "x", "tools": list(members)}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


def offered(tools: OfferedTools) -> list[str]:
    return [name_of(tool) for tool in tools.use.offered]


def callable_names(tools: OfferedTools) -> list[str]:
    return [name_of(tool) for tool in tools.use.callable]


def test_functions_reach_the_template_in_the_form_of_chat():
    tools = tools_of(tools=[WEATHER, TIME])
    assert tools.use.offered == (
        {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "get_time", "description": "The time."}},
    )
    assert tools.use.params == ("tools[0].parameters", "tools[1].parameters")
    assert (tools.use.min_calls, tools.use.max_calls) == (0, None)


def test_tools_of_openais_servers_are_left_out():
    given = [{"type": kind} for kind in sorted(HOSTED_TOOLS)]
    assert offered(tools_of(tools=[*given, TIME])) == ["get_time"]
    assert offered(tools_of(tools=given)) == []
    assert offered(tools_of(tools=[])) == offered(tools_of()) == []


def test_functions_of_a_namespace_are_functions_and_are_told_with_it():
    tools = tools_of(tools=[space("house", WEATHER, {"type": "web_search"}), TIME])
    assert offered(tools) == ["get_weather", "get_time"]
    called = tools.called("get_weather")
    assert called is not None and (called.name, called.namespace) == ("get_weather", "house")
    assert tools.use.params == ("tools[0].tools[0].parameters", "tools[1].parameters")
    assert tools.called("made_up") is None


def test_names_that_are_taken_get_the_namespace_in_front():
    tools = tools_of(tools=[WEATHER, space("sea", WEATHER), space("land", WEATHER, TIME)])
    assert offered(tools) == ["get_weather", "sea__get_weather", "land__get_weather", "get_time"]
    called = tools.called("land__get_weather")
    assert called is not None and (called.name, called.namespace) == ("get_weather", "land")
    assert tools.model_name("sea", "get_weather") == "sea__get_weather"
    assert tools.model_name(None, "get_weather") == "get_weather"
    assert tools.model_name("gone", "get_rain") == "get_rain"


def test_a_custom_tool_is_a_function_of_one_text():
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    tools = tools_of(tools=[{**PATCH, "format": form}])
    (tool,) = tools.use.offered
    function: Any = tool["function"]
    assert function["parameters"]["required"] == ["input"]
    assert function["description"] == 'Changes files.\n\nThe input has to be of this form:\nstart: "x"'
    called = tools.called("patch")
    assert called is not None and called.is_custom


@pytest.mark.parametrize(
    ("choice", "names", "min_calls", "max_calls"),
    [
        (None, ["get_weather", "get_time"], 0, None),
        ("auto", ["get_weather", "get_time"], 0, None),
        ("none", [], 0, None),
        ("required", ["get_weather", "get_time"], 1, None),
        (NAMED, ["get_weather"], 1, 1),
        (allowed("auto", NAMED), ["get_weather"], 0, None),
        (allowed("required", NAMED, {"type": "web_search"}), ["get_weather"], 1, None),
    ],
)
def test_tool_choice(choice: object, names: list[str], min_calls: int, max_calls: int | None):
    tools = tools_of(tools=[WEATHER, TIME], tool_choice=choice)
    assert callable_names(tools) == names
    assert (tools.use.min_calls, tools.use.max_calls) == (min_calls, max_calls)
    assert offered(tools) == ["get_weather", "get_time"]


def test_tool_choice_finds_custom_tools_and_those_of_namespaces():
    given = [WEATHER, space("sea", WEATHER, PATCH)]
    choose = {"type": "function", "name": "get_weather", "namespace": "sea"}
    assert callable_names(tools_of(tools=given, tool_choice=choose)) == ["sea__get_weather"]
    assert callable_names(tools_of(tools=given, tool_choice={"type": "custom", "name": "patch"})) == ["patch"]
    assert callable_names(tools_of(tools=given, tool_choice=NAMED)) == ["get_weather"]


def test_without_parallel_calls_there_is_one():
    assert tools_of(tools=[TIME], parallel_tool_calls=False).use.max_calls == 1
    assert tools_of(tools=[WEATHER], tool_choice=NAMED, parallel_tool_calls=True).use.max_calls is None


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "nope"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [TIME, TIME]}, "tools[1].name", "invalid_value"),
        ({"tools": [space("a", {"type": "nope"})]}, "tools[0].tools[0].type", "invalid_value"),
        ({"tools": [space("a", space("b", TIME))]}, "tools[0].tools[0].type", "invalid_value"),
        ({"tools": [space("a", TIME, TIME)]}, "tools[0].tools[1].name", "invalid_value"),
        (
            {"tools": [{**TIME, "strict": True, "parameters": {"type": "town"}}]},
            "tools[0].parameters",
            "invalid_grammar",
        ),
        ({"tools": [TIME], "tool_choice": "bogus"}, "tool_choice", "invalid_value"),
        ({"tools": [TIME], "tool_choice": NAMED}, "tool_choice", "invalid_value"),
        ({"tools": [TIME], "tool_choice": {"name": "get_time"}}, "tool_choice.type", "missing_required_parameter"),
        ({"tools": [TIME], "tool_choice": {"type": ["a"]}}, "tool_choice.type", "invalid_value"),
        ({"tools": [TIME], "tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "name": 5}}, "tool_choice.name", "invalid_type"),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tools": [TIME], "tool_choice": {"type": "web_search"}}, "tool_choice", "unsupported_value"),
        ({"tools": [TIME], "tool_choice": allowed("some", TIME)}, "tool_choice.mode", "invalid_value"),
        ({"tools": [TIME], "tool_choice": allowed("auto")}, "tool_choice.tools", "invalid_type"),
        ({"tools": [TIME], "tool_choice": allowed("auto", NAMED)}, "tool_choice", "invalid_value"),
        ({"tools": [TIME], "tool_choice": allowed("required", {"type": "mcp"})}, "tool_choice", None),
    ],
)
def test_what_is_wrong_is_refused_by_its_place(fields: dict[str, Any], param: str, code: str | None):
    with pytest.raises(InvalidRequestError) as caught:
        tools_of(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)
