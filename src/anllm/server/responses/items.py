"""The items of a request: those that say something here, and the form in which they are kept.

All raise InvalidRequestError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from anllm.server.answers import new_id
from anllm.server.protocol import RequestModel
from anllm.server.responses.item_protocol import (
    DROPPED_ITEMS,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    ItemReference,
    MessageItem,
    OtherItem,
    Part,
    ReasoningItem,
    TextPart,
)
from anllm.server.responses.store import Item
from anllm.server.validation import invalid

Placed = tuple[str, InputItem]  # an item, and the path where it stands in the request

_KEPT = {"status": "completed"}


class KnownItems(RequestModel):
    """Items that were checked when they came."""

    items: list[InputItem]


def known_items(kept: Sequence[Item]) -> list[Placed]:
    """What was kept, to go on from."""
    return [("input", item) for item in KnownItems.model_validate({"items": kept}).items]


def without_references(items: Sequence[InputItem], find: Callable[[str], Item | None]) -> list[Placed]:
    """The items, those that are referred to in their places, and those dropped that say nothing here. find: an item
    that is kept, by its id."""
    resolved: list[Placed] = []
    for index, item in enumerate(items):
        param = f"input[{index}]"
        if isinstance(item, ItemReference):
            found = find(item.id)
            if found is None:
                rule = (
                    "is the id of no item that is kept here: only those of responses with 'store' are, for a while. "
                    "Send the item itself"
                )
                raise invalid(f"{param}.id", rule, None, given=item.id)
            resolved += known_items([found])
        elif not isinstance(item, OtherItem):
            resolved.append((param, item))
        elif item.type not in DROPPED_ITEMS:
            raise invalid(f"{param}.type", "is no type of an item that is known here", given=item.type)
    return resolved


def kept_form(item: InputItem) -> Item:
    """As the API lists it, with an id."""
    match item:
        case MessageItem():
            kind = "output_text" if item.role == "assistant" else "input_text"
            parts = [_kept_part(part, kind) for part in _as_parts(item.content, kind)]
            return {"id": item.id or new_id("msg_"), **_KEPT, "type": "message", "role": item.role, "content": parts}
        case FunctionCallItem():
            namespace = {} if item.namespace is None else {"namespace": item.namespace}
            arguments = item.arguments if isinstance(item.arguments, str) else json.dumps(item.arguments or {})
            called = {"call_id": item.call_id, "name": item.name, "arguments": arguments, **namespace}
            return {"id": item.id or new_id("fc_"), **_KEPT, "type": "function_call", **called}
        case CustomToolCallItem():
            namespace = {} if item.namespace is None else {"namespace": item.namespace}
            called = {"call_id": item.call_id, "name": item.name, "input": item.input, **namespace}
            return {"id": item.id or new_id("ctc_"), **_KEPT, "type": "custom_tool_call", **called}
        case FunctionCallOutputItem() | CustomToolCallOutputItem():
            given = {"type": item.type, "call_id": item.call_id, "output": _kept_output(item.output)}
            return {"id": item.id or new_id("fco_"), **_KEPT, **given}
        case ReasoningItem():
            return {
                "id": item.id or new_id("rs_"),
                **_KEPT,
                "type": "reasoning",
                "summary": _kept_texts(item.summary, "summary_text"),
                "content": _kept_texts(item.content, "reasoning_text"),
                "encrypted_content": item.encrypted_content,
            }
        case _:
            raise TypeError(f"{type(item).__name__} is not kept")


def _kept_output(output: str | list[Part]) -> str | list[Item]:
    return output if isinstance(output, str) else [_kept_part(part, "input_text") for part in output]


def _as_parts(content: str | list[Part], kind: str) -> list[Part]:
    return [Part.model_construct(type=kind, text=content)] if isinstance(content, str) else content


def _kept_part(part: Part, kind: str) -> Item:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    more: Item = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": part.text, **more}


def _kept_texts(parts: Sequence[TextPart] | None, kind: str) -> list[Item]:
    return [{"type": kind, "text": part.text} for part in parts or ()]
