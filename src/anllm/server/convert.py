"""Rules of request fields that several endpoints share: from what the schema lets through to core values.

All raise InvalidRequestError. After this there is nothing left to check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from anllm.config import ServerConfig
from anllm.core.request import SamplingParams
from anllm.errors import ContextLengthError, ModelNotFoundError
from anllm.server.generation import Prompts
from anllm.server.protocol import MAX_LOGIT_BIAS, MAX_STOP_CHARS, GenerationRequest, SampledRequest
from anllm.server.service import LoadedModel
from anllm.server.validation import invalid, missing


def check_shared_rules(request: GenerationRequest, model: LoadedModel, config: ServerConfig) -> None:
    """Of chat and completions: as check_sampling_rules."""
    if request.n is not None and request.n > config.max_n:
        raise invalid("n", f"must be <= {config.max_n}", "integer_above_max_value", given=request.n)
    if request.prompt_logprobs is not None and request.stream:
        raise invalid("prompt_logprobs", "is only allowed when 'stream' is false", None, given=request.prompt_logprobs)
    check_sampling_rules(request, model, config)


def check_sampling_rules(request: SampledRequest, model: LoadedModel, config: ServerConfig) -> None:
    """What needs the server's limits, the vocabulary, or two fields at once; then that the model is the one served."""
    if not request.model:
        raise missing("model")
    _check_stop(stop_strings(request), config.max_stop_strings, _name_of_stop(request))
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "is only allowed when 'stream' is true", None)
    _check_logit_bias(request.logit_bias or {}, model.tokenizer.vocab_size)
    for name in ("stop_token_ids", "allowed_token_ids"):
        for index, token_id in enumerate(getattr(request, name) or ()):
            check_token_id(token_id, model.tokenizer.vocab_size, f"{name}[{index}]")
    if request.allowed_token_ids == []:
        raise invalid("allowed_token_ids", "must name at least one token, or be left out", given=[])
    check_model(request.model, model)


def check_model(name: str, model: LoadedModel) -> None:
    """Raises ModelNotFoundError unless the model is the one served."""
    if name != model.id:
        raise ModelNotFoundError(
            f"The model `{_shortened(name)}` does not exist or you do not have access to it. "
            f"This server serves `{model.id}`."
        )


def stop_strings(request: SampledRequest) -> tuple[str, ...]:
    if isinstance(request.stop, str):
        return (request.stop,)
    return tuple(request.stop or ())


def check_token_id(token_id: int, vocab_size: int, param: str) -> None:
    if not 0 <= token_id < vocab_size:
        rule = f"must be a token id of the model, from 0 to {vocab_size - 1}"
        raise invalid(param, rule, given=token_id)


def encode(text: str, model: LoadedModel, param: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    """Token ids. A text that can't fit is refused before it is tokenized, which could take seconds."""
    if len(text) > model.max_model_len * model.tokenizer.max_token_chars:
        raise ContextLengthError(None, model.max_model_len, param=param)
    return tuple(model.tokenizer.encode(text, add_special_tokens=add_special_tokens))


def to_prompts(
    request: GenerationRequest,
    token_ids: Sequence[tuple[int, ...]],
    model: LoadedModel,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    param: str,
    client: str,
    echoes_logprobs: bool = False,
) -> Prompts:
    """As sampled_prompts, with what chat and completions can ask for beyond that. echoes_logprobs: what `logprobs` asks
    for is wanted of the prompts, too, and of each token."""
    prompts = sampled_prompts(
        request, token_ids, model, max_tokens=max_tokens, logprobs=logprobs, param=param, client=client
    )
    told_of_prompts = (request.prompt_logprobs, logprobs if echoes_logprobs else None)
    sampling = replace(
        prompts.sampling,
        n=request.n or 1,
        prompt_logprobs=max((number for number in told_of_prompts if number is not None), default=None),
    )
    returns_token_ids = bool(request.return_token_ids)
    return replace(prompts, sampling=sampling, returns_token_ids=returns_token_ids, keeps_silent=echoes_logprobs)


def sampled_prompts(
    request: SampledRequest,
    token_ids: Sequence[tuple[int, ...]],
    model: LoadedModel,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    param: str,
    client: str,
) -> Prompts:
    """The prompts with their sampling, for one answer each. A limit above what the context leaves is lowered to it;
    each prompt must leave room for one token. `param` is the field that the prompts came from, `client` who sent
    them."""
    for ids in token_ids:
        if len(ids) >= model.max_model_len:
            raise ContextLengthError(len(ids), model.max_model_len, param=param)
    room = model.max_model_len - min(map(len, token_ids))
    defaults = model.defaults
    sampling = SamplingParams(
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        max_tokens=room if max_tokens is None else max(1, min(max_tokens, room)),
        seed=request.seed,
        stop=stop_strings(request),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        top_k=max(0, min(defaults.top_k if request.top_k is None else request.top_k, model.tokenizer.vocab_size)),
        min_p=defaults.min_p if request.min_p is None else request.min_p,
        repetition_penalty=(
            defaults.repetition_penalty if request.repetition_penalty is None else request.repetition_penalty
        ),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_to_logit_bias(request.logit_bias or {}),
        allowed_token_ids=tuple(request.allowed_token_ids or ()),
        min_tokens=min(request.min_tokens or 0, model.max_model_len),
        priority=request.priority or 0,
        cache_salt=_hashed(request.cache_salt) if request.cache_salt else "",
        logprobs=logprobs,
    )
    return Prompts(tuple(token_ids), sampling, is_empty=max_tokens == 0, client=client)


def _hashed(salt: str) -> str:
    """Short, and no secret any more."""
    return hashlib.sha256(salt.encode()).hexdigest()


def _name_of_stop(request: SampledRequest) -> str:
    return type(request).model_fields["stop"].alias or "stop"


def _check_stop(stop: tuple[str, ...], max_items: int, param: str) -> None:
    if len(stop) > max_items:
        raise invalid(param, f"must have at most {max_items} items, got {len(stop)}", "array_above_max_length")
    for text in stop:
        if not text:
            raise invalid(param, "must not hold an empty string")
        if len(text) > MAX_STOP_CHARS:
            rule = f"each string must have at most {MAX_STOP_CHARS} characters, got {len(text)}"
            raise invalid(param, rule, "string_above_max_length")


def _check_logit_bias(logit_bias: dict[str, object], vocab_size: int) -> None:
    """By hand: a fault is reported for the field, not for the token."""
    for key, value in logit_bias.items():
        is_id = key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) < vocab_size
        if not is_id:
            raise invalid("logit_bias", f"keys must be token ids from 0 to {vocab_size - 1}", given=key)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > MAX_LOGIT_BIAS:
            rule = f"values must be numbers from -{MAX_LOGIT_BIAS} to {MAX_LOGIT_BIAS}"
            raise invalid("logit_bias", rule, given=value)


def _to_logit_bias(logit_bias: dict[str, object]) -> tuple[tuple[int, float], ...]:
    """A checked bias. Of "1" and "01" the last one counts."""
    biases = {int(key): float(value) for key, value in logit_bias.items() if isinstance(value, int | float)}
    return tuple(biases.items())


def _shortened(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:100]}..."
