"""The bodies of /tokenize and /detokenize. Types only; rules between fields stand in convert.py."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from anllm.server.chat.protocol import Message
from anllm.server.protocol import Integer, Object, RequestModel


class TokenizeRequest(RequestModel):
    """A text, or messages that the chat template makes a text of."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Object | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: Annotated[list[Integer], Field(fail_fast=True)]
