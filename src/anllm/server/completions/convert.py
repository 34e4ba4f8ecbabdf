"""From the body of a completion request to what is to be generated. All raise InvalidRequestError."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from anllm.config import ServerConfig
from anllm.errors import ContextLengthError, InvalidRequestError
from anllm.server.body import JsonObject
from anllm.server.completions.protocol import MAX_PROMPTS, CompletionRequest
from anllm.server.convert import check_shared_rules, check_token_id, encode, to_prompts
from anllm.server.field_support import NEUTRAL_COMPLETION_VALUES, refuse_unsupported, unsupported
from anllm.server.generation import Prompts
from anllm.server.service import LoadedModel
from anllm.server.structured import Structure, of_response_format, structure_of
from anllm.server.validation import invalid, missing, validate

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """structure: a grammar to compile before the prompts can be submitted.

    echoes: for each prompt the text that its answers begin with; "" without echo.

    offsets: for each prompt the characters before its answers; 0 where nobody asks.
    """

    request: CompletionRequest
    prompts: Prompts
    structure: Structure | None
    echoes: tuple[str, ...]
    offsets: tuple[int, ...]


def plan_completion(body: JsonObject, model: LoadedModel, config: ServerConfig, client: str) -> CompletionPlan:
    """Everything that can be wrong with the request is found here, before the engine hears of it.

    client: whose it is.
    """
    request = validate(CompletionRequest, body)
    prompts = _separate_prompts(request.prompt, model.max_model_len)
    check_shared_rules(request, model, config)
    _check_best_of(request)
    structure = structure_of(request, of_response_format(request.response_format))
    refuse_unsupported(body, NEUTRAL_COMPLETION_VALUES)
    token_ids = [_prompt_ids(prompt, model) for prompt in prompts]
    max_tokens = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    return CompletionPlan(
        request,
        to_prompts(
            request,
            token_ids,
            model,
            max_tokens=max_tokens,
            logprobs=request.logprobs,
            param="prompt",
            client=client,
            echoes_logprobs=bool(request.echo) and request.logprobs is not None,
        ),
        structure,
        echoes=tuple(_text(prompt, model) if request.echo else "" for prompt in prompts),
        offsets=tuple(0 if request.logprobs is None else len(_text(prompt, model)) for prompt in prompts),
    )


def _separate_prompts(prompt: object, max_model_len: int) -> list[str] | list[list[int]]:
    """The four forms of `prompt` as one of two: a list of texts, or a list of token lists."""
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise invalid("prompt", "must be a string or an array", "invalid_type", given=prompt)
    if not prompt:
        raise invalid("prompt", "must not be empty", "empty_array")
    prompt = _with_integers(prompt)
    if list in map(type, prompt):
        prompt = [_with_integers(item) if isinstance(item, list) else item for item in prompt]
    if _is_tokens(prompt):
        return _checked_tokens([prompt], max_model_len)
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"must have at most {MAX_PROMPTS} prompts", "array_above_max_length")
    if _is_texts(prompt):
        return prompt
    if _is_token_lists(prompt):
        return _checked_tokens(prompt, max_model_len)
    raise invalid(
        "prompt", "an array must hold only strings, only token ids, or only arrays of token ids", "invalid_type"
    )


def _checked_tokens(prompts: list[list[int]], max_model_len: int) -> list[list[int]]:
    for ids in prompts:
        if not ids:
            raise invalid("prompt", "must not hold an empty array", "empty_array")
        if len(ids) >= max_model_len:
            raise ContextLengthError(len(ids), max_model_len, param="prompt")
    return prompts


def _with_integers(items: list[object]) -> list[object]:
    """10.0 counts as 10, as in all fields. Looked for at the speed of C, since there may be very many items."""
    if float in map(type, items):
        return [int(item) if isinstance(item, float) and item.is_integer() else item for item in items]
    return items


def _is_texts(items: list[object]) -> TypeGuard[list[str]]:
    return all(type(item) is str for item in items)


def _is_tokens(items: list[object]) -> TypeGuard[list[int]]:
    return all(type(item) is int for item in items)  # a bool is none


def _is_token_lists(items: list[object]) -> TypeGuard[list[list[int]]]:
    return all(isinstance(item, list) and _is_tokens(item) for item in items)


def _prompt_ids(prompt: str | list[int], model: LoadedModel) -> tuple[int, ...]:
    if isinstance(prompt, str):
        ids = encode(prompt, model, "prompt", add_special_tokens=True)
        if not ids:
            raise InvalidRequestError("Invalid 'prompt': must give at least one token, got \"\".", param="prompt")
        return ids
    for token_id in (min(prompt), max(prompt)):
        check_token_id(token_id, model.tokenizer.vocab_size, "prompt")
    return tuple(prompt)


def _text(prompt: str | list[int], model: LoadedModel) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)


def _check_best_of(request: CompletionRequest) -> None:
    n = request.n or 1
    if request.best_of is None or request.best_of == n:
        return
    if request.best_of < n:
        raise invalid("best_of", f"must be >= n, which is {n}", None, given=request.best_of)
    raise unsupported("best_of")
