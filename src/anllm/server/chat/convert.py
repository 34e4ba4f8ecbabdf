"""From the body of a chat request to what is to be generated. All raise InvalidRequestError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anllm.config import ServerConfig
from anllm.errors import ContextLengthError
from anllm.server.body import JsonObject
from anllm.server.chat.protocol import CalledFunction, ChatCompletionRequest, ContentPart, Message, ToolCall
from anllm.server.chat.tools import tool_use
from anllm.server.conversation import bound, check_template_variables, render, template_variables, with_parser
from anllm.server.convert import check_shared_rules, encode, to_prompts
from anllm.server.field_support import NEUTRAL_CHAT_VALUES, refuse_unsupported
from anllm.server.generation import Prompts
from anllm.server.service import LoadedModel
from anllm.server.structured import Structure, of_response_format, structure_of
from anllm.server.tools import Tool, ToolUse
from anllm.server.validation import invalid, missing, validate

_NON_TEXT_PARTS = frozenset({"image_url", "input_audio", "file", "video_url", "audio_url", "image"})


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """structure: a grammar to compile before the prompts can be submitted."""

    request: ChatCompletionRequest
    prompts: Prompts
    use: ToolUse
    structure: Structure | None


def plan_chat(body: JsonObject, model: LoadedModel, config: ServerConfig, client: str) -> ChatPlan:
    """Everything that can be wrong with the request is found here, before the engine hears of it.

    client: whose it is.
    """
    messages = body.get("messages")
    if isinstance(messages, list) and len(messages) > model.max_model_len:  # each takes a token at least
        raise ContextLengthError(None, model.max_model_len, param="messages")
    request = validate(ChatCompletionRequest, body)
    _check_chat_rules(request)
    use = tool_use(request)
    structure = structure_of(request, of_response_format(request.response_format))
    check_shared_rules(request, model, config)
    refuse_unsupported(body, NEUTRAL_CHAT_VALUES)
    text = render_messages(
        request.messages,
        model,
        template_variables(request.reasoning_effort, request.chat_template_kwargs),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        tools=use.offered,
    )
    prompt = encode(text, model, "messages", add_special_tokens=False)
    if not prompt:
        raise invalid("messages", "must give at least one token", None)
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    prompts = to_prompts(
        request, [prompt], model, max_tokens=max_tokens, logprobs=logprobs, param="messages", client=client
    )
    prompts = with_parser(prompts, model.output_format, text, use)
    return ChatPlan(request, prompts, use, bound(structure, model, text, use))


def template_messages(messages: list[Message]) -> list[dict[str, object]]:
    """The messages as plain dicts for the chat template: only keys that it may know, nulls left out."""
    has_calls = False
    plain = []
    for index, message in enumerate(messages):
        if message.role == "tool" and not has_calls:
            raise invalid(
                f"messages[{index}].role", "a tool message must follow an assistant message with tool_calls", None
            )
        has_calls = has_calls or bool(message.tool_calls)
        plain.append(_plain_message(message, f"messages[{index}]"))
    return plain


def render_messages(
    messages: list[Message],
    model: LoadedModel,
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
    tools: Sequence[Tool] = (),
) -> str:
    """The prompt that the model's chat template makes of them. variables: for the template, chat_template_kwargs.

    With continue_final_message it ends with the last message's text; else, unless add_generation_prompt is False, with
    the beginning of the assistant's turn.
    """
    if add_generation_prompt and continue_final_message:
        raise invalid("add_generation_prompt", "must not be true together with 'continue_final_message'", None)
    check_template_variables(variables)
    plain = template_messages(messages)
    return render(
        plain,
        model,
        variables,
        param="messages",
        add_generation_prompt=add_generation_prompt is not False and not continue_final_message,
        continue_final_message=bool(continue_final_message),
        tools=tools,
    )


# -- messages ----------------------------------------------------------------------------------------------------------


def _plain_message(message: Message, param: str) -> dict[str, object]:
    _check_message(message, param)
    plain: dict[str, object] = {"role": message.role, "content": _plain_content(message, param)}
    optional = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [_plain_call(call) for call in message.tool_calls or ()] or None,
        "function_call": message.function_call and _plain_function(message.function_call),
        "reasoning_content": message.reasoning_content or message.reasoning,
    }
    return plain | {key: value for key, value in optional.items() if value is not None}


def _check_message(message: Message, param: str) -> None:
    may_be_empty = message.role in ("assistant", "function")
    if message.content is None and not may_be_empty:
        raise missing(f"{param}.content")
    if message.role == "tool" and message.tool_call_id is None:
        raise missing(f"{param}.tool_call_id")
    if message.role == "function" and message.name is None:
        raise missing(f"{param}.name")


def _plain_content(message: Message, param: str) -> object:
    """Parts stay parts, text ones only. An assistant's refusal is its text."""
    if message.content is None:
        return message.refusal or ""
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": _part_text(part, message.role, f"{param}.content[{index}]")}
        for index, part in enumerate(message.content)
    ]


def _part_text(part: ContentPart, role: str, param: str) -> str:
    if part.type == "text":
        text, key = part.text, "text"
    elif part.type == "refusal" and role == "assistant":
        text, key = part.refusal, "refusal"
    elif part.type in _NON_TEXT_PARTS:
        raise invalid(f"{param}.type", f"the model takes text only, got a part of type '{part.type}'", None)
    else:
        raise invalid(f"{param}.type", "must be 'text'", given=part.type)
    if text is None:
        raise missing(f"{param}.{key}")
    return text


def _plain_call(call: ToolCall) -> dict[str, object]:
    plain: dict[str, object] = {"type": "function", "function": _plain_function(call.function)}
    return plain if call.id is None else {"id": call.id, **plain}


def _plain_function(function: CalledFunction) -> dict[str, object]:
    """By hand: pydantic's own dump refuses arguments that are nested deeply."""
    return {"name": function.name, "arguments": "" if function.arguments is None else function.arguments}


# -- rules between fields ----------------------------------------------------------------------------------------------


def _check_chat_rules(request: ChatCompletionRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "is only allowed when 'logprobs' is true", None)
    for modality in request.modalities or ():
        if modality != "text":
            raise invalid("modalities", "only 'text' is supported", "unsupported_value", given=modality)
