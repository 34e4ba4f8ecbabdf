"""From a conversation to a prompt, and to what its answer is bound to: what the endpoints that take messages share.

Messages come here as plain dicts for the chat template, tools as a ToolUse; who sent them in which form is not known
here. All raise InvalidRequestError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from anllm.errors import InvalidRequestError
from anllm.parsers.choose import OutputFormat
from anllm.parsers.stream import OutputParser
from anllm.server.generation import Prompts
from anllm.server.service import LoadedModel
from anllm.server.structured import Structure
from anllm.server.tools import Tool, ToolUse, strict_schemas
from anllm.server.validation import invalid
from anllm.structured.grammar import around_schemas, embedded

_FIELDS_OF_THEIR_OWN = frozenset(  # and no template variables
    {"add_generation_prompt", "continue_final_message", "tools"}
)


def check_template_variables(variables: Mapping[str, Any]) -> None:
    taken = sorted(_FIELDS_OF_THEIR_OWN & variables.keys())
    if taken:
        raise invalid(
            "chat_template_kwargs", f"must not hold {', '.join(taken)}, which are fields of the request", None
        )


def template_variables(effort: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What templates of reasoning models ask for, under the names that they have for it; others don't look at it.
    given: the client's own, which win."""
    hints: dict[str, Any] = {}
    if effort is not None:
        hints = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {**hints, **(given or {})}


def render(
    messages: Sequence[Mapping[str, object]],
    model: LoadedModel,
    variables: Mapping[str, Any],
    *,
    param: str,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Tool] = (),
) -> str:
    """The prompt that the model's chat template makes of them. variables: for the template, checked before. param: the
    field that the messages came from."""
    if model.chat_template is None:
        raise InvalidRequestError(
            f"The model `{model.id}` has no chat template, so it can't take messages. Use /v1/completions.",
            param=param,
        )
    try:
        return model.chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            **variables,
        )
    except InvalidRequestError as error:
        error.param = param if error.param == "messages" else error.param
        raise


def with_parser(prompts: Prompts, output_format: OutputFormat, text: str, use: ToolUse) -> Prompts:
    """For answers that have parts. Without tools, and for a model that does not think aloud, an answer is one text.
    text: of the prompt."""
    takes_calls = bool(use.callable)
    if not takes_calls and not output_format.splits_answers:
        return prompts

    def parser() -> OutputParser:
        return output_format.parser(text, use.callable, takes_calls=takes_calls)

    return replace(prompts, parser=parser, kept=output_format.markers, max_calls=use.max_calls)


def bound(structure: Structure | None, model: LoadedModel, text: str, use: ToolUse) -> Structure | None:
    """The grammar of the whole answer: calls that have to come, calls that have to fit, a form for its content, or both
    of these; thoughts go before it. text: of the prompt."""
    formats, tokenizer = model.output_format, model.tokenizer

    def special_id(piece: str) -> int | None:
        token_id = tokenizer.token_id(piece)
        return token_id if token_id in tokenizer.special_token_ids else None

    param = "functions" if use.is_legacy else "tools"
    if use.min_calls:
        calls = formats.call_grammar(
            text, use.callable, min_calls=use.min_calls, max_calls=use.max_calls, special_id=special_id
        )
        return Structure(around_schemas(calls), param, partial(strict_schemas, use))
    if structure is not None and (use.callable or formats.splits_answers):

        def answer(body: str) -> str:
            return formats.answer_grammar(text, body, use.callable, max_calls=use.max_calls, special_id=special_id)

        return replace(structure, source=embedded(structure.source, answer))
    if use.is_bound:
        free = formats.free_grammar(text, use.callable, special_id=special_id)
        return Structure(around_schemas(free), param, partial(strict_schemas, use))
    return structure
