"""Request fields that several endpoints share, and the error object for the documentation.

Types are strict: no string is a number, no boolean is a number. A whole number may stand for a decimal and 10.0 for 10.
null means absent for every optional field. What a field does, and whether it is honoured yet, see support.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from anllm.core.request import MAX_PRIORITY


def _integral(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _string_or_array(value: object) -> str | None:
    return "<string>" if isinstance(value, str) else "<array>" if isinstance(value, list) else None


def _string_or_object(value: object) -> str | None:
    return "<string>" if isinstance(value, str) else "<object>" if isinstance(value, dict) else None


INTEGRAL = BeforeValidator(_integral)
AS_STRING, AS_ARRAY, AS_OBJECT = Tag("<string>"), Tag("<array>"), Tag("<object>")
STRING_OR_ARRAY = Discriminator(
    _string_or_array, custom_error_type="string_or_array", custom_error_message="must be a string or an array"
)
STRING_OR_OBJECT = Discriminator(
    _string_or_object, custom_error_type="string_or_object", custom_error_message="must be a string or an object"
)
FIRST_FAULT_ONLY = Field(fail_fast=True)  # one malformed body must not give megabytes of error text

String = Annotated[str, AS_STRING]
StringOrObject = Annotated[String | Annotated[dict[str, object], AS_OBJECT], STRING_OR_OBJECT]
Strings = Annotated[list[str], FIRST_FAULT_ONLY]
Choices = Annotated[Strings, WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1})]
Integer = Annotated[int, INTEGRAL]
Count = Annotated[int, Field(ge=0), INTEGRAL]
PositiveInteger = Annotated[int, Field(ge=1), INTEGRAL]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Object = dict[str, object]

# What follows is looked at by hand in convert.py, for its words or its speed; the schema says what it finds right.
MAX_STOP_CHARS = 1024
MAX_LOGIT_BIAS = 100
TokenId = Annotated[Integer, WithJsonSchema({"type": "integer", "minimum": 0})]
_STOP_STRING = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
StopString = Annotated[str, WithJsonSchema(_STOP_STRING)]
Stop = Annotated[
    Annotated[StopString, AS_STRING] | Annotated[Annotated[list[StopString], FIRST_FAULT_ONLY], AS_ARRAY],
    STRING_OR_ARRAY,
]
LogitBias = Annotated[
    Object,
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS},
        }
    ),
]


def if_then(key: str, values: list[str], then: dict[str, Any]) -> dict[str, Any]:
    """For the documentation, as JSON schema: what else holds if the key has one of these values."""
    return {"if": {"properties": {key: {"enum": values}}, "required": [key]}, "then": then}


def has(key: str) -> dict[str, Any]:
    """As JSON schema: the key is there, and not null."""
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}


class RequestModel(BaseModel):
    """Base of all that comes in. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(RequestModel):
    name: str
    description: str | None = None
    json_schema: Annotated[Object | None, Field(alias="schema")] = None
    strict: bool | None = None


_GIVEN = has("json_schema")
_GIVEN["properties"]["json_schema"]["properties"] = {"schema": {"not": {"type": "null"}}}  # it may be left out


class ResponseFormat(RequestModel):
    model_config = ConfigDict(json_schema_extra=if_then("type", ["json_schema"], _GIVEN))

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(RequestModel):
    """vLLM's: exactly one of them. `json` is a schema, as an object or as its text."""

    json_value: Annotated[StringOrObject | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: object | None = None


class Function(RequestModel):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class SampledRequest(RequestModel):
    """What all endpoints that generate have in common."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    stop: Stop | None = None
    seed: Integer | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    user: str | None = None
    # not OpenAI's, but common to local servers
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=1024)] | None = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(fail_fast=True, max_length=65_536, json_schema_extra={"minItems": 1})] | None
    ) = None
    ignore_eos: bool | None = None
    top_k: Annotated[int, Field(ge=-1), INTEGRAL] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), INTEGRAL] | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: StringOrObject | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


class GenerationRequest(SampledRequest):
    """What chat and legacy completions have in common."""

    n: PositiveInteger | None = None
    response_format: ResponseFormat | None = None
    # not OpenAI's
    prompt_logprobs: Annotated[int, Field(ge=0, le=20), INTEGRAL] | None = None
    return_token_ids: bool | None = None


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """Every answer that is not 2xx."""

    error: ErrorBody
