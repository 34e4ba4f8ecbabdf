"""Tools for models whose chat template has no place for them: written into the messages, in the form that Hermes models
know and others follow, `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.

Pure functions over plain dicts; the dicts given are not changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from anllm.text.messages import join_content, tool_calls_of

MessageLike = Mapping[str, object]

_BEFORE = (
    "You can call functions to help with the user's request. Each line between <tools> and </tools> describes one, the "
    "form of its arguments as a JSON schema.\n<tools>\n"
)
_BEHIND = "\n</tools>"
_FORM = (
    "\nTo call a function, answer with its name and its arguments as JSON between <tool_call> and "
    '</tool_call>:\n<tool_call>\n{"name": "the function\'s name", "arguments": {"an argument": "its value"}}\n'
    "</tool_call>"
)


def with_tools_as_text(
    messages: Sequence[MessageLike], tools: Sequence[MessageLike], *, tells_form: bool
) -> list[MessageLike]:
    """The messages behind one of the system that describes the tools; joined with a system message that comes first.
    tells_form: for models that have no form of their own for calls."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    text = f"{_BEFORE}{chr(10).join(lines)}{_BEHIND}{_FORM if tells_form else ''}"
    first = messages[0] if messages else None
    if first is not None and first["role"] in ("system", "developer"):
        return [{**first, "content": f"{join_content(first.get('content'))}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def with_calls_as_text(messages: Sequence[MessageLike]) -> list[MessageLike]:
    """The messages with calls and their results as text. Results of several calls stand in one message of the user."""
    plain: list[MessageLike] = []
    results: list[str] = []

    def flush() -> None:
        if results:
            plain.append({"role": "user", "content": "\n".join(results)})
            results.clear()

    for message in messages:
        if message["role"] in ("tool", "function"):
            results.append(f"<tool_response>\n{join_content(message.get('content'))}\n</tool_response>")
            continue
        flush()
        plain.append(_with_calls(message))
    flush()
    return plain


def _with_calls(message: MessageLike) -> MessageLike:
    calls = tool_calls_of(message)
    if not calls:
        return message
    texts = [f"<tool_call>\n{json.dumps(_called(call), ensure_ascii=False)}\n</tool_call>" for call in calls]
    content = join_content(message.get("content"))
    kept = {key: value for key, value in message.items() if key not in ("tool_calls", "function_call")}
    return {**kept, "content": "\n".join([content, *texts] if content else texts)}


def _called(call: Mapping[str, object]) -> dict[str, object]:
    function = call.get("function")
    assert isinstance(function, Mapping)
    return {"name": function.get("name"), "arguments": function["arguments"]}
