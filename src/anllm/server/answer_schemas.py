"""What answers look like, for the documentation alone: answers are written by hand, without these classes.

Keys that an answer may lack have a default.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

JsonObject = dict[str, object]
Count = Annotated[int, Field(ge=0)]
Logprob = Annotated[float, Field(ge=-9999, le=0)]


class PromptTokensDetails(BaseModel):
    cached_tokens: Count
    audio_tokens: Count


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: Count
    audio_tokens: Count
    accepted_prediction_tokens: Count
    rejected_prediction_tokens: Count


class UsageAnswer(BaseModel):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Generated(BaseModel):
    """What answers of chat and completions begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageAnswer


class RankedToken(BaseModel):
    logprob: Logprob
    rank: Count
    decoded_token: str


PromptLogprobs = list[dict[str, RankedToken] | None]


class CalledFunctionAnswer(BaseModel):
    name: str
    arguments: str


class ToolCallAnswer(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunctionAnswer


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: Annotated[list[dict[str, object]], Field(max_length=0)]
    reasoning_content: str = ""
    tool_calls: Annotated[list[ToolCallAnswer], Field(min_length=1)] = []
    function_call: CalledFunctionAnswer = CalledFunctionAnswer(name="", arguments="")


class LikelyToken(BaseModel):
    token: str
    logprob: Logprob
    bytes: list[Annotated[int, Field(ge=0, le=255)]]


class TokenLogprob(LikelyToken):
    top_logprobs: Annotated[list[LikelyToken], Field(max_length=20)]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None


class ChatChoice(BaseModel):
    index: Count
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    token_ids: list[Count] = []


class ChatCompletion(Generated):
    object: Literal["chat.completion"]
    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    service_tier: Literal["default"] = "default"
    prompt_token_ids: list[Count] = []
    prompt_logprobs: PromptLogprobs = []


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[Logprob | None]
    top_logprobs: list[dict[str, Logprob] | None] | None
    text_offset: list[Count]


class CompletionChoice(BaseModel):
    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[Count] = []
    prompt_token_ids: list[Count] = []
    prompt_logprobs: PromptLogprobs = []


class Completion(Generated):
    object: Literal["text_completion"]
    choices: Annotated[list[CompletionChoice], Field(min_length=1)]


class OutputItemAnswer(BaseModel):
    """content, role: of a message. summary, content, encrypted_content: of what the model thought. call_id, name,
    namespace: of a call; arguments: of a function's, input: of a custom tool's."""

    id: str
    type: Literal["message", "reasoning", "function_call", "custom_tool_call"]
    status: Literal["completed", "incomplete", "in_progress"]
    role: Literal["assistant"] = "assistant"
    content: list[JsonObject] = []
    summary: list[JsonObject] = []
    encrypted_content: str | None = None
    call_id: str = ""
    name: str = ""
    namespace: str = ""
    arguments: str = ""
    input: str = ""


class InputTokensDetails(BaseModel):
    cached_tokens: Count
    cache_write_tokens: Count


class OutputTokensDetails(BaseModel):
    reasoning_tokens: Count


class ResponseUsage(BaseModel):
    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


class ResponseFailure(BaseModel):
    code: str
    message: str


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """Fields of the request are told as they hold, defaults included."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: Count | None
    max_tool_calls: Count | None
    model: str
    output: list[OutputItemAnswer]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: JsonObject
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: JsonObject
    tool_choice: str | JsonObject
    tools: list[JsonObject]
    top_logprobs: Count
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(BaseModel):
    object: Literal["list"]
    data: list[JsonObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: Count


class ServedModel(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["anllm"]
    max_model_len: int | None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ServedModel]


class TokenizeAnswer(BaseModel):
    count: Count
    max_model_len: int
    tokens: list[Count]
    token_strs: list[str] | None


class DetokenizeAnswer(BaseModel):
    prompt: str


class Version(BaseModel):
    version: str


State = Literal["ok", "loading", "restarting", "draining", "failed", "closed"]
Bytes = Count
Seconds = Annotated[float, Field(ge=0)]


class Health(BaseModel):
    status: State


class Load(BaseModel):
    server_load: Count


class StatusEngine(BaseModel):
    """load_s: how long it took to be ready. Null before it was."""

    state: Literal["loading", "ready", "restarting", "closed"]
    restarts: Count
    load_s: Seconds | None
    backend: str | None
    execution: str | None
    weights: str | None
    max_model_len: int | None


class StatusQueue(BaseModel):
    """requests: HTTP requests that are being answered; running and waiting count each answer of them."""

    requests: Count
    running: Count
    waiting: Count


class StatusMemory(BaseModel):
    """kv_used: by running requests. kv_kept: for prompts that begin alike. The last three are MLX's, null before the
    engine told of them."""

    kv_budget_bytes: Bytes
    kv_used_bytes: Bytes
    kv_kept_bytes: Bytes
    kv_usage: Annotated[float, Field(ge=0, le=1)]
    active_bytes: Bytes | None
    peak_bytes: Bytes | None
    cached_bytes: Bytes | None


class StatusPercentiles(BaseModel):
    p50: Seconds | None
    p95: Seconds | None
    p99: Seconds | None


class StatusLastMinute(BaseModel):
    finished: Count
    requests_per_s: Seconds
    prompt_tokens_per_s: Seconds
    output_tokens_per_s: Seconds
    ttft_ms: StatusPercentiles
    itl_ms: StatusPercentiles


class StatusRow(BaseModel):
    """One answer that is being made."""

    request_id: str
    stage: Literal["waiting", "prefill", "decode"]
    age_s: Seconds
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count


class Status(BaseModel):
    status: State
    version: str
    model: str
    uptime_s: Seconds
    engine: StatusEngine
    queue: StatusQueue
    memory: StatusMemory
    last_minute: StatusLastMinute
    rows: list[StatusRow]


def answer(model: type[BaseModel] | UnionType, description: str = "The answer.") -> dict[int | str, dict[str, Any]]:
    """For a route's responses."""
    return {200: {"model": model, "description": description}}


def answer_or_stream(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The same, for a route that can stream."""
    (entry,) = answer(model, "The answer; with `stream`, its chunks as server-sent events.").values()
    return {200: {**entry, "content": {"text/event-stream": {}}}}
