"""From the items of a conversation to messages for the chat template. All raise InvalidRequestError."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from anllm.errors import InvalidRequestError
from anllm.server.responses.item_protocol import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    MessageItem,
    Part,
    ReasoningItem,
)
from anllm.server.responses.items import Placed
from anllm.server.responses.thoughts import decrypted
from anllm.server.validation import invalid, missing

_NON_TEXT_PARTS = frozenset({"input_image", "input_file", "input_audio", "image_url", "computer_screenshot"})

Message = dict[str, object]
NameOf = Callable[[str | None, str], str]  # from namespace and name to what the model calls it


def to_messages(items: Sequence[Placed], name_of: NameOf) -> list[Message]:
    """For the chat template. What the model thought, said and called in one turn is one message of the assistant."""
    messages = _Messages(name_of)
    for param, item in items:
        messages.add(item, param)
    return messages.close()


class _Messages:
    def __init__(self, name_of: NameOf) -> None:
        self._name_of = name_of
        self._messages: list[Message] = []
        self._thought = ""  # that no message has taken
        self._turn: Message | None = None  # the last message, if calls may be added to it
        self._call_ids: set[str] = set()

    def add(self, item: InputItem, param: str) -> None:
        match item:
            case ReasoningItem():
                self._turn = None
                self._thought = "\n\n".join(filter(None, (self._thought, _thought_of(item))))
            case MessageItem(role="assistant"):
                self._turn = self._begin_turn(_text(item.content, param, "content", is_assistant=True))
            case MessageItem():
                self._end_turn()
                self._messages.append({"role": item.role, "content": _content(item.content, param, "content")})
            case FunctionCallItem():
                arguments = "" if item.arguments is None else item.arguments
                self._call(item.call_id, self._name_of(item.namespace, item.name), arguments)
            case CustomToolCallItem():
                self._call(item.call_id, self._name_of(item.namespace, item.name), json.dumps({"input": item.input}))
            case FunctionCallOutputItem() | CustomToolCallOutputItem():
                self._end_turn()
                if item.call_id not in self._call_ids:
                    raise InvalidRequestError(
                        f"No tool call found for function call output with call_id {json.dumps(item.call_id)}: the "
                        "call has to stand before it in 'input', or in what 'previous_response_id' goes on from.",
                        param="input",
                    )
                content = _content(item.output, param, "output")
                self._messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})

    def close(self) -> list[Message]:
        self._end_turn()
        return self._messages

    def _call(self, call_id: str, name: str, arguments: object) -> None:
        if self._turn is None:
            self._turn = self._begin_turn("")
        self._call_ids.add(call_id)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        calls: Any = self._turn.setdefault("tool_calls", [])
        calls.append(call)

    def _begin_turn(self, text: str) -> Message:
        thought, self._thought = self._thought, ""
        self._messages.append({"role": "assistant", "content": text})
        if thought:
            self._messages[-1]["reasoning_content"] = thought
        return self._messages[-1]

    def _end_turn(self) -> None:
        """A thought that nothing followed is a turn of its own."""
        if self._thought:
            self._begin_turn("")
        self._turn = None


def _content(content: str | list[Part], param: str, key: str) -> object:
    """Several parts stay parts, for templates that look at each."""
    if isinstance(content, str):
        return content
    texts = _texts(content, f"{param}.{key}", is_assistant=False)
    return [{"type": "text", "text": text} for text in texts] if len(texts) > 1 else "".join(texts)


def _text(content: str | list[Part], param: str, key: str, *, is_assistant: bool) -> str:
    if isinstance(content, str):
        return content
    return "".join(_texts(content, f"{param}.{key}", is_assistant=is_assistant))


def _texts(parts: Sequence[Part], param: str, *, is_assistant: bool) -> list[str]:
    return [_part_text(part, f"{param}[{index}]", is_assistant) for index, part in enumerate(parts)]


def _part_text(part: Part, param: str, is_assistant: bool) -> str:
    if part.type in ("input_text", "output_text", "text"):
        text, key = part.text, "text"
    elif part.type == "refusal" and is_assistant:
        text, key = part.refusal, "refusal"
    elif part.type in _NON_TEXT_PARTS:
        raise invalid(f"{param}.type", f"the model takes text only, got a part of type '{part.type}'", None)
    else:
        wanted = "'output_text' or 'refusal'" if is_assistant else "'input_text'"
        raise invalid(f"{param}.type", f"must be {wanted}", given=part.type)
    if text is None:
        raise missing(f"{param}.{key}")
    return text


def _thought_of(item: ReasoningItem) -> str:
    for parts in (item.content, item.summary):
        if text := "\n\n".join(part.text for part in parts or ()):
            return text
    return decrypted(item.encrypted_content or "")
