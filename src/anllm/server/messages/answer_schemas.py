"""What answers of the Messages API look like, for the documentation alone: they are written by hand."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from anllm.server.answer_schemas import Count, JsonObject


class TextBlockAnswer(BaseModel):
    type: Literal["text"]
    text: str


class ThinkingBlockAnswer(BaseModel):
    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseBlockAnswer(BaseModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


class OutputTokensDetails(BaseModel):
    thinking_tokens: Count


class MessageUsage(BaseModel):
    """input_tokens: those of the prompt that were not found in the prefix cache."""

    input_tokens: Count
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: Count
    output_tokens: Count
    output_tokens_details: OutputTokensDetails


class MessageObject(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Annotated[list[TextBlockAnswer | ThinkingBlockAnswer | ToolUseBlockAnswer], Field(min_length=1)]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(BaseModel):
    input_tokens: Count


class MessagesModel(BaseModel):
    """max_input_tokens, max_tokens: null until the model has loaded."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    lifecycle: Literal["active"]


class MessagesModelList(BaseModel):
    data: list[MessagesModel]
    has_more: Literal[False]
    first_id: str
    last_id: str


class MessagesErrorDetails(BaseModel):
    error_code: str


class MessagesErrorBody(BaseModel):
    """details: left out where there is no code."""

    type: str
    message: str
    details: MessagesErrorDetails | None = None


class MessagesError(BaseModel):
    """Every answer of the Messages API that is not 2xx."""

    type: Literal["error"]
    error: MessagesErrorBody
    request_id: str
