"""From the body of a chat request to what is to be generated. All raise InvalidRequestError."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anllm.config import ServerConfig
from anllm.errors import ContextLengthError, InvalidRequestError
from anllm.server.body import JsonObject
from anllm.server.chat.protocol import CalledFunction, ChatCompletionRequest, ContentPart, Message, ToolCall
from anllm.server.convert import check_shared_rules, encode, to_prompts
from anllm.server.field_support import NEUTRAL_CHAT_VALUES, refuse_unsupported, unsupported
from anllm.server.generation import Prompts
from anllm.server.service import LoadedModel
from anllm.server.validation import invalid, missing, validate

_FIELDS_OF_THEIR_OWN = frozenset(  # and no template variables
    {"add_generation_prompt", "continue_final_message", "tools"}
)
_NON_TEXT_PARTS = frozenset({"image_url", "input_audio", "file", "video_url", "audio_url", "image"})


@dataclass(frozen=True, slots=True)
class ChatPlan:
    request: ChatCompletionRequest
    prompts: Prompts


def plan_chat(body: JsonObject, model: LoadedModel, config: ServerConfig) -> ChatPlan:
    """Everything that can be wrong with the request is found here, before the engine hears of it."""
    messages = body.get("messages")
    if isinstance(messages, list) and len(messages) > model.max_model_len:  # each takes a token at least
        raise ContextLengthError(None, model.max_model_len, param="messages")
    request = validate(ChatCompletionRequest, body)
    _check_chat_rules(request, body)
    check_shared_rules(request, model, config)
    refuse_unsupported(body, NEUTRAL_CHAT_VALUES)
    text = render_messages(
        request.messages,
        model,
        _template_variables(request),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )
    prompt = encode(text, model, "messages", add_special_tokens=False)
    if not prompt:
        raise invalid("messages", "must give at least one token", None)
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    prompts = to_prompts(request, [prompt], model, max_tokens=max_tokens, logprobs=logprobs, param="messages")
    return ChatPlan(request, prompts)


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
) -> str:
    """The prompt that the model's chat template makes of them. variables: for the template, chat_template_kwargs.

    With continue_final_message it ends with the last message's text; else, unless add_generation_prompt is False, with
    the beginning of the assistant's turn.
    """
    if add_generation_prompt and continue_final_message:
        raise invalid("add_generation_prompt", "must not be true together with 'continue_final_message'", None)
    taken = sorted(_FIELDS_OF_THEIR_OWN & variables.keys())
    if taken:
        raise invalid(
            "chat_template_kwargs", f"must not hold {', '.join(taken)}, which are fields of the request", None
        )
    plain = template_messages(messages)
    if model.chat_template is None:
        raise InvalidRequestError(
            f"The model `{model.id}` has no chat template, so it can't take messages. Use /v1/completions.",
            param="messages",
        )
    return model.chat_template.render(
        plain,
        add_generation_prompt=add_generation_prompt is not False and not continue_final_message,
        continue_final_message=bool(continue_final_message),
        **variables,
    )


def _template_variables(request: ChatCompletionRequest) -> dict[str, Any]:
    """What templates of reasoning models ask for, under the names that they have for it; others don't look at it."""
    hints: dict[str, Any] = {}
    if request.reasoning_effort is not None:
        hints = {"reasoning_effort": request.reasoning_effort, "enable_thinking": request.reasoning_effort != "none"}
    return {**hints, **(request.chat_template_kwargs or {})}


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


def _check_chat_rules(request: ChatCompletionRequest, body: JsonObject) -> None:
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "is only allowed when 'logprobs' is true", None)
    for modality in request.modalities or ():
        if modality != "text":
            raise invalid("modalities", "only 'text' is supported", "unsupported_value", given=modality)
    _check_tool_choice(request)
    response_format = request.response_format
    if response_format is not None and response_format.type != "text":
        if response_format.type == "json_schema" and response_format.json_schema is None:
            raise missing("response_format.json_schema")
        raise unsupported("response_format")


def _check_tool_choice(request: ChatCompletionRequest) -> None:
    choice = request.tool_choice
    if choice is None or choice in ("none", "auto"):
        return
    names = {tool.function.name for tool in request.tools or ()}
    if isinstance(choice, str):
        if choice != "required":
            rule = "must be 'none', 'auto', 'required' or an object"
            raise invalid("tool_choice", rule, given=choice)
    else:
        _check_named_choice(choice, names)
    if not names:
        raise invalid("tool_choice", "is only allowed when 'tools' are given", None)
    raise unsupported("tool_choice")


def _check_named_choice(choice: dict[str, object], names: set[str]) -> None:
    kind = choice.get("type")
    if kind is None:
        raise missing("tool_choice.type")
    if kind not in ("function", "allowed_tools"):
        raise invalid("tool_choice.type", "must be 'function' or 'allowed_tools'", given=kind)
    member = choice.get(kind)
    if member is None:
        raise missing(f"tool_choice.{kind}")
    if not isinstance(member, dict):
        raise invalid(f"tool_choice.{kind}", "must be an object", "invalid_type", given=member)
    if kind == "function":
        _check_function_name(member.get("name"), names)


def _check_function_name(name: object, names: set[str]) -> None:
    if name is None:
        raise missing("tool_choice.function.name")
    if not isinstance(name, str):
        raise invalid("tool_choice.function.name", "must be a string", "invalid_type", given=name)
    if name not in names:
        raise invalid("tool_choice", "must name one of 'tools'", given=name)
