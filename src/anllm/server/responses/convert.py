"""From the body of a Responses request to what is to be generated. All raise InvalidRequestError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anllm.config import ServerConfig
from anllm.errors import ContextLengthError, InvalidRequestError
from anllm.server.body import JsonObject
from anllm.server.conversation import bound, check_template_variables, render, template_variables, with_parser
from anllm.server.convert import check_sampling_rules, encode, sampled_prompts
from anllm.server.field_support import NEUTRAL_RESPONSES_VALUES, refuse_unsupported
from anllm.server.generation import Prompts
from anllm.server.responses.item_protocol import MessageItem
from anllm.server.responses.items import Placed, kept_form, known_items, without_references
from anllm.server.responses.messages import Message, to_messages
from anllm.server.responses.protocol import (
    MAX_KEY_CHARS,
    MAX_METADATA,
    MAX_VALUE_CHARS,
    ResponsesRequest,
    TextConfig,
)
from anllm.server.responses.store import Item, ResponseNotKeptError, ResponseStore
from anllm.server.responses.tools import OfferedTools, offered_tools
from anllm.server.responses.truncation import longest_that_fits
from anllm.server.service import LoadedModel
from anllm.server.structured import Structure, of_json_object, of_schema, structure_of
from anllm.server.validation import invalid, missing, validate

_LOGPROBS = "message.output_text.logprobs"
_ROOM_SHARE = 8  # of the context, one in so many tokens is left for an answer to a truncated conversation


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """structure: a grammar to compile before the prompts can be submitted.

    input_items: what the request itself brought, as it is kept. is_kept: whether the response is to be kept.
    echoed_*: what the response says of the request's fields of the same names.
    """

    request: ResponsesRequest
    prompts: Prompts
    tools: OfferedTools
    structure: Structure | None
    input_items: tuple[Item, ...]
    is_kept: bool
    echoed_tools: list[object]
    echoed_text: JsonObject
    echoed_reasoning: JsonObject


def plan_response(
    body: JsonObject, model: LoadedModel, config: ServerConfig, client: str, store: ResponseStore
) -> ResponsePlan:
    """Everything that can be wrong with the request is found here, before the engine hears of it.

    client: whose it is, and whose responses of the store it may go on from.
    """
    items = body.get("input")
    if isinstance(items, list) and len(items) > model.max_model_len and body.get("truncation") != "auto":
        raise ContextLengthError(None, model.max_model_len, param="input")  # each takes a token at least
    request = validate(ResponsesRequest, body)
    _check_rules(request)
    tools = offered_tools(request)
    structure = structure_of(request, _of_text(request.text))
    check_sampling_rules(request, model, config)
    refuse_unsupported(body, NEUTRAL_RESPONSES_VALUES)
    own = _own_items(request, client, store)
    messages = to_messages([*_history(request, client, store), *own], tools.model_name)
    if request.instructions is not None:
        messages.insert(0, {"role": "system", "content": request.instructions})
    if not messages:
        raise invalid("input", "must hold a message, or follow a previous response that does", None)
    text, prompt = _prompt(messages, request, model, tools)
    include = request.include or ()
    prompts = sampled_prompts(
        request,
        [prompt],
        model,
        max_tokens=request.max_output_tokens,
        logprobs=(request.top_logprobs or 0) if _LOGPROBS in include else None,
        param="input",
        client=client,
    )
    prompts = with_parser(prompts, model.output_format, text, tools.use)
    is_kept = request.store is not False and store.keeps_any
    return ResponsePlan(
        request,
        prompts,
        tools,
        bound(structure, model, text, tools.use),
        tuple(kept_form(item) for _, item in own) if is_kept else (),
        is_kept,
        [_echoed_tool(tool) for tool in _array(body.get("tools"))],
        {"format": {"type": "text"}, **_given(body.get("text"))},
        {"effort": None, "summary": None, **_given(body.get("reasoning"))},
    )


# -- the conversation --------------------------------------------------------------------------------------------------


def _own_items(request: ResponsesRequest, client: str, store: ResponseStore) -> list[Placed]:
    """What the request itself brings."""
    if request.input is None:
        return []
    if isinstance(request.input, str):
        return [("input", MessageItem(role="user", content=request.input))]
    return without_references(request.input, lambda item_id: store.item(client, item_id))


def _history(request: ResponsesRequest, client: str, store: ResponseStore) -> list[Placed]:
    """What it goes on from."""
    wanted = request.previous_response_id
    if wanted is None:
        return []
    try:
        return known_items(store.history(client, wanted))
    except ResponseNotKeptError as error:
        missing_id = error.response_id
    why = "" if missing_id == wanted else f" It goes on from '{missing_id}', which was deleted."
    if not store.keeps_any:
        why = " This server keeps none (--max-stored-responses 0)."
    raise InvalidRequestError(
        f"Previous response with id '{wanted[:100]}' not found.{why} Responses are kept for a while, in memory, unless "
        "'store' is false. Send the whole conversation in 'input'.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _prompt(
    messages: list[Message], request: ResponsesRequest, model: LoadedModel, tools: OfferedTools
) -> tuple[str, tuple[int, ...]]:
    """The text of the prompt and its tokens; of a conversation without its oldest turns, if that is asked for."""
    effort = None if request.reasoning is None else request.reasoning.effort
    variables = template_variables(effort, request.chat_template_kwargs)
    check_template_variables(variables)

    def prompt_of(conversation: Sequence[Message]) -> tuple[str, tuple[int, ...]]:
        text = render(conversation, model, variables, param="input", tools=tools.use.offered)
        return text, encode(text, model, "input", add_special_tokens=False)

    if request.truncation == "auto":
        room = min(request.max_output_tokens or model.max_model_len // _ROOM_SHARE, model.max_model_len // 2)

        def fits(conversation: Sequence[Message]) -> bool:
            try:
                return len(prompt_of(conversation)[1]) <= model.max_model_len - max(room, 1)
            except ContextLengthError:
                return False

        messages = list(longest_that_fits(messages, fits) or messages)
    text, prompt = prompt_of(messages)
    if not prompt:
        raise invalid("input", "must give at least one token", None)
    return text, prompt


# -- rules and forms ---------------------------------------------------------------------------------------------------


def _check_rules(request: ResponsesRequest) -> None:
    if request.input is None and request.previous_response_id is None:
        raise missing("input")
    metadata = request.metadata or {}
    if len(metadata) > MAX_METADATA:
        rule = f"must have at most {MAX_METADATA} keys, got {len(metadata)}"
        raise invalid("metadata", rule, "object_above_max_properties")
    for key, value in metadata.items():
        if len(key) > MAX_KEY_CHARS:
            raise invalid("metadata", f"keys must have at most {MAX_KEY_CHARS} characters", "string_above_max_length")
        if not isinstance(value, str):
            raise invalid(f"metadata.{key}", "must be a string", "invalid_type", given=value)
        if len(value) > MAX_VALUE_CHARS:
            rule = f"must have at most {MAX_VALUE_CHARS} characters"
            raise invalid(f"metadata.{key}", rule, "string_above_max_length")


def _of_text(text: TextConfig | None) -> Structure | None:
    wanted = None if text is None else text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return of_json_object("text.format")
    if wanted.name is None:
        raise missing("text.format.name")
    if wanted.json_schema is None:
        raise missing("text.format.schema")
    return of_schema("text.format", wanted.json_schema, strict=wanted.strict)


# -- what is echoed ----------------------------------------------------------------------------------------------------


def _echoed_tool(tool: object) -> object:
    """A function with all its keys, as OpenAI's types want them."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, **tool, "strict": tool.get("strict") is True}


def _array(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _given(value: object) -> dict[str, Any]:
    return {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else {}
