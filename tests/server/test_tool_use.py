"""Which tools an answer may call, and how often; what the engine is asked to keep to is seen by tests/integration."""

from __future__ import annotations

from typing import Any

import pytest

from anllm.parsers.schema import name_of
from anllm.server.chat.protocol import ChatCompletionRequest
from anllm.server.chat.tools import tool_use
from anllm.server.tools import ToolUse

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "get_time")]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


def use_of(**fields: Any) -> ToolUse:
    messages = [{"role": "user", "content": "hi"}]
    return tool_use(ChatCompletionRequest.model_validate({"model": "m", "messages": messages, **fields}))


def callable_names(use: ToolUse) -> list[str]:
    return [name_of(tool) for tool in use.callable]


def test_all_tools_may_be_called_any_number_of_times():
    use = use_of(tools=TOOLS)
    assert callable_names(use) == ["get_weather", "get_time"]
    assert (use.min_calls, use.max_calls) == (0, None)


def test_required_calls_are_one_or_more():
    use = use_of(tools=TOOLS, tool_choice="required")
    assert callable_names(use) == ["get_weather", "get_time"]
    assert (use.min_calls, use.max_calls) == (1, None)


@pytest.mark.parametrize("is_parallel", [None, False])
def test_a_named_function_is_called_once(is_parallel: bool | None):
    use = use_of(tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=is_parallel)
    assert callable_names(use) == ["get_weather"]
    assert (use.min_calls, use.max_calls) == (1, 1)


def test_a_named_function_is_called_as_often_as_the_model_likes_if_the_request_says_so():
    use = use_of(tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=True)
    assert (use.min_calls, use.max_calls) == (1, None)


@pytest.mark.parametrize("choice", ["auto", "required", ALLOWED])
def test_calls_that_are_not_parallel_are_one(choice: object):
    assert use_of(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False).max_calls == 1


def test_allowed_tools_are_not_a_named_function():
    use = use_of(tools=TOOLS, tool_choice=ALLOWED)
    assert callable_names(use) == ["get_weather"]
    assert (use.min_calls, use.max_calls) == (1, None)
