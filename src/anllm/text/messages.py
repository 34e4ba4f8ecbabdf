"""Chat messages, as clients send them, into the forms that chat templates can take.

Pure functions over plain dicts; the dicts given are not changed. Knows nothing of templates' text or of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

Message = dict[str, object]


class CallForm(NamedTuple):
    """What a template expects of a message with calls: arguments as JSON text or as an object, and where there is no
    text besides, null or an empty string."""

    has_text_arguments: bool
    has_null_content: bool


CALL_FORMS = tuple(CallForm(*form) for form in ((False, False), (False, True), (True, False), (True, True)))


def conversations(messages: Sequence[Mapping[str, object]], *, keeps_developer: bool) -> Iterator[list[Message]]:
    """The same conversation in up to three forms, the most faithful first, for templates that refuse one.

    1. Each message plain, leading system messages merged.
    2. All system messages in front as one, neighbours of the same role merged.
    3. No system message: its text begins the first user message.
    """
    plain = merge_leading_system([plain_message(message, keeps_developer=keeps_developer) for message in messages])
    yield plain
    regrouped = merge_same_role(hoist_system(plain))
    if regrouped != plain:
        yield regrouped
    if regrouped and regrouped[0]["role"] == "system":
        yield fold_system_into_user(regrouped)


def plain_message(message: Mapping[str, object], *, keeps_developer: bool) -> Message:
    """Roles that templates know, content as one string, tool calls with arguments as objects, no null values."""
    plain = {key: value for key, value in message.items() if value is not None and key != "function_call"}
    plain["role"] = _plain_role(message["role"], keeps_developer)
    plain["content"] = join_content(message.get("content"))
    tool_calls = tool_calls_of(message)
    if tool_calls:
        return {**plain, "tool_calls": tool_calls}
    plain.pop("tool_calls", None)
    return plain


def join_content(content: object) -> str:
    """The text of a content: its parts joined with nothing between; "" for None and []."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)
    return "" if content is None else str(content)


def tool_calls_of(message: Mapping[str, object]) -> list[dict[str, object]]:
    """The calls of a message, plain; those of its function_call, the older form of one, if it has no others."""
    calls = message.get("tool_calls")
    function_call = message.get("function_call")
    if not calls and isinstance(function_call, Mapping):
        calls = [{"type": "function", "function": function_call}]
    return [_plain_tool_call(call) for call in calls] if isinstance(calls, list) else []


def _plain_tool_call(call: Mapping[str, object]) -> dict[str, object]:
    """A replayed call without `index` and nulls, its arguments as templates want them: an object."""
    plain = {key: value for key, value in call.items() if value is not None and key != "index"}
    function = plain.get("function")
    if isinstance(function, Mapping):
        plain["function"] = {**function, "arguments": parse_arguments(function.get("arguments"))}
    return plain


def parse_arguments(arguments: object) -> object:
    """{} for None and a blank string; the object that a JSON string holds; anything else as it is."""
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments.strip() or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def in_call_form(messages: list[Message], form: CallForm) -> list[Message]:
    """The messages with their calls in the form that a template takes."""
    return [_in_call_form(message, form) if message.get("tool_calls") else message for message in messages]


def _in_call_form(message: Message, form: CallForm) -> Message:
    content = None if form.has_null_content and not message["content"] else message["content"]
    calls = message["tool_calls"]
    if form.has_text_arguments and isinstance(calls, list):
        calls = [{**call, "function": _with_text_arguments(call["function"])} for call in calls]
    return {**message, "content": content, "tool_calls": calls}


def _with_text_arguments(function: Mapping[str, object]) -> dict[str, object]:
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**function, "arguments": text}


def merge_leading_system(messages: list[Message]) -> list[Message]:
    """The system messages that begin the conversation as one."""
    num_leading = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    return _merge(messages[:num_leading]) + messages[num_leading:]


def hoist_system(messages: list[Message]) -> list[Message]:
    """All system messages as one, in front."""
    system = [message for message in messages if message["role"] == "system"]
    return _merge(system) + [message for message in messages if message["role"] != "system"]


def merge_same_role(messages: list[Message]) -> list[Message]:
    """Neighbours that are both of the user, or both of the assistant, as one."""
    merged: list[Message] = []
    for message in messages:
        if merged and message["role"] in ("user", "assistant") and message["role"] == merged[-1]["role"]:
            merged[-1] = _merge_two(merged[-1], message)
        else:
            merged.append(message)
    return merged


def fold_system_into_user(messages: list[Message]) -> list[Message]:
    """The first message, of the system, put before the text of the first user message; without one it becomes one."""
    system, *others = messages
    first_user = next((i for i, message in enumerate(others) if message["role"] == "user"), None)
    if first_user is None:
        return [{**system, "role": "user"}, *others]
    others[first_user] = {**others[first_user], "content": _join_texts([system, others[first_user]])}
    return others


def with_content_parts(messages: list[Message]) -> list[Message]:
    """Contents as lists of one text part, for templates that iterate over parts."""
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


def _plain_role(role: object, keeps_developer: bool) -> object:
    if role == "developer" and not keeps_developer:
        return "system"
    return "tool" if role == "function" else role


def _merge(messages: list[Message]) -> list[Message]:
    merged = messages[:1]
    for message in messages[1:]:
        merged[0] = _merge_two(merged[0], message)
    return merged


def _merge_two(first: Message, second: Message) -> Message:
    merged = {**second, **first, "content": _join_texts([first, second])}
    calls = [call for message in (first, second) for call in tool_calls_of(message)]
    return {**merged, "tool_calls": calls} if calls else merged


def _join_texts(messages: Iterable[Message]) -> str:
    return "\n\n".join(str(message["content"]) for message in messages if message["content"])
