"""From the body of a Messages request to what is to be generated. All raise InvalidRequestError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anllm.config import ServerConfig
from anllm.errors import ContextLengthError
from anllm.server.body import JsonObject
from anllm.server.conversation import bound, check_template_variables, render, with_parser
from anllm.server.convert import check_model, check_sampling_rules, encode, sampled_prompts
from anllm.server.field_support import NEUTRAL_MESSAGES_VALUES, refuse_unsupported
from anllm.server.generation import Prompts
from anllm.server.messages.conversation import is_begun_answer, to_messages
from anllm.server.messages.protocol import Conversation, CountTokensRequest, MessagesRequest
from anllm.server.messages.tools import tool_use
from anllm.server.service import LoadedModel
from anllm.server.structured import Structure, of_schema, structure_of
from anllm.server.tools import ToolUse
from anllm.server.validation import invalid, validate


@dataclass(frozen=True, slots=True)
class MessagesPlan:
    """structure: a grammar to compile before the prompts can be submitted. shows_thoughts: whether the answer tells
    what the model thought."""

    request: MessagesRequest
    prompts: Prompts
    structure: Structure | None
    shows_thoughts: bool


def plan_messages(body: JsonObject, model: LoadedModel, config: ServerConfig, client: str) -> MessagesPlan:
    """Everything that can be wrong with the request is found here, before the engine hears of it.

    client: whose it is.
    """
    _check_number(body, model)
    request = validate(MessagesRequest, body)
    use = tool_use(request)
    structure = structure_of(request, _form_of(request))
    check_sampling_rules(request, model, config)
    refuse_unsupported(body, NEUTRAL_MESSAGES_VALUES)
    text, prompt = _prompt(request, model, use)
    prompts = sampled_prompts(
        request, [prompt], model, max_tokens=request.max_tokens, logprobs=None, param="messages", client=client
    )
    prompts = with_parser(prompts, model.output_format, text, use)
    return MessagesPlan(request, prompts, bound(structure, model, text, use), _shows_thoughts(request))


def count_tokens(body: JsonObject, model: LoadedModel) -> int:
    """Of the prompt that such a request gives."""
    _check_number(body, model)
    request = validate(CountTokensRequest, body)
    check_model(request.model, model)
    return len(_prompt(request, model, tool_use(request))[1])


def _check_number(body: JsonObject, model: LoadedModel) -> None:
    messages = body.get("messages")
    if isinstance(messages, list) and len(messages) > model.max_model_len:  # each takes a token at least
        raise ContextLengthError(None, model.max_model_len, param="messages")


def _prompt(request: Conversation, model: LoadedModel, use: ToolUse) -> tuple[str, tuple[int, ...]]:
    """Its text and its tokens."""
    variables = _template_variables(request)
    check_template_variables(variables)
    is_begun = is_begun_answer(request.messages[-1])
    text = render(
        to_messages(request),
        model,
        variables,
        param="messages",
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
        tools=use.offered,
    )
    prompt = encode(text, model, "messages", add_special_tokens=False)
    if not prompt:
        raise invalid("messages", "must give at least one token", None)
    return text, prompt


def _template_variables(request: Conversation) -> dict[str, Any]:
    """As with Anthropic, a model thinks when it is told to. What the client says to the template itself wins."""
    thinking = request.thinking
    hints: dict[str, Any] = {"enable_thinking": thinking is not None and thinking.is_on}
    if request.output_config is not None and request.output_config.effort is not None:
        hints["reasoning_effort"] = request.output_config.effort
    return {**hints, **(request.chat_template_kwargs or {})}


def _shows_thoughts(request: Conversation) -> bool:
    """Clients that did not ask for thoughts take the first block of the answer for its text."""
    thinking = request.thinking
    return thinking is not None and thinking.is_on and thinking.display != "omitted"


def _form_of(request: MessagesRequest) -> Structure | None:
    """output_format is the older name of output_config.format."""
    new = None if request.output_config is None else request.output_config.format
    if new is not None and request.output_format is not None:
        raise invalid("output_format", "is not allowed together with 'output_config.format'", None)
    wanted, param = (new, "output_config.format") if new is not None else (request.output_format, "output_format")
    return None if wanted is None else of_schema(param, wanted.json_schema, strict=True)
