"""The bodies of /tokenize and /detokenize. Types only; rules between fields stand in convert.py."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from anllm.server.chat.protocol import Message, Tool
from anllm.server.protocol import FIRST_FAULT_ONLY, Object, RequestModel, TokenId

_NULL = {"type": "null"}
_EITHER: dict[str, Any] = {  # convert.py looks at it
    "oneOf": [
        {
            "required": ["prompt"],
            "properties": {
                "prompt": {"type": "string"},
                "messages": _NULL,
                "add_generation_prompt": _NULL,
                "continue_final_message": _NULL,
                "chat_template_kwargs": _NULL,
                "tools": _NULL,
            },
        },
        {"required": ["messages"], "properties": {"messages": {"type": "array"}, "prompt": _NULL}},
    ]
}


class TokenizeRequest(RequestModel):
    """A text, or messages that the chat template makes a text of."""

    model_config = ConfigDict(json_schema_extra=_EITHER)

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    tools: Annotated[list[Tool], FIRST_FAULT_ONLY] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
